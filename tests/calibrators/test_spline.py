"""Spline calibration, against SciPy's spline and optimiser, its limits and small data."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize
from scipy.special import expit

from calibrant import Predictions, metrics
from calibrant.calibrators import (
    PlattScaling,
    SplineCalibration,
    TemperatureScaling,
    TopLabelSpline,
    spline_fit,
)
from calibrant.calibrators.natural_spline import curvatures, end_slopes, evaluated
from calibrant.calibrators.spline_fit import Scores, fit_splines, merged


def binary(n, truth, *, seed=0, spread=2.0):
    """Log-odds, and labels that are 1 with probability sigmoid(truth(log-odds))."""
    generator = np.random.default_rng(seed)
    odds = spread * generator.standard_normal(n)
    labels = generator.random(n) < expit(truth(odds))
    return Predictions.from_binary(odds, labels.astype(np.int64), kind="logits")


def function_of(fitted, odds):
    odds = torch.as_tensor(odds, dtype=torch.float64)
    log_probs = fitted(torch.stack([torch.zeros_like(odds), odds], 1))
    return (log_probs[:, 1] - log_probs[:, 0]).numpy()


def test_splines_are_those_of_scipy_and_linear_beyond_the_knots():
    generator = np.random.default_rng(0)
    knots = np.sort(generator.normal(size=(2, 6)), 1)
    values = generator.normal(size=(2, 6))
    points = np.linspace(knots[:, 0], knots[:, -1], 50, axis=1).copy(order="C")
    k, v, x = (torch.from_numpy(each) for each in (knots, values, points))
    curvature = curvatures(k, v)
    slopes = end_slopes(k, v, curvature)
    found = evaluated(x, k, v, curvature, slopes)
    outside = torch.stack([k[:, 0] - 2, k[:, -1] + 2], 1)
    beyond = evaluated(outside, k, v, curvature, slopes)
    for row in range(2):
        exact = CubicSpline(knots[row], values[row], bc_type="natural")
        np.testing.assert_allclose(found[row], exact(points[row]), atol=1e-12)
        ends = knots[row, [0, -1]]
        expected = exact(ends) + exact(ends, 1) * [-2, 2]
        np.testing.assert_allclose(beyond[row], expected, atol=1e-12)


def test_the_fit_minimises_the_penalised_loss_at_the_penalty_of_largest_marginal_likelihood():
    generator = np.random.default_rng(1)
    x = np.sort(generator.standard_t(3, 150) * 2)
    w = generator.integers(1, 4, 150).astype(float)
    y = (generator.random(150) < expit(np.tanh(x) * 2 - 0.3)).astype(float)
    data, inverse = Scores(x[None], w[None], (w * y)[None]), 0.7
    found = fit_splines(data, inverse)
    knots = found.knots[0]
    after = np.cumsum(w) / w.sum()
    tenth, median, ninetieth = (x[np.searchsorted(after, q)] for q in (0.1, 0.5, 0.9))
    scale = ninetieth - tenth

    def pieces(values):
        """The curve of these values, and its roughness in units of the spread."""
        curve = CubicSpline(knots, values, bc_type="natural")
        inside = np.clip(x, knots[0], knots[-1])
        second = curve(knots, 2)
        gaps = np.diff(knots)
        # The second derivative is linear between knots.
        square = gaps / 3 * (second[:-1] ** 2 + second[:-1] * second[1:] + second[1:] ** 2)
        return curve(inside) + curve(inside, 1) * (x - inside), square.sum() * scale**3

    basis = np.array([pieces(row)[0] for row in np.eye(8)]).T
    rough = np.array([[0.0] * 8] * 8)
    for i in range(8):
        for j in range(8):
            both = np.eye(8)[i] + np.eye(8)[j]
            rough[i, j] = (pieces(both)[1] - pieces(np.eye(8)[i])[1] - pieces(np.eye(8)[j])[1]) / 2
    eigenvalues, vectors = np.linalg.eigh(rough)
    bent = vectors[:, 2:] / np.sqrt(eigenvalues[2:])
    terms = np.column_stack([np.ones(150), (x - median) * inverse, basis @ bent])

    def minimum(penalty):
        ridge = np.array([2.0, 5.0] + [penalty] * 6)

        def loss(at):
            odds = x * inverse + terms @ at
            return w @ (np.logaddexp(0, odds) - y * odds) + ridge @ at**2 / 2

        def gradient(at):
            return terms.T @ (w * (expit(x * inverse + terms @ at) - y)) + ridge * at

        best = minimize(loss, np.zeros(8), jac=gradient, method="BFGS", options={"gtol": 1e-9})
        p = expit(x * inverse + terms @ best.x)
        hessian = (terms.T * (w * p * (1 - p))) @ terms + np.diag(ridge)
        evidence = best.fun + np.linalg.slogdet(hessian)[1] / 2 - 3 * np.log(penalty)
        line = (knots + best.x[1] * (knots - median)) * inverse + best.x[0]
        return evidence, line + bent @ best.x[2:]

    tried = {float(penalty): minimum(penalty) for penalty in spline_fit.PENALTIES}
    assert found.penalty == min(tried, key=lambda penalty: tried[penalty][0])
    np.testing.assert_allclose(found.values[0], tried[found.penalty][1], atol=1e-5)
    assert found.converged


def test_a_curved_function_is_recovered_and_a_straight_one_is_nearly_straight():
    def bent(x):
        return 1.5 * np.tanh(x) + 0.2 * x - 0.5

    inner = np.linspace(-3.5, 3.5, 50)
    found = function_of(SplineCalibration.fit(binary(20_000, bent)), inner)
    np.testing.assert_allclose(found, bent(inner), atol=0.2)
    straight = function_of(SplineCalibration.fit(binary(500, lambda x: x / 2 + 0.3)), inner)
    assert np.abs(np.diff(straight, 2)).max() < 0.005


def test_a_large_penalty_gives_a_straight_line(monkeypatch):
    monkeypatch.setattr(spline_fit, "PENALTIES", np.array([1e12]))
    monkeypatch.setattr(spline_fit, "LEVEL", 1e-6)
    monkeypatch.setattr(spline_fit, "SLOPE", 1e-6)
    data, odds = binary(400, np.tanh), np.linspace(-4, 4, 9)
    found, platt = (kind.fit(data) for kind in (SplineCalibration, PlattScaling))
    np.testing.assert_allclose(function_of(found, odds), function_of(platt, odds), atol=1e-4)


def test_merged_points_give_nearly_the_same_functions(monkeypatch):
    data = binary(3000, lambda x: 2 * np.tanh(x), seed=3)
    odds = np.linspace(-6, 6, 100)
    few = function_of(SplineCalibration.fit(data), odds)
    monkeypatch.setattr(spline_fit, "POINTS", 3000)
    np.testing.assert_allclose(few, function_of(SplineCalibration.fit(data), odds), atol=0.02)
    points = merged(
        np.array([[3.0, 1.0, 2.0]]), np.array([[True, False, True]]), np.array([1.0, 0, 2])
    )
    assert points.points.tolist() == [[1, 2, 3]]
    assert points.hits.tolist() == [[0, 2, 1]]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [SplineCalibration, TopLabelSpline])
def test_small_tied_and_separable_data_give_finite_bounded_results(kind):
    generator = np.random.default_rng(0)
    far = torch.tensor([[0.0, 1e3], [0.0, -1e3], [0.0, 0.0]], dtype=torch.float64)
    odds = generator.normal(size=40) * 3
    cases = {
        "separable": (odds, odds > 0),
        "always wrong": (odds, odds < 0),
        "equal": (np.zeros(40), np.arange(40) % 4 == 0),
        "two scores": (np.repeat([-1.0, 2.0], 20), np.arange(40) % 3 == 0),
        "one outlier": (np.append(odds[:39], 1e4), generator.random(40) < 0.5),
        "two examples": (np.array([-1.0, 1.0]), np.array([True, False])),
    }
    for name, (x, own) in cases.items():
        data = Predictions.from_binary(x, own.astype(int), kind="logits")
        found = kind.fit(data)
        assert found.origin.converged, name
        after = metrics.nll(data.map(found))
        assert after <= math.log(2) + 0.05, name
        assert float(-found(far).min()) <= math.log(2 * len(x) + 3) + 1e-9, name
        assert bool((found.knots.diff() > 0).all()), name


def test_slopes_beyond_the_knots_are_not_negative():
    knots = torch.tensor([[-1.0, 0.0, 1.0]], dtype=torch.float64)
    values = torch.tensor([[0.0, 2.0, 0.0]], dtype=torch.float64)
    found = SplineCalibration(classes=2, knots=knots, values=values, bound=9.0)
    mapped = function_of(found, [-3.0, -1.0, 0.0, 1.0, 3.0])
    # The first slope of this spline is 3.
    np.testing.assert_allclose(mapped, [-6, 0, 2, 0, 0], atol=1e-12)


def multiclass(n=3000, k=4, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 2
    labels = (np.tanh(logits) * 2 + generator.gumbel(size=(n, k))).argmax(1)
    return Predictions(logits, labels)


def test_the_top_label_is_mapped_as_written_out():
    data = multiclass()
    found = TopLabelSpline.fit(data)
    plain = TemperatureScaling.fit(data)
    assert metrics.nll(data.map(found)) < metrics.nll(data.map(plain)) - 0.002
    # Lower, so that some runners-up would overtake.
    fitted = replace(found, values=found.values - 0.7)
    knots = fitted.knots.numpy()
    curve = CubicSpline(knots, fitted.values.numpy(), bc_type="natural")
    probs = (data.logits / fitted.temperature).softmax(1).numpy()[:300]
    expected = np.empty_like(probs)
    clamped = 0
    for row, p in zip(expected, probs, strict=True):
        order = p.argsort()
        x = math.log(p[order[-1]] / (1 - p[order[-1]]))
        inside = np.clip(x, knots[0], knots[-1])
        value = curve(inside) + max(curve(inside, 1), 0) * (x - inside)
        tie = p[order[-2]] / (1 - p[order[-1]] + p[order[-2]])
        top = max(expit(np.clip(value, -fitted.bound, fitted.bound)), tie)
        clamped += top == tie
        row[:] = p * (1 - top) / (1 - p[order[-1]])
        row[order[-1]] = top
    assert 10 < clamped < 200
    np.testing.assert_allclose(fitted(data.logits[:300]).exp(), expected, atol=1e-9)


def test_the_top_label_of_two_classes_is_symmetric_and_confidence_may_round_to_one():
    fitted = TopLabelSpline.fit(binary(2000, lambda x: 2 * np.tanh(x)))
    odds = np.linspace(0.01, 30, 200)
    np.testing.assert_allclose(function_of(fitted, odds), -function_of(fitted, -odds), atol=1e-12)
    assert (function_of(fitted, odds) >= 0).all()
    wide = TopLabelSpline(
        classes=3,
        temperature=1.0,
        knots=torch.arange(3).double(),
        values=torch.arange(3).double(),
        bound=1e3,
    )
    logits = torch.tensor([[60.0, 0.0, 1.0], [0.0, 0.1, 90.0]], dtype=torch.float32)
    torch.testing.assert_close(wide(logits), logits.log_softmax(1), rtol=1e-6, atol=1e-6)


def test_few_examples_stay_near_temperature_scaling():
    losses = {kind: 0.0 for kind in (TemperatureScaling, SplineCalibration, TopLabelSpline)}
    test = multiclass(4000, seed=99)
    generator = np.random.default_rng(0)
    honest = (test.logits.numpy() + generator.gumbel(size=test.logits.shape)).argmax(1)
    test = Predictions(1.5 * test.logits, honest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(5):
            part = test.take(np.random.default_rng(seed).permutation(4000)[:80])
            for kind in losses:
                losses[kind] += metrics.nll(test.map(kind.fit(part))) / 5
    for kind in (SplineCalibration, TopLabelSpline):
        assert losses[kind] < losses[TemperatureScaling] + 0.03
