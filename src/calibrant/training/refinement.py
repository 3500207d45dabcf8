"""Proper scores of the validation data after calibration, by which training can be stopped."""

from calibrant.calibrators.loss_split import cross_fitted
from calibrant.metrics import METRICS
from calibrant.predictions import Predictions

# Names of `stop_on`, and the score that each measures.
REFINED = {"refined_nll": "nll", "refined_brier": "brier"}
FOLDS = 5


def refined(predictions: Predictions, name: str, calibrator: str = "temperature") -> float:
    """Score of predictions calibrated by fits to the other folds: what calibration cannot improve.

    Args:
        predictions: of the validation data.
        name: "refined_nll" or "refined_brier".
        calibrator: a name in `CALIBRATORS`.

    References:
        Berta et al., Rethinking Early Stopping: Refine, Then Calibrate, 2025, arXiv:2501.19195.
    """
    units = len(predictions)
    if predictions.groups is not None:
        units = int(predictions.groups.max()) + 1
    after, _ = cross_fitted(predictions, calibrator, folds=min(FOLDS, units))
    return float(METRICS[REFINED[name]](after))
