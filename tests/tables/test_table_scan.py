"""Sums of tables equal those of `Predictions` on the same rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import Predictions, metrics, tables
from calibrant.metrics import BinSums
from calibrant.tables import scan

SAME = ("accuracy", "nll", "brier", "ece", "mce", "rmsce", "debiased_ece", "classwise_ece")
SAME += ("overconfidence", "debiased_rmsce")


def opened(folder, columns, engine="duckdb"):
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return tables.open_table(str(path), engine=engine)


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_metrics_of_classes_equal_those_of_predictions(tmp_path, engine, kind):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(3000, 4))
    labels = rng.integers(0, 4, 3000)
    predictions = Predictions(logits, labels)
    scores = logits if kind == "logits" else predictions.probs.numpy()
    if kind == "probs":
        predictions = Predictions.from_probs(scores, labels)
    names = [f"{'z' if kind == 'logits' else 'p'}{at}" for at in range(4)]
    columns = dict(zip(names, scores.T, strict=True)) | {"label": labels}
    found = tables.audit(opened(tmp_path, columns, engine)).metrics
    for name in SAME:
        assert found[name].value == pytest.approx(metrics.METRICS[name](predictions), abs=1e-12)
    assert found["adaptive_ece"].value == pytest.approx(metrics.adaptive_ece(predictions), abs=2e-3)


@pytest.mark.parametrize("engine", ["duckdb", "polars"])
@pytest.mark.parametrize("bins", [1, 7, 15, 49])
def test_edges_ties_and_cells_are_those_of_bin_sums(tmp_path, engine, bins):
    edges = np.arange(bins + 1) / bins
    near = [np.nextafter(edges, 0), edges, np.nextafter(edges, 1)[:-1]]
    confidence = np.concatenate([*near, [0.0, 0.5, 1.0, 1e-20, 1 - 1e-9]]).clip(0, 1)
    correct = np.arange(len(confidence)) % 2
    table = opened(tmp_path, {"confidence": confidence, "correct": correct}, engine)
    found = scan(table, tables.find_columns(table), bins=bins)[()]
    expected = BinSums.of_confidence(confidence, correct, bins=bins)
    for name in ("count", "confidence", "correct"):
        np.testing.assert_allclose(
            getattr(found.part(0), name), getattr(expected, name), rtol=1e-12
        )


def test_invalid_rows_are_counted_and_refused(tmp_path):
    confidence = [0.5, None, float("nan"), 1.5, 0.7, 0.9]
    table = opened(tmp_path, {"confidence": confidence, "correct": [1, 1, 0, 1, 2, 1]})
    with pytest.raises(ValueError, match=r"4 of 6 rows are invalid: 1 with a null, 1 with NaN"):
        tables.audit(table)
    kept = tables.audit(table, drop_invalid=True)
    assert kept.sums.rows == 2
    assert kept.invalid == {"null": 1, "nan": 1, "range": 1, "correct": 1}


def test_intervals_agree_with_the_bootstrap(tmp_path):
    rng = np.random.default_rng(1)
    confidence = rng.beta(5, 1.2, 5000)
    correct = rng.random(5000) < confidence**1.5
    found = tables.audit(opened(tmp_path, {"confidence": confidence, "correct": correct})).metrics
    predictions = Predictions.from_confidence(confidence, correct)
    for name in ("accuracy", "overconfidence", "ece", "debiased_ece", "rmsce"):
        bar = metrics.interval(metrics.METRICS[name].function, predictions, resamples=1000)
        width = bar.high - bar.low
        assert found[name].low == pytest.approx(bar.low, abs=0.15 * width), name
        assert found[name].high == pytest.approx(bar.high, abs=0.15 * width), name


def test_a_miscalibrated_slice_ranks_first_and_drift_is_found(tmp_path):
    rng = np.random.default_rng(2)
    confidence, region = rng.beta(5, 1.2, 20_000), rng.choice(["north", "south"], 20_000)
    day = rng.integers(0, 20, 20_000)
    off = (region == "south") & (day >= 10)
    correct = rng.random(20_000) < np.where(off, confidence**2.5, confidence)
    start = np.datetime64("2026-01-01T00:00:00", "us")
    columns = {"confidence": confidence, "correct": correct, "region": region}
    columns["ts"] = start + day.astype("timedelta64[D]").astype("timedelta64[us]")
    found = tables.audit(opened(tmp_path, columns), by=["region"], time="ts")
    assert [each.name for each in found.slices.slices] == ["region=south", "region=north"]
    assert found.slices.slices[0].corrected < 1e-6 < found.slices.slices[1].corrected
    assert len(found.series.windows) == 20
    assert found.series.drift.first_alarm in range(10, 14)
    assert "region=south" in found.save(tmp_path / "page.html").read_text()
