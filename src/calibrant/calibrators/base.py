"""What every calibrator is: a frozen, fitted map from logits to log-probabilities."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.masks import ever_allowed, mask_of
from calibrant.calibrators.top_class import with_top_of
from calibrant.checks import promote_dtype
from calibrant.deprecated import Renamed
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.shapes import Logits

# Names in a message before the rest is only counted.
SHOWN = 8


@dataclass(frozen=True)
class Fit:
    """How a calibrator came about; it travels with it into the file.

    Attributes:
        examples: how many it was fitted to.
        sha256: of their scores and labels, see `Predictions.sha256`.
        converged: whether the best parameters were found, and not a bound or a limit of steps.
        gradient_norm: of the criterion where the search ended; 0 where there is no search.
        remark: why it did not converge.
    """

    examples: int
    sha256: str
    converged: bool = True
    gradient_norm: float = 0.0
    remark: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibrator(ABC):
    """A fitted map of logits, (n, k), to log-probabilities, (n, k).

    Fields are the fitted numbers: there is no unfitted calibrator. Applying one takes logits only,
    so labels of the test data cannot leak into it. The arithmetic is that of the logits' own
    precision (half precision is promoted to float32), and gradients flow through.

    A logit of -inf masks a class: for that example the map is that of the other classes alone, as
    if the parameters of the masked class were removed, and its probability is exactly 0.

    Attributes:
        classes: k.
        origin: how it was fitted; None if it was made by hand.
        keeps_argmax: whether the predicted class is always the one of the logits.
        nonparametric: whether it is a step or piecewise function of the data; `select` prefers
            parametric calibrators unless it is significantly better.
    """

    classes: int
    origin: Fit | None = None

    keeps_argmax: ClassVar[bool]
    nonparametric: ClassVar[bool] = False

    free_form = Renamed()

    def __post_init__(self) -> None:
        """Store tensors row by row; classes that check their fields call this first.

        The layout decides which kernel a matrix product takes: with one layout, a fitted
        calibrator and the same one from a file give the same answer.
        """
        for name, value in self.parameters.items():
            if isinstance(value, Tensor):
                object.__setattr__(self, name, value.contiguous())

    @classmethod
    @abstractmethod
    def fit(cls, predictions: Predictions) -> "Calibrator":
        """Fit to labelled held-out examples; not to those the network was trained on."""

    @abstractmethod
    def log_probs(self, logits: Logits) -> Logits:
        """Map logits of the right number of classes, float32 or float64; -inf stays -inf."""

    def __call__(self, logits: Any) -> Logits:
        """Log-probabilities, (n, k); -inf for masked classes, whose logits are -inf."""
        given = logits if isinstance(logits, Tensor) else torch.as_tensor(np.asarray(logits))
        if given.ndim != 2 or given.shape[1] != self.classes:
            came = f"{given.shape[1]} classes" if given.ndim == 2 else f"shape {tuple(given.shape)}"
            raise ValueError(
                f"{type(self).__name__} was fitted on {self.classes} classes, got {came}"
            )
        if not bool((given < torch.inf).all()):
            raise ValueError("logits hold NaN or inf: nothing can be said about such rows")
        scores = promote_dtype(given)
        masked = mask_of(scores)
        if masked is not None and bool(masked.all(1).any()):
            row = int(masked.all(1).nonzero()[0])
            raise ValueError(f"logits: row {row} is -inf for every class; allow at least one")
        mapped = self.log_probs(scores)
        return with_top_of(scores, mapped) if self.keeps_argmax else mapped

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The fitted numbers by name: floats, strings and tensors."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("classes", "origin")
        }

    @property
    def size(self) -> int:
        """How many numbers were fitted; fewer is simpler."""
        return sum(
            value.numel() if isinstance(value, Tensor) else isinstance(value, float)
            for value in self.parameters.values()
        )


def fitting_logits(predictions: Predictions, *, every_class: bool = False) -> Logits:
    """Check that examples can be fitted to, and give their logits: finite, or -inf if masked.

    Args:
        predictions: the examples.
        every_class: refuse data in which some class never occurs, instead of a warning. A class
            that is masked in every example is only warned of: no parameter of it counts.
    """
    labels, weights = predictions.labels.numpy(), predictions.example_weights
    present = np.bincount(labels, weights=weights, minlength=predictions.classes)
    if (present > 0).sum() == 1:
        raise ValueError(f"cannot fit: labels hold a single class, {int(present.argmax())}")
    logits = predictions.logits
    _refuse_masked_labels(predictions, logits)
    possible = ever_allowed(logits)
    for what, absent in (
        ("never occur", (present == 0) & possible),
        ("are masked in every example", ~possible),
    ):
        if not absent.any():
            continue
        which = f"{absent.sum()} of {len(absent)} classes {what}: {_named(predictions, absent)}"
        if every_class and what == "never occur":
            raise ValueError(
                f"cannot fit, {which}; use one of temperature, structured_vector, "
                "structured_matrix, or examples of every class"
            )
        warn(f"{which}; nothing is learnt about them", stacklevel=3)
    if predictions.zero_probs:
        warn(
            f"{predictions.zero_probs} of {logits.numel()} probabilities are exactly 0: "
            "taken as 1e-38",
            stacklevel=3,
        )
    return logits


def _refuse_masked_labels(predictions: Predictions, logits: Logits) -> None:
    """Refuse to fit to labels that are said to be impossible: their loss is infinite."""
    masked = logits.gather(1, predictions.labels[:, None])[:, 0].isneginf().numpy()
    masked &= predictions.example_weights > 0
    if masked.any():
        raise ValueError(
            f"cannot fit: the label of {masked.sum()} of {len(masked)} examples is masked, its "
            f"logit is -inf (first at row {masked.argmax()}); drop such rows, give them finite "
            "logits, or use Predictions.from_probs if these are probabilities rounded to 0"
        )


def _named(predictions: Predictions, which: np.ndarray) -> str:
    """Names or numbers of some classes; the rest of many are only counted."""
    at, names = np.flatnonzero(which), predictions.class_names
    shown = ", ".join(str(names[each] if names else each) for each in at[:SHOWN])
    return shown + (f" and {len(at) - SHOWN} more" if len(at) > SHOWN else "")


def made_from(
    predictions: Predictions,
    *,
    converged: bool = True,
    gradient_norm: float = 0.0,
    remark: str = "",
) -> Fit:
    """Record what was fitted to; warn where the search did not end well."""
    if not converged:
        warn(remark, stacklevel=3)
    return Fit(len(predictions), predictions.sha256, converged, gradient_norm, remark)
