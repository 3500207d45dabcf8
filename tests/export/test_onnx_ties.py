"""ONNX graphs where logits tie: the first largest logit is the top class, as in torch's argmax."""

from itertools import product

import numpy as np
import onnxruntime
import pytest
import torch

from calibrant.calibrators import CALIBRATORS, PriorShift, TemperatureScaling
from calibrant.calibrators.blend import blended
from calibrant.calibrators.spline import TopLabelSpline
from calibrant.export import export_onnx
from calibrant.export.onnx import graph_of

# Adjacent in float32, a difference far below the rounding of a softmax, and clear ones.
LEVELS = (0.0, 1e-30, 1e-8, 1.0, float(np.nextafter(np.float32(1), np.float32(2))))


def tied(classes):
    """Ties and near ties of two to k classes, in every order, and those with masked classes."""
    if classes <= 3:
        rows = list(product((*LEVELS, -np.inf), repeat=classes))
    else:
        generator = np.random.default_rng(0)
        rows = generator.choice((*LEVELS, -np.inf), size=(500, classes)).tolist()
    logits = np.array(rows, dtype=np.float32)
    return logits[(logits > -np.inf).any(1)]


def top_label_spline(classes):
    """A map that jumps where the top class changes: at even odds its log-odds are about 0.9."""
    knots = torch.linspace(-2, 5, 8).double()
    values = 0.9 + 0.4 * knots
    return TopLabelSpline(classes=classes, temperature=1.3, knots=knots, values=values, bound=7.0)


def inside_a_blend(classes):
    halved = TemperatureScaling(classes=classes, temperature=2.0)
    return blended([top_label_spline(classes), halved], (0.7, 0.3), (0.8, 0.4))


def inside_a_prior_shift(classes):
    source, target = np.ones(classes) / classes, np.arange(1, classes + 1)
    return PriorShift.of_priors(source, target / target.sum(), calibrator=top_label_spline(classes))


def assert_graph_equals(calibrator, logits):
    session = onnxruntime.InferenceSession(graph_of(calibrator).SerializeToString())
    log_probs, probs = session.run(["log_probs", "probs"], {"logits": logits})
    expected = calibrator(torch.from_numpy(logits).double()).numpy()
    there = logits > -np.inf
    np.testing.assert_allclose(probs, np.exp(expected), rtol=0, atol=1e-6)
    np.testing.assert_allclose(log_probs[there], expected[there], rtol=1e-6, atol=1e-6)
    if calibrator.keeps_argmax:
        np.testing.assert_array_equal(probs.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("made", [top_label_spline, inside_a_blend, inside_a_prior_shift])
def test_the_top_class_of_the_graph_is_that_of_the_calibrator(made, classes, tmp_path):
    calibrator = made(classes)
    assert_graph_equals(calibrator, tied(classes))
    for kind in ("logits", "probs"):
        export_onnx(calibrator, tmp_path / f"{kind}.onnx", kind=kind)


def test_the_map_of_these_tests_jumps_at_a_tie():
    near = torch.tensor([[0, 1e-30], [0, 0], [1e-30, 0]]).double()
    below, at, above = top_label_spline(2)(near)[:, 0].exp().tolist()
    assert below < 0.3
    assert at == above > 0.7


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("name", [*CALIBRATORS, "blend", "prior_shift"])
def test_every_graph_has_the_probabilities_of_the_calibrator_at_ties(name, classes, fitted):
    assert_graph_equals(fitted(name, classes), tied(classes))


def test_probabilities_that_tie_have_the_top_class_of_the_calibrator(tmp_path):
    calibrator = top_label_spline(3)
    export_onnx(calibrator, tmp_path / "cal.onnx", kind="probs")
    above = np.nextafter(np.float32(0.4), np.float32(1))
    values = (0.0, 0.2, 0.4, above)
    rows = np.array([row for row in product(values, repeat=3) if any(row)], dtype=np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "cal.onnx")
    (found,) = session.run(["probs"], {"given_probs": rows})
    floor = np.where(rows > 0, rows, 1e-38).astype(np.float64)
    expected = calibrator(torch.from_numpy(np.log(floor))).exp().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
