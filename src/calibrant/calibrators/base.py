"""What every calibrator is: a frozen, fitted map from logits to log-probabilities."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.top_class import with_top_of
from calibrant.checks import raised
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.shapes import Logits

# What a probability of zero becomes: the least normal float32. Below it a logarithm is noise.
LOG_ZERO = math.log(torch.finfo(torch.float32).tiny)
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
    precision (half precision is raised to float32), and gradients flow through.

    Attributes:
        classes: k.
        origin: how it was fitted; None if it was made by hand.
        keeps_argmax: whether the predicted class is always the one of the logits.
        free_form: whether it is a curve through the data and not a formula; `select` takes such a
            one only if it is clearly better.
    """

    classes: int
    origin: Fit | None = None

    keeps_argmax: ClassVar[bool]
    free_form: ClassVar[bool] = False

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
        """Map finite logits of the right number of classes, float32 or float64."""

    def __call__(self, logits: Any) -> Logits:
        """Log-probabilities, (n, k). A logit of -inf is taken as a probability of 1e-38."""
        given = logits if isinstance(logits, Tensor) else torch.as_tensor(np.asarray(logits))
        if given.ndim != 2 or given.shape[1] != self.classes:
            came = f"{given.shape[1]} classes" if given.ndim == 2 else f"shape {tuple(given.shape)}"
            raise ValueError(
                f"{type(self).__name__} was fitted on {self.classes} classes, got {came}"
            )
        if not bool((given < torch.inf).all()):
            raise ValueError("logits hold NaN or inf: nothing can be said about such rows")
        finite = without_zeros(raised(given))
        mapped = self.log_probs(finite)
        return with_top_of(finite, mapped) if self.keeps_argmax else mapped

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


def without_zeros(logits: Logits) -> Logits:
    """Replace -inf by a logit that stands for the least probability of float32.

    It lies below every finite logit of its row, so the order of the classes stays.
    """
    zero = logits.isneginf()
    if not bool(zero.any()):
        return logits
    top = logits.max(1, keepdim=True).values
    least = logits.masked_fill(zero, torch.inf).min(1, keepdim=True).values
    return torch.where(zero, torch.minimum(top + LOG_ZERO, least), logits)


def fitting_logits(predictions: Predictions, *, every_class: bool = False) -> Logits:
    """Check that examples can be fitted to, and give their logits, all finite.

    Args:
        predictions: the examples.
        every_class: refuse data in which some class never occurs, instead of a warning.
    """
    present = np.bincount(
        predictions.labels.numpy(), weights=predictions.row_weights, minlength=predictions.classes
    )
    if (present > 0).sum() == 1:
        raise ValueError(f"cannot fit: labels hold a single class, {int(present.argmax())}")
    absent = np.flatnonzero(present == 0)
    if len(absent):
        names = predictions.class_names
        shown = ", ".join(str(names[at] if names else at) for at in absent[:SHOWN])
        more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
        which = f"{len(absent)} of {predictions.classes} classes never occur: {shown}{more}"
        if every_class:
            raise ValueError(
                f"cannot fit, {which}; use one of temperature, structured_vector, "
                "structured_matrix, or examples of every class"
            )
        warn(f"{which}; nothing is learnt about them", stacklevel=3)
    logits = predictions.logits
    zeros = int(logits.isneginf().sum())
    if zeros:
        warn(
            f"{zeros} of {logits.numel()} probabilities are exactly 0: taken as 1e-38",
            stacklevel=3,
        )
    return without_zeros(logits)


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
