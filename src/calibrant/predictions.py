"""Predictions of a classifier on labelled examples: the input of metrics, calibrators, reports."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant import checks, files
from calibrant.advice import located
from calibrant.array_names import Requested
from calibrant.binary_labels import binary_labels
from calibrant.choices import check_offered, option_counts, padded_logits
from calibrant.deprecated import Renamed
from calibrant.example_stats import Chunk, ExampleStats, Scale
from calibrant.extras import need
from calibrant.files.checks import listed
from calibrant.prediction_files import PredictionArrays, read_arrays
from calibrant.scoped_warnings import without_warnings
from calibrant.score_array import Scores, TopLabelScores, fingerprint
from calibrant.shapes import Index, Labels, Logits, PerExample, Values, flatten_dense
from calibrant.table_values import Table, plain_html

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")
# Classes up to which a data frame has a column of probabilities for each.
FRAME_CLASSES = 50


class Predictions:
    """Logits of a classifier on n labelled examples of k classes; validated and immutable.

    Tensors are not copied (half precision is promoted to float32), so do not write into them.

    Args:
        logits: (n, k) scores, tensor or array; -inf masks a class: it is impossible for that
            example, and its probability is exactly 0. Log-probabilities are logits too.
            Probabilities are not: use `from_probs`.
        labels: (n,) class indices, or names if `class_names` is given.
        weights: (n,) sample weights: how many examples each row counts for; 1 if not given.
        groups: (n,) patient, image or user that a row belongs to; splits and bootstrap intervals
            keep groups together.
        class_names: k names, for tables and figures.

    Examples:
        >>> p = Predictions([[2.0, 0.0], [0.0, 1.0]], [0, 0])
        >>> p
        Predictions(2 examples, 2 classes)
        >>> p.predicted.tolist(), p.correct.tolist()
        ([0, 1], [1.0, 0.0])
    """

    labels: Labels
    weights: PerExample | None
    groups: Labels | None
    class_names: tuple[str, ...] | None
    example_stats: ExampleStats
    _scores: Scores

    rows = Renamed()
    row_weights = Renamed()

    def __init__(
        self,
        logits: Any,
        labels: Any,
        *,
        weights: Any = None,
        groups: Any = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        _same_device(logits=logits, labels=labels)
        scores = Scores(checks.as_scores("logits", logits).cpu(), "logits")
        self._fill(scores, labels, weights, groups, class_names)

    @classmethod
    def from_probs(
        cls,
        probs: Any,
        labels: Any,
        *,
        normalize: bool = False,
        zero_floor: float | None = None,
        weights: Any = None,
        groups: Any = None,
        class_names: Sequence[str] | None = None,
    ) -> "Predictions":
        """Wrap (n, k) probabilities.

        They are kept as given, so a confidence of exactly 0.6 stays on the edge of its bin.
        Rows must sum to 1 within 1e-3 (1e-2 for float16, 5e-2 for bfloat16) unless `normalize`.
        A probability of 0 may have been rounded and masks nothing: metrics use it as it is,
        calibrators replace it by `zero_floor`, which a fit estimates if it is not given; see
        `estimated_zero_floor`. To mask a class, pass logits with -inf.
        """
        _same_device(probs=probs, labels=labels)
        given = checks.as_tensor("probs", probs)
        values = checks.as_scores("probs", given).cpu()
        checks.check_probs(
            values, tolerance=checks.SUM_TOLERANCE.get(given.dtype, 1e-3), any_sum=normalize
        )
        if normalize:
            values = values / values.sum(1, keepdim=True)
        scores = Scores(values, "probs", zero_floor)
        return cls.__new__(cls)._fill(scores, labels, weights, groups, class_names)

    @classmethod
    def from_binary(
        cls,
        scores: Any,
        labels: Any,
        *,
        kind: checks.Kind,
        positive: str | int | None = None,
        weights: Any = None,
        groups: Any = None,
        class_names: Sequence[str] | None = None,
    ) -> "Predictions":
        """Wrap (n,) scores of class 1 against class 0.

        Args:
            scores: probability of class 1, or its log-odds.
            labels: 0 or 1, or any two integers or strings.
            kind: what the scores are; it has no default because it is never guessed.
            positive: which of two other labels is class 1; not used with `class_names`.
            weights: see the class.
            groups: see the class.
            class_names: two names.

        Examples:
            >>> Predictions.from_binary([0.9, 0.2], [1, 0], kind="probs").confidence.tolist()
            [0.9, 0.8]
        """
        if kind not in ("probs", "logits"):
            raise ValueError(f"kind must be 'probs' or 'logits', got {kind!r}")
        one = checks.promote_dtype(checks.refuse_bool("scores", checks.as_tensor("scores", scores)))
        if one.ndim == 2 and one.shape[1] == 1:
            one = one[:, 0]
        if one.ndim != 1:
            raise ValueError(f"binary scores must be (n,), got {tuple(one.shape)}")
        if not len(one):
            raise ValueError(f"need at least 1 example, got scores of shape {tuple(one.shape)}")
        if class_names is None:
            labels, class_names = binary_labels(labels, positive)
        extras = {"weights": weights, "groups": groups, "class_names": class_names}
        if kind == "probs":
            checks.check_probs(one[:, None], tolerance=math.inf)
            return cls.from_probs(torch.stack([1 - one, one], 1), labels, **extras)
        return cls(torch.stack([torch.zeros_like(one), one], 1), labels, **extras)

    @classmethod
    def from_dense(
        cls,
        logits: Any,
        labels: Any,
        *,
        ignore_index: int | None = None,
        class_names: Sequence[str] | None = None,
    ) -> "Predictions":
        """Wrap (n, k, h, w) or (n, k, t) logits of pixels or tokens; each position is an example.

        Positions labelled `ignore_index` (255 in most segmentation sets, -100 for text) are
        dropped. `groups` is set to the image, so intervals resample whole images.
        """
        _same_device(logits=logits, labels=labels)
        rows, flat, image = flatten_dense(
            checks.as_tensor("logits", logits).cpu(),
            checks.as_tensor("labels", labels).cpu(),
            ignore_index=ignore_index,
        )
        return cls(rows, flat, groups=image, class_names=class_names)

    @classmethod
    def from_confidence(
        cls, confidence: Any, correct: Any, *, weights: Any = None, groups: Any = None
    ) -> "Predictions":
        """Wrap (n,) confidences of the predicted class, and whether each prediction was correct.

        Enough for accuracy and top-label calibration. Whatever needs the probabilities of all
        classes (`probs`, `logits`, `nll`, `brier`, classwise errors, calibrators) is refused.

        Examples:
            >>> p = Predictions.from_confidence([0.9, 0.4], [True, False])
            >>> p.confidence.tolist(), p.correct.tolist()
            ([0.9, 0.4], [1.0, 0.0])
        """
        values = checks.as_values("confidence", confidence, high=1.0)
        right = checks.as_correct(correct, examples=len(values))
        if not len(values):
            raise ValueError("need at least 1 example, got confidence of shape (0,)")
        scores = TopLabelScores(torch.as_tensor(values)[:, None], "confidence")
        return cls.__new__(cls)._fill(scores, 1 - right, weights, groups, None)

    @classmethod
    def from_choices(
        cls,
        choices: Any,
        labels: Any,
        *,
        lengths: Any = None,
        weights: Any = None,
        groups: Any = None,
        class_names: Sequence[str] | None = None,
    ) -> "Predictions":
        """Wrap log-likelihoods of answer options, whose number may differ between questions.

        Class i is option i of each question. Classes that a question does not have are masked, so
        probabilities are those among its own options.

        Args:
            choices: n lists of log-likelihoods, one for each option; -inf is an impossible option.
            labels: (n,) index of the right option.
            lengths: lengths of the same options in characters, bytes or tokens. Each
                log-likelihood is divided by its length, so that long options have a chance.
            weights: see the class.
            groups: see the class.
            class_names: names of the options, as many as the longest list has.

        Examples:
            >>> p = Predictions.from_choices([[-1.0, -2.0, -4.0], [-3.0, -1.5]], [0, 1])
            >>> p.predicted.tolist(), [round(each, 3) for each in p.probs[1].tolist()]
            ([0, 1], [0.182, 0.818, 0.0])
        """
        extras = {"weights": weights, "groups": groups, "class_names": class_names}
        found = cls(padded_logits(choices, lengths), labels, **extras)
        check_offered(found.labels.tolist(), option_counts(choices))
        return found

    @classmethod
    def concat(cls, parts: Sequence["Predictions"]) -> "Predictions":
        """Concatenate sets of examples of the same classes.

        Groups of different parts stay different, and all parts must have them or none. Weights
        default to 1, class names to those of the parts that have them.
        """
        if not parts:
            raise ValueError("need at least one Predictions to concatenate")
        first = parts[0]
        if any(part.classes != first.classes for part in parts):
            counts = sorted({part.classes for part in parts})
            raise ValueError(f"parts differ in classes: {listed(list(map(str, counts)))}")
        names = list(dict.fromkeys(part.class_names for part in parts if part.class_names))
        if len(names) > 1:
            shown = " and ".join(map(listed, names[:2]))
            raise ValueError(f"parts differ in class_names: {shown}")
        grouped = [part.groups is not None for part in parts]
        if len(set(grouped)) > 1:
            raise ValueError(
                f"part {grouped.index(True)} has groups, part {grouped.index(False)} has none: "
                "pass groups=... to every part or to none"
            )
        if len({part._scores.kind for part in parts}) > 1:
            parts = [part.map(lambda logits: logits) for part in parts]
        weights = groups = None
        if any(part.weights is not None for part in parts):
            weights = torch.cat([torch.from_numpy(part.example_weights) for part in parts])
        if all(grouped):
            sizes = [int(part.groups.max()) + 1 for part in parts if part.groups is not None]
            starts = np.cumsum([0, *sizes[:-1]]).tolist()
            groups = torch.cat(
                [
                    part.groups + start
                    for part, start in zip(parts, starts, strict=True)
                    if part.groups is not None
                ]
            )
        values = torch.cat([part._scores.values for part in parts])
        labels = torch.cat([part.labels for part in parts])
        floors = {part.zero_floor for part in parts}
        floor = floors.pop() if len(floors) == 1 else None
        scores = replace(parts[0]._scores, values=values, zero_floor=floor)
        return _derived(scores, labels, weights, groups, next(iter(names), None))

    def _fill(
        self,
        scores: Scores,
        labels: Any,
        weights: Any,
        groups: Any,
        class_names: Sequence[str] | None,
        stats: ExampleStats | None = None,
    ) -> "Predictions":
        """Validate labels, weights and groups, and set the fields."""
        n, k = scores.values.shape
        if class_names is not None and len(set(class_names)) != k:
            raise ValueError(f"class_names must be {k} different names, got {listed(class_names)}")
        checked = checks.as_labels(
            labels, examples=n, classes=max(k, 2), name=scores.kind, class_names=class_names
        ).cpu()
        if stats is None:
            stats = scores.example_stats(checked)
            bad = stats.confidence.isnan()
            if bad.any():
                checks.refuse_non_finite(scores.kind, scores.values, rows=bad)
        self.__dict__.update(
            labels=checked,
            weights=None if weights is None else checks.as_weights(weights, examples=n).cpu(),
            groups=None if groups is None else checks.as_groups(groups, examples=n),
            class_names=None if class_names is None else tuple(class_names),
            example_stats=stats,
            _scores=scores,
        )
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Predictions are immutable (tried to set {name}); make new ones")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Predictions are immutable (tried to delete {name})")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        if self.top_label_only:
            return f"Predictions({len(self):,} examples, confidence only)"
        return f"Predictions({len(self):,} examples, {self.classes:,} classes)"

    def _repr_html_(self) -> str:
        accuracy, confidence = (
            float(np.average(each.numpy(), weights=self.example_weights))
            for each in (self.correct, self.confidence)
        )
        heads = ["examples", "classes", "accuracy", "mean confidence"]
        row = [f"{len(self):,}", f"{self.classes:,}", f"{accuracy:.4f}", f"{confidence:.4f}"]
        return plain_html(Table.of(heads, [row], caption="Predictions"))

    @property
    def classes(self) -> int:
        """Number of classes k, including classes that never occur; 1 if `top_label_only`."""
        return self._scores.values.shape[1]

    @property
    def top_label_only(self) -> bool:
        """Whether only confidence and correctness of the predicted class are known.

        `labels` are then 0 where the prediction was correct, else 1; `predicted` are all 0.
        """
        return self._scores.kind == "confidence"

    @property
    def logits(self) -> Logits:
        """Logits as given; the log of the probabilities if those were given, (n, k).

        A given probability of 0 becomes the log of `zero_floor`, or of 1e-38 without one; it stays
        below the other classes of its row. Calibrators use the floor of their fit: see `map`.
        """
        return self._scores.logits

    @property
    def zero_probs(self) -> int:
        """How many probabilities were given as exactly 0; masked logits are not counted."""
        return self._scores.zero_probs

    @property
    def zero_floor(self) -> float | None:
        """What replaces a probability of 0 in `logits`, if it was set."""
        return self._scores.zero_floor

    @cached_property
    def estimated_zero_floor(self) -> float | None:
        """What a fit to these examples uses for a probability of 0; None for logits.

        `zero_floor` if it was set. Otherwise the smoothed frequency with which a class of
        probability 0 is the label, (hits + 1/2) / (zeros + 1), or 0.9 times the smallest other
        probability if that is lower, so that zeros stay the lowest.

        Examples:
            >>> p = Predictions.from_probs([[1.0, 0.0], [0.8, 0.2], [1.0, 0.0]], [0, 1, 0])
            >>> round(p.estimated_zero_floor, 4)  # 0 of 2 zeros are labels: 0.5 / 3
            0.1667
        """
        return self._scores.estimated_floor(self.labels, self.example_weights)

    def with_zero_floor(self, zero_floor: float | None) -> "Predictions":
        """Return the same examples with another replacement for probabilities of 0."""
        scores = replace(self._scores, zero_floor=zero_floor)
        return _derived(
            scores, self.labels, self.weights, self.groups, self.class_names, self.example_stats
        )

    @property
    def log_probs(self) -> Logits:
        """Log-probabilities, (n, k); computed at each access."""
        return self._scores.log_probs

    @property
    def probs(self) -> Logits:
        """Class probabilities, (n, k); computed when asked, not kept."""
        return self._scores.probs(self.predicted.numpy())

    def map_scaled(self, work: Callable[[slice, Chunk, Scale], T]) -> Iterator[T]:
        """Apply `work` to a few rows at a time, in threads; results in the order of the rows.

        It gets which rows they are, (m, k) positive numbers and their sums (m,): probabilities are
        the quotient, which is left to `work` because most of them need not be formed.
        """
        return self._scores.map_scaled(work, self.predicted.numpy())

    @property
    def confidence(self) -> PerExample:
        """Probability of the predicted class, float64, (n,)."""
        return self.example_stats.confidence

    @property
    def predicted(self) -> Labels:
        """Most probable class, the first of them if several tie, (n,)."""
        return self.example_stats.predicted

    @cached_property
    def correct(self) -> PerExample:
        """One where the predicted class is the label, else zero, float64, (n,)."""
        right = self.predicted.numpy() == self.labels.numpy()
        return torch.from_numpy(right.astype(np.float64))

    @property
    def label_probs(self) -> PerExample:
        """Probability of the label, float64, (n,)."""
        return self.example_stats.label_prob

    @cached_property
    def log_odds(self) -> PerExample:
        """Log-odds of class 1 of two, float64, (n,); infinite where a class is masked."""
        self._check_two_classes()
        logits = self.logits.double()
        return logits[:, 1] - logits[:, 0]

    @property
    def floored_log_odds(self) -> PerExample:
        """`log_odds` with given probabilities of 0 replaced as in a fit."""
        if not self.zero_probs:
            return self.log_odds
        return self.with_zero_floor(self.estimated_zero_floor).log_odds

    @cached_property
    def positive_probs(self) -> PerExample:
        """Probability of class 1 of two, float64, (n,)."""
        self._check_two_classes()
        if self._scores.kind == "probs":
            return self._scores.values[:, 1].double()
        return torch.sigmoid(self.log_odds)

    def _check_two_classes(self) -> None:
        if self.top_label_only:
            raise ValueError("only the confidence is known: pass the probabilities of both classes")
        if self.classes != 2:
            raise ValueError(f"this needs two classes, got {self.classes}: see `classwise_ece`")

    def with_positive(self, positive: int | str) -> "Predictions":
        """Return two-class predictions whose class 1 is `positive`, an index or a class name.

        Examples:
            >>> p = Predictions.from_probs([[0.9, 0.1]], [0], class_names=["spam", "ham"])
            >>> p.with_positive("spam").positive_probs.tolist()
            [0.9]
        """
        self._check_two_classes()
        names = self.class_names or ()
        if positive in names:
            index = names.index(str(positive))
        elif str(positive) in ("0", "1"):
            index = int(positive)
        else:
            expected = ", ".join([*names, "0", "1"])
            raise ValueError(f"positive must be one of {expected}, got {positive!r}")
        if index == 1:
            return self
        scores = replace(self._scores, values=self._scores.values.flip(1))
        return _derived(
            scores, 1 - self.labels, self.weights, self.groups, names[::-1] or ("1", "0")
        )

    def with_class_order(self, names: Sequence[str]) -> "Predictions":
        """Return the same predictions with the classes in another order, given by their names.

        Examples:
            >>> p = Predictions.from_probs([[0.9, 0.1]], ["cat"], class_names=["cat", "dog"])
            >>> p.with_class_order(["dog", "cat"]).labels.tolist()
            [1]
        """
        own = self.class_names or ()
        if sorted(own) != sorted(names):
            raise ValueError(f"names must be those of the classes, {listed(own)}")
        order = [own.index(name) for name in names]
        position = torch.tensor([list(names).index(name) for name in own])
        scores = replace(self._scores, values=self._scores.values[:, order].contiguous())
        return _derived(scores, position[self.labels], self.weights, self.groups, tuple(names))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the scores, labels and weights, in hexadecimal.

        It depends on the order of the examples and on the dtype, not on the file format.
        """
        return fingerprint(self._scores.values, self.labels, self.weights)

    @cached_property
    def by_confidence(self) -> Index:
        """Positions of the examples from the least to the most confident, (n,)."""
        return self.confidence.numpy().argsort(kind="stable")

    @cached_property
    def by_log_odds(self) -> Index:
        """Positions of two-class examples by ascending log-odds of class 1, (n,)."""
        return self.log_odds.numpy().argsort(kind="stable")

    @property
    def example_weights(self) -> Values:
        """The weights, or ones, (n,)."""
        return np.ones(len(self)) if self.weights is None else self.weights.numpy()

    def take(self, index: Any) -> "Predictions":
        """Return the examples at `index`: positions (repeats allowed), or a mask of n booleans."""
        at = checks.as_index(index, examples=len(self))
        return _derived(
            self._scores.take(at),
            self.labels[at],
            None if self.weights is None else self.weights[at],
            None if self.groups is None else self.groups[at],
            self.class_names,
            self.example_stats.take(at),
        )

    def reweighted(self, weights: Any) -> "Predictions":
        """Return the same examples with other sample weights."""
        return Predictions.__new__(Predictions)._fill(
            self._scores, self.labels, weights, self.groups, self.class_names, self.example_stats
        )

    def relabelled(self, labels: Any) -> "Predictions":
        """Return the same scores with other labels."""
        checked = checks.as_labels(
            labels, examples=len(self), classes=max(self.classes, 2), name=self._scores.kind
        )
        return _derived(
            self._scores,
            checked,
            self.weights,
            self.groups,
            self.class_names,
            self._scores.relabelled_stats(self.example_stats, checked),
        )

    def split(self, fraction: float, *, seed: int) -> tuple["Predictions", "Predictions"]:
        """Split at random into two parts, the first with about `fraction` of the examples.

        Groups are not split, so pixels of one image are never in both parts.
        """
        first = split_mask(len(self), self.groups, fraction, seed=seed)
        return self.take(first), self.take(~first)

    def map(self, calibrator: Callable[[Logits], Tensor]) -> "Predictions":
        """Apply a calibrator to the logits.

        Probabilities of 0 are replaced by the `zero_floor` of the calibrator, which its fit
        recorded; by that of these predictions if it has none.
        """
        scores, floor = self._scores, getattr(calibrator, "zero_floor", None)
        if scores.kind == "probs" and floor is not None:
            scores = replace(scores, zero_floor=floor)
        mapped = calibrator(scores.logits)
        with without_warnings():
            return Predictions(
                mapped,
                self.labels,
                weights=self.weights,
                groups=self.groups,
                class_names=self.class_names,
            )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        logits: str | Sequence[str] | None = None,
        probs: str | Sequence[str] | None = None,
        confidence: str | None = None,
        correct: str | None = None,
        labels: str | None = None,
        ignore: Sequence[str] = (),
        class_names: Sequence[str] | None = None,
        positive: str | int | None = None,
        normalize: bool = False,
        ignore_index: int | None = None,
        max_expansion: float = 100.0,
    ) -> "Predictions":
        """Read an npz, csv, tsv, parquet or safetensors file, or all that match a glob pattern.

        Args:
            path: the file, or a pattern such as `parts/*.parquet`.
            logits: name of the array or column with logits, or several columns, one for each
                class: a list, "a,b,c", or a pattern such as "z*".
            probs: the same of probabilities. Without either, `logits` or `probs` is read,
                whichever the file has; a table may also have columns such as p0, p1, ... or
                logit_0, logit_1, ... A 1-D array is the score of class 1 of two; (n, k, ...) are
                pixels or tokens, as in `from_dense`.
            confidence: name of the confidence of the predicted class, as in `from_confidence`.
            correct: name of the correctness; default: correct.
            labels: name of the labels, indices or class names; default: labels, or in a table
                label, y, target or y_true. `weights` and `groups` are read if present.
            ignore: names of arrays to skip, or patterns such as `*_val`. Other unknown names are
                an error in npz and safetensors files, which detects damaged names, and a warning
                in csv and parquet files.
            class_names: k names; default: from columns such as p_cat, p_dog.
            positive: of scores in one column, the class they score, if labels are not 0 and 1.
            normalize: divide probabilities by their sums.
            ignore_index: drop positions with this label.
            max_expansion: largest allowed ratio of uncompressed to stored size of an array.

        The file is treated as untrusted input: object arrays are refused, sizes are checked
        before memory is allocated, checksums are verified where the format has them.
        """
        requested = Requested(logits, probs, confidence, correct, labels, tuple(ignore))
        arrays = read_arrays(
            path,
            requested,
            class_names=class_names,
            positive=positive,
            max_expansion=max_expansion,
        )
        return from_arrays(arrays, normalize=normalize, ignore_index=ignore_index)

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each example: label, predicted, confidence, correct, and what else is known.

        `weight` and `group` are columns if present, and so are the probabilities, `p_<class>`, of
        up to 50 classes. Classes are names if there are any, else indices.
        """
        pandas = need("pandas", extra="pandas", what="a data frame")
        names = np.asarray(self.class_names or range(self.classes))
        columns: dict[str, Any] = {}
        if not self.top_label_only:
            columns["label"] = names[self.labels.numpy()]
            columns["predicted"] = names[self.predicted.numpy()]
        columns["confidence"] = self.confidence.numpy()
        columns["correct"] = self.correct.numpy() > 0
        if self.weights is not None:
            columns["weight"] = self.weights.numpy()
        if self.groups is not None:
            columns["group"] = self.groups.numpy()
        if not self.top_label_only and self.classes <= FRAME_CLASSES:
            columns |= {f"p_{n}": p for n, p in zip(names, self.probs.numpy().T, strict=True)}
        return pandas.DataFrame(columns)

    def save(self, path: str | Path) -> None:
        """Write npz, csv, tsv, parquet or safetensors, by the suffix of `path`; atomic.

        Names: `logits` or `probs`, `labels`, and `weights` and `groups` if present; `confidence`
        and `correct` where only these are known.
        """
        if self.top_label_only:
            arrays = {"confidence": self.confidence.numpy(), "correct": self.correct.numpy() > 0}
        else:
            arrays = {str(self._scores.kind): self._scores.values.numpy()}
            arrays["labels"] = self.labels.numpy()
        if self.weights is not None:
            arrays["weights"] = self.weights.numpy()
        if self.groups is not None:
            arrays["groups"] = self.groups.numpy()
        files.write(Path(path), arrays)


def _derived(*fields: Any) -> Predictions:
    """Make predictions of others; weights that were given are not warned about again."""
    with without_warnings():
        return Predictions.__new__(Predictions)._fill(*fields)


def split_mask(examples: int, groups: Labels | None, fraction: float, *, seed: int) -> np.ndarray:
    """Which examples belong to the first of two parts; groups are not split."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie strictly between 0 and 1, got {fraction}")
    generator = np.random.default_rng(seed)
    if groups is None:
        first = np.zeros(examples, dtype=bool)
        first[generator.permutation(examples)[: round(fraction * examples)]] = True
    else:
        sizes = np.bincount(groups.numpy())
        order = generator.permutation(len(sizes))
        chosen = np.cumsum(sizes[order]) - sizes[order] / 2 < fraction * examples
        first = np.isin(groups.numpy(), order[chosen])
    if first.all() or not first.any():
        raise ValueError(f"a fraction of {fraction} leaves one part empty; use another fraction")
    return first


def from_arrays(
    arrays: PredictionArrays, *, normalize: bool = False, ignore_index: int | None = None
) -> Predictions:
    """Predictions of the arrays of a file, which errors name; without labels, all are 0."""
    try:
        return _of_arrays(arrays, normalize, ignore_index)
    except (ValueError, TypeError) as error:
        raise located(arrays.path, error) from None


def slices_from_arrays(
    arrays: PredictionArrays, *, ignore_index: int | None = None
) -> dict[str, np.ndarray]:
    """Columns of slices of a file, with a value for each example of `from_arrays`."""
    scores, labels = arrays.scores, arrays.class_labels
    for name, values in arrays.slices.items():
        if values.shape != (len(scores),):
            raise ValueError(
                f"{arrays.path}: {name!r} must have the shape ({len(scores)},), got {values.shape}"
            )
    if labels is None:
        labels = np.zeros((len(scores), *scores.shape[2:]), np.int64)
    if scores.ndim > 2 or (ignore_index is not None and labels.dtype.kind in "fiu"):
        rows = _kept(scores, labels, ignore_index)[2]
        return {name: values[rows] for name, values in arrays.slices.items()}
    return arrays.slices


def _of_arrays(arrays: PredictionArrays, normalize: bool, ignore_index: int | None) -> Predictions:
    kind, scores = arrays.names.kind, arrays.scores
    extras: dict[str, Any] = dict(arrays.extras)
    if kind == "confidence":
        return Predictions.from_confidence(scores, arrays.labels, **extras)
    names = arrays.class_names
    dense = scores.ndim > 2
    shape = (len(scores), *scores.shape[2:])
    labels, positive = arrays.class_labels, arrays.positive
    if labels is None:
        labels, positive = np.zeros(shape, np.int64), None
    if dense or (ignore_index is not None and labels.dtype.kind in "fiu"):
        scores, labels, image = _kept(scores, labels, ignore_index)
        if dense and "weights" in extras:
            raise ValueError(f"scores of shape {arrays.scores.shape} take no weights")
        extras = {name: values[image] for name, values in extras.items()}
        extras = {"groups": image} | extras if dense else extras
    if scores.ndim == 1 or scores.shape[1] == 1:
        extras |= {"positive": positive, "class_names": names}
        return Predictions.from_binary(scores, labels, kind=kind, **extras)
    if kind == "logits":
        return Predictions(scores, labels, class_names=names, **extras)
    return Predictions.from_probs(scores, labels, normalize=normalize, class_names=names, **extras)


def _kept(
    scores: np.ndarray, labels: np.ndarray, ignore_index: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and rows of the file of all positions that are not ignored."""
    if scores.ndim > 2:
        given = checks.as_tensor("scores", scores), checks.as_tensor("labels", labels).long()
        rows, flat, image = flatten_dense(*given, ignore_index=ignore_index)
        return rows.numpy(), flat.numpy(), image.numpy()
    keep = np.flatnonzero(labels != ignore_index)
    return scores[keep], labels[keep], keep


def _same_device(**values: Any) -> None:
    devices = {name: value.device for name, value in values.items() if isinstance(value, Tensor)}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"tensors must be on one device, got {where}")
