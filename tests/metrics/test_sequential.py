"""The anytime-valid test of calibration: valid at any time, and quick to find drift."""

import itertools
import json
import math

import numpy as np
import pytest
from benchmarks.drift_detection import (
    CALIBRATED,
    CONFIDENT,
    DRIFTED,
    METHODS,
    PAGE,
    Case,
    first_alarms,
    section,
)
from scipy import stats

from calibrant import metrics
from calibrant.metrics import BinSums, CalibrationEProcess, drift_test
from calibrant.metrics.betting import (
    SCALES,
    SHIFTS,
    initial_log_wealth,
    log_growth,
    next_log_wealth,
    total_log_wealth,
)
from calibrant.metrics.control_charts import cusum_path, standardised_residual

EDGES = tuple(np.arange(16) / 15)


def window(confidence, correct, bins=15):
    return BinSums.of_confidence(np.array(confidence, float), np.array(correct, float), bins=bins)


def simulated(generator, streams, examples, *, shift=0.0, kind="confident"):
    """Sums of one window of many streams; the true logit is that of p plus a shift."""
    size = (streams, examples)
    if kind == "extreme":
        p = 1 - 10 ** -generator.uniform(1.5, 5, size)
    else:
        p = generator.beta(*{"confident": (6, 1), "binary": (0.5, 0.5)}[kind], size)
    chance = 1 / (1 + np.exp(-shift) * (1 - p) / p.clip(1e-300))
    y = generator.random(size) < chance
    cell = np.minimum(p * 15, 14).astype(int) + 15 * np.arange(streams)[:, None]
    count, confidence, correct = (
        np.bincount(cell.ravel(), values, 15 * streams).reshape(streams, 15).astype(float)
        for values in (None, p.ravel(), y.ravel())
    )
    return BinSums(count, confidence, correct, EDGES)


def ever_alarmed(streams, *, windows, examples, kind, seed):
    generator = np.random.default_rng(seed)
    wealth = np.broadcast_to(initial_log_wealth(15), (streams, 17, len(SHIFTS)))
    peak = np.zeros(streams)
    for t in range(windows):
        sums = simulated(generator, streams, examples, kind=kind)
        wealth = next_log_wealth(wealth, sums, windows=t)
        peak = np.maximum(peak, total_log_wealth(wealth, windows=t + 1))
    return (peak >= math.log(20)).mean()


def test_the_growth_of_a_bet_by_hand():
    # Four examples at p = 0.75, one correct; a shift of -1: exp(-1) / (1 + 0.75 (1/e - 1)) ** 4.
    growth = log_growth(window([0.75] * 4, [1, 0, 0, 0], bins=1))
    expected = -1 - 4 * math.log(0.25 + 0.75 / math.e)
    column = SHIFTS.tolist().index(-1)
    assert growth[0, column] == growth[1, column] == pytest.approx(expected)
    # The centre of the only bin is 1/2, whose logit is 0: scaling bets nothing.
    assert not growth[2].any()


def test_the_growth_of_a_scale_by_hand():
    # Bins (0, 1/2] and (1/2, 1] with logits -log 3 and log 3 at their centres; scale -1.
    growth = log_growth(window([0.25, 0.75], [1, 1], bins=2))
    one = math.log(3) - math.log(0.75 + 0.25 * 3)
    other = -math.log(3) - math.log(0.25 + 0.75 / 3)
    assert growth[3, SCALES.tolist().index(-1)] == pytest.approx(one + other)


def test_the_e_value_of_one_window_by_hand():
    # Of the wealth 1 the part 1 - 1/sqrt(2) is bet, spread evenly over the bets of three kinds.
    sums = window([0.75] * 4, [1, 0, 0, 0], bins=1)
    gain = np.exp(SHIFTS - 4 * np.log(0.25 + 0.75 * np.exp(SHIFTS))).mean()
    expected = math.sqrt(0.5) + (1 - math.sqrt(0.5)) * (gain + gain + 1) / 3
    assert CalibrationEProcess.start(1).update(sums).e_value == pytest.approx(expected)


@pytest.mark.parametrize(
    "probs", [[0.5] * 4, [0.05, 0.3, 0.6, 0.9, 0.99], [0.001, 0.002, 0.04], [1, 1, 0.5, 0]]
)
def test_no_bet_gains_on_average_though_probabilities_differ_within_a_bin(probs):
    for bins in (1, 3):
        mean = 0
        for labels in itertools.product([0, 1], repeat=len(probs)):
            chance = math.prod(p if y else 1 - p for p, y in zip(probs, labels, strict=True))
            mean = mean + chance * np.exp(log_growth(window(probs, labels, bins)))
        assert (mean <= 1 + 1e-12).all()
        if len(set(probs)) == 1:
            # Without differences the bound of Jensen is an equality: a martingale.
            assert mean == pytest.approx(1)


def test_the_expected_e_value_of_two_windows_is_at_most_one():
    p, n = 0.8, 6.0
    after = {k: BinSums(*map(np.array, ([n], [n * p], [float(k)])), (0.0, 1.0)) for k in range(7)}
    chance = stats.binom.pmf(range(7), 6, p)
    mean = sum(
        chance[a] * chance[b] * drift_test([after[a], after[b]]).e_values[-1]
        for a in after
        for b in after
    )
    assert mean == pytest.approx(1)


@pytest.mark.parametrize("kind", ["confident", "extreme", "binary"])
def test_few_calibrated_streams_ever_raise_an_alarm(kind):
    # 5 % with three standard errors of 1,000 streams.
    assert ever_alarmed(1000, windows=25, examples=40, kind=kind, seed=0) <= 0.05 + 0.021


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["confident", "extreme", "binary"])
def test_at_most_five_percent_of_calibrated_streams_ever_raise_an_alarm(kind):
    assert ever_alarmed(5_000, windows=100, examples=50, kind=kind, seed=1) <= 0.05


def stream(windows, *, shift, seed, examples=200):
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(windows):
        sums = simulated(generator, 1, examples, shift=shift)
        found.append(BinSums(sums.count[0], sums.confidence[0], sums.correct[0], EDGES))
    return found


def test_many_streams_at_once_equal_each_stream_alone():
    generator = np.random.default_rng(2)
    windows = [simulated(generator, 3, 100, shift=-0.4) for _ in range(6)]
    wealth = np.broadcast_to(initial_log_wealth(15), (3, 17, len(SHIFTS)))
    values = []
    for t, sums in enumerate(windows):
        wealth = next_log_wealth(wealth, sums, windows=t)
        values.append(total_log_wealth(wealth, windows=t + 1))
    path = cusum_path(np.stack([standardised_residual(w) for w in windows], -1), reference=0.5)
    for at in range(3):
        alone = [BinSums(w.count[at], w.confidence[at], w.correct[at], EDGES) for w in windows]
        np.testing.assert_allclose(drift_test(alone).log_e_values, np.array(values)[:, at])
        np.testing.assert_allclose(metrics.cusum(alone).statistic, path[at])


def test_the_page_has_the_tables_of_the_benchmark():
    few = Case(CONFIDENT, "shift", -1.0, streams=4, windows=6, change=2)
    found = first_alarms(few)
    assert set(found) == set(METHODS)
    assert all((alarms <= 6).all() for alarms in found.values())
    cases = [*CALIBRATED, *DRIFTED]
    never = [{name: np.full(case.streams, case.windows) for name in METHODS} for case in cases]
    text, page = section(never, seconds=1), PAGE.read_text()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        # Names of columns and cases; numbers differ.
        heads = [
            each for each in cells if each and not set(each) <= set("-0 .,%") and each != "never"
        ]
        assert "|" not in line or all(each in page for each in heads), line
    assert text.splitlines()[-1] in page


def test_drift_is_found_soon_also_after_a_long_calibrated_time():
    for seed, shift in enumerate([-1.0, 1.5]):
        for before in (0, 100):
            windows = stream(before, shift=0, seed=seed) + stream(10, shift=shift, seed=seed + 9)
            first = drift_test(windows).first_alarm
            assert first is not None, (shift, before)
            assert before <= first < before + 8, (shift, before, first)


def test_a_single_bad_bin_is_found_and_named():
    good = [window([0.5] * 50 + [0.9] * 50, [1, 0] * 25 + [1] * 45 + [0] * 5) for _ in range(5)]
    bad = [window([0.5] * 50 + [0.9] * 50, [1, 0] * 25 + [1] * 35 + [0] * 15) for _ in range(5)]
    found = drift_test(good + bad)
    assert found.first_alarm == 6
    assert "bin (0.867, 0.933] -1" in found.process.leading_bet


def test_opposite_errors_that_cancel_are_found_and_named_as_scaling():
    bad = [window([0.1] * 50 + [0.9] * 50, [1] * 12 + [0] * 38 + [1] * 38 + [0] * 12)] * 5
    assert metrics.cusum(bad).first_alarm is None
    found = drift_test(bad)
    assert found.first_alarm is not None
    assert found.process.leading_bet == "logits of all bins times 0.667"


def test_the_shared_shift_is_named():
    found = drift_test(stream(10, shift=-1.0, seed=0)).process
    assert found.leading_bet == "logits of all bins -1"


def test_an_e_value_depends_only_on_windows_until_then():
    windows = stream(12, shift=-0.3, seed=3)
    whole = drift_test(windows)
    assert drift_test(windows[:7]).log_e_values == whole.log_e_values[:7]
    changed = [*windows[:7], *stream(5, shift=2.0, seed=4)]
    assert drift_test(changed).log_e_values[:7] == whole.log_e_values[:7]
    # Order matters: bets are laid before a window is seen.
    assert drift_test(windows[::-1]).log_e_values[-1] != whole.log_e_values[-1]


def test_the_p_value_and_the_alarm_remember_the_largest_e_value():
    windows = [*stream(5, shift=-1.0, seed=0), *stream(60, shift=0.0, seed=1, examples=2000)]
    found = drift_test(windows)
    assert found.e_values[-1] < 1 < max(found.e_values)
    assert found.p_value == pytest.approx(1 / max(found.e_values))
    assert found.process.alarm()
    assert found.process.alarm(level=found.p_value * (1 + 1e-9))
    assert not found.process.alarm(level=found.p_value * (1 - 1e-9))
    assert found.first_alarm == next(i for i, e in enumerate(found.e_values) if e >= 20)


def test_a_stream_resumed_from_json_after_every_window_has_equal_bits():
    windows = stream(10, shift=-0.5, seed=5)
    process = CalibrationEProcess.start(EDGES)
    for sums in windows:
        text = json.dumps(process.to_dict(), allow_nan=False)
        process = CalibrationEProcess.from_dict(json.loads(text)).update(sums)
    whole = drift_test(windows).process
    assert process.to_dict() == whole.to_dict()
    assert process.log_wealth.tobytes() == whole.log_wealth.tobytes()


def test_empty_windows_and_bins_change_nothing():
    start = CalibrationEProcess.start()
    assert start.e_value == pytest.approx(1, abs=1e-15)
    assert start.p_value == 1
    one = start.update(window([0.9] * 20, [1] * 10 + [0] * 10))
    empty = one
    for _ in range(50):
        empty = empty.update(BinSums.zero())
    assert empty.windows == 51
    assert empty.log_e_value == pytest.approx(one.log_e_value, abs=1e-12)


def test_huge_counts_neither_overflow_nor_raise_false_alarms():
    n = np.full(15, 1e11)
    p = (np.arange(15) + 0.5) / 15
    calibrated = BinSums(n, n * p, n * p, EDGES)
    process = CalibrationEProcess.start(EDGES)
    for _ in range(5):
        process = process.update(calibrated)
    assert process.e_value < 1
    assert not process.alarm()
    process = process.update(BinSums(n, n * p, n * p * 0.9, EDGES))
    assert math.isfinite(process.log_e_value)
    assert process.e_value == math.inf
    assert process.p_value == 0
    assert json.loads(json.dumps(process.to_dict(), allow_nan=False)) == process.to_dict()


def test_certain_predictions_cost_nothing_until_one_is_wrong():
    right = drift_test([window([1.0] * 1000, [1] * 1000)] * 20)
    assert right.log_e_values[-1] == pytest.approx(0, abs=1e-9)
    wrong = right.process.update(window([1.0] * 1000, [1] * 995 + [0] * 5))
    assert wrong.alarm()


GOOD = window([0.9] * 4, [1, 1, 0, 1])


def altered(**changes):
    return BinSums(**{**vars(GOOD), **changes})


BAD_WINDOWS = {
    "weighted examples are refused": BinSums.of_confidence([0.9], [1.0], weights=[0.5]),
    "fixed bin edges": GOOD.equal_mass(3),
    "same bin edges": window([0.9], [1], bins=10),
    "count of a window must be finite": altered(count=GOOD.count - 5),
    "confidence of a window must be finite": altered(confidence=GOOD.confidence * np.nan),
    r"correct of a window must be \(15,\)": altered(correct=np.zeros((2, 15))),
    "correct of a bin must not exceed its count": altered(correct=GOOD.count + 1),
    "confidence of a bin must not exceed its count": altered(confidence=GOOD.count * 1.1),
    r"integers up to 2 \*\* 53": altered(count=GOOD.count * 1e17),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("message", "sums"), BAD_WINDOWS.items(), ids=BAD_WINDOWS)
def test_bad_windows_are_refused(message, sums):
    for test in (drift_test, metrics.cusum, metrics.fixed_window_z):
        with pytest.raises(ValueError, match=message):
            test([GOOD, sums])


def test_bad_settings_are_refused():
    for level in (0, 1, -1, math.nan):
        with pytest.raises(ValueError, match="level must lie between"):
            drift_test([GOOD], level=level)
        with pytest.raises(ValueError, match="level must lie between"):
            CalibrationEProcess.start().alarm(level)
    for test in (drift_test, metrics.cusum, metrics.fixed_window_z):
        with pytest.raises(ValueError, match="at least 1 window"):
            test([])
    with pytest.raises(ValueError, match="fixed bin edges"):
        drift_test([GOOD.equal_mass(3)])
    with pytest.raises(ValueError, match="looks must be"):
        metrics.fixed_window_z([GOOD], looks=0)
    with pytest.raises(ValueError, match="average_run_length must be"):
        metrics.cusum_threshold(0.5)
    with pytest.raises(ValueError, match="average_run_length must be"):
        metrics.cusum_threshold(math.nan)
    with pytest.raises(ValueError, match="threshold must be positive"):
        metrics.cusum([GOOD], threshold=-1)
    with pytest.raises(ValueError, match="one array for each window"):
        metrics.cusum([GOOD], variances=[])
    with pytest.raises(ValueError, match="variances must be finite"):
        metrics.cusum([GOOD], variances=[np.full(15, np.nan)])


STATE = CalibrationEProcess.start(2).to_dict()
BAD_STATES = [
    ([], "must have"),
    ({}, "must have"),
    ({**STATE, "more": 1}, "must have"),
    ({**STATE, "version": 2}, "version 1, got 2"),
    ({**STATE, "edges": [0, 0.7, 0.5, 1]}, "must increase"),
    ({**STATE, "edges": 3}, "edges must be a list"),
    ({**STATE, "edges": "0 1"}, "edges must be finite numbers"),
    ({**STATE, "edges": [0, 0.2, 0.5, 1]}, r"shape \(5, 12\), got \(4, 12\)"),
    ({**STATE, "windows": -1}, "windows must be an integer"),
    ({**STATE, "windows": True}, "windows must be an integer"),
    ({**STATE, "windows": 1.0}, "windows must be an integer"),
    ({**STATE, "log_wealth": [[0.0], [1.0, 2.0]]}, "different lengths"),
    ({**STATE, "log_wealth": [[math.nan] * 12] * 4}, "finite"),
    ({**STATE, "log_wealth": [[9.0] * 12] * 4}, "peak must be a number of at least"),
    ({**STATE, "peak": -1}, "peak must be a number of at least 0"),
    ({**STATE, "peak": [1.0]}, "peak must be"),
    ({**STATE, "peak": None}, "peak must be finite"),
]


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_damaged_state_is_refused():
    assert CalibrationEProcess.from_dict(STATE).to_dict() == STATE
    for state, message in BAD_STATES:
        with pytest.raises(ValueError, match=message):
            CalibrationEProcess.from_dict(state)


def test_the_z_test_by_hand():
    # 100 examples at 0.8, 70 correct: z = -10 / sqrt(16) = -2.5.
    sums = window([0.8] * 100, [1] * 70 + [0] * 30)
    chart = metrics.fixed_window_z([BinSums.zero(), sums])
    assert chart.statistic == pytest.approx((0, 2.5))
    assert chart.threshold == pytest.approx(1.95996, abs=1e-5)
    assert chart.first_alarm == 1
    corrected = metrics.fixed_window_z([sums], looks=100)
    assert corrected.threshold == pytest.approx(stats.norm.isf(0.00025))
    assert corrected.first_alarm is None


def test_the_variance_is_bounded_by_that_of_the_mean():
    p = np.array([0.81, 0.86] * 50)
    sums = window(p, [1] * 70 + [0] * 30)
    exact = np.zeros(15)
    exact[12] = (p * (1 - p)).sum()
    known = metrics.fixed_window_z([sums], variances=[exact]).statistic[0]
    assert known == pytest.approx(13.5 / math.sqrt((p * (1 - p)).sum()))
    bounded = metrics.fixed_window_z([sums]).statistic[0]
    assert 0.98 * known < bounded < known


def test_cusum_by_hand():
    # z = 2.5, -2.5, -2.5 with k = 1: upper 1.5, 0, 0; lower 0, 1.5, 3.
    low, high = window([0.8] * 100, [1] * 70 + [0] * 30), window([0.8] * 100, [1] * 90 + [0] * 10)
    chart = metrics.cusum([high, low, low], reference=1.0, threshold=2.9)
    assert chart.statistic == pytest.approx((1.5, 1.5, 3))
    assert chart.first_alarm == 2


def test_certain_predictions_that_are_wrong_alarm_without_an_overflow():
    wrong = [window([1.0] * 5, [0] * 5), window([0.0] * 5, [1] * 5)] * 3
    assert metrics.cusum(wrong).first_alarm == 0
    assert np.isfinite(metrics.cusum(wrong).statistic).all()
    assert float(standardised_residual(window([1.0], [1]))) == 0


def test_the_average_run_length_of_cusum_is_the_one_asked_for():
    # Published: two-sided, k = 0.5: h = 4 gives 168 windows, h = 5 gives 465.
    for length, expected in ((168, 4), (465, 5)):
        assert metrics.cusum_threshold(length) == pytest.approx(expected, abs=0.01)
    z = np.random.default_rng(0).standard_normal((1000, 800))
    above = cusum_path(z, reference=0.5) > metrics.cusum_threshold(100)
    assert above.any(1).all()
    assert above.argmax(1).mean() + 1 == pytest.approx(100, rel=0.1)
