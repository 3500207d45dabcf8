import json
import math
import re
import sys

import numpy as np
import pytest

from calibrant import Predictions, metrics
from calibrant.cli import options
from calibrant.cli.audit import default_output, truth_line
from calibrant.data import SYNTHETIC
from calibrant.metrics import INTERVAL_TYPES, Interval

NO_FILES = ("--no-figure", "--no-page")
QUICK = ("--resamples", 20, *NO_FILES)
VALUES = ("--no-intervals", *NO_FILES)


def test_prints_every_metric_with_its_interval_the_tests_and_the_verdict(run, file):
    code, out, err = run("audit", file, *QUICK)
    assert (code, err) == (0, "")
    found = metrics.summary(Predictions.load(file), resamples=20)
    for name, each in found.metrics.items():
        row = rf"^{name} +{each.value:.4f}  {each.low:.4f} to {each.high:.4f}  \w"
        assert re.search(row, out, re.MULTILINE), name
    for name in found.tests:
        assert re.search(rf"^{name} +<?=?0\.\d{{4}}  H0: ", out, re.MULTILINE)
    assert f"\n{found.verdict}\n" in out
    assert "400 examples, 10 classes" in out
    assert "95% interval" in out


def test_plain_output_has_no_escape_codes_and_fits_80_columns(run, file):
    _, out, _ = run("audit", file.name, *QUICK)
    assert "\x1b" not in out
    assert "…" not in out
    remarks = metrics.summary(Predictions.load(file), resamples=20).remarks
    tables = [line for line in out.splitlines() if line not in remarks]
    assert max(map(len, tables)) <= 80


def test_the_table_of_a_terminal_of_80_columns_is_whole(run, file, terminal, monkeypatch):
    _, plain, _ = run("audit", file.name, *QUICK)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    run("audit", file.name, *QUICK)
    coloured = terminal.getvalue()
    assert "\x1b[1m" in coloured
    bare = "\n".join(x.rstrip() for x in re.sub(r"\x1b\[[0-9;]*m", "", coloured).split("\n"))
    assert bare == plain


def test_a_narrow_terminal_never_cuts_a_number(run, file, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", terminal)
    run("audit", file, *QUICK)
    p = Predictions.load(file)
    for name, metric in metrics.metrics_for(10).items():
        assert re.search(rf"{name} +{metric(p):.4f}", terminal.getvalue())


def test_options_reach_the_summary(run, file):
    given = ("--bins", 7, "--level", 0.8, "--interval-type", "percentile", "--seed", 3)
    _, out, _ = run("audit", file, *QUICK, "--json", *given)
    expected = metrics.summary(
        Predictions.load(file), bins=7, level=0.8, interval_type="percentile", seed=3, resamples=20
    )
    record = json.loads(out)
    assert record["metrics"] == expected.to_dict()["metrics"]
    assert record["tests"] == expected.to_dict()["tests"]
    assert record["verdict"] == expected.verdict
    assert (record["bins"], record["level"], record["seed"]) == (7, 0.8, 3)
    assert (record["interval_type"], record["resamples"]) == ("percentile", 20)


def test_interval_types_are_those_of_the_library():
    assert set(options.IntervalType) == set(INTERVAL_TYPES)


def test_without_intervals_there_are_values_only(run, file):
    code, out, _ = run("audit", file.name, *VALUES, "--bins", 5)
    assert code == 0
    assert "interval" not in out
    assert "p-value" not in out
    assert f"{metrics.ece(Predictions.load(file), bins=5):.4f}" in out
    _, out, _ = run("audit", file, *VALUES, "--json")
    record = json.loads(out)
    p = Predictions.load(file)
    for name, metric in metrics.metrics_for(10).items():
        assert record["metrics"][name] == {"value": pytest.approx(metric(p))}
    assert record["mean_confidence"] == pytest.approx(float(p.confidence.mean()))
    assert "verdict" not in record


def test_names_of_arrays_are_passed_on(run, tmp_path):
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(3), 50)
    arrays = {"raw": np.log(probs), "p": probs, "y": generator.integers(0, 3, 50)}
    np.savez(tmp_path / "named.npz", **arrays)
    tail = ("--labels", "y", "--ignore", "*", *VALUES, "--json")
    _, one, _ = run("audit", "named.npz", "--logits", "raw", *tail)
    _, two, _ = run("audit", "named.npz", "--probs", "p", *tail)
    assert json.loads(one)["metrics"]["nll"]["value"] == pytest.approx(
        json.loads(two)["metrics"]["nll"]["value"]
    )


def test_how_far_a_file_may_expand_is_passed_on(run, file, monkeypatch):
    seen = {}
    load = Predictions.load
    monkeypatch.setattr(Predictions, "load", lambda path, **given: seen.update(given) or load(path))
    run("audit", file, *VALUES, "--max-expansion", 7)
    assert seen["max_expansion"] == 7


def test_a_pattern_joins_several_files(run, file, tmp_path):
    (tmp_path / "test_more.npz").write_bytes(file.read_bytes())
    _, out, _ = run("audit", "test*.npz", "--pool", "--no-intervals")
    assert "800 examples" in out
    assert out.endswith("figure: test.reliability.png\npage: test.audit.html\n")


def test_figure_and_page_go_to_the_current_folder_unless_told(run, file, tmp_path):
    _, out, _ = run("audit", file, "--no-intervals")
    assert out.endswith("\nfigure: test.reliability.png\npage: test.audit.html\n")
    assert "test.npz" in (tmp_path / "test.audit.html").read_text()
    written = (tmp_path / "test.reliability.png").read_bytes()
    assert written[:4] == b"\x89PNG"
    assert len(written) > 10_000
    tail = ("--figure", "deep/a.svg", "--adaptive", "--no-page", "--classwise", "classes.png")
    _, out, _ = run("audit", file, "--no-intervals", *tail)
    assert out.endswith("\nfigure: deep/a.svg\nclasswise figure: classes.png\n")
    assert b"<svg" in (tmp_path / "deep" / "a.svg").read_bytes()
    assert (tmp_path / "classes.png").stat().st_size > 10_000


def test_no_figure_and_no_page_write_nothing(run, file, tmp_path):
    run("audit", file, *VALUES)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("what", "bad"),
    [("--figure", "a.jpg"), ("--figure", "no/such/a.png"), ("--page", "no/such/a.html")],
)
def test_what_cannot_be_written_stops_before_resampling(run, file, what, bad, monkeypatch):
    monkeypatch.setattr(metrics, "summary", lambda *_, **__: pytest.fail("resampled"))
    code, out, err = run("audit", file, what, bad)
    assert (code, out) == (2, "")
    assert bad in err


def test_without_matplotlib_only_a_figure_that_was_asked_for_is_an_error(run, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("audit", file, "--no-intervals")
    assert code == 0
    assert "figure" not in out
    assert err == "note: no figure; it needs pip install 'calibrant[report]'\n"
    code, _, err = run("audit", file, "--no-intervals", "--figure", "a.png")
    assert code == 2
    assert err == "calibrant: drawing figures needs matplotlib: pip install 'calibrant[report]'\n"


def test_json_is_alone_on_stdout_and_has_no_nan(run, tmp_path):
    probs = np.array([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]] * 3)
    Predictions.from_probs(probs, [1, 0, 1] * 3).save(tmp_path / "hard.npz")

    def refuse(constant):
        raise AssertionError(constant)

    code, out, err = run("audit", "hard.npz", *QUICK, "--json")
    assert code == 0
    record = json.loads(out, parse_constant=refuse)
    assert record["metrics"]["nll"]["value"] is None
    assert record["figure"] is None
    assert err.startswith("note: 9 examples in 15 bins")
    assert err.count("note: 9 examples in 15 bins") == 1


def test_an_infinite_score_is_explained(run, tmp_path):
    Predictions.from_probs([[1.0, 0.0]] * 20, [1, 0] * 10).save(tmp_path / "sure.npz")
    _, out, _ = run("audit", "sure.npz", *QUICK)
    said = "nll is infinite: the true class of some example has probability 0"
    assert said in out
    _, out, _ = run("audit", "sure.npz", *QUICK, "--json")
    assert said in json.loads(out)["remarks"]


@pytest.mark.parametrize(("limit", "code"), [(0.5, 0), (0.001, 1), (None, 0)])
def test_max_ece_decides_the_exit_code(run, file, limit, code):
    ece = metrics.ece(Predictions.load(file))
    # A limit that is equal to the value is not exceeded.
    limit = ece if limit is None else limit
    tail = (*VALUES, "--max-ece", repr(limit))
    found, _, err = run("audit", file, *tail)
    assert found == code
    assert err == (f"calibrant: ece {ece:.4f} is above --max-ece {limit}\n" if code else "")
    found, out, _ = run("audit", file, *tail, "--json")
    assert found == code
    assert json.loads(out)["limit"] == {"max_ece": limit, "passed": code == 0}


def test_the_example_shows_the_truth_beside_the_estimate(run, tmp_path):
    code, out, _ = run("audit", "--example", "--resamples", 20)
    assert code == 0
    truth = SYNTHETIC["overconfident"]
    assert (
        f"true error {truth.true_error():.4f}, over 15 bins {truth.true_binned_error():.4f}; "
        "the interval of ece contains " in out
    )
    assert "overconfident: 10,000 examples" in out
    assert (tmp_path / "overconfident.reliability.png").is_file()


def test_an_example_may_be_named(run):
    tail = (*VALUES, "--bins", 10, "--json")
    _, out, _ = run("audit", "--example", "tempered", *tail)
    record = json.loads(out)
    assert (record["source"], record["classes"]) == ("tempered", 2)
    assert record["truth"] == {
        "error": pytest.approx(SYNTHETIC["tempered"].true_error()),
        "binned_error": pytest.approx(SYNTHETIC["tempered"].true_binned_error(10)),
    }


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.01, 0.1, "contains both"),
        (0.045, 0.1, "contains the first"),
        (0.01, 0.045, "contains the second"),
        (0.06, 0.1, "contains neither"),
    ],
)
def test_truth_is_compared_with_the_interval(low, high, words):
    truth = {"error": 0.05, "binned_error": 0.04}
    line = truth_line(truth, Interval(0.05, low, high), 15)
    assert line == f"true error 0.0500, over 15 bins 0.0400; the interval of ece {words}"
    assert (
        truth_line(truth, Interval(0.05, math.nan, math.nan), 15)
        == "true error 0.0500, over 15 bins 0.0400"
    )


def test_remarks_of_the_summary_are_shown_before_the_verdict(run, file, monkeypatch):
    monkeypatch.setattr(metrics.Summary, "remarks", property(lambda _: ["simplex_ece is odd"]))
    _, out, _ = run("audit", file, *QUICK)
    lines = out.splitlines()
    _, out, _ = run("audit", file, *QUICK, "--json")
    assert json.loads(out)["remarks"] == ["simplex_ece is odd"]
    assert lines[lines.index("simplex_ece is odd") + 1] == json.loads(out)["verdict"]
    _, out, _ = run("audit", file, *QUICK, "--json", "--no-intervals")
    assert json.loads(out)["remarks"] == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a/b/test.npz", "test"),
        ("parts/*.parquet", "parts"),
        ("part-*.csv", "part"),
        ("*.npz", "predictions"),
        ("wavy", "wavy"),
    ],
)
def test_figures_are_named_after_their_source(source, name):
    assert str(default_output(source, "reliability.png")) == f"{name}.reliability.png"


def test_thresholds_are_chosen_and_checked(run, file, tmp_path):
    generator = np.random.default_rng(0)
    probs = generator.random(300)
    labels = (generator.random(300) < probs).astype(int)
    Predictions.from_binary(probs, labels, kind="probs").save(tmp_path / "two.npz")
    plain = ("--no-intervals", "--no-figure", "--no-page")
    code, out, _ = run("audit", "two.npz", "--thresholds", "0.001,0.25", "--json", *plain)
    assert code == 0
    rows = json.loads(out)["thresholds"]
    assert [row["threshold"] for row in rows] == [0.001, 0.25]
    assert rows[1]["flagged"] == (probs >= 0.25).sum()
    for wrong in ("0.1,1.5", "a", "nan"):
        code, _, err = run("audit", "two.npz", "--thresholds", wrong, *plain)
        assert code == 2
        assert f"--thresholds must be probabilities in [0, 1] such as 0.1,0.5, got {wrong}" in err
    code, _, err = run("audit", file, "--thresholds", "0.1", *plain)
    assert "--thresholds needs two classes" in err


def test_a_narrow_terminal_hides_the_last_columns_of_several_models(
    run, pair, terminal, monkeypatch
):
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    run("audit", *pair, "--resamples", "20", "--no-figure", "--no-page")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    head = next(line for line in shown.splitlines() if line.startswith("model"))
    assert len(head) <= 80
    assert "hidden, terminal too narrow: " in shown
    assert "overconfidence; see the page or --json" in shown.replace("\n", " ")
    assert "-o sharp.json" in shown
