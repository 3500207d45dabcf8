"""Small cases on which libraries differ, each with what every one of them makes of it."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from sklearn.metrics import brier_score_loss, log_loss

from benchmarks import rivals
from benchmarks.pages import table
from calibrant import Predictions
from calibrant.metrics import adaptive_ece, brier, classwise_ece, debiased_ece, ece, nll

LIBRARIES = (*rivals.TOP_LABEL, "scikit-learn")
NONE = "-"


def differences() -> str:
    """Small cases, one line each, one column for each library."""
    rows = [
        ["ECE of confidences 0.95, 1, the second wrong; 10 bins", *_top_label([0.95, 1.0], 10)],
        ["ECE of confidences 0, 0.5, 0.7, the second wrong; 5 bins", *_top_label([0, 0.5, 0.7], 5)],
        ["edges k/15 that lie in the lower bin, float64", *_edges(np.float64)],
        ["edges k/15 that lie in the lower bin, float32", *_edges(np.float32)],
        ["ECE of logits (0.9, 0.2), (0.4, 0.1), both right; 2 bins", *_small_logits()],
        ["ECE of probabilities (0.9, 0.1), (0.4, 0.6), labels 0; 1 bin", *_two_columns()],
        ["ECE of three columns, labels 0 and 1 only; 1 bin", *_two_of_three()],
        ["class-wise error, class 2 of 3 absent; 1 bin", *_absent_class()],
        ["equal-mass ECE of 0.7, 0.8, 0.9, each 50 times; 15 bins", *_ties()],
        ["debiased ECE where bins are empty", *_empty_bins()],
        ["log loss, one label of two has probability 0", *_impossible_label()],
        ["Brier score of P(class 1) = 0.9, label 1", *_two_class_brier()],
        ["ECE, one NaN in a row of three; 5 bins", *_nan()],
        ["ECE of 10 million calibrated float32 confidences", *_many_rows()],
    ]
    return table(["case", *LIBRARIES], rows)


def _top_label(confidence: list[float], bins: int) -> list[str]:
    values, correct = np.array(confidence), np.arange(len(confidence)) % 2 == 0
    return _cells(
        {
            name: lambda call=call: call(values, correct.astype(int), bins)
            for name, call in rivals.TOP_LABEL.items()
        }
    )


def _edges(dtype: type) -> list[str]:
    """Count edges that share a bin with a confidence half a bin below."""
    edges = np.arange(1, 15)
    cells = {}
    for name, shares in rivals.SHARES_A_BIN.items():
        pairs = (np.array([k, k - 0.5]) / 15 for k in edges)
        lower = sum(shares(pair.astype(dtype), 15) for pair in pairs)
        cells[name] = f"{lower} of {len(edges)}"
    return [cells.get(name, NONE) for name in LIBRARIES]


def _small_logits() -> list[str]:
    logits, labels = torch.tensor([[0.9, 0.2], [0.4, 0.1]]), torch.tensor([0, 0])
    return _cells(
        {
            "calibrant": lambda: ece(Predictions(logits, labels), bins=2),
            "torchmetrics": lambda: rivals.multiclass_calibration_error(
                logits, labels, 2, n_bins=2
            ),
        }
    )


def _two_columns() -> list[str]:
    return _multiclass(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]), 1)


def _two_of_three() -> list[str]:
    return _multiclass(np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]]), np.array([0, 1]), 1)


def _nan() -> list[str]:
    probs = np.array([[0.6, 0.3, 0.1], [np.nan, 0.7, 0.1], [0.2, 0.5, 0.3]])
    return _multiclass(probs, np.array([0, 1, 2]), 5)


def _multiclass(probs: np.ndarray, labels: np.ndarray, bins: int) -> list[str]:
    return _cells(
        {
            "calibrant": lambda: ece(Predictions.from_probs(probs, labels), bins=bins),
            "torchmetrics": lambda: rivals.multiclass_calibration_error(
                torch.from_numpy(probs), torch.from_numpy(labels), probs.shape[1], n_bins=bins
            ),
            "netcal": lambda: rivals.ECE(bins).measure(probs, labels),
            "uncertainty-calibration": lambda: rivals.calibration.get_ece(
                probs, labels, num_bins=bins
            ),
        }
    )


def _absent_class() -> list[str]:
    p = Predictions.from_probs([[0.7, 0.2, 0.1]] * 2, [0, 1])
    return _cells(
        {
            "calibrant": lambda: classwise_ece(p, bins=1),
            "uncertainty-calibration": lambda: rivals.marginal_error(p, bins=1),
        }
    )


def _ties() -> list[str]:
    confidence, correct = np.repeat([0.7, 0.8, 0.9], 50), np.tile([1, 0], 75)
    p = Predictions.from_binary(confidence, correct, kind="probs")
    return _cells(
        {
            "calibrant": lambda: adaptive_ece(p),
            "netcal": lambda: rivals.ECE(15, equal_intervals=False).measure(confidence, correct),
            "uncertainty-calibration": lambda: rivals.calibration.get_ece_em(confidence, correct),
        }
    )


def _empty_bins() -> list[str]:
    confidence, correct = np.repeat([0.55, 0.95], 50), np.tile([1, 0], 50)
    p = Predictions.from_binary(confidence, correct, kind="probs")
    return _cells(
        {
            "calibrant": lambda: debiased_ece(p),
            "uncertainty-calibration": lambda: rivals.calibration.get_ece(
                confidence, correct, debias=True
            ),
        }
    )


def _impossible_label() -> list[str]:
    p = Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [1, 0])
    return _cells(
        {"calibrant": lambda: nll(p), "scikit-learn": lambda: log_loss(p.labels, p.probs)}
    )


def _two_class_brier() -> list[str]:
    p = Predictions.from_binary([0.9, 0.9], [1, 1], kind="probs")
    theirs = lambda: brier_score_loss([1, 1], [0.9, 0.9])  # noqa: E731
    return _cells({"calibrant": lambda: brier(p), "scikit-learn": theirs})


def _many_rows() -> list[str]:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 10_000_000).astype(np.float32)
    correct = (rng.random(len(confidence)) < confidence).astype(int)
    return _cells(
        {
            name: lambda call=call: call(confidence, correct, 15)
            for name, call in rivals.TOP_LABEL.items()
            # These two copy the rows into Python lists, or take minutes.
            if name not in ("uncertainty-calibration", "relplot")
        }
    )


def _cells(calls: Mapping[str, Callable[[], float]]) -> list[str]:
    return [_outcome(calls[name]) if name in calls else NONE for name in LIBRARIES]


def _outcome(call: Callable[[], float]) -> str:
    """Return the number, or the name of the error that came instead."""
    try:
        return f"{float(call()):.4g}"
    except (ValueError, RuntimeError, TypeError, IndexError) as error:
        return type(error).__name__
