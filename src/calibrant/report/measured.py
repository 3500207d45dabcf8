"""What the rows of a study leave out, measured from the saved predictions of a training."""

import math

from calibrant.calibrators import CALIBRATORS
from calibrant.metrics import Interval, interval, overconfidence, per_class_ece
from calibrant.predictions import Predictions
from calibrant.report.comparison import NONE
from calibrant.report.saved import SavedCell
from calibrant.scoped_warnings import without_warnings

# Calibrators that are fitted in no time.
QUICK = ("temperature", "focal_temperature")
# Logits that are measured; of more, every so many-th example.
NUMBERS = 1 << 22
RESAMPLES = 200


def calibrated_test(cell: SavedCell, calibrator: str) -> Predictions | None:
    """Test predictions of a training after a calibrator fitted to val.

    None where there are no files, or where fitting fails or would take long.
    """
    test = cell.test
    if test is None or calibrator == NONE:
        return test
    val = cell.val if calibrator in QUICK else None
    if val is None:
        return None
    # Small validation sets make the fit warn; the settings say how many examples there are.
    with without_warnings():
        try:
            return test.map(CALIBRATORS[calibrator].fit(val))
        except ValueError:
            return None


def class_errors(predictions: Predictions) -> dict[str, float]:
    """Calibration error of the probability of each class; NaN for one that never occurs."""
    names = predictions.class_names or [str(each) for each in range(predictions.classes)]
    # Of few examples.
    with without_warnings():
        errors = per_class_ece(sampled(predictions, NUMBERS)[0])
    return dict(zip(names, errors.tolist(), strict=True))


def excess(predictions: Predictions) -> Interval:
    """Mean confidence beyond accuracy; NaN ends where too few groups of examples are there."""
    part = sampled(predictions, NUMBERS)[0]
    try:
        return interval(overconfidence, part, resamples=RESAMPLES)
    except ValueError:
        return Interval(overconfidence(part), math.nan, math.nan)


def sampled(predictions: Predictions, numbers: int) -> tuple[Predictions, int]:
    """Every so many-th example, to have at most so many logits; and how many-th it is."""
    step = max(1, -(-len(predictions) * predictions.classes // numbers))
    if step == 1:
        return predictions, step
    return predictions.take(range(0, len(predictions), step)), step
