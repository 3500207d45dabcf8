import pytest
import torch
from torch import nn

from calibrant.calibrators import CALIBRATORS, TemperatureScaling
from calibrant.export import fold
from calibrant.export.fold import FOLDS

FOLDED = [name for name in CALIBRATORS if name in FOLDS]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["f32", "f64"]
)
@pytest.mark.parametrize("name", FOLDED)
def test_the_new_layer_gives_the_calibrated_logits(name, dtype, tolerance, bias, fitted):
    calibrator = fitted(name, 5)
    layer = nn.Linear(8, 5, bias=bias, dtype=dtype).eval()
    before = layer.weight.detach().clone()
    folded = fold(calibrator, layer)
    x = torch.randn(200, 8, dtype=dtype)
    found, expected = folded(x).log_softmax(1), calibrator(layer(x))
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=tolerance)
    assert folded.weight.dtype == dtype
    assert not folded.training
    assert torch.equal(layer.weight, before)
    assert folded.weight.requires_grad


def test_half_precision_is_preserved():
    layer = nn.Linear(4, 3, dtype=torch.bfloat16)
    folded = fold(TemperatureScaling(classes=3, temperature=2.0), layer)
    assert folded.weight.dtype == torch.bfloat16
    assert torch.equal(folded.weight, layer.weight / 2)


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if name not in FOLDS])
def test_calibrators_that_are_not_affine_are_refused(name, fitted):
    words = f"{name} cannot be folded into a linear layer; only identity, temperature"
    with pytest.raises(ValueError, match=words):
        fold(fitted(name, 5), nn.Linear(8, 5))


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_another_layer_is_refused():
    calibrator = TemperatureScaling(classes=3, temperature=2.0)
    with pytest.raises(ValueError, match="fitted on 3 classes, the layer has 4 outputs"):
        fold(calibrator, nn.Linear(8, 4))
    with pytest.raises(TypeError, match=r"expected the last nn.Linear of a network, got Conv2d"):
        fold(calibrator, nn.Conv2d(1, 3, 1))
