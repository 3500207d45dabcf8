"""Other libraries behind one signature, so that every comparison calls them the same way."""

import warnings
from collections.abc import Callable

import numpy as np
import torch

from calibrant import Predictions
from calibrant.metrics import BinSums

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import calibration
    import relplot
    from mcgrad.metrics import ecce
    from netcal.metrics import ECE
    from relplot.metrics import binnedECE
    from sklearn.calibration import calibration_curve
    from torchmetrics.functional.classification import (
        binary_calibration_error,
        multiclass_calibration_error,
    )

__all__ = [
    "ECE",
    "SHARES_A_BIN",
    "TOP_LABEL",
    "calibration",
    "ecce",
    "equal_width",
    "marginal_error",
    "multiclass_calibration_error",
    "relplot",
]

# Confidence, correctness (0 or 1) and the number of equal bins -> ECE.
TopLabel = Callable[[np.ndarray, np.ndarray, int], float]


def _ours(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    sums = BinSums.of_confidence(confidence.astype(float), correct.astype(float), bins=bins)
    return sums.ece


def _torchmetrics(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    return float(
        binary_calibration_error(
            torch.from_numpy(confidence), torch.from_numpy(correct), n_bins=bins
        )
    )


def _netcal(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    return ECE(bins).measure(confidence, correct)


def _uncertainty_calibration(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    return calibration.get_ece(confidence, correct, num_bins=bins)


def _relplot(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    return binnedECE(confidence, correct, bins)


TOP_LABEL: dict[str, TopLabel] = {
    "calibrant": _ours,
    "torchmetrics": _torchmetrics,
    "netcal": _netcal,
    "uncertainty-calibration": _uncertainty_calibration,
    "relplot": _relplot,
}


def _shares(ece: TopLabel) -> Callable[[np.ndarray, int], bool]:
    """Tell from the ECE alone whether two confidences fall into one bin."""

    def shares(pair: np.ndarray, bins: int) -> bool:
        found = ece(pair, np.array([1, 0]), bins)
        together = abs(pair.sum() - 1) / 2
        apart = (1 - pair[0] + pair[1]) / 2
        return bool(abs(found - together) < abs(found - apart))

    return shares


def _sklearn_shares(pair: np.ndarray, bins: int) -> bool:
    return len(calibration_curve([1, 0], pair, n_bins=bins)[0]) == 1


SHARES_A_BIN: dict[str, Callable[[np.ndarray, int], bool]] = {
    **{name: _shares(ece) for name, ece in TOP_LABEL.items()},
    "scikit-learn": _sklearn_shares,
}


def equal_width(probs: np.ndarray, num_bins: int) -> list[float]:
    """Bins of equal width as uncertainty-calibration wants them: the upper edges."""
    return calibration.utils.get_equal_prob_bins(probs, num_bins)


def marginal_error(predictions: Predictions, bins: int = 15) -> float:
    """Class-wise ECE of uncertainty-calibration."""
    return calibration.lower_bound_scaling_ce(
        predictions.probs.numpy(),
        predictions.labels.numpy(),
        p=1,
        debias=False,
        num_bins=bins,
        binning_scheme=equal_width,
        mode="marginal",
    )
