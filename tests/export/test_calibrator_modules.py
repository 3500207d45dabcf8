import copy

import pytest
import torch
from torch import nn

from calibrant.calibrators import CALIBRATORS, Blend, TemperatureScaling
from calibrant.export import as_module


@pytest.mark.parametrize("name", CALIBRATORS)
class TestEveryModule:
    def test_equals_the_calibrator(self, name, fitted):
        calibrator = fitted(name, 5)
        logits = torch.randn(50, 5) * 4
        for given, tolerance in ((logits, 1e-5), (logits.double(), 1e-12)):
            found = as_module(calibrator)(given)
            torch.testing.assert_close(found, calibrator(given), rtol=tolerance, atol=tolerance)

    def test_has_buffers_and_no_trainable_parameters(self, name, fitted):
        calibrator = fitted(name, 5)
        layer = as_module(calibrator)
        assert not list(layer.parameters())
        numbers = [v for v in calibrator.parameters.values() if not isinstance(v, str)]
        assert len(list(layer.buffers())) == len(numbers)

    def test_a_state_dict_restores_the_parameters(self, name, fitted):
        one = as_module(fitted(name, 5))
        two = copy.deepcopy(one)
        for buffer in two.buffers():
            if buffer.is_floating_point():
                buffer.mul_(0.5)
        two.load_state_dict(one.state_dict())
        logits = torch.randn(50, 5)
        torch.testing.assert_close(one(logits), two(logits))

    def test_gradients_reach_the_network(self, name, fitted):
        if name == "histogram":
            pytest.skip("constant within a bin: there is no gradient")
        network = nn.Linear(6, 5)
        both = nn.Sequential(network, as_module(fitted(name, 5)))
        both(torch.randn(20, 6))[:, 0].sum().backward()
        assert network.weight.grad.isfinite().all()
        assert network.weight.grad.abs().sum() > 0

    def test_follows_a_cast_of_the_network(self, name, fitted):
        both = nn.Sequential(nn.Linear(6, 5), as_module(fitted(name, 5))).float()
        found = both(torch.randn(20, 6))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.exp().sum(1), torch.ones(20))
        # A device without memory has no numbers, but it shows that all of them moved.
        assert all(buffer.is_meta for buffer in both.to("meta").buffers())


def test_a_loaded_parameter_takes_effect():
    layer = as_module(TemperatureScaling(classes=2, temperature=2.0))
    layer.load_state_dict({"temperature": torch.tensor(4.0, dtype=torch.float64)})
    logits = torch.tensor([[4.0, 0.0]])
    torch.testing.assert_close(layer(logits), (logits / 4).log_softmax(1))


def test_the_parameters_of_a_blend_are_those_of_its_parts(fitted):
    blend = Blend(classes=5, parts=(fitted("temperature", 5), fitted("vector", 5)))
    layer, other = as_module(blend), as_module(blend)
    logits = torch.randn(50, 5)
    torch.testing.assert_close(layer(logits), blend(logits))
    for buffer in other.buffers():
        buffer.mul_(0.5)
    assert not torch.allclose(other(logits), blend(logits))
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(logits), blend(logits))
    torch.testing.assert_close(copy.deepcopy(other)(logits), blend(logits))


def test_repr_names_the_calibrator():
    layer = as_module(TemperatureScaling(classes=2, temperature=2.0))
    assert repr(layer) == "CalibratorModule(TemperatureScaling, classes=2)"
