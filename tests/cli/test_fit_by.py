"""`calibrant fit --by`, and apply and export of its files."""

import json

import numpy as np
import pytest

from calibrant import Predictions, calibrators, files, metrics
from calibrant.calibrators import SlicedCalibrator

REGIONS = np.array(["north", "south", "east"])


def write(path, *, n=1200, seed=0, regions=REGIONS):
    generator = np.random.default_rng(seed)
    at = generator.integers(0, len(regions), n)
    z = 1.5 * generator.normal(size=(n, 3))
    labels = (z + generator.gumbel(size=z.shape)).argmax(1)
    arrays = {"logits": z * (1.0 + 1.5 * (at % 3))[:, None], "labels": labels}
    arrays |= {"region": regions[at], "version": generator.integers(1, 3, n)}
    if path.suffix in (".csv", ".tsv", ".parquet"):
        arrays["region"] = arrays["region"].astype(object)
    files.write(path, arrays)
    return arrays


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_slices_go_from_fit_to_apply(run, tmp_path, suffix):
    val = write(tmp_path / f"val.{suffix}")
    test = write(tmp_path / f"test.{suffix}", seed=1, regions=np.array([*REGIONS, "mars"]))
    by = ("--by", "region,version", "--calibrator", "temperature")
    code, out, err = run("fit", f"val.{suffix}", *by, "-o", "cal.json")
    assert (code, err) == (0, "")
    assert out.startswith("temperature by region, version, fitted to 1,200 examples of 3 classes\n")
    assert "5-fold NLL: global " in out
    assert out.endswith("calibrator: cal.json\n")
    sliced = calibrators.load(tmp_path / "cal.json")
    slices = {name: val[name] for name in ("region", "version")}
    p = Predictions(val["logits"], val["labels"])
    expected = SlicedCalibrator.fit(p, slices)
    assert sliced.keys == expected.keys
    np.testing.assert_allclose(sliced.own, expected.own, rtol=1e-9)
    assert f" {sliced.calibrators[0].temperature:.4g} " in out
    code, out, err = run("apply", "cal.json", f"test.{suffix}", "-o", f"out.{suffix}")
    assert (code, err) == (0, "")
    unseen = int((test["region"] == "mars").sum())
    assert out.startswith("temperature by region, version applied to 1,200 examples")
    assert f"\n  {unseen} examples of unseen slices use the global calibrator\n" in out
    new = Predictions(test["logits"], test["labels"])
    wanted = sliced.map(new, {name: test[name] for name in ("region", "version")})
    found = files.read(tmp_path / f"out.{suffix}", ["logits", "region"], text=["region"])
    np.testing.assert_allclose(found["logits"], wanted.logits, rtol=1e-6, atol=1e-9)
    assert found["region"].tolist() == test["region"].tolist()


def test_json_holds_every_slice(run, tmp_path):
    write(tmp_path / "val.npz", n=600)
    args = ("--by", "region", "--ignore", "version", "--json", "--folds", "2", "-o", "cal.json")
    code, out, err = run("fit", "val.npz", *args)
    assert (code, err) == (0, "")
    record = json.loads(out)
    sliced = calibrators.load(tmp_path / "cal.json")
    scores = record["cross_validation"]
    assert scores["sliced"] == sliced.cross_validation.sliced
    assert scores["difference"] < 0
    assert record["slices_used"]
    assert [tuple(each["slice"]) for each in record["slices"]] == list(sliced.keys)
    assert record["slices"][0]["weights"] == sliced.weights[0].tolist()
    assert record["after"]["nll"] < record["global"]["nll"] < record["before"]["nll"]
    # auto keeps the calibrator with the lowest held-out NLL.
    best = {k: min(v["overall"], v["sliced"]) for k, v in record["selection"].items()}
    assert set(best) == {"temperature", "focal_temperature", "vector"}
    assert record["calibrator_name"] == min(best, key=best.get)


def test_auto_prefers_fits_that_converge_and_shows_notes_of_the_chosen_one(
    run, tmp_path, monkeypatch
):
    generator = np.random.default_rng(0)
    z = 2.0 * generator.normal(size=(900, 2))
    labels = (z + generator.gumbel(size=z.shape)).argmax(1)
    z *= np.repeat([1.0, 3.0], 450)[:, None]
    files.write(
        tmp_path / "two.npz", {"logits": z, "labels": labels, "part": np.arange(900) // 450}
    )
    args = ("two.npz", "--by", "part", "--json", "--folds", "2", "-o", "cal.json")
    code, out, err = run("fit", *args)
    record = json.loads(out)
    best = record["calibrator_name"]
    assert (code, best == "focal_temperature") == (0, "not identifiable" in err)
    assert set(record["selection"]) == {
        "temperature",
        "focal_temperature",
        "vector",
        "platt",
        "beta",
    }
    kind = type(calibrators.load(tmp_path / "cal.json").overall)
    monkeypatch.setattr(
        "calibrant.calibrators.fit_checks.convergence_remark",
        lambda calibrator: "no" if isinstance(calibrator, kind) else "",
    )
    assert json.loads(run("fit", *args)[1])["calibrator_name"] != best


def test_codes_in_csv_files_are_text(run, tmp_path):
    # A number in the first row must not make the column one of numbers.
    arrays = write(tmp_path / "val.npz")
    codes = np.array(["01", "1", "1.5"])[np.arange(1200) % 3].astype(object)
    table = {name: arrays[name] for name in ("logits", "labels")}
    files.write(tmp_path / "val.csv", table | {"code": codes})
    args = ("--by", "code", "--calibrator", "temperature", "-o", "cal.json")
    assert run("fit", "val.csv", *args)[0] == 0
    keys = calibrators.load(tmp_path / "cal.json").keys
    assert sorted(keys) == [("01",), ("1",), ("1.5",)]
    for first, suffix in (("x", "csv"), ("01", "csv"), ("1", "tsv"), ("x", "npz")):
        codes[0], codes[1] = first, "x"
        files.write(tmp_path / f"test.{suffix}", table | {"code": codes})
        args = (f"test.{suffix}", "--allow-same", "--json", "-o", f"out.{suffix}")
        code, out, err = run("apply", "cal.json", *args)
        assert (code, err) == (0, "")
        record = json.loads(out)
        assert (record["calibrator_name"], record["by"]) == ("temperature", ["code"])
        assert record["unseen_examples"] == (codes == "x").sum(), (first, suffix)


def test_slices_too_small_for_fits_of_their_own_are_said(run, tmp_path):
    arrays = write(tmp_path / "val.npz", n=60)
    arrays["region"] = np.arange(60) // 4
    files.write(tmp_path / "val.npz", arrays)
    args = ("--by", "region", "--ignore", "version", "--calibrator", "temperature")
    code, out, _ = run("fit", "val.npz", *args, "--folds", "2", "-o", "cal.json")
    assert code == 0
    assert "no slice has enough examples of its own: the global calibrator is used" in out


def test_ignored_rows_have_the_zero_floor_of_the_fit(run, tmp_path):
    arrays = write(tmp_path / "val.npz")
    probs = Predictions(arrays["logits"], arrays["labels"]).probs.numpy().copy()
    probs[probs < 0.02] = 0
    probs /= probs.sum(1, keepdims=True)
    kept = np.arange(1200) % 5 > 0
    labels = np.where(kept, arrays["labels"], -1)
    files.write(tmp_path / "v.npz", {"probs": probs, "labels": labels, "region": arrays["region"]})
    for by in ((), ("--by", "region")):
        rest = ("--ignore-index", "-1", *(() if by else ("--ignore", "region")))
        args = ("v.npz", *rest, *by, "--calibrator", "temperature", "-o", "cal.json")
        assert run("fit", *args)[0] == 0
        args = ("v.npz", *rest, "--allow-same", "--as", "logits", "-o", "out.npz")
        assert run("apply", "cal.json", *args)[0] == 0
        found = files.read(tmp_path / "out.npz", ["logits"])["logits"]
        sliced = calibrators.load(tmp_path / "cal.json")
        every = Predictions.from_probs(probs, arrays["labels"])
        wanted = sliced.map(every, arrays["region"]) if by else every.map(sliced)
        np.testing.assert_allclose(found, wanted.logits, rtol=1e-9)


def test_slices_that_do_not_help_are_not_used(run, tmp_path):
    write(tmp_path / "val.csv")
    args = ("--by", "version", "--ignore", "region", "--calibrator", "temperature")
    code, out, _ = run("fit", "val.csv", *args, "-o", "cal.json")
    assert code == 0
    sliced = calibrators.load(tmp_path / "cal.json")
    said = "slices are not better in cross-validation: the global calibrator is used"
    assert (said in out) == (not sliced.slices_win)


def test_a_sliced_calibrator_is_exported(run, tmp_path):
    write(tmp_path / "val.csv")
    args = ("--by", "region", "--ignore", "version", "--calibrator", "temperature")
    run("fit", "val.csv", *args, "-o", "cal.json")
    code, out, err = run("export", "cal.json", "-o", "cal.onnx")
    assert (code, err) == (0, "")
    assert out.startswith("temperature by region of 3 classes; logits, slice -> log_probs, probs\n")
    assert (tmp_path / "cal.onnx").exists()


def test_ignored_rows_and_pixels_keep_their_slices(run, tmp_path):
    arrays = write(tmp_path / "val.npz")
    arrays["labels"][::7] = 255
    rest = ("--ignore-index", "255", "--ignore", "version", "--calibrator", "temperature")
    files.write(tmp_path / "val.npz", arrays)
    assert run("fit", "val.npz", "--by", "region", *rest, "-o", "cal.json")[0] == 0
    sliced, kept = calibrators.load(tmp_path / "cal.json"), arrays["labels"] != 255
    expected = SlicedCalibrator.fit(
        Predictions(arrays["logits"][kept], arrays["labels"][kept]), arrays["region"][kept]
    )
    assert sliced.keys == expected.keys
    np.testing.assert_allclose(sliced.own, expected.own, rtol=1e-12)
    code, _, err = run("apply", "cal.json", "val.npz", "--allow-same", *rest[:4], "-o", "out.npz")
    assert (code, err) == (0, "")
    found = files.read(tmp_path / "out.npz", ["logits"])["logits"]
    index = sliced.index(arrays["region"], examples=len(kept))
    np.testing.assert_allclose(
        found,
        sliced.at(index)(Predictions(arrays["logits"], np.zeros(len(kept), int)).logits),
        rtol=1e-12,
    )
    dense = {"logits": arrays["logits"].reshape(300, 4, 3).transpose(0, 2, 1)}
    dense |= {"labels": arrays["labels"].reshape(300, 4), "region": arrays["region"][:300]}
    files.write(tmp_path / "dense.npz", dense)
    assert run("fit", "dense.npz", "--by", "region", *rest[:2], *rest[4:], "-o", "d.json")[0] == 0
    assert int(calibrators.load(tmp_path / "d.json").examples.sum()) == kept.sum()


def test_bad_slices_are_one_line(run, tmp_path):
    arrays = write(tmp_path / "val.csv")
    ids = arrays | {"region": np.arange(1200)}
    files.write(tmp_path / "ids.npz", ids)
    files.write(tmp_path / "test.npz", {"logits": arrays["logits"], "labels": arrays["labels"]})
    files.write(tmp_path / "real.npz", ids | {"region": np.linspace(0, 1, 1200)})
    quiet = ("--ignore", "version", "-o", "cal.json")
    cases = {
        "has no 'regoin'; it holds": ("fit", "val.csv", "--by", "regoin", *quiet),
        "cannot slice by 'labels'": ("fit", "val.csv", "--by", "labels", *quiet),
        "1,200 different slices, at most 1,000": ("fit", "ids.npz", "--by", "region", *quiet),
        "put its values into bins": ("fit", "real.npz", "--by", "region", *quiet),
        "isotonic of 3 classes cannot be fitted to slices": (
            *("fit", "val.csv", "--by", "region", "--calibrator", "isotonic"),
            *quiet,
        ),
        "blend cannot be fitted to slices; use auto": (
            *("fit", "val.csv", "--by", "region", "--calibrator", "blend"),
            *quiet,
        ),
        "--by needs one or more different columns": ("fit", "val.csv", "--by", "a,a", *quiet),
        "leave out --criterion": (
            "fit",
            "val.csv",
            "--by",
            "region",
            "--criterion",
            "brier",
            *quiet,
        ),
    }
    for message, args in cases.items():
        code, out, err = run(*args)
        assert (code, out) == (2, ""), message
        assert message in err, err
        assert err.count("\n") == 1, err
    assert not (tmp_path / "cal.json").exists()
    args = ("--by", "region", "--calibrator", "temperature", *quiet)
    assert run("fit", "val.csv", *args)[0] == 0
    code, _, err = run("apply", "cal.json", "test.npz", "-o", "out.npz")
    assert code == 2
    assert "test.npz has no 'region'" in err
    text = (tmp_path / "val.csv").read_text()
    (tmp_path / "val.csv").write_text(text.replace("south", "", 1))
    code, _, err = run("fit", "val.csv", *args)
    assert code == 2
    assert "'region' has an empty cell" in err


def test_the_global_option_and_metrics_agree(run, tmp_path):
    arrays = write(tmp_path / "val.npz")
    args = ("--by", "region", "--calibrator", "temperature", "--ignore", "version", "--json")
    _, out, _ = run("fit", "val.npz", *args, "-o", "cal.json")
    record = json.loads(out)
    sliced = calibrators.load(tmp_path / "cal.json")
    p = Predictions(arrays["logits"], arrays["labels"])
    after = metrics.nll(sliced.map(p, arrays["region"]))
    assert record["after"]["nll"] == pytest.approx(after, rel=1e-9)
    assert record["parameters"] == {"temperature": sliced.overall.temperature}
