"""ONNX graphs: the same probabilities as the calibrator, or no file."""

import os
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from calibrant import __version__
from calibrant.calibrators import CALIBRATORS, TemperatureScaling
from calibrant.calibrators.blend import blended
from calibrant.export import builders, export_onnx
from calibrant.export.graph import Graph
from calibrant.export.onnx import comparison_logits, graph_of, largest_difference

# Lookups in tables of any length: these have no graph.
TABLES = {"isotonic", "irm", "order_preserving_isotonic", "histogram"}
EXPORTED = [name for name in CALIBRATORS if name in builders.BUILDERS]


def run(path, logits):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["log_probs", "probs"], {"logits": logits})


def test_every_parametric_calibrator_has_a_graph():
    assert set(CALIBRATORS) - TABLES <= set(builders.BUILDERS)


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("name", EXPORTED)
class TestEveryGraph:
    def test_has_the_probabilities_of_the_calibrator(self, name, classes, fitted, tmp_path):
        calibrator = fitted(name, classes)
        export_onnx(calibrator, tmp_path / "cal.onnx")
        # Not the rows of the check that the export makes itself.
        generator = np.random.default_rng(5)
        for scale in (0.1, 3.0, 30.0):
            logits = (scale * generator.normal(size=(4000, classes))).astype(np.float32)
            log_probs, probs = run(tmp_path / "cal.onnx", logits)
            expected = calibrator(torch.from_numpy(logits).double())
            assert probs.dtype == log_probs.dtype == np.float32
            np.testing.assert_allclose(probs, expected.exp(), rtol=0, atol=1e-6)
            np.testing.assert_allclose(log_probs, expected, rtol=1e-6, atol=1e-6)

    def test_is_finite_for_a_gap_of_ten_thousand(self, name, classes, fitted, tmp_path):
        calibrator = fitted(name, classes)
        export_onnx(calibrator, tmp_path / "cal.onnx")
        logits = np.zeros((2 * classes, classes), dtype=np.float32)
        logits[range(classes), range(classes)] = 1e4
        logits[range(classes, 2 * classes), range(classes)] = -1e4
        log_probs, probs = run(tmp_path / "cal.onnx", logits)
        assert np.isfinite(log_probs).all()
        np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
        expected = calibrator(torch.from_numpy(logits).double()).exp()
        np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-6)

    def test_takes_any_number_of_rows(self, name, classes, fitted, tmp_path):
        export_onnx(fitted(name, classes), tmp_path / "cal.onnx")
        logits = np.random.default_rng(0).normal(size=(9, classes)).astype(np.float32)
        whole = run(tmp_path / "cal.onnx", logits)[1]
        one = run(tmp_path / "cal.onnx", logits[:1])[1]
        np.testing.assert_allclose(one, whole[:1], rtol=0, atol=1e-6)
        assert run(tmp_path / "cal.onnx", logits[:0])[1].shape == (0, classes)

    def test_has_metadata_and_no_external_data(self, name, classes, fitted, tmp_path):
        calibrator = fitted(name, classes)
        export_onnx(calibrator, tmp_path / "cal.onnx")
        model = onnx.load(tmp_path / "cal.onnx", load_external_data=False)
        assert {each.key: each.value for each in model.metadata_props} == {
            "method": name,
            "classes": str(classes),
            "calibrant": __version__,
            "sha256": calibrator.origin.sha256,
        }
        assert all(not each.external_data for each in model.graph.initializer)
        assert model.opset_import[0].version <= 20
        assert os.listdir(tmp_path) == ["cal.onnx"]


def mixture(logits, weights, temperature=2.0):
    """Ensemble temperature scaling, written out."""
    z = torch.from_numpy(logits).double()
    k = z.shape[1]
    parts = [(z / temperature).softmax(1), z.softmax(1), torch.full_like(z, 1 / k)]
    return sum(w * part for w, part in zip(weights, parts, strict=True))


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.3, 0.2)])
def test_a_component_of_weight_zero_is_skipped(weights):
    logits = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    tensor = torch.tensor(weights, dtype=torch.float64)
    found = result(builders.ensemble_temperature, logits, temperature=2.0, weights=tensor)
    np.testing.assert_allclose(found, mixture(logits, weights), atol=1e-6)


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_structured_scaling_smooths_first(mix):
    logits = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    smoothed = mixture(logits, (1 - mix, 0, mix)).log()
    scale, bias = torch.tensor([[1.5, 0.5, 1.0], [0.3, 0.0, -0.2]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.2, 0], [0, 1, 0.5], [-0.3, 0, 2]], dtype=torch.float64)
    given = {"temperature": 2.0, "mix": mix, "bias": bias}
    found = result(builders.structured_vector, logits, scale=scale, **given)
    np.testing.assert_allclose(found, (smoothed * scale + bias).softmax(1), atol=1e-6)
    found = result(builders.structured_matrix, logits, weight=weight, **given)
    np.testing.assert_allclose(found, (smoothed @ weight.T + bias).softmax(1), atol=1e-6)


def test_weights_of_linear_maps_are_out_by_in():
    logits = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    z = torch.from_numpy(logits).double()
    bias = torch.tensor([0.3, 0.0, -0.2], dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.2, 0], [0, 1, 0.5], [-0.3, 0, 2]], dtype=torch.float64)
    found = result(builders.matrix, logits, weight=weight, bias=bias)
    np.testing.assert_allclose(found, (z @ weight.T + bias).softmax(1), atol=1e-6)
    found = result(builders.dirichlet, logits, weight=weight, bias=bias)
    np.testing.assert_allclose(found, (z.log_softmax(1) @ weight.T + bias).softmax(1), atol=1e-6)
    found = result(builders.vector, logits, scale=weight[2], bias=bias)
    np.testing.assert_allclose(found, (z * weight[2] + bias).softmax(1), atol=1e-6)


def result(build, logits, **parameters):
    """Probabilities of one builder's graph."""
    graph = Graph()
    scores = graph("Cast", "logits", to=onnx.TensorProto.DOUBLE)
    log_probs = graph.log_softmax(build(graph, scores, **parameters))
    graph.output("log_probs", log_probs)
    graph.output("probs", graph("Exp", log_probs))
    model = graph.model("test", logits.shape[1], {})
    return run(model.SerializeToString(), logits)[1]


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("kept", [False, True])
def test_a_blend_of_all_calibrators_with_a_graph_has_one(classes, kept, fitted, tmp_path):
    parts = [fitted(name, classes) for name in EXPORTED]
    blend = blended([part for part in parts if part.keeps_argmax or not kept])
    assert blend.keeps_argmax == kept
    export_onnx(blend, tmp_path / "cal.onnx")
    model = onnx.load(tmp_path / "cal.onnx")
    properties = {each.key: each.value for each in model.metadata_props}
    assert (properties["method"], properties["sha256"]) == ("blend", blend.origin.sha256)
    logits = (3 * np.random.default_rng(5).normal(size=(4000, classes))).astype(np.float32)
    probs = run(tmp_path / "cal.onnx", logits)[1]
    mean = torch.stack([part(torch.from_numpy(logits).double()).exp() for part in blend.parts])
    np.testing.assert_allclose(probs, mean.mean(0), rtol=0, atol=1e-6)


def test_a_blend_with_a_part_that_has_no_graph_is_refused(fitted, tmp_path):
    blend = blended([fitted("temperature", 3), fitted("isotonic", 3)])
    words = "a blend with isotonic cannot be exported, .* use calibrant fit --method auto, or"
    with pytest.raises(ValueError, match=words) as caught:
        export_onnx(blend, tmp_path / "cal.onnx")
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_the_comparison_has_ten_thousand_rows_and_extremes():
    for classes in (2, 3000):
        batches = list(comparison_logits(classes))
        every = np.concatenate(batches[1:])
        assert every.shape == (10_000, classes)
        assert np.isfinite(every).all()
        assert np.ptp(batches[0], axis=1).max() >= 1e4
        assert (np.ptp(batches[0], axis=1) == 0).any()
        assert all(batch.dtype == np.float32 for batch in batches)
        assert max(batch.size for batch in batches) < 3e6


@pytest.fixture
def calibrator():
    return TemperatureScaling(classes=3, temperature=1.7)


def test_a_graph_that_differs_is_not_written(tmp_path, monkeypatch, calibrator):
    def slightly_wrong(graph, logits, *, temperature):
        return graph("Div", logits, temperature * 1.00001)

    monkeypatch.setitem(builders.BUILDERS, "temperature", slightly_wrong)
    words = r"cal.onnx was not written: the graph of temperature differs from the calibrator by \d"
    with pytest.raises(ValueError, match=words):
        export_onnx(calibrator, tmp_path / "cal.onnx")
    assert os.listdir(tmp_path) == []


def test_a_graph_that_gives_nan_is_not_written(tmp_path, monkeypatch, calibrator):
    def broken(graph, logits, *, temperature):
        return graph("Log", graph("Exp", logits))

    monkeypatch.setitem(builders.BUILDERS, "temperature", broken)
    with pytest.raises(ValueError, match="differs from the calibrator by inf"):
        export_onnx(calibrator, tmp_path / "cal.onnx")
    assert os.listdir(tmp_path) == []


def test_a_changed_graph_is_detected(calibrator):
    model = graph_of(calibrator)
    assert largest_difference(model.SerializeToString(), calibrator) < 1e-6
    constant = next(c for c in model.graph.initializer if numpy_helper.to_array(c) == 1.7)
    constant.CopyFrom(numpy_helper.from_array(np.array(1.7001), constant.name))
    assert largest_difference(model.SerializeToString(), calibrator) > 1e-6


def test_other_files_and_calibrators_are_refused(tmp_path, monkeypatch, calibrator):
    with pytest.raises(ValueError, match=r"cal.pt: expected a name that ends in .onnx"):
        export_onnx(calibrator, tmp_path / "cal.pt")
    monkeypatch.delitem(builders.BUILDERS, "temperature")
    with pytest.raises(ValueError, match="temperature has no ONNX graph; there is one for ident"):
        export_onnx(calibrator, tmp_path / "cal.onnx")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_extra_of_the_export_is_named(tmp_path, monkeypatch, calibrator, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'calibrant\[export\]'"):
        export_onnx(calibrator, tmp_path / "cal.onnx")


def test_a_failed_write_preserves_the_old_file(tmp_path, monkeypatch, calibrator):
    export_onnx(calibrator, tmp_path / "cal.onnx")
    before = (tmp_path / "cal.onnx").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        export_onnx(TemperatureScaling(classes=3, temperature=3.0), tmp_path / "cal.onnx")
    assert (tmp_path / "cal.onnx").read_bytes() == before
    assert os.listdir(tmp_path) == ["cal.onnx"]
