"""`calibrant fit --by ... --calibrator multicalibration`, and apply of its file."""

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from calibrant import Predictions, calibrators, files, metrics

pandas = pytest.importorskip("pandas")
pytest.importorskip("lightgbm")


def write(path, *, n=1500, seed=0, missing=False, biased=True, sharpness=1.0):
    generator = np.random.default_rng(seed)
    region, age = generator.integers(0, 3, n), generator.uniform(20, 80, n)
    truth = 1.5 * generator.normal(size=n)
    labels = (generator.random(n) < 1 / (1 + np.exp(-truth))).astype(int)
    logits = sharpness * truth + biased * (1.5 * (region == 1) - 1.5 * (age > 60))
    names = np.array(["north", "south", "east"], dtype=object)
    arrays = {"logits": logits, "labels": labels, "region": names[region], "age": age}
    arrays["mobile"] = (generator.random(n) < 0.5).astype(object)
    if missing:
        arrays["region"][::5], arrays["mobile"][::4], arrays["age"][::3] = None, None, np.nan
    if path.suffix == ".npz":
        arrays = {name: np.array(values.tolist()) for name, values in arrays.items()}
    frame = pandas.DataFrame(arrays)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        files.write(path, arrays)
    return Predictions.from_binary(logits, labels, kind="logits"), arrays


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_go_from_fit_to_apply(run, tmp_path, suffix):
    write(tmp_path / f"val.{suffix}")
    test, arrays = write(tmp_path / f"test.{suffix}", seed=1, missing=True)
    by = ("--by", "region,age,mobile", "--calibrator", "multicalibration", "--folds", "2")
    code, out, err = run("fit", f"val.{suffix}", *by, "-o", "cal.json")
    assert (code, err) == (0, "")
    assert out.startswith(
        "multicalibration by region, age, mobile, fitted to 1,500 examples of 2 classes"
    )
    assert "2-fold NLL: global " in out
    code, out, err = run("apply", "cal.json", f"test.{suffix}", "--json", "-o", f"out.{suffix}")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["calibrator_name"] == "multicalibration"
    assert record["by"] == ["region", "age", "mobile"]
    assert record["after"]["nll"] < record["before"]["nll"] - 0.02
    wanted = calibrators.load(tmp_path / "cal.json").map(test, arrays)
    found = files.read(tmp_path / f"out.{suffix}", ["logits"])["logits"].ravel()
    np.testing.assert_allclose(found, wanted.log_odds, rtol=1e-5, atol=1e-6)
    # Missing values in the fit, too.
    assert run("fit", f"test.{suffix}", *by, "-o", "again.json")[0] == 0
    again = calibrators.load(tmp_path / "again.json")
    assert set(again.codes[2].categories) == {"True", "False"}


BY = ("--by", "region,age,mobile", "--calibrator", "multicalibration", "-o", "cal.json")


@pytest.mark.parametrize(
    ("sharpness", "said"),
    [(1.0, "predictions stay as they are"), (2.0, "the global calibrator is used")],
)
def test_says_what_is_used_without_trees(run, tmp_path, sharpness, said):
    p, _ = write(tmp_path / "val.csv", seed=2, biased=False, sharpness=sharpness)
    code, out, err = run("fit", "val.csv", *BY, "--folds", "3")
    assert (code, err) == (0, "")
    assert said in out
    unchanged = f"unchanged {metrics.nll(p):.4f}, with trees {metrics.nll(p):.4f}"
    assert (unchanged in out) == (sharpness == 1)


def test_one_round_or_tree_is_singular(run, tmp_path, monkeypatch):
    write(tmp_path / "val.npz", n=600)
    fit, made = calibrators.MultiCalibrator.fit, []

    def one_round(*given, folds, seed, progress):
        made.append(replace(fit(*given, rounds=1), cross_validation=first.cross_validation))
        return made[-1]

    first = fit(*write(tmp_path / "same.npz", n=600), folds=2)
    monkeypatch.setattr(calibrators.MultiCalibrator, "fit", one_round)
    code, out, err = run("fit", "val.npz", *BY)
    assert (code, err) == (0, "")
    assert "\n  1 round of boosting, 30 trees\n" in out
    assert repr(made[0]).endswith("1 round, 30 trees)")
    monkeypatch.setattr("calibrant.calibrators.boosting.TREES", 1)
    assert "\n  1 round of boosting, 1 tree\n" in run("fit", "val.npz", *BY)[1]
    assert repr(made[1]).endswith("1 round, 1 tree)")


def test_progress_counts_the_folds_that_are_held_out(run, tmp_path, monkeypatch):
    write(tmp_path / "val.csv", n=300)
    totals = []

    @contextmanager
    def progress(total, what):
        totals.append(total)
        yield lambda: None

    monkeypatch.setattr("calibrant.cli.screen.progress", progress)
    for many in (300, 299):
        monkeypatch.setattr("calibrant.calibrators.multicalibration.MANY", many)
        code, _, err = run("fit", "val.csv", *BY, "--json")
        assert (code, err) == (0, "")
    assert totals == [5 * 20, 20]


def test_says_what_went_wrong(run, tmp_path, monkeypatch):
    p, _ = write(tmp_path / "val.npz", n=300)
    odds = p.log_odds.numpy()
    right = {"logits": odds, "labels": (odds > 0).astype(int), "age": np.arange(300)}
    files.write(tmp_path / "right.npz", right)
    by = ("--by", "age", *BY[2:], "--json")
    code, out, err = run("fit", "right.npz", *by)
    assert code == 0
    assert json.loads(out)["remarks"][0].startswith("did not converge: no best fit for class 1")
    assert err.count("no best fit for class 1") == 1
    # A fit that makes its own examples worse.
    fit = calibrators.MultiCalibrator.fit
    worse = calibrators.TemperatureScaling(classes=2, temperature=0.1)
    monkeypatch.setattr(
        calibrators.MultiCalibrator, "fit", lambda *a, **k: replace(fit(*a, **k), overall=worse)
    )
    code, out, err = run("fit", "val.npz", *BY, "--json")
    assert code == 0
    (nll, ece) = json.loads(out)["remarks"]
    assert nll.startswith("NLL rose from")
    assert nll.endswith("do not use this fit")
    assert ece.startswith("ECE rose from")
    assert f"multicalibration: {nll}" in err


def test_says_what_is_missing(run, tmp_path):
    write(tmp_path / "val.npz", n=200)
    args = ("fit", "val.npz", "--calibrator", "multicalibration", "-o", "cal.json")
    code, _, err = run(*args)
    assert code == 2
    assert "multicalibration needs the columns of the examples: add --by" in err
    assert run(*args, "--by", "age", "--ignore", "region", "--ignore", "mobile", "--json")[0] == 0
    code, _, err = run("export", "cal.json", "-o", "cal.onnx")
    assert code == 2
    assert "has no ONNX graph" in err
