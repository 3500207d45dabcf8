"""What `calibrant fit` and `calibrant apply` say about a calibrator and what it changes."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibrant.cli.screen import say, show_table

if TYPE_CHECKING:
    import calibrant.calibrators
    import calibrant.predictions
    from calibrant.calibrators import MultiCalibrator, SlicedCalibrator

MEASURED, MEASURED_OF_TWO = ("accuracy", "nll", "ece"), ("accuracy", "nll", "binary_ece")


def summary_of(name: str, calibrator: "calibrant.calibrators.Calibrator") -> dict[str, Any]:
    """What a calibrator is, in plain values."""
    from calibrant.calibrators.describe import plain_values

    origin = calibrator.origin
    return {
        "calibrator_name": name,
        "classes": calibrator.classes,
        "converged": None if origin is None else origin.converged,
        "zero_floor": calibrator.zero_floor,
        "parameters": plain_values(calibrator.parameters),
    }


def with_scores(
    calibrator: "calibrant.calibrators.Calibrator", scores: str | None
) -> "calibrant.calibrators.Calibrator":
    """The calibrator, whose record of the fit says what the scores were, if that is known."""
    if scores is None or calibrator.origin is None:
        return calibrator
    return replace(calibrator, origin=replace(calibrator.origin, scores=scores))


def title_of(
    calibrator: "calibrant.calibrators.Calibrator | SlicedCalibrator | MultiCalibrator",
) -> str:
    """Name of a calibrator, with its columns or its change of priors."""
    from calibrant.calibrators import MultiCalibrator, PriorShift, SlicedCalibrator
    from calibrant.calibrators.storage import calibrator_name

    if isinstance(calibrator, MultiCalibrator):
        return f"{calibrator_name(calibrator)} by {', '.join(calibrator.columns)}"
    if isinstance(calibrator, SlicedCalibrator):
        return f"{calibrator_name(calibrator.overall)} by {', '.join(calibrator.columns)}"
    if isinstance(calibrator, PriorShift):
        return f"{calibrator_name(calibrator.calibrator)} with other class priors"
    return calibrator_name(calibrator)


def measured(predictions: "calibrant.predictions.Predictions") -> dict[str, float]:
    """A few metrics, to see what changed."""
    from calibrant.metrics import METRICS

    names = MEASURED_OF_TWO if predictions.classes == 2 else MEASURED
    return {name: METRICS[name](predictions) for name in names}


def show_result(record: dict[str, Any]) -> None:
    """Print what a fit changed, its remarks, and where the calibrator was saved."""
    say("")
    show_change(record)
    for remark in record["remarks"]:
        say(f"warning: {remark}")
    say("in-sample and therefore optimistic; evaluate on held-out data")
    say(f"calibrator: {record['calibrator']}")


def show_change(record: dict[str, Any]) -> None:
    """Print the metrics before and after."""
    from calibrant.metrics import METRICS

    before, after = record["before"], record["after"]
    rows = [
        [name, f"{before[name]:.4f}", f"{after[name]:.4f}", METRICS[name].meaning]
        for name in before
    ]
    heads = ("metric", "before", "after", "meaning")
    show_table(heads, rows, numbers=heads[1:3])
