"""A calibrator for each label of a multi-label classifier, shrunk towards a shared one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Fit
from calibrant.calibrators.slice_estimates import LEAST
from calibrant.calibrators.sliced import (
    HEADS,
    MOST_SLICES,
    SHOWN,
    SlicedCalibrator,
    SliceSummary,
    slice_rows,
)
from calibrant.label_matrix import as_positive_columns
from calibrant.metrics.multi_label import shortened
from calibrant.multi_label import MultiLabel
from calibrant.scoped_warnings import warn
from calibrant.shapes import Logits
from calibrant.table_values import Table, plain_html

LABEL = "label"
# Calibrators of two classes; the vector of two classes is Platt scaling with a redundant constant.
LABEL_CALIBRATORS = ("temperature", "platt", "beta")


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabelCalibrator:
    """A calibrator of two classes for each label, shrunk towards the shared one of all labels.

    A `SlicedCalibrator` whose slices are labels: each label is shrunk by empirical Bayes, and one
    with too few examples uses the shared calibrator. One without positives, or without negatives,
    has the shared slope and an intercept of its own; temperature scaling has no intercept, so it
    uses the shared temperature, with a warning. If own calibrators are
    not better in cross-validation, which keeps examples whole, all labels use the shared one.

    Attributes:
        sliced: the calibrators; its keys are the labels, in the order of the columns.

    Examples:
        >>> draw = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=draw)
        >>> labels = torch.bernoulli(logits.sigmoid(), generator=draw)
        >>> sharp = MultiLabel(logits * torch.tensor([1.0, 2.0, 4.0]), labels)
        >>> cal = MultiLabelCalibrator.fit(sharp, calibrator="temperature")
        >>> [round(each.temperature) for each in cal.calibrators.values()]
        [1, 2, 4]
        >>> sharp.map(cal)
        MultiLabel(2,000 examples, 3 labels)
    """

    sliced: SlicedCalibrator

    def __post_init__(self) -> None:
        if self.sliced.columns != (LABEL,) or self.sliced.classes != 2:
            raise ValueError(f"labels need a sliced calibrator of two classes by {LABEL!r}")

    @classmethod
    def fit(
        cls,
        multi: MultiLabel,
        *,
        calibrator: str = "platt",
        folds: int = 5,
        seed: int = 0,
        progress: Callable[[], None] | None = None,
    ) -> "MultiLabelCalibrator":
        """Fit to the known labels of held-out examples.

        Args:
            multi: held-out examples.
            calibrator: temperature, platt or beta. Rare labels of a network that was trained with
                class weights need the constant of platt or beta.
            folds: number of folds of the cross-validation.
            seed: seed of the folds and of the interval.
            progress: called after each fold; by default long work shows its progress itself.
        """
        if calibrator not in LABEL_CALIBRATORS:
            known = ", ".join(LABEL_CALIBRATORS)
            raise ValueError(f"calibrator of labels must be one of {known}, got {calibrator!r}")
        if multi.size > MOST_SLICES:
            raise ValueError(
                f"at most {MOST_SLICES:,} labels can be calibrated, got {multi.size:,}"
            )
        index = np.tile(np.arange(multi.size), len(multi))[multi.known.numpy().ravel()]
        sliced = SlicedCalibrator.fit_index(
            multi.pooled(),
            index,
            [(name,) for name in multi.label_names],
            columns=(LABEL,),
            calibrator=calibrator,
            folds=folds,
            seed=seed,
            progress=progress,
        )
        found = cls(sliced)
        found._warn_of_one_outcome(multi)
        return found

    def _warn_of_one_outcome(self, multi: MultiLabel) -> None:
        """Name the labels whose probabilities stay those of the shared calibrator."""
        names = []
        for name, own in self.calibrators.items():
            known, positive = multi.support(name)
            if known >= LEAST and positive in (0, known) and own is self.shared:
                names.append(name)
        if names:
            warn(
                f"no calibrator of their own for labels of one outcome only: {shortened(names)}; "
                "their probabilities can be far off, platt and beta adapt an intercept",
                stacklevel=3,
            )

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in the order of the columns."""
        return tuple(name for (name,) in self.sliced.keys)

    @property
    def shared(self) -> Calibrator:
        """The calibrator of all labels."""
        return self.sliced.overall

    @property
    def calibrators(self) -> dict[str, Calibrator]:
        """The calibrator of each label."""
        return dict(zip(self.label_names, self.sliced.calibrators, strict=True))

    @property
    def summaries(self) -> tuple[SliceSummary, ...]:
        """The labels: examples, own and shrunk calibrator, weight."""
        return self.sliced.summaries

    @property
    def origin(self) -> Fit | None:
        """How the shared calibrator was fitted."""
        return self.sliced.origin

    @property
    def zero_floor(self) -> float | None:
        """What replaces probabilities of exactly 0 and 1."""
        return self.sliced.zero_floor

    def for_labels(self, names: Sequence[str]) -> "MultiLabelCalibrator":
        """The same calibrator for columns of these labels, in this order."""
        own = self.label_names
        if unknown := [name for name in names if name not in own]:
            raise ValueError(f"label {unknown[0]!r} is not one of the fit: {', '.join(own[:20])}")
        order = torch.tensor([own.index(name) for name in names])
        picked = {
            name: getattr(self.sliced, name)[order] for name in ("examples", "own", "precisions")
        }
        return replace(self, sliced=replace(self.sliced, keys=tuple((n,) for n in names), **picked))

    def __call__(self, logits: Any) -> Logits:
        """Calibrated log-odds of the labels, (n, k); `torch.sigmoid` of them are probabilities."""
        odds: Tensor = as_positive_columns("logits", logits)
        n, k = odds.shape
        if k != len(self.label_names):
            raise ValueError(f"expected logits of {len(self.label_names)} labels, got {k}")
        both = torch.stack([torch.zeros_like(odds), odds], 2).reshape(-1, 2)
        found = self.sliced.at(np.tile(np.arange(k), n))(both)
        return (found[:, 1] - found[:, 0]).reshape(n, k)

    def __repr__(self) -> str:
        used = "" if self.sliced.slices_win else ", own calibrators not better: not used"
        return f"MultiLabelCalibrator({self.shared!r}, {len(self.label_names)} labels{used})"

    def _repr_html_(self) -> str:
        rows = slice_rows(self.summaries[:SHOWN])
        return plain_html(Table.of((LABEL, *HEADS[1:]), rows, caption=repr(self)))
