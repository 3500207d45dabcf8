"""Fit of multicalibration: rounds of boosted trees on the columns and the current scores."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64

from calibrant.calibrators.boosted_trees import BoostedTrees, Features, Scores, joined
from calibrant.calibrators.column_codes import Attributes, ColumnCode, coded, codes_of
from calibrant.example_columns import ExampleColumn
from calibrant.extras import need
from calibrant.shapes import Index, Values

LogProbs = Float64[np.ndarray, "n k"]

# Trees of a round, per output; their size, and the shrinkage of each.
TREES, LEAVES, RATE = 30, 4, 0.05
# Smallest sum of w p (1 - p) of a leaf, and the penalty of its value.
LEAST, PENALTY = 20.0, 1.0
# Score of a masked class: its probability is exactly 0.
MASKED = -1e4


@dataclass(eq=False)
class Boosting:
    """Rounds of boosted trees, one after the other; scores and rows are those of the fit.

    Attributes:
        columns: attributes of the rows.
        scores: log-odds of class 1, (n, 1), or log-probabilities of k > 2 classes, (n, k).
        labels: (n,).
        weights: (n,).
        seed: seed of LightGBM.
        rounds: the trees so far.
    """

    columns: tuple[ExampleColumn, ...]
    scores: Scores
    labels: Index
    weights: Values
    seed: int
    codes: tuple[ColumnCode, ...] = ()
    rounds: list[list[tuple[int, dict[str, Any]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        residual, variance = self._residuals()
        self.codes = codes_of(self.columns, residual, variance, self.weights)
        self.attributes = coded(self.columns, self.codes)

    def step(self) -> None:
        """Add one round."""
        lightgbm = need("lightgbm", extra="multicalibration", what="multicalibration")
        features = with_scores(self.attributes, self.scores)
        outputs = self.scores.shape[1]
        start = np.maximum(self.scores, MASKED)
        data = lightgbm.Dataset(
            features,
            label=self.labels,
            weight=self.weights,
            init_score=start[:, 0] if outputs == 1 else start,
            free_raw_data=True,
        )
        booster = lightgbm.train(self._settings(outputs), data, num_boost_round=TREES)
        grown = [
            (at % outputs, tree["tree_structure"])
            for at, tree in enumerate(booster.dump_model()["tree_info"])
            if tree["num_leaves"] > 1
        ]
        if not grown:
            # No split gains anything: a tree of one leaf keeps the number of the round.
            grown = [(0, {"leaf_value": 0.0})]
        self.rounds.append(grown)
        advance(joined([grown], features.shape[1]), 0, self.attributes, self.scores)

    def _settings(self, outputs: int) -> dict[str, Any]:
        kind = {"objective": "binary"} if outputs == 1 else {"objective": "multiclass"}
        return kind | {
            "num_class": outputs,
            "boost_from_average": False,
            "learning_rate": RATE,
            "num_leaves": LEAVES,
            "min_sum_hessian_in_leaf": LEAST,
            # Rows are not counted: one of weight 2 is two examples.
            "min_data_in_leaf": 1,
            "min_data_in_bin": 1,
            "lambda_l2": PENALTY,
            "seed": self.seed,
            "deterministic": True,
            "force_col_wise": True,
            "verbosity": -1,
        }

    def _residuals(self) -> tuple[np.ndarray, np.ndarray]:
        """One-hot label minus probability, and the variance of a label, (n, outputs)."""
        outputs = self.scores.shape[1]
        probs = np.exp(log_probs_of(self.scores))
        if outputs == 1:
            happened = (self.labels == 1).astype(np.float64)[:, None]
            probs = probs[:, 1:]
        else:
            happened = np.eye(outputs)[self.labels]
        return happened - probs, probs * (1 - probs)

    def trees(self) -> BoostedTrees:
        """The rounds as arrays."""
        return joined(self.rounds, self.attributes.shape[1] + self.scores.shape[1])

    def path(self, columns: tuple[ExampleColumn, ...], scores: Scores) -> Callable[[], Scores]:
        """A function that gives other rows the trees of the last round, each time it is called."""
        attributes, current = coded(columns, self.codes), scores.copy()

        def last() -> Scores:
            trees = joined([self.rounds[-1]], attributes.shape[1] + current.shape[1])
            advance(trees, 0, attributes, current)
            return current

        return last


def with_scores(attributes: Attributes, scores: Scores) -> Features:
    """Features of a round: the columns, and the current scores; NaN for masked classes."""
    return np.hstack([attributes, np.where(np.isfinite(scores), scores, np.nan)])


def advance(trees: BoostedTrees, at: int, attributes: Attributes, scores: Scores) -> None:
    """Add a round to the scores, in place; log-probabilities are normalised."""
    trees.add(at, with_scores(attributes, scores), scores)
    if scores.shape[1] > 1:
        scores[:] = log_probs_of(scores)


def log_probs_of(scores: Scores) -> LogProbs:
    """Log-probabilities of all classes, from log-odds, (n, 1), or scores, (n, k)."""
    if scores.shape[1] == 1:
        return np.hstack([-np.logaddexp(0, scores), -np.logaddexp(0, -scores)])
    top = scores.max(1, keepdims=True)
    return np.asarray(scores - top - np.log(np.exp(scores - top).sum(1, keepdims=True)))


def losses(scores: Scores, labels: Index) -> Values:
    """Log loss of each row, (n,)."""
    return np.asarray(-log_probs_of(scores)[np.arange(len(labels)), labels])
