"""Probabilities of exactly 0: what replaces them in fits, in new data and in files."""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, Blend, Identity, TemperatureScaling, load, save
from calibrant.calibrators.base import zeros_note

pytestmark = pytest.mark.filterwarnings("ignore:.*probabilities are exactly 0")


def votes(n: int, seed: int, k: int = 8, trees: int = 30, weights=None) -> Predictions:
    """Votes of trees that agree less than the labels would: an under-confident forest."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, k)) * 2
    labels = (logits + generator.gumbel(size=(n, k)) / 2).argmax(1)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return Predictions.from_probs(
        generator.multinomial(trees, probs) / trees, labels, weights=weights
    )


def test_a_temperature_sharpens_an_under_confident_forest():
    # With zeros as 1e-38 a few of them outweigh all others: T was 1.16, and the ECE rose.
    val, test = votes(2000, 0), votes(2000, 1)
    assert (val.label_probs == 0).any()
    fitted = TemperatureScaling.fit(val)
    assert fitted.temperature < 1
    after = test.map(fitted)
    assert metrics.ece(after) < metrics.ece(test) / 2
    assert metrics.nll(test) == np.inf
    assert metrics.nll(after) < metrics.nll(test.map(Identity.fit(val)))


def test_the_floor_is_the_smoothed_frequency_of_labels_among_zeros():
    probs = [[1.0, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0], [0.98, 0.01, 0.01]]
    given = Predictions.from_probs(probs, [0, 2, 1, 0], weights=[1.0, 2.0, 1.0, 5.0])
    # Below the smallest other probability: (2 + 1/2) / (2 + 2 + 1 + 1) is not.
    assert given.estimated_zero_floor == pytest.approx(0.9 * 0.01)
    coarse = given.take([0, 1, 2])
    assert coarse.estimated_zero_floor == pytest.approx(2.5 / 6)
    assert Predictions([[0.0, -np.inf]], [0]).estimated_zero_floor is None
    assert given.with_zero_floor(1e-4).estimated_zero_floor == 1e-4
    for bad in (0.0, 1.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="zero_floor must lie between 0 and 1"):
            given.with_zero_floor(bad)
    with pytest.raises(ValueError, match="zero_floor is for probabilities, got logits"):
        Predictions([[0.0, 1.0]], [0]).with_zero_floor(0.1)


def test_zeros_stay_below_all_other_probabilities_of_their_row():
    given = Predictions.from_probs([[0.9, 0.1, 0], [1 - 1e-9, 1e-9, 0]], [0, 0], zero_floor=1e-3)
    logits = given.logits.double()
    assert logits[:, 2].exp().tolist() == pytest.approx([1e-3, 0.9e-9], rel=1e-4)
    assert given.probs[:, 2].tolist() == [0, 0]
    without = Predictions.from_probs([[1.0, 0]], [0])
    assert without.logits[0, 1].exp() == pytest.approx(1.2e-38, rel=0.05)


def test_map_uses_the_floor_of_the_fit_and_no_label_of_the_new_data():
    val, test = votes(1500, 0), votes(500, 1)
    for name in ("temperature", "structured_vector", "irm"):
        fitted = CALIBRATORS[name].fit(val)
        assert fitted.zero_floor == fitted.origin.zero_floor == val.estimated_zero_floor
        expected = fitted(test.with_zero_floor(fitted.zero_floor).logits)
        for given in (test, test.relabelled(test.labels.flip(0)), test.with_zero_floor(1e-9)):
            assert np.allclose(given.map(fitted).logits, expected)
    plain = TemperatureScaling(classes=8, temperature=1.0)
    assert Blend(classes=8, parts=(plain, fitted)).zero_floor == val.estimated_zero_floor
    parts = Predictions.concat([val.with_zero_floor(0.01), test.with_zero_floor(0.01)])
    assert parts.zero_floor == parts.take([0]).zero_floor == 0.01
    assert Predictions.concat([val, test.with_zero_floor(0.01)]).zero_floor is None


def test_a_file_keeps_the_floor_and_older_files_have_none(tmp_path):
    fitted = TemperatureScaling.fit(votes(300, 0))
    save(fitted, tmp_path / "cal.json")
    assert load(tmp_path / "cal.json").origin == fitted.origin
    logits = votes(300, 0).map(fitted)
    save(TemperatureScaling.fit(logits), tmp_path / "cal.json")
    record = json.loads((tmp_path / "cal.json").read_text())
    # As written by earlier releases.
    assert "zero_floor" not in record["fit"]
    assert load(tmp_path / "cal.json").zero_floor is None
    for bad in ("high", 2.0, None):
        changed = {**record, "schema": 1, "fit": {**record["fit"], "zero_floor": bad}}
        del changed["sha256"]
        (tmp_path / "bad.json").write_text(json.dumps(changed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(ValueError, match=r"fit.zero_floor must"):
                load(tmp_path / "bad.json")


def test_the_note_says_what_replaces_zeros_and_why():
    given = Predictions.from_probs([[1.0, 0.0], [1.0, 0.0], [0.3, 0.7]], [0, 1, 1])
    assert zeros_note(given, given.estimated_zero_floor) == (
        "2 of 6 probabilities are exactly 0: replaced by 0.27, less than all others. This "
        "estimates how often a class of probability 0 is the label (here: 1 of 3 examples); the "
        "NLL before calibration is infinite"
    )
    assert zeros_note(given, 0.01).endswith("replaced by 0.01, the zero_floor of the fit")
    assert zeros_note(given.with_zero_floor(0.02), 0.02).endswith("0.02, the given zero_floor")
    assert "1e-38, since neither" in zeros_note(given, None)


NEWS = Path(os.environ.get("CALIBRANT_DATA", "none")) / "20news_bydate.npz"


@pytest.mark.slow
@pytest.mark.skipif(not NEWS.exists(), reason="needs 20 Newsgroups in $CALIBRANT_DATA")
def test_a_forest_on_20_newsgroups_gets_better():
    from benchmarks.zero_floors import news_forest

    val, test = news_forest(NEWS)
    temperature, matrix = (CALIBRATORS[n].fit(val) for n in ("temperature", "structured_matrix"))
    assert temperature.temperature < 0.6
    assert metrics.ece(test) > 0.3
    assert metrics.ece(test.map(temperature)) < 0.05
    assert metrics.nll(test.map(temperature)) < 0.9
    assert metrics.nll(test.map(matrix)) < 0.82
    assert metrics.nll(test.map(CALIBRATORS["dirichlet"].fit(val))) < 0.85
