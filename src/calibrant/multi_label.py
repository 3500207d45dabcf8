"""Predictions of several labels at once, each present or absent on its own."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant import checks, files
from calibrant.advice import located
from calibrant.array_names import Requested
from calibrant.extras import need
from calibrant.files.checks import listed
from calibrant.label_matrix import (
    MISSING,
    as_label_matrix,
    as_positive_columns,
    match_columns,
)
from calibrant.multi_label_files import named_arrays, read_multi_label
from calibrant.prediction_files import PredictionArrays
from calibrant.predictions import Predictions, split_mask
from calibrant.scoped_warnings import without_warnings
from calibrant.score_array import Scores
from calibrant.shapes import LabelMatrix, Labels, Logits, PerExample, Values
from calibrant.table_values import Table, plain_html

if TYPE_CHECKING:
    import pandas


class MultiLabel:
    """Logits of k independent labels on n examples; validated and immutable.

    Each label is a problem of two classes: its probability is the sigmoid of its logit. Tensors are
    not copied, so do not write into them.

    Args:
        logits: (n, k) log-odds of the labels, tensor or array.
        labels: (n, k) of 0 and 1 or booleans. NaN, -1 and -100 mark labels that are not known.
        weights: (n,) sample weights: how many examples each row counts for; 1 if not given.
        groups: (n,) patient, image or user that a row belongs to; splits and bootstrap intervals
            keep groups together.
        label_names: k names, for tables and figures; default: 0, 1, ...

    If logits and labels are data frames, their columns are matched by name, also without the common
    start (`p_cat` with `y_cat`), and are the names. Without a common name they are matched by
    position.

    Examples:
        >>> m = MultiLabel([[2.0, -1.0], [0.0, 1.0]], [[1, 0], [-1, 1]], label_names=["cat", "dog"])
        >>> m
        MultiLabel(2 examples, 2 labels, 25.0 % missing)
        >>> m.label("cat")
        Predictions(1 examples, 2 classes)
    """

    labels: LabelMatrix
    weights: PerExample | None
    groups: Labels | None
    label_names: tuple[str, ...]
    _scores: Scores

    def __init__(
        self,
        logits: Any,
        labels: Any,
        *,
        weights: Any = None,
        groups: Any = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        labels, label_names = match_columns(logits, labels, label_names)
        values = as_positive_columns("logits", logits)
        self._fill(Scores(values, "logits"), labels, weights, groups, label_names)

    @classmethod
    def from_probs(
        cls,
        probs: Any,
        labels: Any,
        *,
        weights: Any = None,
        groups: Any = None,
        label_names: Sequence[str] | None = None,
    ) -> "MultiLabel":
        """Wrap (n, k) probabilities, or a list of k arrays (n, 2) as scikit-learn returns them.

        Probabilities are kept as given. Of (n, 2) the second column is the label's. An array
        (n, 1), of a label that was always absent in training, is refused: its only column may
        be that of either outcome.
        """
        labels, label_names = match_columns(probs, labels, label_names)
        scores = Scores(as_positive_columns("probs", probs), "probs")
        return cls.__new__(cls)._fill(scores, labels, weights, groups, label_names)

    def _fill(
        self, scores: Scores, labels: Any, weights: Any, groups: Any, names: Sequence[str] | None
    ) -> "MultiLabel":
        """Validate labels, weights, groups and names, and set the fields."""
        n, k = scores.values.shape
        if names is not None and not all(isinstance(name, str) for name in names):
            given = ", ".join(sorted({type(name).__name__ for name in names}))
            raise TypeError(f"label_names must be strings, got {given}: convert them with str")
        if names is not None and (len(names) != k or len(set(names)) != k):
            raise ValueError(f"label_names must be {k} different names, got {listed(list(names))}")
        self.__dict__.update(
            labels=as_label_matrix(labels, shape=(n, k)),
            weights=None if weights is None else checks.as_weights(weights, examples=n).cpu(),
            groups=None if groups is None else checks.as_groups(groups, examples=n),
            label_names=tuple(map(str, range(k) if names is None else names)),
            _scores=scores,
        )
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"MultiLabel is immutable (tried to set {name}); make a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"MultiLabel is immutable (tried to delete {name})")

    def __getattr__(self, name: str) -> Any:
        """Say what to use instead of attributes that only predictions of classes have."""
        if hasattr(Predictions, name) or name in Predictions.__annotations__:
            raise AttributeError(
                f"MultiLabel has no {name}: use metrics.macro, metrics.micro or "
                "MultiLabelCalibrator, or the predictions of one label, .label(name)"
            )
        raise AttributeError(f"'MultiLabel' object has no attribute {name!r}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        missing = 1 - float(self.known.double().mean())
        rest = f", {100 * missing:.1f} % missing" if missing else ""
        return f"MultiLabel({len(self):,} examples, {self.size:,} labels{rest})"

    def _repr_html_(self) -> str:
        heads = ["label", "known", "base rate", "mean probability"]
        rows = []
        for name in self.label_names:
            known, positive = self.support(name)
            mean = float(self.label(name).positive_probs.mean()) if known else float("nan")
            rate = positive / known if known else float("nan")
            rows.append([name, f"{known:,}", f"{rate:.4f}", f"{mean:.4f}"])
        return plain_html(Table.of(heads, rows, caption=repr(self)))

    @property
    def size(self) -> int:
        """Number of labels k."""
        return self.labels.shape[1]

    @property
    def kind(self) -> checks.Kind:
        """Whether logits or probs were given."""
        return self._scores.kind

    @property
    def known(self) -> Tensor:
        """Whether each label is known, booleans, (n, k)."""
        return self.labels != MISSING

    @property
    def logits(self) -> Logits:
        """Log-odds as given, or those of the probabilities, (n, k).

        A given probability of 0 or 1 is replaced as in `Predictions.logits`.
        """
        if self.kind == "logits":
            return self._scores.values
        return self._entries.log_odds.reshape(self.labels.shape)

    @property
    def probs(self) -> Logits:
        """Probability of each label, (n, k)."""
        values = self._scores.values
        return values if self.kind == "probs" else torch.sigmoid(values)

    @property
    def example_weights(self) -> Values:
        """The weights, or ones, (n,)."""
        return np.ones(len(self)) if self.weights is None else self.weights.numpy()

    def position(self, label: str | int) -> int:
        """Column of a label, by its name or index."""
        if label in self.label_names:
            return self.label_names.index(str(label))
        if isinstance(label, str):
            raise ValueError(f"no label {label!r}; the labels are {listed(self.label_names, 20)}")
        if not -self.size <= label < self.size:
            raise IndexError(f"label {label} is out of range for {self.size} labels")
        return label % self.size

    def support(self, label: str | int) -> tuple[int, int]:
        """How many examples have this label known, and how many of them have it."""
        own = self.labels[:, self.position(label)]
        return int((own != MISSING).sum()), int((own == 1).sum())

    def rows(self, label: str | int) -> Tensor:
        """Positions of the examples whose label is known, (m,)."""
        return self.known[:, self.position(label)].nonzero()[:, 0]

    def label(self, label: str | int) -> Predictions:
        """Predictions of one label, two classes, on the examples where it is known."""
        at, rows = self.position(label), self.rows(label)
        if not len(rows):
            raise ValueError(f"label {self.label_names[at]!r} is not known in any example")
        name = self.label_names[at]
        with without_warnings():
            return Predictions.from_binary(
                self._scores.values[rows, at],
                self.labels[rows, at],
                kind=self.kind,
                weights=None if self.weights is None else self.weights[rows],
                groups=None if self.groups is None else self.groups[rows],
                class_names=(f"not {name}", name),
            )

    def pooled(self) -> Predictions:
        """All known entries as predictions of two classes, example by example.

        Groups are the given ones, or the examples: intervals resample whole examples.
        """
        known = self.known.flatten()
        if not bool(known.any()):
            raise ValueError("no label is known in any example")
        return self._entries if bool(known.all()) else self._entries.take(known)

    @cached_property
    def _entries(self) -> Predictions:
        """All entries, the unknown ones as absent."""
        n, k = self.labels.shape
        groups = torch.arange(n) if self.groups is None else self.groups
        with without_warnings():
            return Predictions.from_binary(
                self._scores.values.flatten(),
                self.labels.flatten().clamp(min=0),
                kind=self.kind,
                weights=None if self.weights is None else self.weights.repeat_interleave(k),
                groups=groups.repeat_interleave(k),
            )

    def take(self, index: Any) -> "MultiLabel":
        """Return the examples at `index`: positions (repeats allowed), or a mask of n booleans."""
        at = checks.as_index(index, examples=len(self))
        with without_warnings():
            return MultiLabel.__new__(MultiLabel)._fill(
                self._scores.take(at),
                self.labels[at],
                None if self.weights is None else self.weights[at],
                None if self.groups is None else self.groups[at],
                self.label_names,
            )

    def split(self, fraction: float, *, seed: int) -> tuple["MultiLabel", "MultiLabel"]:
        """Split at random into two parts, the first with about `fraction` of the examples.

        Groups are not split.
        """
        first = split_mask(len(self), self.groups, fraction, seed=seed)
        return self.take(first), self.take(~first)

    def map(self, calibrator: Callable[[Logits], Tensor]) -> "MultiLabel":
        """Apply a map of log-odds, (n, k), to log-odds, such as a `MultiLabelCalibrator`.

        Probabilities of 0 and 1 are replaced by the `zero_floor` of the calibrator if it has one.
        """
        floor, logits = getattr(calibrator, "zero_floor", None), self.logits
        if self.kind == "probs" and floor is not None:
            logits = self._entries.with_zero_floor(floor).log_odds.reshape(logits.shape)
        mapped = calibrator(logits)
        with without_warnings():
            return MultiLabel(
                mapped,
                self.labels,
                weights=self.weights,
                groups=self.groups,
                label_names=self.label_names,
            )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        logits: str | Sequence[str] | None = None,
        probs: str | Sequence[str] | None = None,
        labels: str | Sequence[str] | None = None,
        ignore: Sequence[str] = (),
        label_names: Sequence[str] | None = None,
        max_expansion: float = 100.0,
    ) -> "MultiLabel":
        """Read an npz, csv, tsv, parquet or safetensors file, or all that match a glob pattern.

        Args:
            path: the file, or a pattern such as `parts/*.parquet`.
            logits: name of the (n, k) array, or the columns of the labels: a list, "z_a,z_b" or a
                pattern such as "z_*". Default: logits, or columns such as logits_cat, logits_dog.
            probs: the same of probabilities.
            labels: the same of the labels. Columns with the same names in another order are put
                into that of the scores. An empty cell of a table is a missing label.
            ignore: names of arrays to skip, or patterns.
            label_names: k names; default: from the names of the columns.
            max_expansion: largest allowed ratio of uncompressed to stored size of an array.

        Like `Predictions.load`, it treats the file as untrusted input.
        """
        columns = labels if labels is None or isinstance(labels, str) else ",".join(labels)
        requested = Requested(logits, probs, labels=columns, ignore=tuple(ignore))
        arrays = read_multi_label(
            path, requested, label_names=label_names, max_expansion=max_expansion
        )
        return multi_label_from_arrays(arrays)

    def save(self, path: str | Path) -> None:
        """Write npz, csv, tsv, parquet or safetensors, by the suffix of `path`; atomic.

        Names: `logits` or `probs`, `labels` with -1 for missing ones, `weights` and `groups` if
        present. The names of the labels are an array in npz files, else part of the columns.
        """
        arrays = named_arrays(
            Path(path),
            {str(self.kind): self._scores.values.numpy(), "labels": self.labels.numpy()},
            self.label_names,
        )
        if self.weights is not None:
            arrays["weights"] = self.weights.numpy()
        if self.groups is not None:
            arrays["groups"] = self.groups.numpy()
        files.write(Path(path), arrays)

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each example: columns `y_<label>` (NaN if missing) and `p_<label>`.

        `weight` and `group` are columns if present.
        """
        pandas = need("pandas", extra="pandas", what="a data frame")
        labels = np.where(self.known.numpy(), self.labels.numpy(), np.nan)
        columns: dict[str, Any] = {}
        for stem, values in (("y", labels), ("p", self.probs.numpy())):
            pairs = zip(self.label_names, values.T, strict=True)
            columns |= {f"{stem}_{name}": own for name, own in pairs}
        if self.weights is not None:
            columns["weight"] = self.weights.numpy()
        if self.groups is not None:
            columns["group"] = self.groups.numpy()
        return pandas.DataFrame(columns)


def multi_label_from_arrays(arrays: PredictionArrays) -> MultiLabel:
    """The arrays of a file, which errors name; without labels, none is known."""
    make = MultiLabel if arrays.names.kind == "logits" else MultiLabel.from_probs
    labels = arrays.labels
    if labels is None:
        labels = np.full(arrays.scores.shape, math.nan)
    try:
        return make(arrays.scores, labels, label_names=arrays.class_names, **arrays.extras)
    except (ValueError, TypeError) as error:
        raise located(arrays.path, error) from None
