"""Answer options of questions, whose number may differ, as logits of one width."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from calibrant import checks

Padded = Float64[np.ndarray, "n k"]
Counts = Int64[np.ndarray, " n"]


def padded_logits(choices: Any, lengths: Any = None) -> Padded:
    """Log-likelihoods as an (n, k) array, k the largest number of options; -inf fills the rest.

    Args:
        choices: the log-likelihoods of the options of each question; -inf is an impossible option.
        lengths: of the same options; each log-likelihood is divided by its length.

    Examples:
        >>> padded_logits([[-1.0, -2.0, -4.0], [-3.0, -1.5]]).tolist()
        [[-1.0, -2.0, -4.0], [-3.0, -1.5, -inf]]
        >>> padded_logits([[-6.0, -2.0]], [[3, 2]]).tolist()
        [[-2.0, -1.0]]
    """
    counts = option_counts(choices)
    values = _flat("choices", choices)
    bad = np.isnan(values) | np.isposinf(values)
    if bad.any():
        at = int(bad.argmax())
        raise ValueError(f"choices must be numbers or -inf, got {values[at]} {_place(counts, at)}")
    if lengths is not None:
        sizes = _flat("lengths", lengths)
        if not np.array_equal(option_counts(lengths), counts):
            raise ValueError("lengths must have one number for each option of each question")
        bad = ~((sizes > 0) & np.isfinite(sizes))
        if bad.any():
            at = int(bad.argmax())
            raise ValueError(f"lengths must be positive, got {sizes[at]:g} {_place(counts, at)}")
        values = values / sizes
    width = int(counts.max())
    padded = np.full((len(counts), width), -np.inf)
    padded[np.arange(width) < counts[:, None]] = values
    return padded


def option_counts(choices: Any) -> Counts:
    """Number of options of each question, at least 1."""
    if not len(choices):
        raise ValueError("need at least 1 question, got no choices")
    try:
        counts = np.fromiter(map(len, choices), np.int64, len(choices))
    except TypeError:
        raise TypeError("choices must be a list of log-likelihoods for each question") from None
    if not counts.all():
        raise ValueError(f"question {int(counts.argmin())} has no options")
    return counts


def check_offered(labels: Sequence[int], counts: Counts) -> None:
    """Refuse a label that is none of the options of its question."""
    beyond = np.asarray(labels) >= counts
    if beyond.any():
        row = int(beyond.argmax())
        raise ValueError(
            f"label {int(labels[row])} at row {row} is out of range: the question has "
            f"{counts[row]} options"
        )


def _flat(name: str, rows: Any) -> Float64[np.ndarray, " m"]:
    parts = [each if isinstance(each, list) else checks.as_numbers(name, each) for each in rows]
    flat = checks.as_numbers(name, np.concatenate(parts))
    if flat.ndim != 1:
        raise ValueError(f"{name} must have one number for each option, got {flat.ndim} axes")
    return flat.astype(np.float64, copy=False)


def _place(counts: Counts, at: int) -> str:
    ends = counts.cumsum()
    row = int(np.searchsorted(ends, at, side="right"))
    return f"at question {row}, option {at - int(ends[row] - counts[row])}"
