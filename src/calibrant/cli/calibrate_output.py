"""What `calibrant fit` and `calibrant apply` say about a calibrator and what it changes."""

from collections.abc import Sequence
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
        "parameters": {
            key: short(value, calibrator.entry_names.get(key, ()))
            for key, value in calibrator.parameters.items()
        },
    }


def short(value: Any, names: Sequence[str] = ()) -> str:
    """Format a parameter: a few values, or the shape and range of many.

    Args:
        value: a number, a string or a tensor.
        names: of the entries along its last axis, if they have names.

    Examples:
        >>> import torch
        >>> short(1.23456789), short(torch.tensor([[0.5, -2.0]]), ("a", "b"))
        ('1.23457', 'a 0.5, b -2')
    """
    if names:
        columns = zip(names, value.movedim(-1, 0), strict=True)
        return ", ".join(f"{name} {short(column)}" for name, column in columns)
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
