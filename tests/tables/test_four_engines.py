"""Four engines give one answer: that of `Predictions` on the same rows."""

from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from engines import ENGINES, SPARK_WARNS, rows_in_postgres

from calibrant import Predictions, metrics, tables
from calibrant.cli import main
from calibrant.metrics import BinSums
from calibrant.metrics.bins import cells_per_bin

N = 3000
EXACT = {"rel": 1e-12, "abs": 1e-12}
# Formed from fine cells in tables, from every example in `Predictions`.
GRIDDED = "adaptive_ece"


def rows():
    """Columns of every kind: scores of four classes, arrays, two classes, confidence, slices."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(N, 4))
    logits[:50] = np.round(logits[:50])  # ties
    logits[50:60, 0] = -np.inf
    probs = Predictions(logits, np.zeros(N, int)).probs.numpy()
    label = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    positive = rng.beta(2, 3, N).round(3)
    start = datetime(2026, 1, 1)
    return {
        **{f"z{k}": logits[:, k] for k in range(4)},
        **{f"p{k}": probs[:, k] for k in range(4)},
        "arrays": list(probs),
        "label": label,
        "name": np.array(["cat", "dog", "cow", "hen"])[label],
        "score": positive,
        "outcome": rng.random(N) < positive,
        "confidence": rng.beta(5, 1.2, N).astype(np.float32),
        "correct": rng.random(N) < 0.8,
        "weight": rng.random(N) + 0.5,
        "user": rng.integers(0, 200, N),
        "region": [None if x == "none" else x for x in rng.choice(["north", "south", "none"], N)],
        "age": rng.normal(40, 12, N),
        "ts": [start + timedelta(hours=float(h)) for h in np.sort(rng.random(N)) * 72],
        "id": np.arange(N) * 1_000_003 - 10**9,
    }


@pytest.fixture(scope="module")
def columns():
    return rows()


@pytest.fixture
def table(request, on_engine, columns):
    return on_engine(request.param, pa.table(columns))


each_engine = pytest.mark.parametrize("table", ENGINES, indirect=True)

INPUTS = {
    "logits": ({"logits": "z?", "labels": "label"}, lambda c: (stack(c, "z"), c["label"])),
    "probabilities": ({"probs": "p?", "labels": "label"}, lambda c: (stack(c, "p"), c["label"])),
    "arrays": ({"probs": "arrays", "labels": "label"}, lambda c: (stack(c, "p"), c["label"])),
    "names": (
        {"probs": "p?", "labels": "name", "names": ["cat", "dog", "cow", "hen"]},
        lambda c: (stack(c, "p"), c["label"]),
    ),
    "positive": (
        {"probs": "score", "labels": "outcome"},
        lambda c: (np.stack([1 - c["score"], c["score"]], 1), c["outcome"].astype(int)),
    ),
}


def stack(columns, start):
    return np.stack([columns[f"{start}{k}"] for k in range(4)], axis=1)


def expected(name, columns, weights=None):
    if name == "confidence":
        return Predictions.from_confidence(
            columns["confidence"].astype(float), columns["correct"], weights=weights
        )
    scores, labels = INPUTS[name][1](columns)
    make = Predictions if name == "logits" else Predictions.from_probs
    return make(scores, labels, weights=weights)


def check(found, predictions, bins=15):
    for name, interval in found.items():
        metric = metrics.METRICS[name]
        value = metric.with_bins(bins)(predictions)
        # Examples of a cell stay together: a cut may move by one of them.
        moved = 2 / (bins * cells_per_bin(bins)) + 2 * bins / len(predictions)
        tolerance = {"abs": moved} if name == GRIDDED else EXACT
        assert interval.value == pytest.approx(value, **tolerance), name


@each_engine
def test_every_input_gives_the_metrics_of_predictions(table, columns):
    for name, (options, _) in INPUTS.items():
        found = tables.audit(table, draws=0, **options)
        assert found.sums.rows == N
        check(found.metrics, expected(name, columns))
        assert {"nll", "brier", "ece", "classwise_ece", "adaptive_ece"} <= set(found.metrics)
    named = {"confidence": "confidence", "correct": "correct"}
    check(tables.audit(table, draws=0, **named).metrics, expected("confidence", columns))


@each_engine
def test_weights_count_as_in_predictions(table, columns):
    for name in ("logits", "positive"):
        found = tables.audit(table, draws=0, weight="weight", **INPUTS[name][0]).metrics
        check(
            {key: value for key, value in found.items() if key != GRIDDED},
            expected(name, columns, columns["weight"]),
        )


@each_engine
def test_slices_and_windows_are_those_of_their_rows(table, columns):
    options = INPUTS["logits"][0]
    found = tables.audit(table, by=["region", "age"], depth=2, time="ts", draws=0, **options)
    logits, labels = INPUTS["logits"][1](columns)
    region = np.array([x or "(missing)" for x in columns["region"]])
    named = {each.name: each for each in found.slices.slices}
    # Three regions, five quantile bins of the age, and each combination.
    assert len(found.slices.slices) + found.slices.too_small == 3 + 5 + 15
    for value in ("north", "south", "(missing)"):
        own = region == value
        sums = named[f"region={value}"].sums
        assert sums.rows == own.sum()
        ece = metrics.ece(Predictions(logits[own], labels[own]))
        assert sums.part(0).ece == pytest.approx(ece, **EXACT)
    assert sum(each.sums.rows for each in named.values() if set(each.where) == {"age"}) == N
    day = np.array([each.date() for each in columns["ts"]])
    assert [each.start.date() for each in found.series.windows] == sorted(set(day))
    for each in found.series.windows:
        own = day == each.start.date()
        check(each.metrics, Predictions(logits[own], labels[own]))


@each_engine
def test_the_bootstrap_draws_the_same_rows_everywhere(table, columns):
    options = INPUTS["positive"][0]
    found = tables.find_columns(table, **options)
    drawn = tables.bootstrap(table, found, "id", replicates=3, seed=5)
    # Worked out in Python integers.
    rng = np.random.default_rng(5)
    constants = rng.integers(1, 2**31 - 1, (4, 3))
    for sums, (a, b, c, d) in zip(drawn, constants.T.tolist(), strict=True):
        count = [poisson(int(key), a, b, c, d) for key in columns["id"]]
        assert sums.moments(0)["w"].sum() == sum(count)
        kept = [at for at, times in enumerate(count) for _ in range(times)]
        scores, labels = INPUTS["positive"][1](columns)
        again = Predictions.from_probs(scores[kept], labels[kept])
        assert sums.part(2).ece == pytest.approx(metrics.binary_ece(again), **EXACT)


def poisson(key, a, b, c, d):
    prime = 2**31 - 1
    x = (key % prime + (key // prime) % prime * 48271) % prime
    x = pow(x * a + b, 5, prime)
    x = pow(x * c + d, 5, prime)
    return sum(x >= cut for cut in POISSON_CUTS)


# Distribution function of a Poisson variable of mean 1, times the prime.
POISSON_CUTS = np.ceil(
    np.exp(-1.0) * np.cumsum(1 / np.cumprod([1.0, *range(1, 10)])) * (2**31 - 1)
).astype(int)


@each_engine
def test_clusters_are_summed_together(table):
    options = INPUTS["logits"][0]
    alone = tables.audit(table, draws=300, **options)
    found = tables.audit(table, draws=300, group="user", **options)
    assert "200 clusters" in found.intervals
    # Users are drawn independently of everything here, so that clusters change little.
    for name in ("accuracy", "nll", "ece"):
        widths = [each.metrics[name].high - each.metrics[name].low for each in (alone, found)]
        assert widths[1] == pytest.approx(widths[0], rel=0.25), name


@each_engine
def test_the_worst_slice_is_the_same(table):
    options = INPUTS["logits"][0]
    found = tables.find_columns(table, **options)
    worst = tables.find_slices(table, found, ["region", "age"], key="id", least=50)
    assert 0 < worst.p_value <= 1
    halves = worst.searched.sums.rows, worst.confirmed.sums.rows
    assert abs(halves[0] - halves[1]) < 5 * np.sqrt(sum(halves))


@pytest.mark.parametrize("engine", ENGINES)
def test_edges_and_their_neighbours_fall_into_the_bins_of_bin_sums(on_engine, engine):
    for bins in (1, 7, 10, 15, 20, 49, 100, 209):
        edges = np.arange(bins + 1) / bins
        near = [np.nextafter(edges, 0), edges, np.nextafter(edges, 1)[:-1]]
        confidence = np.concatenate([*near, [0.0, 0.5, 1.0, 1e-20, 1e-200, 1 - 1e-9]]).clip(0, 1)
        correct = np.arange(len(confidence)) % 2
        table = on_engine(engine, pa.table({"confidence": confidence, "correct": correct}))
        expected = BinSums.of_confidence(confidence, correct, bins=bins)
        for fine in (True, False):
            found = tables.scan(table, tables.find_columns(table), bins=bins, fine=fine)[()].part(0)
            for name in ("count", "confidence", "correct"):
                np.testing.assert_allclose(
                    getattr(found, name), getattr(expected, name), rtol=1e-12, err_msg=f"{bins}"
                )


@pytest.mark.parametrize("engine", ENGINES)
def test_invalid_rows_are_counted_by_reason(on_engine, engine):
    nan, inf = float("nan"), float("inf")
    table = on_engine(
        engine,
        pa.table(
            {
                "confidence": [0.5, None, nan, 1.5, 0.7, 0.9, -1e-9, inf, 0.2],
                "correct": [1, 1, 0, 1, 2, 1, 0, 1, None],
            }
        ),
    )
    with pytest.raises(ValueError, match=r"7 of 9 rows are invalid: .*1 with NaN"):
        tables.audit(table)
    kept = tables.audit(table, drop_invalid=True)
    assert kept.sums.rows == 2
    assert kept.invalid == {"null": 2, "nan": 1, "range": 3, "correct": 1}
    scores = pa.array([[0.2, 0.8], [0.5, 0.6], [0.1], None, [nan, 1.0], [1.2, -0.2], [0.3, 0.7]])
    table = on_engine(engine, pa.table({"probs": scores, "label": [1, 0, 0, 0, 0, 1, 5]}))
    found = tables.find_columns(table)
    reasons = {"null": 1, "nan": 1, "range": 1, "size": 1, "sum": 1, "label": 1}
    assert tables.diagnose(table, found) == reasons
    assert tables.audit(table, drop_invalid=True).sums.rows == 1


@pytest.mark.slow
@pytest.mark.filterwarnings(*SPARK_WARNS)
def test_a_spark_session_is_used_by_its_url(spark, on_engine, columns):
    name = on_engine("pyspark", pa.table(columns)).get_name()
    found = tables.audit_source(f"spark://local[2]#{name}", draws=0, **INPUTS["logits"][0])
    check(found.metrics, expected("logits", columns))


@pytest.mark.slow
def test_an_engine_that_dies_in_the_middle_is_one_line(postgres, tmp_path, capsys, columns):
    name = rows_in_postgres(postgres, pa.table(columns)).get_name()
    # Evaluated after some rows were read, it ends the process of its own connection.
    dies = "CASE WHEN confidence > 0.99 THEN pg_terminate_backend(pg_backend_pid()) ELSE true END"
    postgres.raw_sql(f'CREATE VIEW dying AS SELECT * FROM "{name}" WHERE {dies}').close()  # noqa: S608
    postgres.con.commit()
    source = f"postgres://tests:secret@/postgres?host={postgres.con.info.host}#dying"
    page = tmp_path / "page.html"
    options = ["--confidence", "confidence", "--page", str(page)]
    assert main(["audit", source, *options]) == 2
    said = capsys.readouterr().err.strip()
    assert "the engine failed" in said
    assert "secret" not in said
    assert len(said.splitlines()) == 1
    assert not page.exists()


def test_more_than_ten_columns_to_slice_by_keep_their_names(on_engine):
    rng = np.random.default_rng(0)
    named = {f"column{at}": rng.choice([f"{at}a", f"{at}b"], 500) for at in range(12)}
    confidence = rng.random(500)
    rows = {"confidence": confidence, "correct": rng.random(500) < confidence, **named}
    found = tables.audit(on_engine("duckdb", pa.table(rows)), by=list(named)).slices.slices
    assert len(found) == 24
    for each in found:
        ((column, value),) = each.where.items()
        assert value[:-1] == column.removeprefix("column")
        assert each.sums.rows == (named[column] == value).sum()
