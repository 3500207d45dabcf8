import sys

import numpy as np
import onnxruntime
import pytest

from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.storage import save


@pytest.fixture
def calibrator(tmp_path):
    made = TemperatureScaling(classes=3, temperature=1.7)
    save(made, tmp_path / "cal.json")
    return made


def test_writes_a_graph_that_runs(run, calibrator, tmp_path):
    code, out, err = run("export", "cal.json", "-o", "cal.onnx")
    assert (code, err) == (0, "")
    assert out == "temperature of 3 classes; logits -> log_probs, probs\nonnx: cal.onnx\n"
    session = onnxruntime.InferenceSession(tmp_path / "cal.onnx")
    logits = np.array([[1.0, 2.0, 3.0]], dtype=np.float32)
    (probs,) = session.run(["probs"], {"logits": logits})
    np.testing.assert_allclose(probs, calibrator(logits).exp(), atol=1e-6)


def test_a_graph_of_probabilities_on_request(run, calibrator, tmp_path):
    code, out, _ = run("export", "cal.json", "-o", "cal.onnx", "--probs")
    assert code == 0
    assert "given_probs -> log_probs, probs" in out
    session = onnxruntime.InferenceSession(tmp_path / "cal.onnx")
    (probs,) = session.run(["probs"], {"given_probs": np.array([[0.5, 0.5, 0]], dtype=np.float32)})
    np.testing.assert_allclose(probs, [[0.5, 0.5, 0]], atol=1e-6)


def test_a_missing_extra_of_the_export_is_named(run, calibrator, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, err = run("export", "cal.json", "-o", "cal.onnx")
    assert code == 2
    assert err.endswith("needs onnxruntime: pip install 'calibrant[export]'\n")
