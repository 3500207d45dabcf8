"""Calibrators by slice: planted parameters, shrinkage, never worse held out, files."""

import itertools
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant import Predictions, calibrators, metrics
from calibrant.calibrators import SlicedCalibrator, TemperatureScaling, slice_estimates, storage
from calibrant.calibrators.records import digest_of
from calibrant.calibrators.shrinkage import (
    between_variance,
    coordinates,
    variances,
    with_coordinates,
)
from calibrant.calibrators.sliced import slice_rows
from calibrant.calibrators.slices import slice_keys


def planted(temperatures, sizes, *, classes=3, seed=0, shift=0.0):
    """Examples of slices whose logits were multiplied by a temperature of their own."""
    generator = np.random.default_rng(seed)
    slices = np.repeat(np.array([f"s{at}" for at in range(len(sizes))]), sizes)
    z = 1.5 * generator.normal(size=(len(slices), classes))
    labels = (z + generator.gumbel(size=z.shape)).argmax(1)
    z = z * np.repeat(temperatures, sizes)[:, None]
    z[:, 0] += shift * np.repeat(np.arange(len(sizes)), sizes)
    order = generator.permutation(len(slices))
    return Predictions(z[order], labels[order]), slices[order]


def test_temperatures_of_large_slices_are_recovered():
    p, slices = planted([1.0, 2.0, 4.0], [8000, 6000, 4000])
    sliced = SlicedCalibrator.fit(p, slices)
    assert sliced.keys == (("s0",), ("s1",), ("s2",))
    assert [each.temperature for each in sliced.calibrators] == pytest.approx([1, 2, 4], rel=0.05)
    assert (sliced.weights > 0.98).all()
    assert sliced.slices_win
    assert sliced.cross_validation.high < 0
    new, where = planted([1.0, 2.0, 4.0], [2000, 2000, 2000], seed=1)
    assert metrics.nll(sliced.map(new, where)) < metrics.nll(new.map(sliced.overall)) - 0.01
    assert torch.equal(sliced.map(new, where).predicted, new.predicted)


def test_shrinkage_is_the_formula():
    p, slices = planted([1.0, 1.3, 1.7, 2.0], [900, 400, 150, 60])
    sliced = SlicedCalibrator.fit(p, slices)
    overall = TemperatureScaling.fit(p)
    own = [TemperatureScaling.fit(p.take(slices == f"s{at}")) for at in range(4)]
    centre = np.log(overall.temperature)
    points = [np.log(each.temperature) for each in own]
    noise = [variances(each, p.take(slices == f"s{at}"))[0] for at, each in enumerate(own)]
    # The root by a grid, not by the solver.
    grid = np.linspace(0, 1, 1_000_001)
    sums = sum((x - centre) ** 2 / (v + grid) for x, v in zip(points, noise, strict=True))
    tau2 = grid[np.abs(sums - 3).argmin()]
    assert sliced.tau.item() ** 2 == pytest.approx(tau2, abs=2e-6)
    for at in range(4):
        weight = sliced.tau.item() ** 2 / (sliced.tau.item() ** 2 + noise[at])
        assert sliced.weights[at].item() == pytest.approx(weight, rel=1e-9)
        expected = np.exp(centre + weight * (points[at] - centre))
        assert sliced.calibrators[at].temperature == pytest.approx(expected, rel=1e-9)
        assert sliced.summaries[at].own.temperature == pytest.approx(own[at].temperature)
    # Smaller slices are shrunk more.
    assert (sliced.weights[:, 0].diff() < 0).all()


def test_variance_is_that_of_repeated_fits():
    fits, estimated = [], []
    for seed in range(40):
        p, _ = planted([2.0], [400], seed=seed)
        fits.append(coordinates(TemperatureScaling.fit(p))[0])
        estimated.append(variances(TemperatureScaling.fit(p), p)[0])
    # The standard error of a variance of 40 values is 22 %.
    assert np.mean(estimated) == pytest.approx(np.var(fits, ddof=1), rel=0.5)


def test_variance_is_the_inverse_curvature_and_weights_are_counts():
    p, _ = planted([2.0], [500], classes=2)
    for name in ("temperature", "platt", "beta", "vector"):
        fitted = calibrators.CALIBRATORS[name].fit(p)
        twice = variances(fitted, p.reweighted(np.full(500, 2.0)))
        np.testing.assert_allclose(twice, variances(fitted, p) / 2, rtol=1e-6)
        tripled = variances(fitted, Predictions.concat([p, p, p]))
        np.testing.assert_allclose(tripled, variances(fitted, p) / 3, rtol=1e-6)
    platt, h = calibrators.CALIBRATORS["platt"].fit(p), 1e-3
    at = coordinates(platt)

    def loss(*moves):
        moved = with_coordinates(platt, at + np.sum(moves, axis=0))
        return metrics.nll(p.map(moved)) * len(p)

    unit = h * np.eye(2)
    hessian = np.array(
        [[loss(a, b) - loss(a, -b) - loss(-a, b) + loss(-a, -b) for a in unit] for b in unit]
    )
    inverse = np.linalg.inv(hessian / (4 * h * h))
    np.testing.assert_allclose(variances(platt, p), np.diag(inverse), rtol=1e-3)


def test_repeated_examples_of_a_group_add_no_precision():
    p, _ = planted([2.0], [300])
    many = Predictions.concat([p] * 4)
    grouped = Predictions(many.logits, many.labels, groups=np.tile(np.arange(300), 4))
    fitted = TemperatureScaling.fit(p)
    alone, together = variances(fitted, many)[0], variances(fitted, grouped)[0]
    assert together > 2.5 * alone


def test_equal_slices_use_the_calibrator_of_all_examples():
    used = 0
    for seed in range(6):
        p, slices = planted([2.0] * 4, [300] * 4, seed=seed)
        sliced = SlicedCalibrator.fit(p, slices)
        assert sliced.tau.item() < 0.25
        used += sliced.slices_win
        if not sliced.slices_win:
            assert (sliced.weights == 0).all()
            assert all(each is sliced.overall for each in sliced.calibrators)
            assert "not used" in repr(sliced)
            torch.testing.assert_close(
                sliced.map(p, slices).logits, p.map(sliced.overall).logits, rtol=1e-12, atol=1e-12
            )
    assert used <= 3


def test_never_worse_than_all_examples_in_cross_validation():
    generator = np.random.default_rng(3)
    for seed in range(10):
        count = int(generator.integers(1, 6))
        sizes = generator.integers(5, 300, count)
        spread = np.exp(generator.normal(size=count) * generator.choice([0, 0.1, 0.5]))
        p, slices = planted(2 * spread, sizes, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sliced = SlicedCalibrator.fit(p, slices, folds=2, seed=seed)
        scores = sliced.cross_validation
        applied = scores.sliced if (sliced.weights > 0).any() else scores.overall
        assert applied <= scores.overall
        assert ((sliced.weights >= 0) & (sliced.weights < 1)).all()


def naive_cross_validation(p, slices, folds, fold):
    """Held-out NLL of the whole and of the slices, by loops and plain formulas."""

    def log_probs(z, temperature):
        return z / temperature - np.log(np.exp(z / temperature).sum())

    def information(z, temperature):
        # That of log T: the variance of z / T under the probabilities of a row, summed.
        rows = [(row / temperature, np.exp(log_probs(row, temperature))) for row in z]
        return sum((q * x * x).sum() - (q * x).sum() ** 2 for x, q in rows)

    logits, labels = p.logits.numpy(), p.labels.numpy()
    loss = np.zeros(2)
    for number in range(folds):
        inside = np.flatnonzero(fold != number)
        centre = np.log(TemperatureScaling.fit(p.take(inside)).temperature)
        own, noise = {}, {}
        for key in np.unique(slices):
            rows = inside[slices[inside] == key]
            if len(rows) >= 20:
                temperature = TemperatureScaling.fit(p.take(rows)).temperature
                own[key], noise[key] = (
                    np.log(temperature),
                    1 / information(logits[rows], temperature),
                )
        low, high = 0.0, 100.0
        for _ in range(100):
            tau2 = (low + high) / 2
            total = sum((own[key] - centre) ** 2 / (noise[key] + tau2) for key in own)
            low, high = (tau2, high) if total > len(own) - 1 else (low, tau2)
        for row in np.flatnonzero(fold == number):
            at, key = centre, slices[row]
            if key in own:
                at = centre + low / (low + noise[key]) * (own[key] - centre)
            for which, value in enumerate((centre, at)):
                loss[which] -= log_probs(logits[row], np.exp(value))[labels[row]]
    return loss / len(p)


@pytest.mark.parametrize("spread", [[1.0, 2.0, 1.2, 3.0], [2.0, 2.0, 2.0, 2.0]])
def test_cross_validation_is_that_of_loops_which_never_see_the_held_out_fold(spread):
    p, slices = planted(spread, [200, 120, 60, 15], seed=4)
    sliced = SlicedCalibrator.fit(p, slices, folds=3, seed=5)
    index = np.array([sliced.keys.index((key,)) for key in slices])
    fold = slice_estimates._stratified(index, p.labels.numpy(), folds=3, seed=5)
    for key, label in itertools.product(range(4), range(3)):
        sizes = np.bincount(fold[(index == key) & (p.labels.numpy() == label)], minlength=3)
        assert sizes.max() - sizes.min() <= 1, (key, label)
    scores = sliced.cross_validation
    expected = naive_cross_validation(p, slices, 3, fold)
    np.testing.assert_allclose([scores.overall, scores.sliced], expected, rtol=1e-7)
    assert sliced.slices_win == (expected[1] < expected[0])


def test_no_fold_splits_a_group(monkeypatch):
    p, slices = planted([1.0, 3.0], [200, 200])
    groups = np.arange(400) // 8
    # The first logit tells the group, also of examples that were taken.
    z = p.logits.numpy() - p.logits.numpy()[:, :1] + groups[:, None]
    sizes = []

    def estimate(kind, predictions, *rest):
        sizes.append(np.bincount(predictions.logits[:, 0].round().int().numpy(), minlength=50))
        return original(kind, predictions, *rest)

    original = slice_estimates.estimate
    monkeypatch.setattr(slice_estimates, "estimate", estimate)
    SlicedCalibrator.fit(Predictions(z, p.labels, groups=groups), slices, folds=4)
    assert len(sizes) == 4
    assert all(set(each.tolist()) == {0, 8} for each in sizes)


def test_the_floor_of_zeros_is_estimated_anew_in_each_fold(monkeypatch):
    p, slices = planted([1.0, 3.0], [300, 300])
    probs = p.probs.numpy().copy()
    probs[probs < 0.05] = 0
    votes = Predictions.from_probs(probs / probs.sum(1, keepdims=True), p.labels)
    floors = []

    def estimate(kind, predictions, *rest):
        floors.append(predictions.zero_floor)
        return original(kind, predictions, *rest)

    original = slice_estimates.estimate
    monkeypatch.setattr(slice_estimates, "estimate", estimate)
    with pytest.warns(UserWarning, match="exactly 0"):
        SlicedCalibrator.fit(votes, slices, folds=3)
    assert floors == [None] * 3


def test_tiny_and_unusual_slices_stay_near_the_rest():
    p, slices = planted([1.0, 3.0, 1.0, 1.0], [3000, 3000, 25, 3])
    # A slice without errors has no best temperature.
    right = p.take(p.correct.numpy() == 1).take(np.arange(60))
    both = Predictions.concat([p, right])
    sliced = SlicedCalibrator.fit(both, [*slices, *["right"] * 60])
    found = {each.key[0]: each for each in sliced.summaries}
    for name in ("s3", "right"):
        assert found[name].own is None
        assert found[name].shrunk is sliced.overall
    assert 0.5 < found["s2"].shrunk.temperature < 4
    assert found["s2"].weight < found["s0"].weight


@pytest.mark.parametrize("name", ["focal_temperature", "vector", "platt", "beta"])
def test_other_calibrators_can_be_sliced(name):
    classes = 2 if name in ("platt", "beta") else 3
    p, slices = planted([1.0, 3.0], [1500, 1500], classes=classes, shift=1.0)
    sliced = SlicedCalibrator.fit(p, slices, calibrator=name, folds=3)
    assert sliced.slices_win
    after = sliced.map(p, slices)
    own = [calibrators.CALIBRATORS[name].fit(p.take(slices == key)) for key in ("s0", "s1")]
    for key, fitted in zip(("s0", "s1"), own, strict=True):
        part = slices == key
        alone = metrics.nll(p.take(part).map(fitted))
        assert alone - 1e-9 <= metrics.nll(after.take(part)) <= alone + 0.005


def test_columns_are_combined_and_unseen_slices_use_all_examples():
    p, region = planted([1.0, 3.0], [1500, 1500])
    version = np.arange(3000) % 2
    sliced = SlicedCalibrator.fit(p, {"region": region, "version": version})
    assert sliced.columns == ("region", "version")
    assert sorted(sliced.keys) == [(r, v) for r in ("s0", "s1") for v in "01"]
    rows = p.take(np.arange(3))
    where = {"version": [0.0, 7.0, 1.0], "region": ["s0", "s0", "mars"]}
    index = sliced.index(where, examples=3)
    assert index.tolist() == [sliced.keys.index(("s0", "0")), -1, -1]
    found = sliced.map(rows, where).logits
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(found[1:], rows.map(sliced.overall).logits[1:], **close)
    own = sliced.calibrators[index[0]](rows.logits[:1])
    torch.testing.assert_close(found[:1], own, **close)
    with pytest.raises(ValueError, match="columns region, version"):
        sliced.map(rows, ["s0"] * 3)


def test_values_of_slices_are_text():
    given = [1, 2.0, True, "x", "2.0", "-3.00", "07", "1.5", "v1.0"]
    found = [key for (key,) in slice_keys(given, examples=9)[1]]
    assert found == ["1", "2", "True", "x", "2", "-3", "07", "1.5", "v1.0"]
    for bad in (None, float("nan"), "", [1]):
        with pytest.raises(ValueError, match="'slice': row 1 has no string"):
            slice_keys(["a", bad], examples=2)
    with pytest.raises(ValueError, match=r"got 0\.5 at row 0; put its values into bins"):
        slice_keys([0.5], examples=1)
    with pytest.raises(ValueError, match="'region' must have 3 values, got 1"):
        slice_keys({"region": ["a"]}, examples=3)


def test_what_cannot_be_sliced_is_refused():
    p, slices = planted([1.0, 2.0], [100, 100])
    with pytest.raises(ValueError, match=r"use one of temperature, focal_temperature, vector$"):
        SlicedCalibrator.fit(p, slices, calibrator="isotonic")
    with pytest.raises(ValueError, match="platt of 3 classes cannot be fitted"):
        SlicedCalibrator.fit(p, slices, calibrator="platt")
    with pytest.raises(ValueError, match="no calibrator 'temprature'"):
        SlicedCalibrator.fit(p, slices, calibrator="temprature")
    with pytest.raises(ValueError, match="printable"):
        SlicedCalibrator.fit(p, np.where(slices == "s0", "a\nb", "c"))
    many = Predictions(np.zeros((1001, 2)), np.arange(1001) % 2)
    with pytest.raises(ValueError, match=r"id: 1,001 different slices, at most 1,000"):
        SlicedCalibrator.fit(many, {"id": np.arange(1001)})


def test_weights_are_counts():
    p, slices = planted([1.0, 2.0], [300, 200])
    counts = np.random.default_rng(0).integers(0, 3, 500)
    rows = np.repeat(np.arange(500), counts)
    weighted = SlicedCalibrator.fit(p.reweighted(counts.astype(float)), slices)
    repeated = SlicedCalibrator.fit(p.take(rows), slices[rows])
    assert weighted.keys == repeated.keys
    for name in ("own", "precisions", "tau"):
        torch.testing.assert_close(
            getattr(weighted, name), getattr(repeated, name), rtol=1e-6, atol=0
        )


def test_probabilities_of_zero_have_one_floor():
    p, slices = planted([1.0, 3.0], [500, 500])
    probs = p.probs.numpy().copy()
    probs[probs < 0.02] = 0
    votes = Predictions.from_probs(probs / probs.sum(1, keepdims=True), p.labels)
    with pytest.warns(UserWarning, match="probabilities are exactly 0") as caught:
        sliced = SlicedCalibrator.fit(votes, slices)
    assert len(caught) == 1
    assert sliced.zero_floor == votes.estimated_zero_floor
    for at, (key,) in enumerate(sliced.keys):
        part = votes.take(slices == key).with_zero_floor(sliced.zero_floor)
        with pytest.warns(UserWarning, match="exactly 0"):
            own = TemperatureScaling.fit(part).temperature
        assert np.exp(sliced.own[at].item()) == pytest.approx(own, rel=1e-9), key
    floors = {votes.take(slices == key).estimated_zero_floor for (key,) in sliced.keys}
    assert floors != {sliced.zero_floor}
    overall = metrics.nll(votes.map(sliced.overall))
    assert sliced.cross_validation.overall == pytest.approx(overall, rel=0.02)
    assert np.isfinite(metrics.nll(sliced.map(votes, slices)))


@pytest.mark.parametrize("limit", [storage.INLINE_NUMBERS, 0])
def test_a_file_restores_every_bit(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(storage, "INLINE_NUMBERS", limit)
    for name, classes in {"temperature": 3, "vector": 3, "beta": 2}.items():
        p, slices = planted([1.0, 2.0], [400, 300], classes=classes)
        sliced = SlicedCalibrator.fit(p, {"größe": slices}, calibrator=name, folds=2)
        calibrators.save(sliced, tmp_path / "cal.json")
        found = calibrators.load(tmp_path / "cal.json")
        assert isinstance(found, SlicedCalibrator)
        assert (found.keys, found.columns) == (sliced.keys, ("größe",))
        assert found.cross_validation == sliced.cross_validation
        assert found.origin == sliced.origin
        for each in ("own", "precisions", "tau", "examples", "weights"):
            assert torch.equal(getattr(found, each), getattr(sliced, each)), each
        torch.testing.assert_close(
            found.map(p, slices).logits, sliced.map(p, slices).logits, rtol=1e-12, atol=1e-12
        )


def test_damaged_files_are_refused(tmp_path):
    p, slices = planted([1.0, 2.0], [100, 100])
    sliced, path = SlicedCalibrator.fit(p, slices, folds=2), tmp_path / "cal.json"
    calibrators.save(sliced, path)
    text = path.read_text()
    path.write_text(text.replace('"s0"', '"s9"'))
    with pytest.raises(ValueError, match="sha256 differs"):
        calibrators.load(path)
    damages = {
        "different slices": lambda of: of["slices"].append(["s0"]),
        "must be a string": lambda of: of["slices"][0].append(3),
        "a value of each": lambda of: of["slices"][0].append("x"),
        "own must be float64": lambda of: of["own"].update(shape=[1, 2]),
        "must not be negative": lambda of: of["tau"]["values"].__setitem__(0, -1.0),
        "temperature must be positive": lambda of: of["own"]["values"].__setitem__(0, 1e6),
        "'sliced'": lambda of: of["overall"].update(method="sliced"),
        "no calibrator 'isotonic'": lambda of: of["overall"].update(method="isotonic"),
        "unknown key 'more'": lambda of: of.update(more=1),
        "has no 'folds'": lambda of: of["cross_validation"].pop("folds"),
        "must be a number": lambda of: of["cross_validation"].update(sliced="x"),
        "columns must be a list": lambda of: of.update(columns="x"),
    }
    for message, damage in damages.items():
        record = json.loads(text)
        damage(record["parameters"])
        record["sha256"] = digest_of(record)
        path.write_text(json.dumps(record))
        with pytest.raises(ValueError, match=message) as caught:
            calibrators.load(path)
        assert "\n" not in str(caught.value)


def test_tables_show_every_slice():
    p, slices = planted([1.0, 3.0], [500, 400])
    sliced = SlicedCalibrator.fit(p, np.where(slices == "s0", "<b>", "s1"), folds=2)
    page = sliced._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert f">{sliced.calibrators[1].temperature:.4g}<" in page
    assert repr(sliced).endswith("by slice: 2 slices)")
    vector = SlicedCalibrator.fit(p, slices, calibrator="vector", folds=2)
    scale, bias = vector.calibrators[0].scale.tolist(), vector.calibrators[0].bias.tolist()
    few = "; ".join(", ".join(f"{each:.4g}" for each in values) for values in (scale, bias))
    assert slice_rows(vector.summaries)[0][3] == few
    p, slices = planted([1.0, 3.0], [500, 400], classes=5)
    many = SlicedCalibrator.fit(p, slices, calibrator="vector", folds=2)
    lines = slice_rows(many.summaries)
    scale = many.calibrators[0].scale
    assert lines[0][3].startswith(f"{scale.min():.3g} to {scale.max():.3g}; ")
    assert max(len(line[3]) for line in lines) < 40


def test_folds_are_checked_and_the_seed_decides():
    p, slices = planted([1.0, 1.5], [100, 100])
    with pytest.raises(ValueError, match="folds must lie between 2"):
        SlicedCalibrator.fit(p, slices, folds=1)
    first, same, other = (SlicedCalibrator.fit(p, slices, seed=seed) for seed in (0, 0, 1))
    assert first.cross_validation == same.cross_validation != other.cross_validation
    lost = first.cross_validation._replace(sliced=first.cross_validation.overall)
    assert not replace(first, cross_validation=lost).weights.any()


def test_no_variance_between_slices_without_a_second_slice():
    assert between_variance(np.array([3.0]), np.array([0.1])) == 0
    p, _ = planted([2.0], [200])
    sliced = SlicedCalibrator.fit(p, ["a"] * 200)
    assert not sliced.slices_win
