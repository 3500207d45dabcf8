"""Files whose logits mask classes by -inf, from one end of the command line to the other."""

import json

import numpy as np
import pytest

from calibrant import Predictions


def save_masked(path, seed: int = 0) -> np.ndarray:
    """Answers to questions with one to four options; returns where they are masked."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(600, 4)).astype(np.float32) * 3
    options = generator.integers(1, 5, 600)[:, None]
    logits[generator.permuted(np.tile(np.arange(4), (600, 1)), axis=1) >= options] = -np.inf
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)
    Predictions(logits, labels).save(path)
    return logits == -np.inf


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet", "safetensors"])
def test_masked_logits_are_restored_from_every_format(tmp_path, suffix):
    masked = save_masked(tmp_path / f"test.{suffix}")
    read = Predictions.load(tmp_path / f"test.{suffix}").logits.numpy()
    np.testing.assert_array_equal(read == -np.inf, masked)
    assert not np.isnan(read).any()


def test_masked_logits_go_through_fit_apply_and_audit(run, tmp_path):
    save_masked(tmp_path / "val.csv")
    masked = save_masked(tmp_path / "test.parquet", seed=1)
    assert run("fit", "val.csv", "--calibrator", "vector", "-o", "cal.json")[0] == 0
    code, out, err = run("apply", "cal.json", "test.parquet", "-o", "out.npz", "--json")
    assert code == 0
    assert "exactly 0" not in err
    assert json.loads(out)["after"]["nll"] < json.loads(out)["before"]["nll"]
    probs = Predictions.load(tmp_path / "out.npz").probs.numpy()
    assert (probs[masked] == 0).all()
    assert (probs[~masked] > 0).all()
    code, out, _ = run("audit", "out.npz", "--resamples", 20)
    assert code == 0
    assert "nan" not in out.lower()


def test_a_masked_label_is_refused_by_fit_and_said_by_audit(run, tmp_path):
    masked = save_masked(tmp_path / "val.npz")
    given = Predictions.load(tmp_path / "val.npz")
    row = int(masked.any(1).argmax())
    labels = given.labels.clone()
    labels[row] = int(masked[row].argmax())
    Predictions(given.logits, labels).save(tmp_path / "bad.npz")
    code, _, err = run("fit", "bad.npz", "--calibrator", "temperature", "-o", "cal.json")
    assert code == 2
    assert (
        f"the label of 1 of 600 examples is masked, its logit is -inf (first at row {row})" in err
    )
    code, out, _ = run("audit", "bad.npz", "--resamples", 20)
    assert code == 0
    assert "nll is infinite" in out
