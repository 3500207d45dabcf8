"""ONNX graphs: the same probabilities as the calibrator, or no file."""

import os
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from calibrant import Predictions, __version__
from calibrant.calibrators import CALIBRATORS, TemperatureScaling, VectorScaling
from calibrant.calibrators.blend import blended
from calibrant.export import builders, export_onnx
from calibrant.export.graph import Graph
from calibrant.export.onnx import comparison_logits, graph_of, largest_difference
from calibrant.export.tables import interpolation, step


def run(path, logits):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["log_probs", "probs"], {"logits": logits})


def normal(n, k, scale=1.0):
    """Logits other than those of the check that the export makes itself."""
    return (scale * np.random.default_rng(5).normal(size=(n, k))).astype(np.float32)


def gaps(k):
    """One class 10,000 above, then below, all others."""
    return 1e4 * np.concatenate([np.eye(k), -np.eye(k)]).astype(np.float32)


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("name", [*CALIBRATORS, "blend", "prior_shift"])
def test_every_graph_has_the_probabilities_of_the_calibrator(
    name, classes, fitted, masked_logits, tmp_path
):
    calibrator, path = fitted(name, classes), tmp_path / "cal.onnx"
    export_onnx(calibrator, path)
    scaled = [normal(4000, classes, scale) for scale in (0.1, 3.0, 30.0)]
    # Any number of rows.
    for logits in (*scaled, gaps(classes), masked_logits(classes), normal(1, classes)):
        log_probs, probs = run(path, logits)
        expected = calibrator(torch.from_numpy(logits).double()).numpy()
        there = logits > -np.inf
        assert probs.dtype == log_probs.dtype == np.float32
        assert (probs[~there] == 0).all()
        assert (log_probs[~there] == -np.inf).all()
        np.testing.assert_allclose(probs, np.exp(expected), rtol=0, atol=1e-6)
        np.testing.assert_allclose(log_probs[there], expected[there], rtol=1e-6, atol=1e-6)
    assert run(path, normal(0, classes))[1].shape == (0, classes)
    model = onnx.load(path, load_external_data=False)
    assert {each.key: each.value for each in model.metadata_props} == {
        "method": name,
        "classes": str(classes),
        "calibrant": __version__,
        "sha256": calibrator.origin.sha256,
    }
    assert all(not each.external_data for each in model.graph.initializer)
    assert model.opset_import[0].version <= 20
    assert os.listdir(tmp_path) == ["cal.onnx"]


def test_every_calibrator_and_those_made_of_others_have_a_graph():
    assert set(builders.BUILDERS) == {*CALIBRATORS, "blend", "prior_shift"}


def test_lookups_on_and_beyond_the_entries_of_tables_of_different_lengths():
    knots = [torch.tensor(each).double() for each in ([0.0], [-1.0, 0.0, 2.0], [*range(9)])]
    values = [torch.tensor(each).double() for each in ([0.3], [0.1, 0.2, 0.8], [*range(9)])]
    points = np.array([-1e30, -1, -0.5, 0, 1, 2, 3.5, 8, 1e30], dtype=np.float32)
    graph = Graph()
    odds = graph("Cast", "logits", to=onnx.TensorProto.DOUBLE)
    graph.output("log_probs", interpolation(graph, odds, knots, values))
    edges = [each[:-1] for each in knots]
    graph.output("probs", step(graph, odds, edges, values))
    model = graph.model("logits", "test", 3, {}).SerializeToString()
    linear, constant = run(model, np.repeat(points[:, None], 3, 1))
    for at, (x, value) in enumerate(zip(knots, values, strict=True)):
        inner, y = x.numpy()[:-1], value.numpy()
        np.testing.assert_allclose(linear[:, at], np.interp(points, x.numpy(), y), rtol=1e-6)
        np.testing.assert_allclose(constant[:, at], y[np.searchsorted(inner, points)], rtol=1e-6)


@pytest.mark.parametrize("name", ["temperature", "structured_matrix", "isotonic", "blend"])
def test_a_graph_of_probabilities_replaces_zeros_by_the_floor_of_the_fit(name, tmp_path):
    generator = np.random.default_rng(0)
    votes = generator.multinomial(20, [0.5, 0.3, 0.15, 0.05], 2000) / 20
    data = Predictions.from_probs(votes, generator.integers(4, size=2000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = ["temperature", "irm"] if name == "blend" else [name]
        fitted = blended([CALIBRATORS[each].fit(data) for each in names])
    export_onnx(fitted, tmp_path / "cal.onnx", kind="probs")
    session = onnxruntime.InferenceSession(tmp_path / "cal.onnx")
    given = data.probs.float().numpy()
    (probs,) = session.run(["probs"], {"given_probs": given})
    np.testing.assert_allclose(probs, data.map(fitted).probs, atol=1e-6)
    found = {each.key: each.value for each in onnx.load(tmp_path / "cal.onnx").metadata_props}
    assert float(found["zero_floor"]) == data.estimated_zero_floor


BIAS = torch.tensor([0.3, 0.0, -0.2], dtype=torch.float64)
WEIGHT = torch.tensor([[1.0, 0.2, 0], [0, 1, 0.5], [-0.3, 0, 2]], dtype=torch.float64)
# Builders with parameters that no fit gives, and what they compute, written out.
WRITTEN_OUT = {
    "matrix": ({"weight": WEIGHT}, lambda z: z @ WEIGHT.T),
    "dirichlet": ({"weight": WEIGHT}, lambda z: z.log_softmax(1) @ WEIGHT.T),
    "vector": ({"scale": WEIGHT[2]}, lambda z: z * WEIGHT[2]),
}
for mix in (0.0, 0.3, 1.0):
    given = {"temperature": 2.0, "mix": mix}
    WRITTEN_OUT |= {
        f"structured_vector {mix}": (
            given | {"scale": WEIGHT[2]},
            lambda z, mix=mix: mixture(z, (1 - mix, 0, mix)) * WEIGHT[2],
        ),
        f"structured_matrix {mix}": (
            given | {"weight": WEIGHT},
            lambda z, mix=mix: mixture(z, (1 - mix, 0, mix)) @ WEIGHT.T,
        ),
    }


def mixture(z, weights):
    """Log-probabilities of ensemble temperature scaling, written out."""
    parts = [(z / 2).softmax(1), z.softmax(1), torch.full_like(z, 1 / z.shape[1])]
    return sum(w * part for w, part in zip(weights, parts, strict=True)).log()


def result(name, logits, **parameters):
    """Probabilities of one builder's graph."""
    graph = Graph()
    scores = graph("Cast", "logits", to=onnx.TensorProto.DOUBLE)
    log_probs = graph.log_softmax(builders.BUILDERS[name](graph, scores, **parameters))
    graph.output("log_probs", log_probs)
    graph.output("probs", graph("Exp", log_probs))
    return run(graph.model("logits", "test", logits.shape[1], {}).SerializeToString(), logits)[1]


def test_graphs_compute_the_written_out_maps():
    logits = normal(50, 3)
    z = torch.from_numpy(logits).double()
    for name, (parameters, exact) in WRITTEN_OUT.items():
        found = result(name.split()[0], logits, bias=BIAS, **parameters)
        expected = (exact(z) + BIAS).softmax(1)
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=name)
    for weights in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.3, 0.2)]:
        tensor = torch.tensor(weights, dtype=torch.float64)
        found = result("ensemble_temperature", logits, temperature=2.0, weights=tensor)
        expected = mixture(z, weights).exp()
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=str(weights))


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("kept", [False, True])
def test_a_blend_of_all_calibrators_with_a_graph_has_one(classes, kept, fitted, tmp_path):
    parts = [fitted(name, classes) for name in CALIBRATORS]
    blend = blended([part for part in parts if part.keeps_argmax or not kept])
    assert blend.keeps_argmax == kept
    export_onnx(blend, tmp_path / "cal.onnx")
    logits = normal(4000, classes, 3.0)
    probs = run(tmp_path / "cal.onnx", logits)[1]
    mean = torch.stack([part(torch.from_numpy(logits).double()).exp() for part in blend.parts])
    np.testing.assert_allclose(probs, mean.mean(0), rtol=0, atol=1e-6)


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


def slightly_wrong(graph, logits, *, temperature):
    return graph("Div", logits, temperature * 1.00001)


def with_nan(graph, logits, *, temperature):
    return graph("Log", graph("Exp", logits))


def test_a_graph_that_differs_is_not_written(tmp_path, monkeypatch, calibrator):
    words = r"cal.onnx was not written: the graph of temperature differs from the calibrator by "
    for builder, amount in ((slightly_wrong, r"\d"), (with_nan, "inf")):
        monkeypatch.setitem(builders.BUILDERS, "temperature", builder)
        with pytest.raises(ValueError, match=words + amount):
            export_onnx(calibrator, tmp_path / "cal.onnx")
    # A masked class above zero.
    turned = VectorScaling(classes=2, scale=-torch.ones(2).double(), bias=torch.zeros(2).double())
    monkeypatch.setattr(Graph, "normalised", Graph.log_softmax)
    with pytest.raises(ValueError, match="was not written"):
        export_onnx(turned, tmp_path / "cal.onnx")
    assert os.listdir(tmp_path) == []


def test_a_changed_graph_is_detected(calibrator):
    model = graph_of(calibrator)
    assert largest_difference(model.SerializeToString(), calibrator) < 1e-6
    constant = next(c for c in model.graph.initializer if numpy_helper.to_array(c) == 1.7)
    constant.CopyFrom(numpy_helper.from_array(np.array(1.7001), constant.name))
    assert largest_difference(model.SerializeToString(), calibrator) > 1e-6


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_other_files_and_inputs_are_refused(tmp_path, calibrator):
    with pytest.raises(ValueError, match="kind must be one of logits, probs, got 'odds'"):
        export_onnx(calibrator, tmp_path / "cal.onnx", kind="odds")
    with pytest.raises(ValueError, match=r"cal.pt: expected a name that ends in .onnx"):
        export_onnx(calibrator, tmp_path / "cal.pt")
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
