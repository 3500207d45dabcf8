"""What `calibrant fit` and `calibrant apply` say about a calibrator and what it changes."""

from typing import TYPE_CHECKING, Any

from calibrant.cli.screen import show_table

if TYPE_CHECKING:
    import calibrant.calibrators
    import calibrant.predictions

MEASURED = ("accuracy", "nll", "ece")
# Longest tensor whose numbers are shown one by one.
SHOWN = 6


def summary_of(name: str, calibrator: "calibrant.calibrators.Calibrator") -> dict[str, Any]:
    """What a calibrator is, in plain values."""
    origin = calibrator.origin
    return {
        "method": name,
        "classes": calibrator.classes,
        "converged": None if origin is None else origin.converged,
        "parameters": {key: short(value) for key, value in calibrator.parameters.items()},
    }


def short(value: Any) -> str:
    """A fitted number or a few of them; of many only their shape and range.

    >>> short(1.23456789)
    '1.23457'
    """
    if isinstance(value, float):
        return f"{value:g}"
    if not hasattr(value, "shape"):
        return str(value)
    shape = " x ".join(map(str, value.shape))
    if not value.numel():
        return f"({shape})"
    if value.numel() <= SHOWN:
        return " ".join(f"{number:g}" for number in value.flatten().tolist())
    return f"({shape}) from {value.min().item():g} to {value.max().item():g}"


def measured(predictions: "calibrant.predictions.Predictions") -> dict[str, float]:
    """A few metrics, to see what changed."""
    from calibrant.metrics import METRICS

    return {name: METRICS[name](predictions) for name in MEASURED}


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
