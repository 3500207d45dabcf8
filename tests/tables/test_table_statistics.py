"""Intervals, tests and searches of tables: against the bootstrap, and at the promised rates."""

import json
from dataclasses import replace

import ibis
import numpy as np
import pyarrow as pa
import pytest
from engines import rows_in_duckdb

from calibrant import Predictions, metrics, tables
from calibrant.metrics.bins import cells_per_bin
from calibrant.tables.bootstrap import PRIME
from calibrant.tables.clusters import Clusters
from calibrant.tables.slices import corrected_p_values
from calibrant.tables.table_sums import TableSums

BINS = 15
CELLS = BINS * cells_per_bin(BINS)


def table_of(columns):
    return rows_in_duckdb(ibis.duckdb.connect(), pa.table(columns))


def sums_of(confidence, correct):
    """Sums of confidences as a scan makes them, without an engine."""
    gap = confidence - correct
    rows = {"cell": np.ceil(confidence * CELLS), "n": np.ones(len(gap)), "v": confidence}
    rows |= {"h": correct.astype(float), "s": gap**2}
    return TableSums.of_rows(rows, classes=1, bins=BINS, fine=True, weighted=False)


def overconfident(n, classes, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, classes))
    labels = (0.7 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    return logits, labels


def assert_close(found, predictions, names, share=0.2):
    for name in names:
        own = found[name]
        bar = metrics.interval(metrics.METRICS[name].function, predictions, resamples=1000)
        width = bar.high - bar.low
        assert own.low == pytest.approx(bar.low, abs=share * width), (name, own, bar)
        assert own.high == pytest.approx(bar.high, abs=share * width), (name, own, bar)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_intervals_of_classes_agree_with_the_bootstrap(classes):
    logits, labels = overconfident(4000, classes)
    columns = {f"z{k}": logits[:, k] for k in range(classes)} | {"label": labels}
    found = tables.audit(table_of(columns)).metrics
    names = set(found) - {"mce"}
    assert ("binary_ece" in names) == (classes == 2)
    assert_close(found, Predictions(logits, labels), names)


def test_intervals_of_weighted_rows_agree_with_the_bootstrap():
    logits, labels = overconfident(4000, 3)
    weights = np.random.default_rng(1).integers(1, 8, 4000).astype(float)
    columns = {f"z{k}": logits[:, k] for k in range(3)} | {"label": labels, "weights": weights}
    found = tables.audit(table_of(columns)).metrics
    predictions = Predictions(logits, labels, weights=weights)
    assert_close(found, predictions, ("accuracy", "nll", "brier", "overconfidence", "ece", "rmsce"))


def dependent(groups, size, seed):
    """Calibrated predictions whose labels are one event in each group."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(4, 1.5, (groups, size))
    correct = rng.random((groups, 1)) < confidence
    return confidence.ravel(), correct.ravel(), np.repeat(np.arange(groups), size)


def test_intervals_of_clusters_agree_with_the_bootstrap_and_with_that_of_the_engine():
    confidence, correct, groups = dependent(400, 10, 0)
    correct &= np.random.default_rng(1).random(len(correct)) < 0.9
    table = table_of({"confidence": confidence, "correct": correct, "groups": groups})
    predictions = Predictions.from_confidence(confidence, correct, groups=groups)
    names = ("accuracy", "overconfidence", "ece", "debiased_ece", "rmsce", "top_label_brier")
    found = tables.audit(table).metrics
    assert_close(found, predictions, names)
    # Resampled in the engine, by the same groups.
    drawn = tables.audit(table, bootstrap=300)
    assert drawn.intervals == "Poisson bootstrap of 300 resamples, by groups"
    assert_close(drawn.metrics, predictions, (*names, "adaptive_ece"), share=0.3)
    alone = tables.audit(table.drop("groups")).metrics["accuracy"]
    assert found["accuracy"].high - found["accuracy"].low > 2 * (alone.high - alone.low)


def test_the_test_of_calibration_has_its_level_and_power():
    p_values, found = [], 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        confidence = rng.beta(5, 1.2, 1000)
        drawn = rng.random(1000)
        p_values.append(tables.calibration_test(sums_of(confidence, drawn < confidence)).p_value)
        off = tables.calibration_test(sums_of(confidence, drawn < confidence**1.5))
        found += off.p_value < 0.05
    # Three standard errors of 5 % of 400.
    assert 0.017 < np.mean(np.array(p_values) < 0.05) < 0.083
    assert found > 390


def test_with_clusters_the_level_holds_where_rows_alone_would_fail():
    alone, clustered = [], []
    for seed in range(200):
        confidence, correct, groups = dependent(300, 10, seed)
        sums = sums_of(confidence, correct)
        cell = np.ceil(confidence * BINS)
        arrays = {"cell": cell, "w": np.ones(3000), "v": confidence, "h": correct.astype(float)}
        arrays["s"] = (confidence - correct) ** 2
        clusters = Clusters.of_arrays(arrays, groups, 300, [0], bins=BINS, classes=1)
        alone.append(tables.calibration_test(sums).p_value)
        clustered.append(tables.calibration_test(sums, clusters).p_value)
    assert np.mean(np.array(alone) < 0.05) > 0.2
    assert np.mean(np.array(clustered) < 0.05) < 0.1


def test_a_calibrated_table_has_intervals_of_errors_that_hold_zero():
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(40):
        confidence = rng.beta(5, 1.2, 2000)
        found = tables.measured(sums_of(confidence, rng.random(2000) < confidence), draws=300)
        held += found["ece"].low == 0
    assert held >= 36


def test_equal_mass_bins_of_saturated_confidences_are_close_to_those_of_a_sort():
    rng = np.random.default_rng(4)
    confidence = 1 - 10 ** -rng.uniform(0.3, 12, 50_000)
    correct = rng.random(50_000) < confidence - 0.02
    exact = metrics.adaptive_ece(Predictions.from_confidence(confidence, correct))
    found = tables.measured(sums_of(confidence, correct), draws=0)["adaptive_ece"].value
    assert found == pytest.approx(exact, abs=2 / CELLS + 2 * BINS / 50_000)


def test_sums_add_and_survive_json():
    rng = np.random.default_rng(5)
    confidence = rng.beta(5, 1.2, 3000)
    correct = rng.random(3000) < confidence
    whole = sums_of(confidence, correct)
    both = sums_of(confidence[:1000], correct[:1000]) + sums_of(confidence[1000:], correct[1000:])
    np.testing.assert_array_equal(both.keys, whole.keys)
    np.testing.assert_allclose(both.sums, whole.sums, rtol=1e-6, atol=1e-9)
    again = TableSums.from_dict(json.loads(json.dumps(whole.to_dict())))
    np.testing.assert_array_equal(again.sums, whole.sums)
    with pytest.raises(ValueError, match="cannot add sums of tables: bins 15 and 10"):
        whole + TableSums.from_dict({**whole.to_dict(), "bins": 10})
    with pytest.raises(ValueError, match="must increase"):
        TableSums.from_dict({**whole.to_dict(), "keys": whole.keys[::-1].tolist()})


def test_draws_of_the_bootstrap_are_poisson_and_independent():
    n = 20_000
    table = table_of({"confidence": np.full(n, 0.7), "correct": np.ones(n, bool), "id": range(n)})
    columns = tables.find_columns(table)
    drawn = tables.bootstrap(table, columns, "id", replicates=60)
    total = np.array([each.moments(0)["w"].sum() for each in drawn])
    squares = np.array([each.moments(0)["w2"].sum() for each in drawn])
    # Mean 1 and mean square 2 of each row; the total varies as the sum of independent rows.
    assert total.mean() == pytest.approx(n, rel=0.003)
    assert squares.mean() == pytest.approx(2 * n, rel=0.01)
    assert total.std() == pytest.approx(np.sqrt(n), rel=0.3)
    assert PRIME == 2**31 - 1


def test_corrected_p_values_are_those_of_their_definitions():
    raw = [0.001, 0.2, 0.012, float("nan"), 0.03]
    holm = corrected_p_values(raw, "holm")
    assert holm[:3] == pytest.approx([0.004, 0.2, 0.036])
    assert np.isnan(holm[3])
    assert holm[4] == pytest.approx(0.06)
    bh = corrected_p_values(raw, "bh")
    assert [bh[at] for at in (0, 1, 2, 4)] == pytest.approx([0.004, 0.2, 0.024, 0.04])


def planted(n=30_000, seed=0, strength=2.5):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(5, 1.2, n)
    region, version = rng.choice(["n", "s", "e", "w"], n), rng.integers(1, 4, n)
    off = (region == "s") & (version == 2)
    correct = rng.random(n) < np.where(off, confidence**strength, confidence)
    columns = {"confidence": confidence, "correct": correct, "region": region, "version": version}
    columns |= {"noise": rng.choice(list("abcdefgh"), n), "age": rng.normal(40, 12, n)}
    return columns | {"id": np.arange(n)}


SEARCHED = ["noise", "region", "version", "age"]


def test_the_planted_slice_ranks_first_and_is_found():
    table = table_of(planted())
    found = tables.audit(table, by=SEARCHED, depth=2, search=SEARCHED, key="id")
    assert found.slices.slices[0].name == "region=s, version=2"
    assert found.slices.slices[0].corrected < 1e-6
    assert found.worst.searched.where == {"region": "s", "version": "2"}
    assert found.worst.p_value < 1e-6
    assert not found.calibrated
    assert "first region=s, version=2" in found.verdict
    # Slices of noise are not called miscalibrated.
    off = {each.name for each in found.slices.miscalibrated}
    assert not any(each in off for each in ("region=n", "region=e", "version=1", "version=3"))


def test_small_slices_are_counted_but_not_tested():
    table = table_of(planted(2000))
    found = tables.audit(table, by=["region", "noise"], depth=2, least=100).slices
    assert found.too_small == 32
    assert {each.sums.rows >= 100 for each in found.slices} == {True}
    assert "32 slices under 100 rows were not tested" in found.facts
    one = replace(found, slices=found.slices[:1], too_small=1)
    assert "corrected for 1 slice (Holm). 1 slice under 100 rows was not tested" in one.facts
    # p (1 - p) of about 0.13, times (2.8 / 0.05) ** 2.
    assert 350 < found.useful < 480


@pytest.mark.slow
def test_the_p_value_of_a_search_is_honest():
    searched, confirmed = [], []
    for seed in range(40):
        table = table_of(planted(3000, seed=seed, strength=1.0))
        columns = tables.find_columns(table)
        found = tables.find_slices(table, columns, SEARCHED, key="id", least=50, depth=2)
        searched.append(found.searched.p_value)
        confirmed.append(found.p_value)
    # In the half that was searched the best of many looks significant; in the other it does not.
    assert np.mean(np.array(searched) < 0.05) > 0.15
    assert np.mean(np.array(confirmed) < 0.05) < 0.16
    assert 0.35 < np.mean(confirmed) < 0.65


def test_drift_is_found_in_time_but_not_before():
    columns = planted(20_000, strength=1.0)
    rng = np.random.default_rng(1)
    day = rng.integers(0, 20, 20_000)
    late = day >= 10
    chance = np.where(late, columns["confidence"] ** 1.6, columns["confidence"])
    columns["correct"] = rng.random(20_000) < chance
    start = np.datetime64("2026-01-01T00:00:00", "us")
    columns["ts"] = start + day.astype("timedelta64[D]").astype("timedelta64[us]")
    found = tables.audit(table_of(columns), time="ts")
    assert len(found.series.windows) == 20
    assert found.series.drift.first_alarm in range(10, 14)
    assert "miscalibration in time detected in the window 2026-01-1" in found.verdict
    weighted = {**columns, "weights": np.ones(20_000)}
    assert tables.audit(table_of(weighted), time="ts").series.drift is None


def test_names_of_the_users_columns_do_not_disturb_the_query():
    columns = planted(2000)
    names = ("a", "b", "c", "d", "replicate", "reason", "value", "hit", "cell", "weight", "by_0")
    table = table_of({**columns, **{name: np.zeros(2000, int) for name in names}})
    plain = tables.audit(table_of(columns), bootstrap=30, key="id")
    found = tables.audit(table, bootstrap=30, key="id", by=["by_0", "region"], depth=2)
    assert found.metrics == plain.metrics
    assert found.metrics["ece"].low < found.metrics["ece"].high
    assert len(found.slices.slices) + found.slices.too_small == 1 + 4 + 4
    bad = {**columns, "confidence": np.r_[2.0, columns["confidence"][1:]], "reason": ["x"] * 2000}
    assert tables.audit(table_of(bad), drop_invalid=True).invalid == {"range": 1}


def test_quantile_bins_of_close_numbers_and_of_missing_ones_are_quantiles():
    columns = planted(3000)
    seconds = 1.7e9 + np.arange(3000.0)
    some = np.where(np.arange(3000) % 3 == 0, np.nan, columns["age"])
    empty = np.where(np.arange(3000) % 2 == 0, "", "x")
    table = table_of({**columns, "seconds": seconds, "some": some, "empty": empty})
    found = tables.audit(table, by=["seconds", "some", "empty"], least=1).slices.slices
    sizes = {name: [e.sums.rows for e in found if name in e.where] for name in ("seconds", "some")}
    assert sizes["seconds"] == [600] * 5
    assert sorted(sizes["some"]) == [400] * 5 + [1000]
    assert "some=(missing)" in {each.name for each in found}
    assert {each.name for each in found if "empty" in each.where} == {"empty=", "empty=x"}


def test_rows_in_memory_and_few_rows_are_audited():
    columns = planted(2000)
    found = tables.audit(ibis.memtable(pa.table(columns)), by=["region"])
    assert found.sums.rows == 2000
    few = tables.audit(table_of({name: values[:5] for name, values in columns.items()}))
    assert np.isnan(few.metrics["accuracy"].low)
    assert few.verdict == "no miscalibration detected with 5 rows"
    with pytest.raises(ValueError, match="all weights of column weights are 0"):
        tables.audit(table_of({**columns, "weights": np.zeros(2000)}))


@pytest.mark.parametrize("classes", [2, 3])
def test_without_intervals_the_verdict_still_says_how_far_off_the_mean_is(classes):
    logits, labels = overconfident(4000, classes)
    # Of two classes the second gets too much.
    logits = 2 * logits + 1.5 * (classes == 2) * np.arange(classes)
    rows = {f"logit_{at}": each for at, each in enumerate(logits.T)}
    rows |= {"label": labels, "half": np.arange(4000) % 2}
    rows["day"] = np.array(["2026-01-01", "2026-01-02"])[rows["half"]]
    found = tables.audit(table_of(rows), draws=0, by=["half"], time="day")
    named = {2: "mean P(positive)", 3: "mean confidence"}[classes]
    assert found.verdict.startswith(f"miscalibrated: {named} is ")
    assert f" points above {'base rate' if classes == 2 else 'accuracy'}" in found.verdict
    assert not found.calibrated
    assert found.intervals == "none"
    assert found.to_html()
    parts = [each.gap for each in found.slices.slices]
    parts += [each for window in found.series.windows for each in window.metrics.values()]
    assert len(parts) > 4
    assert all(np.isnan(each.low) and np.isnan(each.high) for each in parts)
    assert " too high on average" in tables.audit(table_of(rows)).verdict
