"""Error bars: repeatable, of the right width, and paired where two models are compared."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC
from calibrant.metrics.resampling.draws import draws_of

WAVY = SYNTHETIC["wavy"].sample(400, seed=0).predictions


def in_groups(size):
    return Predictions(WAVY.logits, WAVY.labels, groups=np.arange(400) // size)


def test_the_seed_repeats_and_another_differs():
    one, two = (metrics.interval(metrics.ece, WAVY, resamples=50) for _ in range(2))
    assert (one.low, one.high) == pytest.approx((two.low, two.high), rel=1e-12)
    other = metrics.interval(metrics.ece, WAVY, resamples=50, seed=1)
    assert (other.low, other.high) != pytest.approx((one.low, one.high), rel=1e-6)


@pytest.mark.parametrize("interval_type", metrics.INTERVAL_TYPES)
def test_width_of_a_mean_is_that_of_the_normal(interval_type):
    p = SYNTHETIC["overconfident"].sample(4000, seed=0).predictions
    found = metrics.interval(metrics.accuracy, p, resamples=2000, interval_type=interval_type)
    half = 1.96 * np.sqrt(found.value * (1 - found.value) / 4000)
    assert found.low == pytest.approx(found.value - half, abs=0.15 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.15 * half)


def test_percentile_and_basic_are_mirror_images():
    percentile = metrics.interval(metrics.nll, WAVY, resamples=200, interval_type="percentile")
    basic = metrics.interval(metrics.nll, WAVY, resamples=200, interval_type="basic")
    assert basic.low == pytest.approx(2 * percentile.value - percentile.high)
    assert basic.high == pytest.approx(2 * percentile.value - percentile.low)


def test_bca_of_a_rate_counts_half_of_the_ties():
    # Values and draws of one half, symmetric: without a bias, the interval is symmetric as well.
    even = Predictions([[1.0, 0.0]] * 10, [0, 1] * 5)
    found = metrics.interval(metrics.accuracy, even, resamples=4000, interval_type="bca")
    assert found.low + found.high == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("name", ["overconfident", "saturated"])
def test_basic_intervals_of_ece_cover_the_truth(name):
    synthetic = SYNTHETIC[name]
    truth = synthetic.true_binned_error(15)
    covered = 0
    for seed in range(100):
        p = synthetic.sample(3000, seed=seed).predictions
        found = metrics.interval(metrics.ece, p, resamples=200, seed=seed)
        covered += found.low <= truth <= found.high
    assert covered >= 86  # 95 aimed at; four standard errors of 100 trials below


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("metric", [metrics.ece, metrics.smece, metrics.debiased_ece])
def test_intervals_of_calibrated_predictions_contain_zero_and_the_value(metric):
    held = 0
    for seed in range(60):
        p = SYNTHETIC["calibrated"].sample(1000, seed=seed).predictions
        found = metrics.interval(metric, p, resamples=100, seed=seed)
        held += found.low <= 0 <= found.high
        assert found.low <= found.value <= found.high or found.low > 0
    assert held >= 52  # 57 expected; three standard errors below


def test_the_interval_of_a_real_error_excludes_zero():
    p = SYNTHETIC["overconfident"].sample(3000, seed=0).predictions
    for metric in (metrics.ece, metrics.smece, metrics.sece, metrics.classwise_ece, metrics.ks):
        assert metrics.interval(metric, p, resamples=100).low > 0


def test_the_interval_is_extended_to_zero_where_calibrated_examples_err_as_much():
    p = SYNTHETIC["calibrated"].sample(500, seed=1).predictions
    found = metrics.interval(metrics.ece, p, resamples=30, interval_type="percentile")
    assert found.low == 0
    weighted = p.reweighted(np.ones(500))
    assert metrics.interval(metrics.ece, weighted, resamples=30, interval_type="percentile").low > 0


def test_an_interval_is_not_clipped_to_a_point():
    p = SYNTHETIC["calibrated"].sample(500, seed=1).predictions
    found = metrics.interval(metrics.debiased_rmsce, p, resamples=200)
    assert found.low == 0
    assert found.high > 0


def test_bca_corrects_for_skewness():
    generator = np.random.default_rng(3)
    chance = 1 - generator.lognormal(-3, 1.5, 60).clip(0.001, 0.97)
    p = Predictions.from_binary(chance, np.ones(60, dtype=int), kind="probs")
    values = -np.log(chance)
    ours = metrics.interval(metrics.nll, p, resamples=20_000, interval_type="bca")
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    plain = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert abs(plain.high - theirs.high) > 0.1 * width  # skewed enough to tell the two apart
    assert ours.low == pytest.approx(theirs.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.03 * width)


def test_groups_are_resampled_as_a_whole():
    for counts in draws_of(in_groups(40), 20, seed=0):
        assert all(len(set(group)) == 1 for group in counts.reshape(10, 40).tolist())


def test_dependent_examples_need_wider_intervals():
    repeated = WAVY.take(np.repeat(np.arange(400), 25))
    grouped = Predictions(repeated.logits, repeated.labels, groups=np.repeat(np.arange(400), 25))
    honest, naive, plain = (
        metrics.interval(metrics.nll, p, resamples=300) for p in (grouped, repeated, WAVY)
    )
    assert naive.high - naive.low < (plain.high - plain.low) / 4
    assert honest.high - honest.low == pytest.approx(plain.high - plain.low, rel=0.15)


def test_weights_are_kept_while_resampling():
    weighted = WAVY.reweighted(np.where(WAVY.correct.numpy() == 1, 1.0, 0.0))
    found = metrics.interval(metrics.accuracy, weighted, resamples=50, interval_type="percentile")
    assert (found.value, found.low, found.high) == (1, 1, 1)
    other = WAVY.reweighted(np.where(WAVY.correct.numpy() == 1, 1.0, 3.0))
    plain = metrics.interval(metrics.nll, WAVY, resamples=50, interval_type="percentile")
    heavy = metrics.interval(metrics.nll, other, resamples=50, interval_type="percentile")
    assert heavy.low > plain.high


def test_intervals_stay_inside_the_range_of_the_metric():
    p = SYNTHETIC["calibrated"].sample(100, seed=0).predictions
    found = metrics.interval(metrics.smece, p, resamples=100)
    assert 0 <= found.low <= found.high
    sure = Predictions([[9.0, 0.0]] * 50, [0] * 49 + [1])
    assert metrics.interval(metrics.accuracy, sure, resamples=100).high <= 1
    wrong = Predictions([[99.0, 0.0]] * 50, [1] * 49 + [0])
    assert metrics.interval(metrics.brier, wrong, resamples=100).high == pytest.approx(2)


def test_an_infinite_score_does_not_break_the_interval():
    p = Predictions.from_probs([[0.5, 0.5]] * 20 + [[1.0, 0.0]], [0] * 20 + [1])
    found = metrics.interval(metrics.nll, p, resamples=100, interval_type="percentile")
    assert found.value == found.high == np.inf
    assert np.isfinite(found.low)


def test_a_model_does_not_differ_from_itself():
    found = metrics.compare(metrics.ece, WAVY, WAVY, resamples=50)
    assert (found.value, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_a_paired_comparison_detects_a_difference_within_overlapping_intervals():
    sharp = SYNTHETIC["overconfident"].sample(2000, seed=0).predictions
    softer = sharp.map(lambda z: z / 1.1)
    found = metrics.compare(metrics.nll, sharp, softer, resamples=500)
    one, two = (metrics.interval(metrics.nll, p) for p in (sharp, softer))
    assert found.value == pytest.approx(one.value - two.value)
    assert max(one.low, two.low) < min(one.high, two.high)
    assert found.p_value < 0.01
    assert found.low > 0 or found.high < 0


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_compare_holds_its_level_where_both_are_equally_wrong():
    false_alarms = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        chance = generator.uniform(0.6, 0.9, 500)
        labels = (generator.random(500) < chance).astype(int)
        over, under = (
            Predictions.from_binary(chance + shift, labels, kind="probs") for shift in (0.08, -0.08)
        )
        difference = metrics.compare(metrics.ece, over, under, resamples=200, seed=seed)
        false_alarms += difference.p_value < 0.05
    assert false_alarms <= 20  # 10 expected; three standard errors above


def sharp_and_coarse(seed, n=600):
    """Two calibrated models of the same labels: one tells examples apart, one hardly does."""
    generator = np.random.default_rng(seed)
    chance = generator.beta(0.5, 0.5, n)
    labels = (generator.random(n) < chance).astype(int)
    mean = 0.5 + 1 / np.pi  # of Beta(1/2, 1/2) above one half
    coarse = np.where(chance > 0.5, mean, 1 - mean)
    return (Predictions.from_binary(q, labels, kind="probs") for q in (chance, coarse))


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_debiased_ece_holds_its_level_between_calibrated_models_where_ece_does_not():
    alarms = {metrics.ece: 0, metrics.debiased_ece: 0}
    for seed in range(100):
        sharp, coarse = sharp_and_coarse(seed)
        for metric in alarms:
            found = metrics.compare(metric, sharp, coarse, resamples=200, seed=seed)
            alarms[metric] += found.p_value < 0.05
    assert alarms[metrics.debiased_ece] <= 14  # 5 expected; measured 5 to 9
    assert alarms[metrics.ece] > 30


def test_compare_of_infinite_scores_is_not_significant():
    p = Predictions.from_probs([[0.5, 0.5]] * 20 + [[1.0, 0.0]], [0] * 20 + [1])
    with np.errstate(invalid="ignore"):
        assert metrics.compare(metrics.nll, p, p, resamples=50).p_value == 1


def test_several_comparisons_are_corrected():
    others = {f"t{t}": WAVY.map(lambda z, t=t: z / t) for t in (0.7, 1.0, 1.5)}
    found = metrics.compare_many(metrics.nll, WAVY, others, resamples=200)
    alone = {
        name: metrics.compare(metrics.nll, p, WAVY, resamples=200) for name, p in others.items()
    }
    assert found["t1.0"].p_value == 1
    smallest = min(d.p_value for d in alone.values())
    assert min(d.p_value for d in found.values()) == pytest.approx(3 * smallest)
    assert all(found[name].p_value >= alone[name].p_value for name in found)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 1.0}, "level must lie strictly between 0 and 1"),
        ({"resamples": 0}, "resamples must be an int >= 1"),
        ({"interval_type": "normal"}, "interval_type must be one of"),
        ({"predictions": WAVY.take([0])}, "at least 2 examples, got 1"),
        ({"predictions": in_groups(400)}, "at least 2, got 1"),
    ],
)
def test_what_cannot_be_resampled_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        metrics.interval(**{"metric": metrics.ece, "predictions": WAVY, **options})


def test_compare_requires_the_same_examples_and_groups():
    with pytest.raises(ValueError, match="weights or groups"):
        metrics.compare(metrics.ece, WAVY, in_groups(4))
    with pytest.raises(ValueError, match="same examples in the same order"):
        metrics.compare(metrics.ece, WAVY, WAVY.take(range(399, -1, -1)))


def test_summary_has_every_metric_and_prints_as_a_table():
    found = metrics.summary(WAVY, resamples=20)
    assert list(found.metrics) == list(metrics.metrics_for(WAVY.classes))
    for name, interval in found.metrics.items():
        assert interval.value == pytest.approx(metrics.METRICS[name](WAVY))
        assert f"\n{name} " in f"\n{found}"
    assert "400 examples, 10 classes" in str(found)
    assert found.mean_confidence == pytest.approx(float(WAVY.confidence.mean()))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("overconfident", "over-confident: confidence is 7.9 points above accuracy"),
        ("underconfident", "under-confident: confidence is 4"),
        ("calibrated", "no miscalibration detected with 20,000 examples"),
        ("wavy", "calibrated on average, but not at every level"),
    ],
)
def test_the_verdict_names_the_direction(name, words):
    p = SYNTHETIC[name].sample(20_000, seed=1).predictions
    assert words in metrics.summary(p, resamples=40).verdict


@pytest.mark.filterwarnings("ignore:.*(bins|class ).*:UserWarning")
def test_summary_has_remarks_and_a_verdict():
    few = metrics.summary(SYNTHETIC["calibrated"].sample(20, seed=0).predictions, resamples=20)
    assert few.verdict == "20 examples are too few for a verdict"
    assert "too few" not in replace(few, examples=30).verdict
    balanced = few.metrics | {"overconfidence": metrics.Interval(0.0, -0.1, 0.1)}
    for p_value, words in ((0.049, "calibrated on average"), (0.05, "no miscalibration detected")):
        tests = {"consistency": metrics.TestResult(1.0, p_value)}
        found = replace(few, examples=30, metrics=balanced, tests=tests)
        assert found.verdict.startswith(words)
    p = SYNTHETIC["overconfident"].sample(10_000, seed=0).predictions
    found = metrics.summary(p, resamples=40)
    assert [remark.split(":")[0] for remark in found.remarks] == ["simplex_ece"]
    assert found.remarks[0] in str(found)


def test_summary_skips_tests_that_need_independent_examples():
    grouped = in_groups(4)
    assert metrics.summary(grouped, resamples=20).tests == {}
    with pytest.raises(ValueError, match="not groups"):
        metrics.consistency_test(grouped)


def test_draws_that_miss_all_examples_with_a_weight_are_drawn_again():
    weights = np.zeros(60)
    weights[:2] = 1
    p = Predictions([[2.0, 0.0], [0.0, 1.0]] * 30, [0, 0] * 30, weights=weights)
    found = metrics.interval(metrics.accuracy, p, resamples=200)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    weights[1] = 0
    alone = Predictions([[2.0, 0.0], [0.0, 1.0]] * 30, [0, 0] * 30, weights=weights)
    with pytest.raises(ValueError, match="at least 2 examples with a weight above 0, got 1"):
        metrics.interval(metrics.accuracy, alone)
