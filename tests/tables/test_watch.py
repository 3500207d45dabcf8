"""`watch`: each row counts once, whatever is delivered late, twice, damaged or without labels."""

import json
import os

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from watched import day, deliver

from calibrant import tables
from calibrant.files.locks import BusyError
from calibrant.metrics import drift_test
from calibrant.metrics.bins import BinSums
from calibrant.tables.unlabelled import estimate_accuracy
from calibrant.tables.watch import Watcher
from calibrant.tables.watch_options import WatchOptions


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def step(tmp_path, folder):
    """Process what is new with a watcher of its own; returns events and the state."""

    def run(source=folder, **options):
        options = {"time": "ts"} | options
        with Watcher(tmp_path / "state", WatchOptions(str(source), **options)) as watcher:
            events = list(watcher.step())
            watcher.write(tmp_path / "state" / "report.html")
            return [each for each in events if each.kind != "window"], watcher.state

    return run


def kinds(events):
    return [each.kind for each in events]


def total(state):
    parts = [each.sums for each in state.windows.values() if each.sums is not None]
    return sum(parts[1:], parts[0])


def test_the_windows_together_equal_the_audit_of_the_whole_folder(step, folder):
    for number in range(6):
        deliver(folder, number)
        events, state = step()
        assert kinds(events) == ["counted"]
    expected = tables.audit(tables.open_table(str(folder)), time="ts", draws=0)
    found = tables.measured(total(state), draws=0)
    for name in found:
        assert found[name].value == pytest.approx(expected.metrics[name].value, abs=1e-12), name
    names = [each.name for each in expected.series.windows]
    assert [each.name for each in state.windows.values()] == names
    assert state.process.log_e_value == pytest.approx(expected.series.drift.log_e_values[-1])


def test_lines_and_page_follow_from_the_state(step, folder, tmp_path):
    for number in range(3):
        deliver(folder, number)
    _, state = step()
    lines = (tmp_path / "state" / "windows.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [each["window"] for each in records] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert [each["rows"] for each in records] == [200] * 3
    ece = records[0]["metrics"]["ece"]
    assert ece["low"] <= ece["value"] <= ece["high"]
    assert records[2]["log_e_value"] == state.process.log_e_value
    page = (tmp_path / "state" / "report.html").read_text()
    assert "No alarm" in page
    assert "2026-01-03" in page


def test_without_a_time_column_each_file_is_a_window(step, folder):
    for number in range(3):
        deliver(folder, number)
    _, state = step(time=None)
    assert [each.name for each in state.windows.values()] == [f"day-0{n}.parquet" for n in range(3)]


def test_a_calibrated_stream_does_not_alarm_and_a_shift_does(step, folder):
    for number in range(20):
        deliver(folder, number)
    _, state = step()
    assert state.alarm is None
    for number in range(20, 26):
        deliver(folder, number, shift=-1.0)
    _, state = step()
    assert state.alarm.window >= "2026-01-21"
    assert "-1" in state.alarm.bet
    assert not state.alarm.handled


def test_a_reset_starts_a_new_test_and_keeps_the_windows(step, folder, tmp_path):
    for number in range(4):
        deliver(folder, number, shift=-2.0)
    assert step()[1].alarm is not None
    with Watcher(tmp_path / "state", WatchOptions(str(folder), time="ts")) as watcher:
        watcher.reset()
    deliver(folder, 4)
    _, state = step()
    assert state.alarm is None
    assert (state.process.windows, state.resets, len(state.windows)) == (1, 1, 5)


def test_a_redelivered_file_is_said_and_not_counted(step, folder):
    first = deliver(folder, 0)
    _, before = step()
    (folder / "again").mkdir()
    (folder / "again" / "copy.parquet").write_bytes(first.read_bytes())
    events, state = step()
    assert kinds(events) == ["redelivered"]
    assert "again/copy.parquet: re-delivered, the same content as day-00.parquet" in events[0].text
    assert total(state).rows == 200
    assert state.process.log_e_value == before.process.log_e_value
    assert step()[0] == []


def test_a_file_that_changed_after_it_was_counted_is_said_once(step, folder):
    path = deliver(folder, 0)
    _, before = step()
    os.utime(path)
    assert step()[0] == [], "only its time changed"
    original = path.read_bytes()
    deliver(folder, 0, seed=99)
    events, state = step()
    assert kinds(events) == ["changed"]
    assert "deliver corrections as new files" in events[0].text
    assert step()[0] == []
    assert total(state).to_dict() == total(before).to_dict()
    (folder / "old.parquet").write_bytes(original)
    assert kinds(step()[0]) == ["redelivered"], "the counted content is still known"


def test_late_rows_count_in_their_window_and_once_in_the_test(step, folder):
    for number in (0, 2):
        deliver(folder, number)
    _, before = step()
    deliver(folder, 0, "late.parquet", seed=50, rows=120)
    events, state = step()
    assert kinds(events) == ["late"]
    assert "120 late rows added to 2026-01-01" in events[0].text
    first = next(iter(state.windows.values()))
    assert (first.labelled_rows, first.late) == (320, 120)
    assert first.log_e_value == next(iter(before.windows.values())).log_e_value
    parts = [day(0), day(2), day(0, seed=50, rows=120)]
    expected = drift_test([BinSums.of_confidence(p["confidence"], p["correct"]) for p in parts])
    assert state.process.log_e_value == pytest.approx(expected.log_e_values[-1])


def test_a_half_written_file_is_waited_for_and_then_counted(step, folder):
    path = deliver(folder, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert kinds(step()[0]) == ["waiting"]
    (folder / "next.csv.part").write_bytes(b"confidence,cor")
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "a.parquet").write_bytes(b"PAR1")
    path.write_bytes(whole)
    events, state = step()
    assert kinds(events) == ["counted"]
    assert total(state).rows == 200


def test_a_csv_without_its_last_line_end_is_waited_for(step, folder):
    pa.csv.write_csv(day(0), folder / "a.csv")
    whole = (folder / "a.csv").read_bytes()
    (folder / "a.csv").write_bytes(whole[:-5])
    assert kinds(step()[0]) == ["waiting"]
    (folder / "a.csv").write_bytes(whole)
    assert total(step()[1]).rows == 200


def damaged_in_the_middle(folder):
    """A file with a valid footer, whose data an engine stumbles over in the middle of a scan."""
    path = folder / "day-01.parquet"
    pq.write_table(day(1), path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[40:400] = bytes(360)
    path.write_bytes(content)


def truncated(folder):
    path = deliver(folder, 1)
    path.write_bytes(path.read_bytes()[:300])
    os.utime(path, (0, 0))


def without_scores(folder):
    pq.write_table(day(1).drop_columns(["confidence"]), folder / "day-01.parquet")


def other_type(folder):
    table = day(1)
    words = pa.array(["yes"] * len(table))
    pq.write_table(table.set_column(1, "correct", words), folder / "day-01.parquet")


def zoned(folder):
    table = day(1)
    times = table["ts"].cast(pa.timestamp("us", "UTC"))
    pq.write_table(table.set_column(2, "ts", times), folder / "day-01.parquet")


def other_correctness(folder):
    table = day(1)
    values = pa.array([2, *table["correct"].to_pylist()[1:]])
    pq.write_table(table.set_column(1, "correct", values), folder / "day-01.parquet")


PROBLEMS = {
    damaged_in_the_middle: "",
    truncated: "is damaged or no parquet file",
    without_scores: "no column 'confidence' in the table",
    other_type: "column correct is string, but int64 in the rows before",
    zoned: "column ts is timestamp('UTC', 6), but timestamp(6) in the rows before",
    other_correctness: "1 of 200 rows are invalid: 1 with a correctness that is neither 0 nor 1",
}


@pytest.mark.parametrize("damage", PROBLEMS, ids=lambda each: each.__name__)
def test_a_file_that_cannot_be_read_is_named_or_left_out(step, folder, damage):
    deliver(folder, 0)
    damage(folder)
    deliver(folder, 2)
    with pytest.raises(ValueError, match=r"day-01\.parquet") as refusal:
        step()
    message = str(refusal.value)
    assert PROBLEMS[damage] in message
    assert "\n" not in message
    events, state = step(keep_going=True)
    assert kinds(events) == ["left_out", "counted"], "the first file was counted before the error"
    assert total(state).rows == 400
    assert state.files["day-01.parquet"].status == "left_out"
    assert step(keep_going=True)[0] == [], "said once"
    deliver(folder, 1)
    events, state = step()
    assert kinds(events) == ["late"], "a repaired file is counted"
    assert total(state).rows == 600


def test_invalid_rows_are_left_out_if_asked(step, folder):
    deliver(folder, 0)
    other_correctness(folder)
    events, state = step(drop_invalid=True)
    assert "1 invalid rows left out (1 with a correctness" in events[1].text
    assert total(state).rows == 399


def test_labels_outside_the_classes_are_refused(step, folder):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1, 1, 1], 50)
    columns = {f"p{at}": probs[:, at] for at in range(3)}
    pq.write_table(pa.table(columns | {"label": np.arange(50) % 3}), folder / "a.parquet")
    step(time=None)
    pq.write_table(pa.table(columns | {"label": np.arange(50) % 4}), folder / "b.parquet")
    with pytest.raises(ValueError, match="12 with a label outside the classes"):
        step(time=None)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_times_with_and_without_a_zone_are_refused_within_and_across_files(step, folder, ending):
    def write(name, times):
        table = pa.table({"confidence": [0.9, 0.8], "correct": [1, 0], "ts": times})
        write = pa.csv.write_csv if ending == "csv" else pq.write_table
        write(table, folder / f"{name}.{ending}")

    with_zone, without = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00"
    write("a", [with_zone, without])
    mixed = rf"a\.{ending}: column ts mixes times with and without a time zone \(1 of 2"
    with pytest.raises(ValueError, match=mixed):
        step()
    write("a", [with_zone, with_zone])
    step()
    write("b", [without, without])
    with pytest.raises(ValueError, match=rf"b\.{ending}: column ts is .* in the rows before"):
        step()


@pytest.mark.parametrize("name", ["weights", "groups"])
def test_rows_for_which_no_test_is_known_are_refused(step, folder, name):
    pq.write_table(day(0).append_column(name, pa.array([1] * 200)), folder / "a.parquet")
    with pytest.raises(ValueError, match=f"a.parquet: column {name}: no anytime-valid test"):
        step()


def test_two_watchers_of_one_state_are_refused(folder, tmp_path):
    options = WatchOptions(str(folder), time="ts")
    with (
        Watcher(tmp_path / "state", options),
        pytest.raises(BusyError, match="another process watches with the state"),
    ):
        Watcher(tmp_path / "state", options)
    Watcher(tmp_path / "state", options).__exit__()


def test_other_settings_and_a_damaged_state_are_refused(step, folder, tmp_path):
    deliver(folder, 0)
    step()
    with pytest.raises(ValueError, match="was made with every = 1d, now 1h"):
        step(every="1h")
    state = tmp_path / "state" / "state.json"
    state.write_text(state.read_text().replace('"rows":200', '"rows":201'))
    with pytest.raises(ValueError, match=r"state\.json is damaged: restore it"):
        step()


def test_unlabelled_rows_are_counted_apart_and_estimated(step, folder):
    deliver(folder, 0, rows=4000, shift=-1.0)
    deliver(folder, 1, rows=4000, labels=False)
    events, state = step()
    assert "4,000 without a label" in events[1].text
    first, second = state.windows
    assert (state.windows[second].labelled_rows, state.windows[second].unlabelled_rows) == (0, 4000)
    assert state.process.windows == 1
    record = state.record(second)["estimated_accuracy"]
    assert record["reference"] == "2026-01-01"
    assert "an estimate" in record["assumption"]
    truth = day(1, rows=4000, shift=-1.0)["correct"].to_numpy().mean()
    assert record["low"] <= truth <= record["high"]
    assert record["mean_confidence"] - truth > 0.05
    assert state.record(first)["estimated_accuracy"] is None


def test_a_file_without_the_label_column_is_unlabelled_after_a_labelled_one(step, folder):
    deliver(folder, 0)
    pq.write_table(day(1).drop_columns(["correct"]), folder / "day-01.parquet")
    _, state = step()
    assert [each.unlabelled_rows for each in state.windows.values()] == [0, 200]


def test_a_null_among_booleans_and_nan_among_numbers_are_unlabelled(step, folder):
    known = day(0)["correct"].to_numpy() > 0
    for name, values in {
        "a": pa.array([None, *known[1:].tolist()]),
        "b": pa.array([float("nan"), *known[1:].astype(float)]),
    }.items():
        pq.write_table(day(0).set_column(1, "correct", values), folder / f"{name}.parquet")
    _, state = step(time=None)
    counts = [(each.labelled_rows, each.unlabelled_rows) for each in state.windows.values()]
    assert counts == [(199, 1), (199, 1)]


def test_csv_files_with_empty_labels_are_unlabelled(step, folder):
    pa.csv.write_csv(day(0), folder / "a.csv")
    pa.csv.write_csv(day(1, labels=False), folder / "b.csv")
    _, state = step()
    assert [each.unlabelled_rows for each in state.windows.values()] == [0, 200]


def test_the_interval_of_the_estimate_covers_the_accuracy_at_its_level():
    rng = np.random.default_rng(0)

    def sample(rows):
        confidence = rng.beta(4, 2, rows)
        return confidence, rng.random(rows) < confidence**2

    inside, naive = 0, 0
    for _ in range(500):
        reference, (confidence, correct) = sample(3000), sample(1000)
        unlabelled = BinSums.of_confidence(confidence, np.zeros(1000))
        found = estimate_accuracy(unlabelled, BinSums.of_confidence(*reference)).accuracy
        inside += found.low <= correct.mean() <= found.high
        naive += found.low <= confidence.mean() <= found.high
    assert 0.92 <= inside / 500 <= 0.99
    assert not naive


def test_without_a_labelled_window_the_estimate_is_the_mean_confidence():
    bins = BinSums.of_confidence([0.6, 0.8], [0, 0])
    found = estimate_accuracy(bins, None)
    assert found.accuracy.value == pytest.approx(0.7)
    assert found.to_dict()["reference"] is None


# A table that grows.


@pytest.fixture
def database(tmp_path):
    """Address of a table in a DuckDB file, and functions that add rows and run SQL."""
    path = tmp_path / "db.ddb"

    def execute(sql, rows=None):
        connection = ibis.duckdb.connect(path)
        if rows is not None:
            connection.con.register("fresh", rows)
        connection.con.execute(sql)
        connection.disconnect()

    execute("CREATE TABLE predictions AS SELECT * FROM fresh", day(0))

    def insert(number, **options):
        execute("INSERT INTO predictions SELECT * FROM fresh", day(number, **options))

    return f"duckdb://{path}#predictions", insert, execute


def test_windows_of_a_table_are_counted_when_complete(step, database):
    address, insert, _ = database
    events, state = step(address)
    assert (events, state.windows) == ([], {}), "the newest window may still grow"
    for number in (1, 2):
        insert(number)
    events, state = step(address)
    assert kinds(events) == ["counted", "counted"]
    assert step(address)[0] == []
    insert(3)
    _, state = step(address)
    assert [each.name for each in state.windows.values()] == [
        "2026-01-01", "2026-01-02", "2026-01-03",
    ]  # fmt: skip
    parts = [BinSums.of_confidence(day(n)["confidence"], day(n)["correct"]) for n in range(3)]
    assert state.process.log_e_value == pytest.approx(drift_test(parts).log_e_values[-1])


def test_late_rows_of_a_table_are_found_and_tested_once(step, database):
    address, insert, _ = database
    for number in (1, 2):
        insert(number)
    step(address)
    insert(0, seed=50, rows=120)
    events, state = step(address)
    assert "2026-01-01: 120 late rows added" in events[0].text
    first = next(iter(state.windows.values()))
    assert (first.labelled_rows, first.late) == (320, 120)
    parts = [day(0), day(1), day(0, seed=50, rows=120)]
    expected = drift_test([BinSums.of_confidence(p["confidence"], p["correct"]) for p in parts])
    assert state.process.log_e_value == pytest.approx(expected.log_e_values[-1], abs=1e-9)
    assert step(address)[0] == []


def test_labels_that_arrive_in_a_table_are_tested_then(step, database):
    address, insert, execute = database
    insert(1, labels=False)
    insert(2)
    _, state = step(address)
    second = list(state.windows.values())[1]
    assert (second.labelled_rows, second.unlabelled_rows) == (0, 200)
    execute("UPDATE predictions SET correct = 1 WHERE correct IS NULL AND confidence > 0.9")
    events, state = step(address)
    assert events[0].text.endswith("labels added")
    second = list(state.windows.values())[1]
    assert second.labelled_rows > 50
    assert second.labelled_rows + second.unlabelled_rows == 200
    assert state.process.windows == 2


def test_rows_removed_from_a_table_replace_the_metrics_and_are_not_tested(step, database):
    address, insert, execute = database
    insert(1)
    _, before = step(address)
    execute("DELETE FROM predictions WHERE ts < '2026-01-02' AND confidence < 0.8")
    events, state = step(address)
    assert "rows were changed or removed" in events[0].text
    assert total(state).rows < 200
    assert state.process.log_e_value == before.process.log_e_value
    assert step(address)[0] == []


def test_a_table_needs_a_time_column_and_times(step, database, tmp_path):
    address, insert, execute = database
    with pytest.raises(ValueError, match="is a table without a column of times"):
        step(address, time=None)
    with pytest.raises(ValueError, match="no column 'when'"):
        step(address, time="when")
    insert(1)
    execute("INSERT INTO predictions VALUES (0.9, 1, NULL)")
    with pytest.raises(ValueError, match="1 rows have no time"):
        step(address)
    assert total(step(address, drop_invalid=True)[1]).rows == 200
    with pytest.raises(ValueError, match=r"duckdb://.*nothing"):
        step(address.replace("predictions", "nothing"), drop_invalid=True)


def test_a_server_that_ends_the_connection_in_the_middle_leaves_the_state_as_it_was(
    step, postgres, tmp_path
):
    from engines import rows_in_postgres

    rows = pa.concat_tables([day(n) for n in range(3)])
    rows = rows.set_column(1, "correct", rows["correct"].cast(pa.bool_()))
    name = rows_in_postgres(postgres, rows).get_name()
    view = f"watched_{name.replace('-', '_')}"
    # Evaluated after some rows were read, it ends the process of its own connection.
    dies = "CASE WHEN confidence > 0.99 THEN pg_terminate_backend(pg_backend_pid()) ELSE true END"

    def define(where):
        postgres.raw_sql(
            f'CREATE OR REPLACE VIEW {view} AS SELECT * FROM "{name}" WHERE {where}'  # noqa: S608
        ).close()
        postgres.con.commit()

    define("true")
    address = f"postgres://tests:secret@/postgres?host={postgres.con.info.host}#{view}"
    _, before = step(address)
    assert len(before.windows) == 2
    saved = (tmp_path / "state" / "state.json").read_bytes()
    define(dies)
    with pytest.raises(ValueError, match="the engine failed: ") as refusal:
        step(address)
    assert "secret" not in str(refusal.value)
    assert (tmp_path / "state" / "state.json").read_bytes() == saved
    define("true")
    assert step(address)[0] == []
