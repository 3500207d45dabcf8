"""torchmetrics: bins [a, b), confidence 1 in a bin of its own, multi-class sums in float32."""

import warnings

import numpy as np
import pytest
import torch

from calibrant import Predictions
from calibrant.metrics import BinSums, calibration_error, ece

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    classification = pytest.importorskip("torchmetrics.functional.classification")

NORMS = ("l1", "l2", "max")


@pytest.mark.parametrize("norm", NORMS)
def test_top_label_error_is_the_same_in_float64(real, norm):
    # Definitions agree on all examples but those on an edge, and 1 is the only edge met here.
    inside = real.confidence < 1
    assert not np.isin(real.confidence[inside], np.arange(16) / 15).any()
    theirs = classification.binary_calibration_error(
        torch.from_numpy(real.confidence[inside]),
        torch.from_numpy(real.correct[inside]).long(),
        n_bins=15,
        norm=norm,
    )
    ours = calibration_error(real.predictions.take(inside), norm=norm)
    assert ours == pytest.approx(float(theirs), abs=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_multiclass_error_is_the_same_up_to_its_float32_sums(real, norm):
    inside = real.confidence.astype(np.float32) < 1
    theirs = classification.multiclass_calibration_error(
        torch.from_numpy(real.probs[inside]),
        torch.from_numpy(real.labels[inside]),
        num_classes=real.predictions.classes,
        n_bins=15,
        norm=norm,
    )
    ours = calibration_error(real.predictions.take(inside), norm=norm)
    # It rounds confidences to float32 and adds up to 10,000 of them in one float32.
    assert ours == pytest.approx(float(theirs), abs=1e-4)


@pytest.mark.parametrize(
    ("confidence", "correct", "bins", "ours", "theirs"),
    [
        # One bin (0.9, 1]: |0.975 - 0.5|. They keep 1 apart: (0.05 + 1) / 2.
        pytest.param([0.95, 1.0], [1, 0], 10, 0.475, 0.525, id="confidence one is kept apart"),
        # 0.5 in (0, 0.5], 0.6 in (0.5, 1]: (0.5 + 0.4) / 2. Theirs: one bin, |0.55 - 0.5|.
        pytest.param([0.5, 0.6], [0, 1], 2, 0.45, 0.05, id="bins are closed on the left"),
    ],
)
def test_torchmetrics_draws_its_edges_elsewhere(confidence, correct, bins, ours, theirs):
    found = classification.binary_calibration_error(
        torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct), n_bins=bins
    )
    assert BinSums.of_confidence(confidence, correct, bins=bins).ece == pytest.approx(ours)
    assert float(found) == pytest.approx(theirs)


def test_torchmetrics_guesses_logits_from_their_range():
    logits, labels = torch.tensor([[0.9, 0.2], [0.4, 0.1]]), torch.tensor([0, 0])
    theirs = classification.multiclass_calibration_error(logits, labels, 2, n_bins=2)
    ours = ece(Predictions(logits, labels), bins=2)
    softmax = torch.softmax(logits, 1)
    honest = classification.multiclass_calibration_error(softmax, labels, 2, n_bins=2)
    # Softmax gives confidences 0.668 and 0.574, both right: the gap is 1 - 0.621.
    assert ours == pytest.approx(1 - float(softmax[:, 0].mean()))
    assert float(honest) == pytest.approx(ours, abs=1e-6)
    # It takes 0.9 and 0.4 for probabilities: (0.1 + 0.6) / 2.
    assert float(theirs) == pytest.approx(0.35)


def test_published_top_label_files_agree(data):
    with np.load(data / "top1conf_A.npz") as arrays:
        names = [name.removesuffix("__conf") for name in arrays.files if name.endswith("__conf")]
        for name in names:
            confidence = arrays[f"{name}__conf"].astype(np.float64)
            truth = arrays[f"{name}__true" if f"{name}__true" in arrays.files else "true"]
            inside = (confidence < 1) & ~np.isin(confidence, np.arange(16) / 15)
            correct = (arrays[f"{name}__pred"] == truth).astype(np.float64)
            theirs = classification.binary_calibration_error(
                torch.from_numpy(confidence[inside]),
                torch.from_numpy(correct[inside]).long(),
                n_bins=15,
            )
            ours = BinSums.of_confidence(confidence[inside], correct[inside]).ece
            assert ours == pytest.approx(float(theirs), abs=1e-6), name
