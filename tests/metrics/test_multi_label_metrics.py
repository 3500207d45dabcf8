"""Metrics of several labels against those of each column and of the flattened arrays."""

import math
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score

from calibrant import MultiLabel, Predictions, metrics
from calibrant.metrics import METRICS, holm, label_summary, macro, micro, per_label
from calibrant.metrics.label_summary import MEASURED, label_p_value


def drawn(n=400, scales=(1.0, 2.0, 0.5), missing=0.2, seed=0, shift=0.0, **options):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1, 1.5, size=(n, len(scales)))
    # Labels of an example depend on each other.
    level = (generator.random((n, 1)) + 0.2 * generator.random((n, len(scales)))) % 1
    labels = (level < 1 / (1 + np.exp(-logits))).astype(float)
    labels[generator.random(labels.shape) < missing] = np.nan
    return MultiLabel(logits * np.asarray(scales) + shift, labels, **options)


@pytest.mark.parametrize("name", [name for name in METRICS if name != "top_label_brier"])
def test_each_label_has_the_metric_of_its_column_and_micro_that_of_all_entries(name):
    multi, metric = drawn(), METRICS[name]
    found = per_label(metric, multi)
    for at in range(multi.size):
        known = multi.known[:, at]
        column = Predictions.from_binary(
            multi.logits[known, at], multi.labels[known, at], kind="logits"
        )
        assert found[str(at)] == pytest.approx(metric(column), rel=1e-12)
    known = multi.known
    flat = Predictions.from_binary(multi.logits[known], multi.labels[known], kind="logits")
    assert micro(metric, multi) == pytest.approx(metric(flat), rel=1e-12)
    assert macro(metric, multi) == pytest.approx(np.mean(list(found.values())), rel=1e-12)


def test_columns_agree_with_scikit_learn():
    multi = drawn(missing=0.0)
    probs, labels = multi.probs.numpy(), multi.labels.numpy()
    for name, function in {
        "binary_brier": brier_score_loss,
        "nll": log_loss,
        "roc_auc": roc_auc_score,
        "average_precision": average_precision_score,
    }.items():
        expected = [function(labels[:, at], probs[:, at]) for at in range(multi.size)]
        assert list(per_label(METRICS[name], multi).values()) == pytest.approx(expected, rel=1e-9)
    for average, own in (
        ("macro", macro(metrics.roc_auc, multi)),
        ("weighted", macro(metrics.roc_auc, multi, weighted=True)),
        ("micro", micro(metrics.roc_auc, multi)),
    ):
        assert own == pytest.approx(roc_auc_score(labels, probs, average=average), rel=1e-9)


def test_metrics_that_a_label_lacks_are_nan_and_left_out_with_a_warning():
    multi = drawn(label_names=["a", "b", "c"])
    labels = multi.labels.numpy().copy()
    labels[:, 1], labels[:, 2] = 0, -1
    multi = MultiLabel(multi.logits, labels, label_names=["a", "b", "c"])
    aucs = per_label(metrics.roc_auc, multi)
    assert math.isnan(aucs["b"])
    assert math.isnan(aucs["c"])
    with pytest.warns(UserWarning, match="roc_auc is not defined for b, c: left out of the mean"):
        assert macro(metrics.roc_auc, multi) == aucs["a"]
    with pytest.warns(UserWarning, match="binary_ece is not defined for c"):
        ece = macro(metrics.binary_ece, multi)
    each = per_label(metrics.binary_ece, multi)
    assert ece == pytest.approx((each["a"] + each["b"]) / 2)
    found = label_summary(multi, resamples=20)
    assert found.macro["roc_auc"].value == aucs["a"]
    assert "roc_auc, average_precision, calibration_slope: not defined for b, c" in str(found.notes)


def test_weights_count_examples():
    multi = drawn(missing=0.1)
    weights = np.random.default_rng(1).integers(1, 4, len(multi))
    weighted = MultiLabel(multi.logits, multi.labels, weights=weights.astype(float))
    repeated = multi.take(np.repeat(np.arange(len(multi)), weights))
    for name in MEASURED:
        assert macro(METRICS[name], weighted) == pytest.approx(macro(METRICS[name], repeated))
        assert micro(METRICS[name], weighted) == pytest.approx(micro(METRICS[name], repeated))


def test_an_interval_of_micro_is_that_of_the_pooled_entries_by_example():
    multi = drawn(300, missing=0.0)
    found = label_summary(multi, resamples=50, seed=3)
    for name in ("nll", "binary_brier", "roc_auc"):
        expected = metrics.interval(METRICS[name], multi.pooled(), resamples=50, seed=3)
        assert found.micro[name].value == pytest.approx(expected.value)
        # Pooled entries are numbered by example, so that the same examples are drawn.
        assert found.micro[name].low == pytest.approx(expected.low)
        assert found.micro[name].high == pytest.approx(expected.high)


def test_intervals_of_labels_that_repeat_each_other_are_not_narrower():
    """All labels of an example are drawn together."""
    one = drawn(500, scales=(1.0,), missing=0.0)
    same = MultiLabel(one.logits.repeat(1, 4), one.labels.repeat(1, 4))
    alone, together = (label_summary(each, resamples=40).macro["nll"] for each in (one, same))
    assert together.high - together.low == pytest.approx(alone.high - alone.low, rel=1e-6)


def test_only_labels_that_are_off_are_found():
    found = label_summary(drawn(2000, scales=(1, 1, 3, 1, 1)), resamples=20)
    low = [each.name for each in found.labels if each.corrected < 0.05]
    assert low == ["2"]
    assert all(each.corrected >= each.p_value for each in found.labels)
    assert found.labels[0].metrics["binary_ece"].low == 0


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_weights_and_groups_are_measured_and_not_tested():
    found = label_summary(drawn(groups=np.arange(400) // 2), resamples=20)
    assert all(math.isnan(each.p_value) for each in found.labels)
    assert found.macro["nll"].low < found.macro["nll"].value < found.macro["nll"].high


def test_bca_is_refused():
    with pytest.raises(ValueError, match="must be basic or percentile, got 'bca'"):
        label_summary(drawn(), interval_type="bca")


@pytest.mark.slow
def test_tests_of_calibrated_labels_reject_no_more_than_their_level():
    rejected = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        logits = generator.normal(np.linspace(-5, 0, 10), 1.5, size=(400, 10))
        labels = generator.random(logits.shape) < 1 / (1 + np.exp(-logits))
        each = MultiLabel(logits, labels)
        rejected += min(holm([label_p_value(each.label(at)) for at in range(10)])) < 0.05
    # 5 % of 100 is 5, with a standard deviation of 2.2.
    assert rejected <= 12


@pytest.mark.slow
def test_intervals_of_macro_and_micro_cover():
    truth, inside, sets = drawn(100_000, scales=(2.0,) * 3), {}, 16
    names = ("nll", "binary_brier", "roc_auc", "calibration_in_the_large", "binary_ece")
    expected = {name: (macro(METRICS[name], truth), micro(METRICS[name], truth)) for name in names}
    for seed in range(1, 1 + sets):
        found = label_summary(drawn(400, scales=(2.0,) * 3, seed=seed), resamples=60)
        for name, values in expected.items():
            for which, bar, value in zip(
                ("macro", "micro"), (found.macro[name], found.micro[name]), values, strict=True
            ):
                key = f"{which} {name}"
                inside[key] = inside.get(key, 0) + (bar.low <= value <= bar.high)
    covered = {key: count / sets for key, count in inside.items()}
    # 95 %, with a standard deviation of 5 % over the sets.
    assert min(covered.values()) >= 0.75, covered


def test_bins_are_passed_on():
    multi = drawn()
    found = label_summary(multi, bins=5, resamples=0)
    assert found.macro["binary_ece"].value == macro(partial(metrics.binary_ece, bins=5), multi)
    assert math.isnan(found.macro["binary_ece"].low)
