"""Files, folders, URLs and queries as tables; what is wrong with them is said in one line."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibrant import tables
from calibrant.cli import main
from calibrant.tables import sources


def rows(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(5, 1.2, n)
    return {
        "confidence": confidence,
        "correct": rng.random(n) < confidence,
        "region": rng.choice(["north", "south"], n),
        "id": np.arange(n) + seed * n,
    }


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "predictions"
    path.mkdir()
    for seed in range(3):
        pq.write_table(pa.table(rows(seed=seed)), path / f"part{seed}.parquet")
    (path / "_SUCCESS").write_text("")
    return path


def audited(capsys, *arguments):
    code = main(["audit", *map(str, arguments), "--no-page"])
    return code, capsys.readouterr()


def refused(capsys, *arguments):
    code, printed = audited(capsys, *arguments)
    lines = printed.err.strip().splitlines()
    assert (code, len(lines), printed.out) == (2, 1, ""), printed
    return lines[0].removeprefix("calibrant: ")


@pytest.mark.parametrize("engine", sources.ENGINES)
def test_a_folder_a_pattern_and_one_file_are_the_same_table(folder, tmp_path, engine):
    whole = tmp_path / "whole.parquet"
    parts = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    pq.write_table(pa.concat_tables(parts), whole)
    options = {"engine": engine, "draws": 0}
    expected = tables.audit_source(str(whole), **options).metrics
    for source in (str(folder), str(folder / "*.parquet"), [str(p) for p in folder.glob("p*")]):
        found = tables.audit_source(source, **options)
        assert found.sums.rows == 6000
        for name, each in found.metrics.items():
            assert each.value == pytest.approx(expected[name].value, rel=1e-12), name


def test_csv_files_give_the_numbers_of_parquet(folder, tmp_path):
    from pyarrow import csv

    text = tmp_path / "text"
    text.mkdir()
    for path in folder.glob("*.parquet"):
        csv.write_csv(pq.read_table(path), text / f"{path.stem}.csv")
    expected = tables.audit_source(str(folder), draws=0).metrics
    for engine in sources.ENGINES:
        found = tables.audit_source(str(text), engine=engine, draws=0).metrics
        for name, each in found.items():
            assert each.value == pytest.approx(expected[name].value, rel=1e-12), name


def test_a_query_chooses_and_renames(folder):
    query = "SELECT confidence AS c, correct AS y FROM predictions WHERE region = 'north'"
    found = tables.audit_source(str(folder), sql=query, confidence="c", correct="y")
    parts = [rows(seed=seed)["region"] for seed in range(3)]
    assert found.sums.rows == (np.concatenate(parts) == "north").sum()


def test_a_database_is_opened_by_its_url(tmp_path, capsys):
    import duckdb

    path = tmp_path / "model.ddb"
    with duckdb.connect(str(path)) as connection:
        given = pa.table(rows())
        connection.sql("CREATE TABLE scored AS SELECT * FROM given")
        assert given.num_rows == 2000
    code, printed = audited(capsys, f"duckdb://{path}#scored")
    assert code == 0
    assert "2,000 rows, top label only" in printed.out
    assert "name the table after #" in refused(capsys, f"duckdb://{path}")
    assert "missing" in refused(capsys, f"duckdb://{path}#missing")


def test_large_files_and_folders_go_to_the_engine_by_themselves(folder, monkeypatch):
    one = folder / "part0.parquet"
    assert sources.is_large(str(folder))
    assert sources.is_large("postgres://x#t")
    assert not sources.is_large(str(one))
    monkeypatch.setattr(sources, "LARGE", one.stat().st_size - 1)
    assert sources.is_large(str(one))
    assert not sources.is_large(str(folder / "absent.parquet"))


def test_the_command_prints_slices_time_and_verdict(folder, tmp_path, capsys):
    page = tmp_path / "page.html"
    options = ["--by", "region", "--find-slices", "region", "--key", "id", "--page", str(page)]
    assert main(["audit", str(folder), *options]) == 0
    said = capsys.readouterr().out
    for words in ("6,000 rows", "region=north", "corrected p", "was not searched", f"page: {page}"):
        assert words in said
    text = page.read_text()
    assert "region=south" in text
    assert text.count("<svg") >= 6


def test_the_limit_of_the_ece_is_the_exit_code(folder, capsys):
    assert main(["audit", str(folder), "--no-page", "--max-ece", "0.5"]) == 0
    assert main(["audit", str(folder), "--no-page", "--max-ece", "0"]) == 1
    assert "is above --max-ece 0" in capsys.readouterr().err


def test_a_damaged_file_is_named_or_left_out(folder, capsys):
    whole = (folder / "part1.parquet").read_bytes()
    (folder / "part1.parquet").write_bytes(whole[:-100])
    assert "part1.parquet is damaged" in refused(capsys, folder)
    code, printed = audited(capsys, folder, "--keep-going")
    assert code == 0
    assert "1 of 3 files left out" in printed.out
    assert "4,000 rows" in printed.out
    with pytest.raises(ValueError, match="keep_going=True"):
        tables.audit_source(str(folder))


def test_damage_behind_the_footer_is_found_while_reading(folder, capsys):
    path = folder / "part1.parquet"
    data = bytearray(path.read_bytes())
    # The header of the first page.
    data[4:24] = b"\xff" * 20
    path.write_bytes(bytes(data))
    assert "part1.parquet is damaged" in refused(capsys, folder)
    code, printed = audited(capsys, folder, "--keep-going")
    assert code == 0
    assert "1 of 3 files left out" in printed.out


def test_files_with_other_columns_are_refused(folder, tmp_path, capsys):
    import datetime

    other = {**rows(), "correct": rows()["correct"].astype(int)}
    pq.write_table(pa.table(other), folder / "part3.parquet")
    line = refused(capsys, folder)
    assert "part3.parquet: column correct is int64, but bool in" in line
    (tmp_path / "zones").mkdir()
    start = datetime.datetime(2026, 1, 1)
    for name, zone in (("a", None), ("b", "UTC")):
        ts = pa.array([start] * 2000, pa.timestamp("us", zone))
        pq.write_table(pa.table({**rows(), "ts": ts}), tmp_path / "zones" / f"{name}.parquet")
    line = refused(capsys, tmp_path / "zones", "--time", "ts")
    assert "b.parquet: column ts is timestamp[us, tz=UTC], but timestamp[us]" in line
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.csv").write_text("confidence,correct\n0.5,1\n")
    (tmp_path / "text" / "b.csv").write_text("confidence,right\n0.5,1\n")
    assert "b.csv: column correct is absent" in refused(capsys, tmp_path / "text")


@pytest.mark.parametrize("engine", sources.ENGINES)
def test_times_as_text_need_one_kind_of_zone(tmp_path, capsys, engine):
    path = tmp_path / "a.parquet"
    stamps = ["2026-01-01T23:30:00+00:00", "2026-01-02T00:30:00"] * 1000
    pq.write_table(pa.table({**rows(), "ts": stamps}), path)
    options = (path, "--engine", engine, "--time", "ts")
    assert "mixes times with and without a time zone" in refused(capsys, *options)
    stamps = ["2026-01-01T23:30:00+00:00", "2026-01-02T00:30:00Z"] * 1000
    pq.write_table(pa.table({**rows(), "ts": stamps}), path)
    found = tables.audit_source(str(path), engine=engine, time="ts")
    assert [each.name for each in found.series.windows] == ["2026-01-01", "2026-01-02"]
    stamps = ["2026-01-01T23:30:00", "2026-01-02 00:30:00"] * 1000
    pq.write_table(pa.table({**rows(), "ts": stamps}), path)
    found = tables.audit_source(str(path), engine=engine, time="ts")
    assert [each.sums.rows for each in found.series.windows] == [1000, 1000]


@pytest.mark.parametrize("engine", sources.ENGINES)
def test_times_of_csv_files_need_one_kind_of_zone(tmp_path, capsys, engine):
    path = tmp_path / "a.csv"
    path.write_text(
        "confidence,correct,ts\n0.5,1,2026-01-01T23:30:00Z\n0.5,0,2026-01-02T00:30:00\n"
    )
    options = (path, "--engine", engine, "--time", "ts")
    assert "mixes times with and without a time zone" in refused(capsys, *options)


def test_rows_without_a_time_are_invalid(tmp_path, capsys):
    import datetime

    path = tmp_path / "a.parquet"
    ts = [datetime.datetime(2026, 1, 1)] * 1999 + [None]
    pq.write_table(pa.table({**rows(), "ts": ts}), path)
    assert "1 with no time" in refused(capsys, path, "--time", "ts")
    code, printed = audited(capsys, path, "--time", "ts", "--drop-invalid")
    assert code == 0
    assert "1,999 rows, top label only, 1 invalid rows left out" in printed.out


WRONG = {
    "--by regio": "no column 'regio' in the table to slice by; did you mean region?",
    "--time when": "no column 'when' in the table",
    "--time region": "Conversion Error",
    "--time id": "column id must hold times, got int64",
    "--time region --every 1x": "windows must be written as 15m, 1h, 1d or 1w, got '1x'",
    "--confidence score": "no column 'score' in the table",
    "--find-slices region": "give --key",
    "--bootstrap 10": "give --key",
    "--bootstrap 10 --key row": "no column 'row' in the table to resample by",
    "--by region --correction bonferroni": "no correction 'bonferroni'; use one of holm, bh",
    "--by region --depth 0": "depth must be at least 1, got 0",
    "--engine sqlite": "no engine 'sqlite'; use one of duckdb, polars",
    "--engine duckdb --figure x.png": "--figure cannot be used with tables",
    "--engine duckdb --normalize": "--normalize cannot be used with tables",
    "--probs confidence --labels region": "labels of column region are text",
    "--group user": "no column 'user' in the table",
    "--engine duckdb --bins 2000": "tables take 1 to 1,000 bins, got 2,000",
}


@pytest.mark.parametrize("options", WRONG)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_wrong_option_is_one_line(folder, capsys, options):
    assert WRONG[options] in refused(capsys, folder, *options.split())


def test_a_database_that_cannot_be_reached_is_one_line_without_the_password(capsys):
    line = refused(capsys, "postgres://ann:secret@127.0.0.1:1/x#t")
    assert line.startswith("postgres://ann@127.0.0.1:1/x#t: the engine failed")
    assert "secret" not in line
    line = refused(capsys, "snowflake://ann:secret@x/y#t")
    assert "pip install 'ibis-framework[snowflake]'" in line
    assert "secret" not in line


def test_a_label_outside_the_classes_is_counted(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("p0,p1,label\n0.2,0.8,1\n0.3,0.7,0\n0.5,0.5,2\n")
    line = refused(capsys, path, "--engine", "duckdb")
    assert "1 of 3 rows are invalid: 1 with a label outside the classes" in line


def test_nothing_is_written_if_the_audit_fails(folder, tmp_path):
    (folder / "part1.parquet").write_bytes(b"PAR1")
    page = tmp_path / "page.html"
    assert main(["audit", str(folder), "--page", str(page)]) == 2
    assert not page.exists()


def test_hidden_folders_are_skipped_and_passwords_never_shown(folder, capsys):
    for name in ("_temporary", ".hidden"):
        (folder / name).mkdir()
        pq.write_table(pa.table(rows()), folder / name / "a.parquet")
    assert tables.audit_source(str(folder), draws=0).sums.rows == 6000
    for address in ("foo://ann:secret@x#t", "postgres://127.0.0.1:1/db?user=a&password=secret#t"):
        assert "secret" not in refused(capsys, address)


def test_semicolons_are_read_by_both_engines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("confidence;correct\n" + "0.5;1\n0.75;0\n" * 20)
    for engine in sources.ENGINES:
        assert tables.audit_source(str(path), engine=engine).sums.rows == 40
