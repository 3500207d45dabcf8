"""Intervals, comparisons and tests of many examples, against the full bootstrap."""

import numpy as np
import pytest

from calibrant import Predictions, metrics
from calibrant.metrics import hypothesis_tests, kernel, recalibration, simplex
from calibrant.metrics.resampling import samples
from calibrant.metrics.resampling.intervals import intervals
from calibrant.metrics.resampling.samples import Samples

# As many as the full bootstrap can resample in a test.
N, LARGE = 10_000, 4_000


@pytest.fixture(autouse=True)
def _large_is_small(monkeypatch):
    for module in (samples, hypothesis_tests):
        monkeypatch.setattr(module, "LARGE", LARGE)


def two_classes(n=N, *, slope=0.8, seed=0, **options):
    generator = np.random.default_rng(seed)
    odds = generator.normal(-1, 2, n)
    labels = generator.random(n) < 1 / (1 + np.exp(-slope * odds))
    return Predictions.from_binary(odds, labels.astype(int), kind="logits", **options)


def four_classes(n=N, *, scale=0.8, seed=0, **options):
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (n, 4))
    return Predictions(
        logits, (scale * logits + generator.gumbel(size=(n, 4))).argmax(1), **options
    )


def in_full(monkeypatch, work):
    """The same work with every example resampled on its own."""
    with monkeypatch.context() as patched:
        patched.setattr(samples, "LARGE", 10**9)
        return work()


def assert_alike(fast, full, name, *, most=0.35):
    """Equal values, and ends that differ by the noise of 200 resamples."""
    assert fast.value == full.value, name
    width = full.high - full.low
    assert abs(fast.low - full.low) < most * width, (name, fast, full)
    assert abs(fast.high - full.high) < most * width, (name, fast, full)


@pytest.mark.parametrize(
    ("predictions", "names"),
    [
        (two_classes(), ("nll", "binary_ece", "roc_auc", "calibration_slope", "ece", "smece")),
        (four_classes(), ("nll", "brier", "classwise_ece", "ece", "debiased_ece", "aurc", "ks")),
        (four_classes(groups=np.arange(N) // 1000), ("ece", "accuracy")),
        (four_classes(weights=np.tile([1.0, 2.0], N // 2)), ("ece", "nll")),
    ],
    ids=["two classes", "four classes", "groups", "weights"],
)
def test_intervals_of_many_examples_are_those_of_the_full_bootstrap(
    predictions, names, monkeypatch
):
    chosen = {name: metrics.METRICS[name].function for name in names}

    def work():
        return intervals(chosen, predictions, resamples=200)

    fast, full = work(), in_full(monkeypatch, work)
    for name in names:
        assert_alike(fast[name], full[name], name)


def test_the_interval_of_calibrated_predictions_contains_zero():
    for p in (two_classes(slope=1.0, seed=2), four_classes(scale=1.0)):
        for metric in (metrics.ece, metrics.classwise_ece, metrics.simplex_ece):
            assert metrics.interval(metric, p, resamples=100).low == 0, metric
    assert metrics.interval(metrics.ece, two_classes(), resamples=100).low > 0


def test_every_interval_type_works_on_many_examples():
    p = two_classes()
    for kind in metrics.INTERVAL_TYPES:
        found = metrics.interval(metrics.ece, p, resamples=100, interval_type=kind)
        assert found.low < found.value < found.high, kind


def test_an_infinite_value_has_no_interval():
    probs = np.tile([0.6, 0.3, 0.1], (N, 1))
    probs[0] = [1, 0, 0]
    labels = np.zeros(N, dtype=int)
    labels[0] = 1
    found = metrics.interval(metrics.nll, Predictions.from_probs(probs, labels), resamples=20)
    assert np.isinf(found.value)
    assert np.isnan(found.low)


@pytest.mark.parametrize("paired", [True, False])
def test_differences_of_many_examples_are_those_of_the_full_bootstrap(paired, monkeypatch):
    first = four_classes()
    second = first.map(lambda z: 0.9 * z) if paired else four_classes(seed=1)
    for metric in (metrics.nll, metrics.ece):

        def work(metric=metric):
            return metrics.compare(metric, first, second, paired=paired, resamples=200)

        fast, full = work(), in_full(monkeypatch, work)
        assert_alike(fast, full, metric.__name__)
        assert (fast.p_value < 0.05) == (full.p_value < 0.05), metric


def test_the_cost_of_resampling_does_not_grow_with_the_examples():
    big = two_classes(200_000)
    chosen = Samples(big)
    merged = chosen.of(metrics.ece)
    assert len(merged.examples) < 10_000
    assert merged.counts.sum() == len(big)
    # The same probabilities and outcomes, up to the width of a cell.
    assert merged.own_value(0, lambda w: w @ merged.examples.positive_probs.numpy()) == (
        pytest.approx(float(big.positive_probs.sum()), rel=1e-5)
    )
    assert len(Samples(four_classes()).of(metrics.nll).examples) == samples.LARGE


def test_a_function_that_may_not_scale_is_resampled_on_all_examples():
    p = two_classes()
    count = metrics.interval(lambda given: float(given.correct.sum()), p, resamples=60)
    rate = metrics.accuracy(p)
    assert count.high - count.low == pytest.approx(4 * np.sqrt(N * rate * (1 - rate)), rel=0.35)


def test_masked_classes_are_not_merged():
    logits = np.zeros((N, 2))
    logits[0, 0] = -np.inf
    labels = np.arange(N) % 2
    labels[0] = 1
    chosen = Samples(Predictions(logits, labels)).of(metrics.ece)
    assert chosen.counts is None
    assert chosen.fraction < 1


def test_a_summary_says_how_intervals_were_computed():
    assert metrics.summary(two_classes(1000), resamples=20).interval_notes == ()
    (note,) = metrics.summary(two_classes(), resamples=20).interval_notes
    assert "10,000 examples, drawn together" in note
    merged, subset = metrics.summary(four_classes(), resamples=20).interval_notes
    assert "drawn together" in merged
    assert subset.startswith("nll, brier, classwise_ece, simplex_ece: interval from a random")


def test_very_large_sets_are_resampled_fewer_times(monkeypatch):
    p = four_classes(1000, groups=np.arange(1000) // 2)
    monkeypatch.setattr(samples, "BUDGET", 110_000)
    chosen = Samples(p)
    assert chosen.resamples_of(metrics.ece, 1000) == 110
    assert chosen.resamples_of(metrics.classwise_ece, 1000) == samples.FEWEST
    steps = []
    intervals({"nll": metrics.nll}, p, resamples=1000, progress=lambda: steps.append(1))
    assert len(steps) == samples.FEWEST
    assert "nll: 100 resamples" in " ".join(chosen.notes({"nll": metrics.nll}, 1000))


def test_the_consistency_test_of_many_examples_is_that_of_drawn_outcomes(monkeypatch):
    p = four_classes(scale=1.0, seed=3)
    fast = metrics.consistency_test(p)
    monkeypatch.setattr(hypothesis_tests, "LARGE", 10**9)
    full = metrics.consistency_test(p)
    assert fast.statistic == full.statistic
    assert fast.p_value == pytest.approx(full.p_value, abs=0.06)


def test_values_do_not_depend_on_the_chunks(monkeypatch):
    p = four_classes(3000)
    own = {m: m(p) for m in (metrics.sece, metrics.simplex_ece)}
    q = two_classes(3000)
    slope = metrics.calibration_slope(q), metrics.calibration_intercept(q)
    monkeypatch.setattr(kernel, "ROWS", 700)
    monkeypatch.setattr(simplex, "ENTRIES", 999)
    monkeypatch.setattr(recalibration, "MANY", 500)
    for metric, value in own.items():
        assert metric(p) == pytest.approx(value, abs=1e-12), metric
    assert metrics.calibration_slope(q) == pytest.approx(slope[0], abs=1e-9)
    assert metrics.calibration_intercept(q) == pytest.approx(slope[1], abs=1e-9)
