"""ONNX graphs of sliced calibrators: two inputs, the same probabilities."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import SlicedCalibrator
from calibrant.export import export_onnx
from calibrant.export import onnx as exporting


@pytest.mark.parametrize("name", ["temperature", "focal_temperature", "vector", "platt", "beta"])
def test_a_graph_has_the_probabilities_of_every_slice(name, tmp_path, masked_logits):
    classes = 2 if name in ("platt", "beta") else 4
    generator = np.random.default_rng(0)
    slices = np.repeat(["a", "b", "c"], 500)
    z = generator.normal(size=(1500, classes)) * 1.5
    labels = (z + generator.gumbel(size=z.shape)).argmax(1)
    z *= np.repeat([1.0, 2.0, 4.0], 500)[:, None]
    sliced = SlicedCalibrator.fit(Predictions(z, labels), slices, calibrator=name, folds=2)
    assert sliced.weights.any()
    path = tmp_path / "cal.onnx"
    export_onnx(sliced, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for logits in (z.astype(np.float32), masked_logits(classes), z[:0].astype(np.float32)):
        index = generator.integers(-3, 6, len(logits))
        expected = sliced.at(np.where(index < 3, index, -1))(torch.from_numpy(logits).double())
        probs = session.run(["probs"], {"logits": logits, "slice": index})[0]
        np.testing.assert_allclose(probs, expected.exp().numpy(), rtol=0, atol=1e-6)
    found = {each.key: each.value for each in onnx.load(path).metadata_props}
    assert (found["method"], found["base"]) == ("sliced", name)
    assert json.loads(found["slices"]) == [["a"], ["b"], ["c"]]
    assert json.loads(found["columns"]) == ["slice"]
    probs_path = tmp_path / "probs.onnx"
    export_onnx(sliced, probs_path, kind="probs")
    assert probs_path.exists()


def test_a_wrong_graph_is_not_written(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    z = generator.normal(size=(800, 3))
    labels = (z + generator.gumbel(size=z.shape)).argmax(1)
    z *= np.repeat([1.0, 4.0], 400)[:, None]
    sliced = SlicedCalibrator.fit(Predictions(z, labels), ["a"] * 400 + ["b"] * 400, folds=2)

    def wrong(graph, logits, *, temperature):
        return logits

    monkeypatch.setitem(exporting.sliced.BUILDERS, "temperature", wrong)
    with pytest.raises(ValueError, match="was not written: the graph of sliced differs"):
        export_onnx(sliced, tmp_path / "cal.onnx")
    assert not list(tmp_path.iterdir())
