"""Calibrators as torch modules, and folded into the last linear layer."""

import copy

import pytest
import torch
from torch import nn

from calibrant.calibrators import (
    CALIBRATORS,
    Blend,
    Calibrator,
    PriorShift,
    TemperatureScaling,
)
from calibrant.export import as_module, fold
from calibrant.export.layers import FOLDS


@pytest.mark.parametrize("name", [*CALIBRATORS, "blend", "prior_shift"])
class TestEveryModule:
    def test_equals_the_calibrator_also_where_classes_are_masked(self, name, fitted, masked_logits):
        calibrator = fitted(name, 5)
        layer = as_module(calibrator)
        masked = torch.from_numpy(masked_logits(5))
        for logits in (masked, torch.randn(50, 5) * 4):
            for given, tolerance in ((logits, 1e-5), (logits.double(), 1e-12)):
                expected = calibrator(given)
                torch.testing.assert_close(layer(given), expected, rtol=tolerance, atol=tolerance)

    def test_has_buffers_that_a_state_dict_restores(self, name, fitted):
        calibrator = fitted(name, 5)
        one = as_module(calibrator)
        assert not list(one.parameters())
        parts = calibrator.parts if isinstance(calibrator, Blend) else [calibrator]
        if isinstance(calibrator, PriorShift):
            parts.append(calibrator.calibrator)
        values = [value for part in parts for value in part.parameters.values()]
        assert len(list(one.buffers())) == sum(not isinstance(v, Calibrator) for v in values)
        two = copy.deepcopy(one)
        logits = torch.randn(50, 5)
        for key, buffer in two.named_buffers():
            # The weights of an ensemble and priors must sum to one.
            if buffer.is_floating_point() and not key.endswith(("weights", "source", "target")):
                # Bins of scaled scores must not be scaled alike.
                buffer.mul_(0.25 if key.endswith("edges") else 0.5)
        assert name == "identity" or not torch.allclose(two(logits), one(logits))
        two.load_state_dict(one.state_dict())
        torch.testing.assert_close(two(logits), one(logits))

    def test_passes_gradients_and_follows_a_cast_of_the_network(self, name, fitted):
        network = nn.Linear(6, 5)
        both = nn.Sequential(network, as_module(fitted(name, 5))).float()
        found = both(torch.randn(20, 6))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.exp().sum(1), torch.ones(20))
        # These are step functions.
        if name not in ("venn_abers", "histogram", "scaling_binning"):
            found[:, 0].sum().backward()
            assert network.weight.grad.isfinite().all()
            assert network.weight.grad.abs().sum() > 0
        # A device without memory has no numbers, but it shows that all of them moved.
        assert all(buffer.is_meta for buffer in both.to("meta").buffers())


def test_a_loaded_parameter_takes_effect():
    layer = as_module(TemperatureScaling(classes=2, temperature=2.0))
    assert repr(layer) == "CalibratorModule(TemperatureScaling, classes=2)"
    layer.load_state_dict({"temperature": torch.tensor(4.0, dtype=torch.float64)})
    logits = torch.tensor([[4.0, 0.0]])
    torch.testing.assert_close(layer(logits), (logits / 4).log_softmax(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", FOLDS)
def test_a_folded_layer_gives_the_calibrated_logits(name, bias, fitted, masked_logits):
    calibrator = fitted(name, 5)
    masked = torch.from_numpy(masked_logits(5)).isneginf()
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        layer = nn.Linear(8, 5, bias=bias, dtype=dtype).eval()
        before = layer.weight.detach().clone()
        folded = fold(calibrator, layer)
        x = torch.randn(300, 8, dtype=dtype)
        found, expected = folded(x).log_softmax(1), calibrator(layer(x))
        torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=tolerance)
        assert (folded.weight.dtype, folded.training) == (dtype, False)
        assert folded.weight.requires_grad
        assert torch.equal(layer.weight, before)
        # A matrix would mix the logits of masked classes.
        if name != "matrix":
            found = folded(x).masked_fill(masked, -torch.inf).softmax(1)
            expected = calibrator(layer(x).masked_fill(masked, -torch.inf)).exp()
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def test_half_precision_is_preserved():
    layer = nn.Linear(4, 3, dtype=torch.bfloat16)
    folded = fold(TemperatureScaling(classes=3, temperature=2.0), layer)
    assert folded.weight.dtype == torch.bfloat16
    assert torch.equal(folded.weight, layer.weight / 2)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_calibrators_that_are_not_affine_and_other_layers_are_refused(fitted):
    for name in set(CALIBRATORS) - set(FOLDS):
        words = f"{name} cannot be folded into a linear layer; only identity, temperature"
        with pytest.raises(ValueError, match=words):
            fold(fitted(name, 5), nn.Linear(8, 5))
    calibrator = TemperatureScaling(classes=3, temperature=2.0)
    with pytest.raises(ValueError, match="fitted on 3 classes, the layer has 4 outputs"):
        fold(calibrator, nn.Linear(8, 4))
    with pytest.raises(TypeError, match=r"expected the last nn.Linear of a network, got Conv2d"):
        fold(calibrator, nn.Conv2d(1, 3, 1))
