"""Correlations of readings, and the coverage of their intervals."""

import math

import numpy as np
import pytest
from scipy import signal, stats

from calibrant.curvature.correlation import correlation, correlations


def series(readings: int, autocorrelation: float, seed: int) -> np.ndarray:
    """Two autocorrelated series with a correlation of 0.6."""
    noise = np.random.default_rng(seed).standard_normal((2, readings + 100))
    one, two = signal.lfilter([1], [1, -autocorrelation], noise)[:, 100:]
    return np.stack([one, 0.6 * one + 0.8 * two])


def ends(found) -> tuple[float, float, float]:
    return found.value, found.low, found.high


@pytest.mark.parametrize("seed", range(5))
def test_the_values_are_those_of_scipy(seed):
    generator = np.random.default_rng(seed)
    one, two = generator.standard_normal((2, 30))
    two = np.round(two + one, 0)  # ties
    for kind, theirs in {"pearson": stats.pearsonr, "spearman": stats.spearmanr}.items():
        found = correlation(one, two, kind=kind, resamples=50)
        assert found.value == pytest.approx(theirs(one, two).statistic, abs=1e-12)
        assert -1 <= found.low <= found.value <= found.high <= 1


def test_correlations_are_invariant_to_scale():
    one, two = series(50, 0.5, 0)
    plain = correlation(one, two)
    assert correlation(1e200 * one, 1e-200 * two - 1e-199).value == pytest.approx(plain.value)
    assert correlation(one, -two).low == pytest.approx(-plain.high)
    ranks = correlation(one, two, kind="spearman")
    again = correlation(np.exp(one), two**3, kind="spearman")
    assert ends(again) == pytest.approx(ends(ranks), abs=1e-12)


def test_intervals_from_blocks_cover_where_those_from_single_readings_do_not():
    cover = {}
    for block in (None, 1):
        intervals = [
            correlation(*series(150, 0.8, seed), block=block, resamples=200) for seed in range(100)
        ]
        cover[block] = np.mean([each.low <= 0.6 <= each.high for each in intervals])
    assert 0.8 <= cover[None] <= 0.98
    assert cover[1] < 0.75


def test_the_default_block_is_the_square_root_of_the_length():
    one, two = series(49, 0.8, 3)
    found = ends(correlation(one, two))
    assert found == pytest.approx(ends(correlation(one, two, block=7)), abs=1e-12)
    assert found != pytest.approx(ends(correlation(one, two, seed=1)), abs=1e-6)
    # One block of everything: each resample is the series itself.
    whole = correlation(one, two, block=49)
    assert ends(whole) == pytest.approx([whole.value] * 3)


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_constant_readings_have_no_correlation(kind):
    for constant in ([0.1] * 10, [1e300] * 10, [0] * 10):
        assert np.isnan(ends(correlation(constant, range(10), kind=kind))).all()
    # Constant resamples of a nearly constant series are left out.
    found = correlation([0] * 9 + [1], range(10), kind=kind, block=1)
    assert 0 < found.low < found.high <= 1


def test_missing_readings_are_left_out():
    one, two = series(40, 0.5, 0)
    whole = correlation(one, two, block=5)
    gaps = np.insert(one, 7, np.nan), np.insert(two, 7, 99.0)
    assert ends(correlation(*gaps, block=5)) == pytest.approx(ends(whole), abs=1e-12)
    assert math.isnan(correlation([1, 2, np.inf], [1, 2, 3]).value)


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        ([1, 2], [1, 2], {}, "needs at least 3 readings, got 2"),
        ([1, 2, 3], [1, 2], {}, "must be equally long, got 3 and 2"),
        ([[1, 2, 3]], [1, 2, 3], {}, r"first must be \(n,\), got \(1, 3\)"),
        ([1, 2, 3], [1, 2, 3], {"kind": "kendall"}, r"kind must be one of \['pearson', 'spearman"),
        ([1, 2, 3], [1, 2, 3], {"block": 4}, r"block must lie in \[1, 3\], got 4"),
        ([1, 2, 3], [1, 2, 3], {"level": 95}, "level must lie between 0 and 1, got 95"),
        ([1, 2, 3], [1, 2, 3], {"resamples": 0}, "resamples must be at least 1"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_invalid_arguments_raise_in_one_line(first, second, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        correlation(first, second, **options)
    assert "\n" not in str(caught.value)


def records_of(one, two):
    return [{"train_ece": a, "gauss_newton": b} for a, b in zip(one, two, strict=True)]


def test_the_mean_over_runs_has_the_interval_of_a_mean():
    runs = {str(seed): records_of(*series(60, 0.5, seed)) for seed in range(5)}
    found = correlations(runs)
    values = [stats.pearsonr(*series(60, 0.5, seed)).statistic for seed in range(5)]
    assert found.values == pytest.approx(values)
    assert found.mean.value == pytest.approx(np.mean(values))
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert (found.mean.low, found.mean.high) == pytest.approx(expected)
    assert correlations(list(runs.values()), level=0.5).mean.low > found.mean.low
    ranks = correlations(runs, kind="spearman")
    assert ranks.values[0] == pytest.approx(stats.spearmanr(*series(60, 0.5, 0)).statistic)


def test_the_interval_of_the_mean_covers():
    hits = 0
    for study in range(100):
        runs = [records_of(*series(40, 0.5, 10 * study + run)) for run in range(5)]
        mean = correlations(runs).mean
        hits += mean.low <= 0.6 <= mean.high
    assert 0.88 <= hits / 100 <= 0.99


def test_runs_without_a_correlation_are_left_out_and_counted():
    good = records_of([1, 2, 3, 5], [1, 2, 4, 3])
    flat = records_of([1, 2, 3], [7, 7, 7])
    short = records_of([1, 2], [1, 2])
    without = [{"step": 0}] * 4
    holes = [*good, {"train_ece": 3.0}, {"gauss_newton": math.nan, "train_ece": 2.0}]
    found = correlations([good, flat, short, without, holes])
    assert found.left_out == 3
    assert found.values[4] == pytest.approx(found.values[0])
    assert str(found).endswith("over 2 of 5 runs")
    alone = correlations([good, flat]).mean
    assert alone.value == pytest.approx(found.values[0])
    assert math.isnan(alone.low)
    assert math.isnan(correlations([flat]).mean.value)
    # A correlation of 1 would be infinite in Fisher's z; the mean does not use it.
    assert correlations([records_of([1, 2, 3], [1, 2, 3])] * 2).mean.high == pytest.approx(1)
    columns = (range(4), [1, 3, 0, 2], [2, 0, 3, 1])
    three = correlations([records_of(range(4), each) for each in columns])
    assert three.values[0] == pytest.approx(1)
    assert three.mean.value == pytest.approx(np.mean(three.values))


def test_an_unknown_column_raises():
    with pytest.raises(ValueError, match=r"no record has 'hessian'; expected one of train_ece"):
        correlations([records_of([1, 2, 3], [1, 2, 3])], second="hessian")
    with pytest.raises(ValueError, match="no record has 'train_ece'"):
        correlations([])
