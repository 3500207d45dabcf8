"""The base class of calibrators: fitted, immutable maps from logits to log-probabilities."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.describe import shown_parameters
from calibrant.calibrators.masks import ever_allowed, mask_of
from calibrant.checks import promote_dtype
from calibrant.deprecated import Renamed
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.shapes import Logits
from calibrant.table_values import Table, plain_html

# Classes named in a message; the rest is counted.
SHOWN = 8
# Classes up to which a fit records frequencies and names, and characters of all these names.
RECORDED, CHARACTERS = 1000, 20_000


@dataclass(frozen=True)
class Fit:
    """How a calibrator was fitted; saved with it.

    Attributes:
        examples: number of examples.
        sha256: digest of their scores and labels, see `Predictions.sha256`.
        converged: whether the optimum was found, rather than a bound or a limit of steps.
        gradient_norm: norm of the gradient at the end of the search; 0 without a search.
        remark: why it did not converge.
        zero_floor: what replaced probabilities of exactly 0, in the fit and when the calibrator is
            applied by `Predictions.map`; None after a fit to logits.
        class_frequencies: share of each class among the labels, for `PriorShift`; None of more
            than 1,000 classes, and in files of earlier releases.
        class_names: names of the classes, if the predictions had any.
        scores: what the scores were, such as "lm-eval, normalized by characters"; None if unknown.
    """

    examples: int
    sha256: str
    converged: bool = True
    gradient_norm: float = 0.0
    remark: str = ""
    zero_floor: float | None = None
    class_frequencies: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None
    scores: str | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Calibrator(ABC):
    """A fitted map of logits, (n, k), to log-probabilities, (n, k).

    The fields are the fitted parameters. Calibrators are applied to logits only, so test labels
    cannot leak. They compute in the precision of the logits (half precision is promoted to
    float32) and are differentiable.

    A logit of -inf masks a class: that example is mapped as if the class and its parameters did
    not exist, and the probability of the class is exactly 0.

    Attributes:
        classes: k.
        origin: how it was fitted; None if it was constructed from parameters.
        keeps_argmax: whether it preserves the predicted class.
        nonparametric: whether it is a step or piecewise function of the data.
    """

    classes: int
    origin: Fit | None = None

    keeps_argmax: ClassVar[bool]
    nonparametric: ClassVar[bool] = False
    # Names of the entries along the last axis of parameters, for printing.
    entry_names: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    free_form = Renamed()

    def __post_init__(self) -> None:
        """Make tensors contiguous; subclasses that check their fields call this first.

        Matrix products depend on the memory layout: a loaded calibrator gives equal results.
        """
        for name, value in self.parameters.items():
            if isinstance(value, Tensor):
                object.__setattr__(self, name, value.contiguous())

    @classmethod
    @abstractmethod
    def fit(cls, predictions: Predictions) -> "Calibrator":
        """Fit to labelled held-out examples, not to the training data of the network."""

    @abstractmethod
    def log_probs(self, logits: Logits) -> Logits:
        """Map logits of k classes, float32 or float64; -inf stays -inf."""

    def __call__(self, logits: Any) -> Tensor:
        """Return log-probabilities of the shape of the logits; -inf for masked classes.

        Logits are (n, k), or (n, k, ...) for pixels or tokens.
        """
        given = torch.as_tensor(logits if isinstance(logits, Tensor) else np.asarray(logits))
        if given.ndim > 2 and given.shape[1] == self.classes:
            positions = given.movedim(1, -1)
            flat = self(positions.reshape(-1, self.classes))
            return flat.reshape(positions.shape).movedim(-1, 1)
        scores = self.checked(given)
        mapped = self.log_probs(scores)
        return restore_top_class(scores, mapped) if self.keeps_argmax else mapped

    def checked(self, logits: Any) -> Logits:
        """Return logits, (n, k), as float32 or float64; refuse invalid ones."""
        given = torch.as_tensor(logits if isinstance(logits, Tensor) else np.asarray(logits))
        if given.ndim != 2 or given.shape[1] != self.classes:
            came = f"{given.shape[1]} classes" if given.ndim == 2 else f"shape {tuple(given.shape)}"
            raise ValueError(
                f"{type(self).__name__} was fitted on {self.classes} classes, got {came}"
            )
        if not bool((given < torch.inf).all()):
            raise ValueError("logits contain NaN or inf; drop such rows first")
        scores = promote_dtype(given)
        masked = mask_of(scores)
        if masked is not None and bool(masked.all(1).any()):
            row = int(masked.all(1).nonzero()[0])
            raise ValueError(f"logits: row {row} is -inf for every class; allow at least one")
        return scores

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The fitted parameters by name: floats, strings and tensors."""
        return {name: getattr(self, name) for name in parameter_names(type(self))}

    @property
    def shown_parameters(self) -> dict[str, str]:
        """The parameters as short text, with the names of their entries."""
        return shown_parameters(self.parameters, self.entry_names, self.classes)

    def __repr__(self) -> str:
        shown = {**self.shown_parameters, "classes": f"{self.classes}"}
        if self.origin is not None and not self.origin.converged:
            shown["converged"] = "False"
        values = ", ".join(f"{key}={_in_brackets(text)}" for key, text in shown.items())
        return f"{type(self).__name__}({values})"

    def _repr_html_(self) -> str:
        rows = [*self.shown_parameters.items(), ("classes", f"{self.classes:,}")]
        if self.origin is not None:
            rows.append(("fitted to", f"{self.origin.examples:,} examples"))
            rows.append(("converged", self.origin.remark or "yes"))
        return plain_html(Table.of(("parameter", "value"), rows, caption=type(self).__name__))

    @property
    def zero_floor(self) -> float | None:
        """What replaces probabilities of exactly 0, from the fit."""
        return None if self.origin is None else self.origin.zero_floor

    @property
    def size(self) -> int:
        """Number of fitted parameters."""
        return sum(
            value.numel() if isinstance(value, Tensor) else isinstance(value, float)
            for value in self.parameters.values()
        )


def _in_brackets(text: str) -> str:
    return f"({text})" if " " in text else text


def restore_top_class(logits: Logits, log_probs: Logits) -> Logits:
    """Give the highest log-probability to the highest logit, the first of them if several tie.

    A monotone map can tie or swap two classes that differ in the last digit. Such classes are
    lowered to one rounding unit below the top class.
    """
    best = logits.argmax(1, keepdim=True)
    lost = log_probs.argmax(1, keepdim=True) != best
    if not bool(lost.any()):
        return log_probs
    lowered = _lower_rivals(log_probs, best, lost)
    # Lowering can remove more than rounding from the sum: normalise again.
    normalised = torch.where(lost, torch.log_softmax(lowered, 1), lowered)
    return _lower_rivals(normalised, best, lost)


def _lower_rivals(log_probs: Logits, best: Tensor, lost: Tensor) -> Logits:
    """Lower classes that are not below the top class, in the rows that lost it."""
    own = log_probs.gather(1, best)
    fixed = own.detach()
    # The value is the next number below; the gradient is that of the top class.
    below = own + (torch.nextafter(fixed, torch.full_like(fixed, -torch.inf)) - fixed)
    rivals = (lost & (log_probs >= own)).scatter(1, best, False)
    return torch.where(rivals, below, log_probs)


def parameter_names(kind: type[Calibrator]) -> list[str]:
    """Return the names of the fitted parameters of a kind of calibrator."""
    return [each.name for each in fields(kind) if each.name not in ("classes", "origin")]


def check_tensor(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a parameter that is not finite float64 of the expected shape."""
    if value.dtype != torch.float64 or tuple(value.shape) != shape:
        came = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        raise ValueError(f"{name} must be float64 of shape {shape}, got {came}")
    if not bool(value.isfinite().all()):
        raise ValueError(f"{name} must be finite")


def fitting_logits(predictions: Predictions, *, every_class: bool = False) -> Logits:
    """Check that a calibrator can be fitted, and return the logits: finite, or -inf if masked.

    Args:
        predictions: the examples.
        every_class: refuse data in which a class never occurs, instead of a warning. Classes that
            are masked in every example only give a warning: they need no parameters.
    """
    labels, weights = predictions.labels.numpy(), predictions.example_weights
    present = np.bincount(labels, weights=weights, minlength=predictions.classes)
    if (present > 0).sum() == 1:
        raise ValueError(f"cannot fit: labels hold a single class, {int(present.argmax())}")
    logits = predictions.with_zero_floor(predictions.estimated_zero_floor).logits
    masked = logits.gather(1, predictions.labels[:, None])[:, 0].isneginf().numpy()
    masked &= weights > 0
    if masked.any():
        # The loss of these examples is infinite.
        raise ValueError(
            f"cannot fit: the label of {masked.sum()} of {len(masked)} examples is masked, its "
            f"logit is -inf (first at row {masked.argmax()}); drop such rows, give them finite "
            "logits, or use Predictions.from_probs if these are probabilities rounded to 0"
        )
    possible = ever_allowed(logits)
    absent = {"never occur": (present == 0) & possible, "are masked in every example": ~possible}
    for what, which in absent.items():
        text = f"{which.sum()} of {len(which)} classes {what}: {listed(predictions, which)}"
        if every_class and what == "never occur" and which.any():
            raise ValueError(
                f"cannot fit, {text}; use one of temperature, structured_vector, "
                "structured_matrix, or examples of every class"
            )
        if which.any():
            warn(f"{text}; their parameters are not fitted", stacklevel=3)
    if predictions.zero_probs:
        warn(zeros_note(predictions, predictions.estimated_zero_floor), stacklevel=3)
    return logits


def zeros_note(predictions: Predictions, floor: float | None) -> str:
    """Say which probability replaces those that are exactly 0, and why."""
    entries = len(predictions) * predictions.classes
    what = f"{predictions.zero_probs:,} of {entries:,} probabilities are exactly 0: replaced by"
    if floor is None:
        return f"{what} 1e-38, since neither the calibrator nor the predictions have a zero_floor"
    if floor == predictions.zero_floor:
        return f"{what} {floor:.3g}, the given zero_floor"
    if floor != predictions.estimated_zero_floor:
        return f"{what} {floor:.3g}, the zero_floor of the fit"
    hits = int((predictions.label_probs == 0).sum())
    counts = f"{hits:,} of {len(predictions):,} examples"
    why = f"This estimates how often a class of probability 0 is the label (here: {counts})"
    nll = "; the NLL before calibration is infinite" if hits else ""
    return f"{what} {floor:.3g}, less than all others. {why}{nll}"


def listed(predictions: Predictions, which: np.ndarray) -> str:
    """List the names or indices of some classes, given as a mask; long lists are cut."""
    at, names = np.flatnonzero(which), predictions.class_names
    shown = ", ".join(str(names[each] if names else each) for each in at[:SHOWN])
    return shown + (f" and {len(at) - SHOWN} more" if len(at) > SHOWN else "")


def made_from(predictions: Predictions, gradient_norm: float = 0.0, remark: str = "") -> Fit:
    """Record the data and the end of a fit; a remark, which is a warning, means no convergence."""
    if remark:
        warn(remark, stacklevel=3)
    return Fit(
        len(predictions),
        predictions.sha256,
        not remark,
        gradient_norm,
        remark,
        predictions.estimated_zero_floor,
        class_frequencies(predictions) if predictions.classes <= RECORDED else None,
        _recorded_names(predictions.class_names),
    )


def _recorded_names(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The class names, if they are few, short and printable enough for a file."""
    plain = names is not None and all(name and str(name).isprintable() for name in names)
    if names is None or not plain or len(names) > RECORDED or sum(map(len, names)) > CHARACTERS:
        return None
    return names


def class_frequencies(predictions: Predictions) -> tuple[float, ...]:
    """Share of each class among the labels, weighted."""
    labels, weights = predictions.labels.numpy(), predictions.example_weights
    counts = np.bincount(labels, weights=weights, minlength=predictions.classes)
    return tuple((counts / counts.sum()).tolist())
