"""Classes masked by a logit of -inf: graphs and layers do what the calibrator does."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from calibrant.calibrators import CALIBRATORS, VectorScaling
from calibrant.calibrators.blend import blended
from calibrant.export import as_module, builders, export_onnx, fold
from calibrant.export.graph import Graph

EXPORTED = [name for name in CALIBRATORS if name in builders.BUILDERS]


def masked_logits(k: int, n: int = 300) -> np.ndarray:
    """Rows with one to k allowed classes."""
    generator = np.random.default_rng(3)
    logits = generator.normal(size=(n, k)).astype(np.float32) * 4
    options = generator.integers(1, k + 1, n)[:, None]
    logits[generator.permuted(np.tile(np.arange(k), (n, 1)), axis=1) >= options] = -np.inf
    return logits


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("name", [*EXPORTED, "blend"])
def test_a_graph_gives_masked_classes_probability_zero(name, classes, fitted, tmp_path):
    if name == "blend":
        parts = ("temperature", "vector", "ensemble_temperature", "platt")
        calibrator = blended([fitted(part, classes) for part in parts])
    else:
        calibrator = fitted(name, classes)
    export_onnx(calibrator, tmp_path / "cal.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "cal.onnx", providers=["CPUExecutionProvider"]
    )
    logits = masked_logits(classes)
    log_probs, probs = session.run(["log_probs", "probs"], {"logits": logits})
    expected = calibrator(torch.from_numpy(logits).double()).numpy()
    there = logits > -np.inf
    assert (probs[~there] == 0).all()
    assert (log_probs[~there] == -np.inf).all()
    np.testing.assert_allclose(probs, np.exp(expected), rtol=0, atol=1e-5)
    np.testing.assert_allclose(log_probs[there], expected[there], rtol=1e-5, atol=1e-5)


def test_a_graph_with_a_masked_class_above_zero_is_not_written(tmp_path, monkeypatch):
    turned = VectorScaling(classes=2, scale=-torch.ones(2).double(), bias=torch.zeros(2).double())
    monkeypatch.setattr(Graph, "normalised", Graph.log_softmax)
    with pytest.raises(ValueError, match="was not written"):
        export_onnx(turned, tmp_path / "cal.onnx")


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_module_gives_masked_classes_probability_zero(name, fitted):
    calibrator, logits = fitted(name, 5), torch.from_numpy(masked_logits(5))
    torch.testing.assert_close(as_module(calibrator)(logits), calibrator(logits))


@pytest.mark.parametrize("name", ["identity", "temperature", "vector"])
def test_classes_may_be_masked_after_a_folded_layer(name, fitted):
    layer = nn.Linear(7, 5).double()
    features = torch.randn(300, 7, dtype=torch.float64)
    masked = torch.from_numpy(masked_logits(5)).isneginf()
    folded = fold(fitted(name, 5), layer)(features).masked_fill(masked, -torch.inf)
    expected = fitted(name, 5)(layer(features).masked_fill(masked, -torch.inf))
    torch.testing.assert_close(folded.log_softmax(1), expected)
