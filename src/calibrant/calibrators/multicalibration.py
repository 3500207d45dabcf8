"""Multicalibration: boosted trees that remove errors of segments of given columns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics
from calibrant.calibrators.base import Calibrator, Fit
from calibrant.calibrators.boosted_trees import MOST_ROUNDS, BoostedTrees, Scores, no_trees
from calibrant.calibrators.boosting import Boosting, advance, log_probs_of, losses
from calibrant.calibrators.column_codes import ColumnCode, coded
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.selection import fold_of
from calibrant.calibrators.slice_estimates import CrossValidation
from calibrant.example_columns import ExampleColumn, example_columns
from calibrant.predictions import Predictions
from calibrant.progress import steps
from calibrant.scoped_warnings import without_warnings
from calibrant.setting_errors import did_you_mean
from calibrant.shapes import Logits, Values
from calibrant.table_values import Table, plain_html

# Calibrators that the trees can start from.
STARTS = ("identity", "temperature", "platt", "beta", "vector")
MOST_CLASSES = 50
# Rounds tried at most, and those without a gain after which the search ends.
TRIED, PATIENCE = 20, 2
# With more examples a single fold is held out.
MANY = 100_000


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MultiCalibrator:
    r"""Calibration within all segments of given columns at once, by gradient boosting.

    $$f_0 = \mathrm{logit}\, g(p), \qquad f_{t+1}(x) = f_t(x) + T_t(x, f_t(x))$$

    Each round T is a sum of small regression trees on the columns x and the current log-odds f,
    fitted to the log loss. So errors shrink in every segment that trees can describe (a region, an
    interval of age, both), and at every level of the predictions within it. A calibrator g of all
    examples comes first. The number of rounds has the lowest cross-validated log loss; if trees
    are not better by one standard error it is 0, and g alone is used, or nothing if g is no better
    either. Few slices that do not overlap are simpler with `SlicedCalibrator`.

    Categories are ordered by their mean error in the fit. Unseen and missing values go where
    those of the fit went, or with the majority. For k > 2 classes the trees add to the
    log-probabilities of each class (softmax gradient). It is no `Calibrator`: it needs the
    columns of each row. Weights count as copies, approximately: the histogram bins of LightGBM
    depend on the rows alone. Fitting needs LightGBM; applying and loading do not.

    Attributes:
        overall: calibrator g of all examples.
        codes: how columns become features.
        trees: rounds of trees; the features are the columns and the current scores.
        cross_validation: held-out NLL of g alone (`overall`) and with the trees (`sliced`); both
            are the same without trees.

    References:
        Tax et al., MCGrad: Multicalibration at Web Scale, 2025, arXiv:2509.19884.
        Hebert-Johnson et al., Multicalibration: Calibration for the (Computationally-Identifiable)
            Masses, ICML 2018.
    """

    overall: Calibrator
    codes: tuple[ColumnCode, ...]
    trees: BoostedTrees
    cross_validation: CrossValidation

    def __post_init__(self) -> None:
        if len(set(self.columns)) < len(self.codes) or not self.codes:
            raise ValueError("need one or more different columns")
        if not 2 <= self.classes <= MOST_CLASSES:
            raise ValueError(f"multicalibration takes 2 to {MOST_CLASSES} classes")
        if self.trees.features != len(self.codes) + self._outputs:
            raise ValueError("features of the trees must be the columns and the scores")
        if len(self.trees.outputs) and int(self.trees.outputs.max()) >= self._outputs:
            raise ValueError(f"outputs must be below {self._outputs}")

    @classmethod
    def fit(
        cls,
        predictions: Predictions,
        columns: Any,
        *,
        start: str | None = None,
        rounds: int | None = None,
        folds: int = 5,
        seed: int = 0,
        progress: Callable[[], None] | None = None,
    ) -> "MultiCalibrator":
        """Fit to labelled held-out examples; needs LightGBM.

        Args:
            predictions: held-out examples; groups are not split by cross-validation.
            columns: a dict of columns of n values, or a data frame: numbers, strings or booleans;
                some may be missing.
            start: calibrator g, by default platt of two classes, else temperature.
            rounds: number of rounds; by default chosen by cross-validation.
            folds: number of folds; of more than 100,000 examples only one is held out.
            seed: seed of the folds and of the trees.
            progress: called after each fold of each round.
        """
        name = start or ("platt" if predictions.classes == 2 else "temperature")
        if name not in STARTS:
            raise ValueError(f"cannot start from {name!r}; {did_you_mean(name, STARTS)}")
        if predictions.top_label_only or predictions.classes > MOST_CLASSES:
            raise ValueError(
                f"multicalibration takes 2 to {MOST_CLASSES} classes, got {predictions.classes}; "
                "use SlicedCalibrator"
            )
        if rounds is not None and not 0 <= rounds <= MOST_ROUNDS:
            raise ValueError(f"rounds must lie between 0 and {MOST_ROUNDS}, got {rounds}")
        found = example_columns(columns, examples=len(predictions))
        overall = CALIBRATORS[name].fit(predictions)
        choice = CrossValidation(0, *[float("nan")] * 5)
        if rounds is None:
            held = _HeldOut(predictions, found, type(overall), folds, seed)
            rounds, keeps_start, choice = held.choose(progress)
            if not keeps_start:
                overall = CALIBRATORS["identity"].fit(predictions)
        boosting = _boosting(predictions, found, overall, seed)
        for _ in range(rounds):
            boosting.step()
        return cls(
            overall=overall,
            codes=boosting.codes,
            trees=boosting.trees() if rounds else no_trees(_width(found, predictions)),
            cross_validation=choice,
        )

    @property
    def classes(self) -> int:
        """Number of classes k."""
        return self.overall.classes

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(code.name for code in self.codes)

    @property
    def rounds(self) -> int:
        """Number of rounds of trees."""
        return len(self.trees.rounds)

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
        """Whether it preserves the predicted class: not if there are trees."""
        return self.overall.keeps_argmax and self.rounds == 0

    @property
    def _outputs(self) -> int:
        return 1 if self.classes == 2 else self.classes

    def at(self, columns: Any, *, examples: int) -> "ColumnMap":
        """The map of the rows with these columns; others than those of the fit are not used."""
        return ColumnMap(self, example_columns(columns, examples=examples))

    def map(self, predictions: Predictions, columns: Any) -> Predictions:
        """Calibrate predictions, given the columns of each example as in `fit`."""
        return predictions.map(self.at(columns, examples=len(predictions)))

    def __repr__(self) -> str:
        what = "no trees"
        if self.rounds:
            what = f"{counted(self.rounds, 'round')}, {counted(len(self.trees.sizes), 'tree')}"
        return f"MultiCalibrator({self.overall!r} by {', '.join(self.columns)}: {what})"

    def _repr_html_(self) -> str:
        uses = np.bincount(self.trees.arrays["feature"] + 1, minlength=self.trees.features + 1)[1:]
        rows = [
            (code.name, "numeric" if code.categories is None else len(code.categories), count)
            for code, count in zip(self.codes, uses.tolist(), strict=False)
        ]
        heads = ("column", "categories", "splits")
        return plain_html(Table.of(heads, rows, numbers=heads[1:], caption=repr(self)))


@dataclass(frozen=True, eq=False)
class ColumnMap:
    """A multicalibrator for rows of known columns: a map of their logits."""

    calibrator: MultiCalibrator
    columns: tuple[ExampleColumn, ...]

    @property
    def zero_floor(self) -> float | None:
        """What replaces probabilities of exactly 0."""
        return self.calibrator.zero_floor

    def __call__(self, logits: Logits) -> Tensor:
        """Log-probabilities of the rows, (n, k), float64."""
        given = self.calibrator
        if len(logits) != len(self.columns[0].values):
            raise ValueError(f"expected {len(self.columns[0].values):,} rows, got {len(logits):,}")
        attributes = coded(self.columns, given.codes)
        start = given.overall(logits.double())
        if not given.rounds:
            return start
        scores = scores_of(start)
        for at in range(given.rounds):
            advance(given.trees, at, attributes, scores)
        return torch.from_numpy(log_probs_of(scores))


def scores_of(log_probs: Tensor) -> Scores:
    """Scores to boost: log-odds of class 1 of two, (n, 1), else log-probabilities, (n, k)."""
    values = log_probs.numpy().astype(np.float64)
    return values[:, 1:] - values[:, :1] if values.shape[1] == 2 else values


def counted(count: int, noun: str) -> str:
    """A number and its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _width(columns: tuple[ExampleColumn, ...], predictions: Predictions) -> int:
    return len(columns) + (1 if predictions.classes == 2 else predictions.classes)


def _boosting(
    predictions: Predictions, columns: tuple[ExampleColumn, ...], overall: Calibrator, seed: int
) -> Boosting:
    """Start from a calibrator; rows of two classes of which one is masked take no part."""
    floored = predictions.with_zero_floor(overall.zero_floor)
    scores = scores_of(overall(floored.logits.double()))
    kept = np.isfinite(scores).any(1) & (predictions.example_weights > 0)
    return Boosting(
        taken(columns, kept),
        scores[kept],
        predictions.labels.numpy()[kept],
        predictions.example_weights[kept],
        seed,
    )


def taken(columns: tuple[ExampleColumn, ...], rows: np.ndarray) -> tuple[ExampleColumn, ...]:
    """The columns of some rows, given as a mask."""
    return tuple(ExampleColumn(each.name, each.values[rows]) for each in columns)


def held_out_folds(examples: int, folds: int) -> int:
    """The number of folds that are held out: one of many examples."""
    return 1 if examples > MANY else folds


class _Choice(NamedTuple):
    """The number of rounds, whether the start is better than nothing, and held-out losses."""

    rounds: int
    keeps_start: bool
    scores: CrossValidation


class _HeldOut:
    """Held-out log loss after each round, on the same folds."""

    def __init__(
        self,
        predictions: Predictions,
        columns: tuple[ExampleColumn, ...],
        kind: type[Calibrator],
        folds: int,
        seed: int,
    ) -> None:
        self.predictions, self.seed = predictions, seed
        fold = fold_of(predictions, folds=folds, seed=seed)
        self.folds = held_out_folds(len(predictions), folds)
        self.rows = np.flatnonzero(fold < self.folds)
        self.parts: list[tuple[Boosting, Callable[[], Scores], np.ndarray]] = []
        k = predictions.classes
        self.scores = np.empty((len(predictions), 1 if k == 2 else k))
        self.identity = np.empty_like(self.scores)
        with without_warnings():
            for number in range(self.folds):
                out = fold == number
                part = predictions.take(~out)
                overall = kind.fit(part)
                boosting = _boosting(part, taken(columns, ~out), overall, seed)
                held = predictions.take(out).with_zero_floor(overall.zero_floor).logits.double()
                self.identity[out] = scores_of(held.log_softmax(1))
                self.scores[out] = scores_of(overall(held))
                path = boosting.path(taken(columns, out), self.scores[out])
                self.parts.append((boosting, path, out))

    def choose(self, progress: Callable[[], None] | None) -> _Choice:
        """The number of rounds with the lowest loss; 0 if trees are not clearly better.

        Without trees the start is kept if it is clearly better than the predictions themselves.
        """
        first, after = self.scores.copy(), [self._losses(self.scores[self.rows])]
        best = self.scores.copy()
        means = [self._mean(after[0])]
        with steps(progress, TRIED * self.folds, "cross-validating rounds") as step:
            while len(means) <= TRIED and len(means) - 1 - int(np.argmin(means)) < PATIENCE:
                for boosting, path, out in self.parts:
                    boosting.step()
                    self.scores[out] = path()
                    step()
                after.append(self._losses(self.scores[self.rows]))
                means.append(self._mean(after[-1]))
                if means[-1] == min(means):
                    best = self.scores.copy()
        rounds = int(np.argmin(means))
        keeps_start = True
        if not self._is_better(after[rounds], after[0]):
            keeps_start = self._is_better(after[0], self._losses(self.identity[self.rows]))
            rounds = 0
            first = best = first if keeps_start else self.identity
        one, own = self._predicted(first), self._predicted(best)
        gap = metrics.compare(metrics.nll, own, one, seed=self.seed)
        values = metrics.nll(one), metrics.nll(own)
        scores = CrossValidation(self.folds, *values, gap.low, gap.high, gap.p_value)
        return _Choice(rounds, keeps_start, scores)

    def _predicted(self, scores: Scores) -> Predictions:
        found = torch.from_numpy(log_probs_of(scores[self.rows]))
        return self.predictions.take(self.rows).map(lambda _: found)

    def _losses(self, scores: Scores) -> Values:
        return losses(scores, self.predictions.labels.numpy()[self.rows])

    def _mean(self, loss: Values) -> float:
        return float(np.average(loss, weights=self.predictions.example_weights[self.rows]))

    def _is_better(self, loss: Values, than: Values) -> bool:
        """Whether the mean loss is lower by more than its standard error, groups being whole."""
        weights = self.predictions.example_weights[self.rows]
        gap = weights * (loss - than)
        if self.predictions.groups is not None:
            _, at = np.unique(self.predictions.groups.numpy()[self.rows], return_inverse=True)
            gap = np.bincount(at, gap)
        spread = float(np.sqrt(((gap - gap.mean()) ** 2).sum()))
        return bool(gap.sum() < -spread)
