"""What rows of a study leave out, measured on the saved predictions of a run."""

import math

from calibrant.calibrators import CALIBRATORS
from calibrant.calibrators.base import Calibrator
from calibrant.metrics import Interval, interval, overconfidence, per_class_ece
from calibrant.predictions import Predictions
from calibrant.report.comparison import NONE
from calibrant.report.saved import SavedCell
from calibrant.scoped_warnings import without_warnings

# Calibrators that are fitted in no time.
QUICK = ("temperature", "focal_temperature")
# Logits that are measured; of more, every n-th example.
NUMBERS = 1 << 22
RESAMPLES = 200


def fit_calibrator(cell: SavedCell, calibrator: str) -> Calibrator | None:
    """A calibrator fitted to the validation split; None where that fails or would take long."""
    val = cell.val if calibrator in QUICK else None
    if val is None:
        return None
    # Small validation sets make the fit warn; the settings say how many examples there are.
    with without_warnings():
        try:
            return CALIBRATORS[calibrator].fit(val)
        except ValueError:
            return None


def calibrated_test(cell: SavedCell, calibrator: str) -> Predictions | None:
    """Test predictions of a run after a calibrator; None without files or calibrator."""
    test = cell.test
    if test is None or calibrator == NONE:
        return test
    found = fit_calibrator(cell, calibrator)
    return None if found is None else test.map(found)


def class_errors(predictions: Predictions) -> dict[str, float]:
    """Calibration error of the probability of each class; NaN for one that never occurs."""
    names = predictions.class_names or [str(each) for each in range(predictions.classes)]
    # Few examples make it warn.
    with without_warnings():
        errors = per_class_ece(subsample(predictions, NUMBERS)[0])
    return dict(zip(names, errors.tolist(), strict=True))


def excess(predictions: Predictions) -> Interval:
    """Mean confidence minus accuracy; NaN ends where there are too few groups of examples."""
    part = subsample(predictions, NUMBERS)[0]
    try:
        return interval(overconfidence, part, resamples=RESAMPLES)
    except ValueError:
        return Interval(overconfidence(part), math.nan, math.nan)


def subsample(predictions: Predictions, numbers: int) -> tuple[Predictions, int]:
    """Every n-th example, to have at most so many logits; and n."""
    step = max(1, -(-len(predictions) * predictions.classes // numbers))
    if step == 1:
        return predictions, step
    return predictions.take(range(0, len(predictions), step)), step
