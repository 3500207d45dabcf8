"""One calibrator for each slice of the data, shrunk towards the one of all examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Fit, check_tensor
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.shrinkage import coordinates, shrinkage_weights, with_coordinates
from calibrant.calibrators.slice_estimates import (
    CrossValidation,
    cross_validated,
    estimate,
    mapped,
    shrunk,
)
from calibrant.calibrators.slices import Key, positions, shown, slice_keys
from calibrant.predictions import Predictions
from calibrant.setting_errors import did_you_mean
from calibrant.shapes import Index, Logits
from calibrant.table_values import Table, plain_html

# Calibrators whose parameters can be averaged; the second for two classes only.
ANY_CLASSES, TWO_CLASSES = ("temperature", "focal_temperature", "vector"), ("platt", "beta")
SUPPORTED = (*ANY_CLASSES, *TWO_CLASSES)
MOST_SLICES, MOST_COLUMNS, MOST_CHARACTERS, MOST_PARAMETERS = 1000, 8, 200, 200
# Rows of the table, and values of a parameter that it lists.
SHOWN, FEW = 50, 3


class SliceSummary(NamedTuple):
    """A slice of the fit: its examples, calibrators and weight.

    Attributes:
        key: its value of each column.
        examples: number of rows.
        own: calibrator fitted to the slice alone; None if it has too few examples. With one class
            or no optimum only an intercept is its own, and calibrators without one are None.
        shrunk: calibrator that is applied.
        weight: weight of its own parameters, 0 to 1; their mean if there are several.
    """

    key: Key
    examples: int
    own: Calibrator | None
    shrunk: Calibrator
    weight: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SlicedCalibrator:
    r"""A calibrator for each slice, shrunk towards that of all examples by empirical Bayes.

    $$\theta_s = \theta + w_s (\hat\theta_s - \theta), \qquad
      w_s = \frac{\tau^2}{\tau^2 + v_s}$$

    with the parameters $\theta$ of all examples, $\hat\theta_s$ of a slice alone, their sampling
    variance $v_s$ and the variance $\tau^2$ between slices; see `calibrators.shrinkage`.
    Temperatures are averaged as logarithms. Unseen slices use the calibrator of all examples.

    If slices are not better in cross-validation (NLL), every weight is 0, so the calibrator of
    all examples is used. It is no `Calibrator`: it needs the slice of each row.

    Attributes:
        overall: calibrator of all examples.
        columns: names of the columns that make up a slice.
        keys: m slices, the largest first.
        examples: number of rows of each, (m,).
        own: coordinates of their own fits, (m, d); those of `overall` where there is none.
        precisions: 1 / v, (m, d); 0 where there is no own fit.
        tau: standard deviation between slices, (d,).
        cross_validation: held-out NLL of both.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(4000, seed=0).predictions
        >>> sharper = Predictions(3 * p.logits, p.labels)
        >>> both, slices = Predictions.concat([p, sharper]), ["a"] * 4000 + ["b"] * 4000
        >>> sliced = SlicedCalibrator.fit(both, slices)
        >>> [round(each.shrunk.temperature) for each in sliced.summaries]
        [2, 6]
        >>> sliced.map(both, slices)
        Predictions(8,000 examples, 2 classes)
    """

    overall: Calibrator
    columns: tuple[str, ...]
    keys: tuple[Key, ...]
    examples: Tensor
    own: Tensor
    precisions: Tensor
    tau: Tensor
    cross_validation: CrossValidation

    def __post_init__(self) -> None:
        m, d = len(self.keys), self.overall.size
        check_keys(self.columns, self.keys)
        check_tensor("own", self.own, (m, d))
        check_tensor("precisions", self.precisions, (m, d))
        check_tensor("tau", self.tau, (d,))
        if self.examples.dtype != torch.int64 or self.examples.shape != (m,):
            raise ValueError(f"examples must be {m} integers")
        if min(float(each.min()) for each in (self.precisions, self.tau, self.examples)) < 0:
            raise ValueError("precisions, tau and examples must not be negative")
        # Made once, which checks the parameters.
        _ = self.calibrators

    @classmethod
    def fit(
        cls,
        predictions: Predictions,
        slices: Any,
        *,
        calibrator: str = "temperature",
        folds: int = 5,
        seed: int = 0,
        progress: Callable[[], None] | None = None,
    ) -> "SlicedCalibrator":
        """Fit to labelled held-out examples.

        Args:
            predictions: held-out examples; groups are not split by cross-validation.
            slices: the slice of each example: n values, or a dict of columns of n values, whose
                combinations are the slices. Strings, integers or booleans; none may be missing.
            calibrator: temperature, focal_temperature or vector; platt or beta of two classes.
            folds: number of folds, stratified by slice and class.
            seed: seed of the folds and of the interval.
            progress: called after each fold; by default long work shows its progress itself.
        """
        check_supported(calibrator, predictions.classes)
        columns, given = slice_keys(slices, examples=len(predictions))
        distinct = set(given)
        if len(distinct) > MOST_SLICES:
            raise ValueError(
                f"{', '.join(columns)}: {len(distinct):,} different slices, at most "
                f"{MOST_SLICES:,} are allowed; use a column with fewer values, or bin them"
            )
        counts = dict.fromkeys(sorted(distinct), 0)
        for key in given:
            counts[key] += 1
        keys = tuple(sorted(counts, key=lambda key: -counts[key]))
        return cls.fit_index(
            predictions,
            positions(given, keys),
            keys,
            columns=columns,
            calibrator=calibrator,
            folds=folds,
            seed=seed,
            progress=progress,
        )

    @classmethod
    def fit_index(
        cls,
        predictions: Predictions,
        index: Index,
        keys: Sequence[Key],
        *,
        columns: Key,
        calibrator: str,
        folds: int,
        seed: int,
        progress: Callable[[], None] | None,
    ) -> "SlicedCalibrator":
        """Fit, given the number of the slice of each example; `keys` may have no examples."""
        check_supported(calibrator, predictions.classes)
        check_keys(columns, keys)
        kind = CALIBRATORS[calibrator]
        found = estimate(kind, predictions, index, len(keys))
        return cls(
            overall=found.overall,
            columns=columns,
            keys=tuple(keys),
            examples=torch.from_numpy(np.bincount(index, minlength=len(keys))),
            own=torch.from_numpy(found.own),
            precisions=torch.from_numpy(found.precisions),
            tau=torch.from_numpy(found.tau),
            cross_validation=cross_validated(
                kind, predictions, index, len(keys), folds=folds, seed=seed, progress=progress
            ),
        )

    @property
    def classes(self) -> int:
        """Number of classes k."""
        return self.overall.classes

    @property
    def origin(self) -> Fit | None:
        """How the calibrator of all examples was fitted."""
        return self.overall.origin

    @property
    def zero_floor(self) -> float | None:
        """What replaces probabilities of exactly 0."""
        return self.overall.zero_floor

    @property
    def keeps_argmax(self) -> bool:
        """Whether it preserves the predicted class."""
        return self.overall.keeps_argmax

    @property
    def slices_win(self) -> bool:
        """Whether slices were better in cross-validation; if not, all weights are 0."""
        return self.cross_validation.difference < 0

    @cached_property
    def weights(self) -> Tensor:
        """Weight of the own parameters of each slice, (m, d)."""
        gaps = self.own.numpy() - coordinates(self.overall)
        found = shrinkage_weights(self.tau.numpy(), self.precisions.numpy(), gaps)
        return torch.from_numpy(found * self.slices_win)

    @cached_property
    def calibrators(self) -> tuple[Calibrator, ...]:
        """The shrunk calibrator of each slice."""
        return shrunk(self.overall, self.own.numpy(), self.weights.numpy())

    @property
    def summaries(self) -> tuple[SliceSummary, ...]:
        """The slices, the largest first."""
        fitted = (self.precisions > 0).any(1).tolist()
        return tuple(
            SliceSummary(
                key,
                int(self.examples[at]),
                with_coordinates(self.overall, self.own[at].numpy()) if fitted[at] else None,
                self.calibrators[at],
                float(self.weights[at].mean()),
            )
            for at, key in enumerate(self.keys)
        )

    def index(self, slices: Any, *, examples: int) -> Index:
        """Number of the slice of each example, in the order of `keys`; -1 if unseen."""
        columns, keys = slice_keys(slices, examples=examples)
        if len(columns) != len(self.columns):
            raise ValueError(f"slices need the columns {', '.join(self.columns)}")
        if set(columns) == set(self.columns):
            order = [columns.index(name) for name in self.columns]
            keys = [tuple(key[at] for at in order) for key in keys]
        elif len(columns) > 1:
            raise ValueError(f"slices need the columns {', '.join(self.columns)}")
        return positions(keys, self.keys)

    def at(self, index: Index) -> "SliceMap":
        """The map of rows whose slices have these numbers."""
        return SliceMap(self, index)

    def map(self, predictions: Predictions, slices: Any) -> Predictions:
        """Calibrate predictions, given the slice of each example as in `fit`."""
        return predictions.map(self.at(self.index(slices, examples=len(predictions))))

    def __repr__(self) -> str:
        used = "" if self.slices_win else ", not better than overall: not used"
        columns = ", ".join(self.columns)
        return f"SlicedCalibrator({self.overall!r} by {columns}: {len(self.keys)} slices{used})"

    def _repr_html_(self) -> str:
        rows = slice_rows(self.summaries[:SHOWN])
        return plain_html(Table.of(HEADS, rows, caption=repr(self)))


@dataclass(frozen=True, eq=False)
class SliceMap:
    """A sliced calibrator for rows of known slices: a map of their logits."""

    calibrator: SlicedCalibrator
    index: Index

    @property
    def zero_floor(self) -> float | None:
        """What replaces probabilities of exactly 0."""
        return self.calibrator.zero_floor

    def __call__(self, logits: Logits) -> Tensor:
        """Log-probabilities of the rows, (n, k)."""
        if len(logits) != len(self.index):
            raise ValueError(f"expected {len(self.index):,} rows of logits, got {len(logits):,}")
        sliced = self.calibrator
        return mapped(sliced.overall, sliced.calibrators, logits, self.index)


HEADS = ("slice", "examples", "own", "shrunk", "weight")


def slice_rows(summaries: Sequence[SliceSummary]) -> list[list[str]]:
    """Rows of a table of slices: own and shrunk parameters, a dash where there is no own fit.

    Parameters are in the order of `Calibrator.parameters`; of more than three, the range.
    """

    def text(calibrator: Calibrator | None) -> str:
        if calibrator is None:
            return "-"
        every = [np.ravel(value) for value in calibrator.parameters.values()]
        return "; ".join(
            ", ".join(f"{each:.4g}" for each in values)
            if len(values) <= FEW
            else f"{values.min():.3g} to {values.max():.3g}"
            for values in every
        )

    return [
        [
            shown(each.key),
            f"{each.examples:,}",
            text(each.own),
            text(each.shrunk),
            f"{each.weight:.2f}",
        ]
        for each in summaries
    ]


def supported(classes: int) -> tuple[str, ...]:
    """Names of the calibrators that can be fitted to slices."""
    names = ANY_CLASSES if 2 * classes <= MOST_PARAMETERS else ANY_CLASSES[:-1]
    return (*names, *(TWO_CLASSES if classes == 2 else ()))


def check_supported(name: str, classes: int) -> None:
    """Refuse a calibrator that cannot be fitted to slices."""
    if name not in CALIBRATORS:
        raise ValueError(f"no calibrator {name!r}; {did_you_mean(name, SUPPORTED)}")
    if name not in supported(classes):
        raise ValueError(
            f"{name} of {classes} classes cannot be fitted to slices; use one of "
            f"{', '.join(supported(classes))}"
        )


def check_keys(columns: Sequence[str], keys: Sequence[Key]) -> None:
    """Refuse names and values of slices that cannot be saved and shown."""
    if not 1 <= len(columns) <= MOST_COLUMNS or len(set(columns)) < len(columns):
        raise ValueError(f"slices need 1 to {MOST_COLUMNS} different columns, got {len(columns)}")
    if not 1 <= len(keys) <= MOST_SLICES or len(set(keys)) < len(keys):
        raise ValueError(f"need 1 to {MOST_SLICES:,} different slices, got {len(keys):,}")
    for key in keys:
        if len(key) != len(columns):
            raise ValueError(f"a slice has a value of each of {len(columns)} columns")
    for text in {*columns, *(value for key in keys for value in key)}:
        if not 0 < len(text) <= MOST_CHARACTERS or not text.isprintable():
            raise ValueError(
                f"values of slices must be printable, with 1 to {MOST_CHARACTERS} characters, "
                f"got {text[:40]!r}"
            )
