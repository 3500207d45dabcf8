"""Platt, beta and quadratic scaling, against other solvers and planted coefficients."""

import math

import numpy as np
import pytest
import torch
from scipy import special
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from calibrant import Predictions
from calibrant.calibrators.logistic import BetaCalibration, PlattScaling, QuadraticScaling
from calibrant.calibrators.one_versus_rest import log_odds
from calibrant.metrics import nll

KINDS = [PlattScaling, BetaCalibration, QuadraticScaling]


def binary(n, truth, *, seed=0, spread=2.0):
    """Log-odds, and labels that are 1 with probability sigmoid(truth(log-odds))."""
    generator = np.random.default_rng(seed)
    odds = spread * generator.standard_normal(n)
    labels = generator.random(n) < special.expit(truth(odds))
    return Predictions.from_binary(odds, labels.astype(np.int64), kind="logits")


def odds_of(examples):
    return (examples.logits[:, 1] - examples.logits[:, 0]).numpy()


def multiclass(n=3000, k=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return Predictions(1.7 * logits + torch.tensor([0.5, 0, 0, -0.5]), labels)


def features(kind, odds):
    return kind.terms(torch.from_numpy(odds)[:, None])[:, :, 0].numpy()


def binary_loss(kind, odds, own, coefficients):
    moved = coefficients @ features(kind, odds)
    return float(np.logaddexp(0, np.where(own, -moved, moved)).mean())


def test_platt_is_logistic_regression():
    examples = binary(2000, lambda x: 0.6 * x - 0.4)
    odds = odds_of(examples)
    reference = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000)
    reference.fit(odds[:, None], examples.labels.numpy())
    found = PlattScaling.fit(examples).coefficients[0].tolist()
    assert found == pytest.approx([reference.coef_[0, 0], reference.intercept_[0]], abs=1e-6)


def is_optimal(kind, odds, own, found, tolerance):
    """Check coefficients against a general optimiser with the same constraints."""
    reference = minimize(
        lambda at: binary_loss(kind, odds, own, at),
        kind.identity,
        bounds=[(0 if j in kind.nonnegative else None, None) for j in range(len(kind.identity))],
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    assert binary_loss(kind, odds, own, found) <= reference.fun + 1e-12
    assert found == pytest.approx(reference.x, abs=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_each_class_has_the_optimum_of_its_own_binary_problem(kind):
    examples = multiclass()
    odds = log_odds(examples.logits).numpy()
    found = kind.fit(examples).coefficients.numpy()
    for j in range(examples.classes):
        is_optimal(kind, odds[:, j], examples.labels.numpy() == j, found[j], 2e-3)


@pytest.mark.parametrize(
    ("truth", "zeros"),
    [
        (lambda x: -special.log_expit(x) - special.log_expit(-x) - 1, [0]),
        (lambda x: special.log_expit(x) + special.log_expit(-x) + 1, [1]),
        (lambda x: -0.7 * x, [0, 1]),
    ],
    ids=["a", "b", "both"],
)
def test_beta_sets_slopes_that_would_be_negative_to_zero(truth, zeros):
    examples = binary(3000, truth, seed=2)
    odds, own = odds_of(examples), examples.labels.numpy() == 1
    found = BetaCalibration.fit(examples).coefficients[0].numpy()
    assert np.flatnonzero(found[:2] == 0).tolist() == zeros
    is_optimal(BetaCalibration, odds, own, found, 1e-3)


@pytest.mark.parametrize(
    ("kind", "planted"),
    [
        (PlattScaling, [0.5, -0.7]),
        (BetaCalibration, [0.4, 1.3, 0.3]),
        (QuadraticScaling, [-0.3, 0.8, 0.1]),
    ],
)
def test_planted_coefficients_are_recovered(kind, planted):
    examples = binary(200_000, lambda x: np.array(planted) @ features(kind, x))
    found = kind.fit(examples).coefficients[0].tolist()
    assert found == pytest.approx(planted, abs=0.03)


@pytest.mark.parametrize(("k", "rows"), [(2, 1), (6, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_identity_coefficients_are_the_identity(kind, k, rows):
    coefficients = torch.tensor([kind.identity] * rows, dtype=torch.float64)
    logits = 5 * torch.randn(50, k, dtype=torch.float64)
    found = kind(classes=k, coefficients=coefficients)(logits)
    torch.testing.assert_close(found, logits.log_softmax(1))


def test_log_odds_are_exact_where_a_probability_rounds_to_one():
    logits = torch.tensor([[60.0, 0.0, 1.0], [1e4, 0.0, 0.0]])
    found = log_odds(logits)
    rest = math.log(1 + math.e)
    assert found[0].tolist() == pytest.approx([60 - rest, -60.0, -59.0])
    assert found[1].tolist() == pytest.approx([1e4 - math.log(2), -1e4, -1e4])
    assert log_odds(torch.tensor([[3.0, 3.0]])).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_logits_of_any_scale_are_fitted(kind, scale):
    examples = binary(2000, lambda x: 0.8 * x + 0.2)
    far = Predictions(scale * examples.logits, examples.labels)
    losses = []
    for each in (examples, far):
        found = kind.fit(each)
        assert found.origin.converged
        losses.append(nll(each.map(found)))
    if kind is not BetaCalibration:
        assert losses[1] == pytest.approx(losses[0], rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_separable_examples_are_regularised_with_a_warning(kind):
    odds = np.linspace(-3, 3, 200)
    examples = Predictions.from_binary(odds, (odds > 0).astype(int), kind="logits")
    with pytest.warns(UserWarning, match="no best fit for class 1"):
        found = kind.fit(examples)
    assert not found.origin.converged
    assert found.coefficients.abs().max() < 1000
    assert nll(examples.map(found)) < 0.03


def test_only_the_separable_class_is_named():
    examples = multiclass()
    logits = examples.logits.clone()
    logits[examples.labels == 3, 3] = 40
    logits[examples.labels != 3, 3] = -40
    with pytest.warns(UserWarning, match=r"1 of 4 classes \(3\)"):
        PlattScaling.fit(Predictions(logits, examples.labels))


def test_equal_logits_give_the_frequencies_of_the_classes():
    labels = torch.tensor([0, 1, 1, 1])
    found = PlattScaling.fit(Predictions(torch.zeros(4, 2), labels))
    assert found(torch.zeros(1, 2)).exp()[0].tolist() == pytest.approx([0.25, 0.75])


def test_smooth_targets_are_those_of_platt():
    examples = binary(60, lambda x: x)
    odds, own = odds_of(examples), examples.labels.numpy() == 1
    targets = np.where(own, (own.sum() + 1) / (own.sum() + 2), 1 / ((~own).sum() + 2))

    def loss(at):
        moved = at[0] * odds + at[1]
        return float((np.logaddexp(0, moved) - targets * moved).mean())

    reference = minimize(loss, [1.0, 0.0], tol=1e-12)
    found = PlattScaling.fit(examples, smooth_targets=True).coefficients[0].tolist()
    assert found == pytest.approx(reference.x, abs=1e-4)
    assert found != pytest.approx(PlattScaling.fit(examples).coefficients[0].tolist(), abs=1e-3)
    odds = np.linspace(-3, 3, 200)
    separable = Predictions.from_binary(odds, (odds > 0).astype(int), kind="logits")
    assert PlattScaling.fit(separable, smooth_targets=True).origin.converged
