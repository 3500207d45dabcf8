"""`calibrant fit --by ... --calibrator multicalibration`, and apply of its file."""

import json

import numpy as np
import pytest

from calibrant import Predictions, calibrators, files

pandas = pytest.importorskip("pandas")
pytest.importorskip("lightgbm")


def write(path, *, n=1500, seed=0, missing=False):
    generator = np.random.default_rng(seed)
    region, age = generator.integers(0, 3, n), generator.uniform(20, 80, n)
    truth = 1.5 * generator.normal(size=n)
    labels = (generator.random(n) < 1 / (1 + np.exp(-truth))).astype(int)
    logits = truth + 1.5 * (region == 1) - 1.5 * (age > 60)
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
