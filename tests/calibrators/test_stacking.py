"""Weights of a blend: tempered likelihoods and exponents against slow searches."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, Blend, out_of_fold, select
from calibrant.calibrators.nonnegative import nonnegative_minimum
from calibrant.calibrators.out_of_fold import LOSSES, compare_out_of_fold
from calibrant.calibrators.selection import fold_of
from calibrant.calibrators.stacking import (
    PRIOR,
    SHRINKAGE,
    TEMPERING,
    log_weights,
    pool_exponents,
    stack,
)
from calibrant.data import SYNTHETIC


def tempered(n: int, k: int = 3, seed: int = 0, **extras) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 4
    labels = (logits / 2 + generator.gumbel(size=(n, k))).argmax(1)
    return Predictions(logits, labels, **extras)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def members(n=300, k=3, seed=0):
    """Out-of-fold log-probabilities of three parts: too sharp, too flat, and noise."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 2
    labels = (logits + generator.gumbel(size=(n, k))).argmax(1)
    parts = [2 * logits, 0.3 * logits, generator.normal(size=(n, k))]
    return np.stack([log_softmax(each) for each in parts], -1), labels


def test_weights_are_tempered_likelihoods_times_a_prior():
    losses = {"identity": 0.9, "spline": 0.52, "structured_matrix": 0.5, "histogram": 0.51}
    for n in (50, 200):
        prior = PRIOR | {"identity": (115 / n) ** 1.5}
        found = log_weights(losses, examples=n)
        for name, loss in losses.items():
            expected = prior.get(name, 0.0) - TEMPERING * n * (loss - 0.5)
            assert found[name] == pytest.approx(expected)
    assert PRIOR.keys() <= CALIBRATORS.keys()


@pytest.mark.parametrize("masked", [False, True])
def test_exponents_are_those_of_a_slow_search(masked):
    scores, labels = members()
    if masked:
        scores[::3, 2] = -np.inf
        labels[::3] %= 2
    counts = 1.0 + np.arange(len(labels)) % 3
    near = np.array([0.5, 0.3, 0.2])

    def loss(exponents):
        finite = np.where(np.isneginf(scores), 0, scores) @ exponents
        logits = np.where(np.isneginf(scores[:, :, 0]), -np.inf, finite)
        own = log_softmax(logits)[np.arange(len(labels)), labels]
        total = counts.sum()
        return -counts @ own / total + SHRINKAGE / total * ((exponents - near) ** 2).sum()

    slow = minimize(loss, near, method="L-BFGS-B", bounds=[(0, None)] * 3, options={"ftol": 1e-15})
    found = pool_exponents(scores, labels, counts, near)
    np.testing.assert_allclose(found, slow.x, atol=1e-4)
    assert loss(found) <= slow.fun + 1e-10


def test_exponents_are_never_negative():
    scores, labels = members(3000)
    # A part that points the wrong way.
    wrong = np.stack([scores[:, :, 0], log_softmax(-scores[:, :, 0])], -1)
    found = pool_exponents(wrong, labels, np.ones(len(labels)), np.array([0.2, 0.0]))
    assert found[1] == 0
    assert found[0] == pytest.approx(0.5, abs=0.05)


def test_parts_that_hardly_matter_get_nothing():
    scores, labels = members(2000)
    parts = [scores[:, :, at] for at in range(3)]
    losses = [float(-part[np.arange(len(labels)), labels].mean()) for part in parts]
    logs = [-TEMPERING * 2000 * loss for loss in losses]
    found = stack(parts, logs, labels, np.ones(len(labels)))
    assert found.weights.sum() == pytest.approx(1)
    assert found.weights[2] == found.exponents[2] == 0
    assert found.exponents.min() >= 0
    even = stack(parts[:2], [0.0, np.log(2)], labels, np.ones(len(labels)))
    np.testing.assert_allclose(even.weights, [1 / 3, 2 / 3])


def test_a_quadratic_function_over_positive_numbers():
    generator = np.random.default_rng(0)
    for _ in range(20):
        root = generator.normal(size=(4, 4))
        hessian, linear = root @ root.T + 0.1 * np.eye(4), generator.normal(size=4)
        found = nonnegative_minimum(hessian, linear)
        gradient = hessian @ found + linear
        # The conditions of Karush, Kuhn and Tucker.
        assert found.min() >= 0
        assert gradient.min() > -1e-9
        np.testing.assert_allclose(found * gradient, 0, atol=1e-9)


def test_losses_are_those_of_the_metrics():
    data = tempered(50)
    from calibrant import metrics

    log_probs = data.log_probs.double().numpy()
    for name, loss in LOSSES.items():
        each = loss(log_probs, data.labels.numpy())
        assert each.mean() == pytest.approx(metrics.METRICS[name](data), rel=1e-6)


@pytest.mark.parametrize("criterion", ["nll", "brier"])
def test_racing_drops_only_candidates_that_are_far_behind(criterion):
    plain = tempered(2000)
    # Wrong by a constant for each class, which a temperature cannot correct.
    data = Predictions(plain.logits + torch.tensor([0.0, 3.0, 6.0]), plain.labels)
    names, fold, calls = ["identity", "vector", "temperature"], fold_of(data, folds=5, seed=0), []
    found = compare_out_of_fold(
        names, data, fold, criterion=criterion, step=lambda: calls.append(1)
    )
    assert len(calls) == 5 * len(names)
    assert set(found.dropped) == {"temperature"}
    assert set(found.measured) == {"identity", "vector"}
    # The difference is that of the first two folds.
    labels, losses = data.labels.numpy(), {}
    for name in ("vector", "temperature"):
        parts = []
        for number in range(2):
            test = data.take(fold == number)
            mapped = test.map(CALIBRATORS[name].fit(data.take(fold != number)))
            parts.append(LOSSES[criterion](mapped.logits.double().numpy(), labels[fold == number]))
        losses[name] = np.concatenate(parts)
    behind = losses["temperature"] - losses["vector"]
    mean, error = found.dropped["temperature"]
    assert mean == pytest.approx(behind.mean(), rel=1e-6)
    assert error == pytest.approx(behind.std() / np.sqrt(len(behind)), rel=1e-6)


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    data, names = tempered(400), ["identity", "temperature", "vector"]
    fold, found = fold_of(data, folds=3, seed=0), []
    for threads in (1, 3):
        monkeypatch.setattr(out_of_fold.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(
            compare_out_of_fold(names, data, fold, criterion="nll", step=lambda: None).measured
        )
    for name in found[0]:
        np.testing.assert_allclose(found[0][name].logits, found[1][name].logits, atol=1e-9)


def test_a_budget_skips_what_was_not_compared(monkeypatch):
    clock = iter(np.arange(0.0, 1000, 3))
    monkeypatch.setattr(out_of_fold.time, "monotonic", lambda: next(clock))
    found = select(tempered(400), budget=5, folds=3, resamples=100)
    assert {"identity", "temperature"} <= {each.name for each in found.candidates}
    assert found.skipped["spline"] == "the budget of 5 s was used up"
    assert len(found.candidates) < 6
    assert isinstance(found.blend, Blend)
    with pytest.raises(ValueError, match="budget must be a positive number of seconds, got 0"):
        select(tempered(100), budget=0)


def test_differences_of_groups_have_larger_errors():
    generator = np.random.default_rng(0)
    data = tempered(600, groups=np.arange(600) // 20)
    shared = np.repeat(generator.normal(size=30), 20)
    losses = {"one": np.zeros(600), "two": shared + 0.5}
    plain = Predictions(data.logits, data.labels)
    (_, grouped), (_, single) = (
        out_of_fold._differences(losses, each)["two"] for each in (data, plain)
    )
    assert grouped == pytest.approx(single * np.sqrt(20), rel=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_few_examples_are_shrunk_towards_no_calibration():
    """Calibrated predictions: a blend of few examples may hardly hurt, as it would without FEW."""
    test = SYNTHETIC["calibrated"].sample(5000, seed=99).predictions
    names = ["identity", "temperature", "vector", "structured_vector", "platt", "spline", "kernel"]
    harm = []
    for seed in range(8):
        few = SYNTHETIC["calibrated"].sample(30, seed=seed).predictions
        found = select(few, candidates=names, resamples=20).blend
        harm.append(metrics.nll(test.map(found)) - metrics.nll(test))
    # 0.001; 0.02 with FEW = 1.
    assert np.mean(harm) < 0.006
