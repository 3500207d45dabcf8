"""Isotonic regression: the best-fitting increasing function."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import isotonic_regression
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.calibrators.base import Calibrator, check_tensor, fitting_logits, made_from
from calibrant.calibrators.masks import ever_allowed, infinite_odds, log_softmax, mask_of
from calibrant.calibrators.one_versus_rest import (
    Odds,
    OneVersusRest,
    binary_problems,
    check_probs,
    functions,
    log_odds,
    map_blocks,
)
from calibrant.example_stats import map_chunks
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import warn
from calibrant.shapes import Logits, Values

# With fewer examples of a class isotonic regression mostly fits noise.
FEW = 50

# Log-odds that differ by less are tied: the rounding of float32 probabilities.
TIED = 1e-6

# Knots of a function without examples, which is the identity.
GRID = np.linspace(0.02, 0.98, 49)

# b knots of each of m functions.
Knots = Float[Tensor, "m b"]


class Steps(NamedTuple):
    """An increasing function: knots, such as ends of constant blocks, and its values there."""

    knots: Values
    values: Values


class Blocks(NamedTuple):
    """Pooled examples: sorted scores and weights, and the start and value of each block."""

    scores: Values
    weights: Values
    starts: np.ndarray
    values: Values

    @property
    def ends(self) -> tuple[Values, Values]:
        """Lowest and highest score of each block."""
        return self.scores[self.starts], self.scores[np.append(self.starts[1:], 0) - 1]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class IsotonicRegression(OneVersusRest):
    r"""For each class the increasing function of its probability with the least squared error.

    $$q_j \propto f_j(p_j), \qquad
    f_j = \arg\min_{f\ \mathrm{increasing}} \sum_i w_i\,(1[y_i = j] - f(p_{ij}))^2$$

    The function is constant on blocks, found by pooling adjacent violators, linear in the log-odds
    between blocks (accurate near 1 in float32 as well) and constant beyond the outermost. One
    pseudo-example, spread evenly over the classes, keeps values off 0 and 1, whose NLL can be
    infinite: $(n f + 1 / k) / (n + 1)$. Different probabilities may become equal, so the predicted
    class may change; see `OrderPreservingIsotonic`. Warns if a class has fewer than 50 examples.

    Attributes:
        knots: log-odds at the ends of the blocks, concatenated over functions.
        values: the probability at each knot.
        offsets: start of each function in `knots`, and the end; m + 1 integers.

    References:
        Zadrozny and Elkan, Transforming Classifier Scores into Accurate Multiclass Probability
        Estimates, KDD 2002.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(20_000, seed=0).predictions
        >>> fitted = IsotonicRegression.fit(p)
        >>> round(float(fitted([[0.0, 2.0]])[0, 1].exp()), 1)  # the logit should be 1: 0.73
        0.7
    """

    knots: Tensor
    values: Tensor
    offsets: Tensor

    nonparametric: ClassVar[bool] = True
    # The name in warnings.
    full_name: ClassVar[str] = "isotonic regression"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_offsets(self.offsets, self.classes)
        _check_steps(self.knots, self.values, self.offsets)

    @classmethod
    def fit(cls, predictions: Predictions) -> "IsotonicRegression":
        """Pool adjacent violators, for each class; every class must occur."""
        logits = fitting_logits(predictions, every_class=True)
        possible, classes = ever_allowed(logits), predictions.classes
        labels, weights = predictions.labels.numpy(), predictions.example_weights
        counts = np.bincount(labels, weights=weights, minlength=classes)[possible]
        few = int((counts < FEW).sum())
        if few:
            warn(
                f"{cls.full_name}: {few} of {classes} classes have fewer than {FEW} examples "
                f"(fewest: {counts.min():g}) and will be overfitted; irm or temperature need fewer",
                stacklevel=2,
            )
        problems, share = binary_problems(predictions, logits), 1 / int(possible.sum())

        def of_classes(part: slice) -> list[Steps]:
            own, weights = problems.of(part)
            each = zip(problems.odds[part], own, np.broadcast_to(weights, own.shape), strict=True)
            return [cls._fitted(*one, share) for one in each]

        parts = map_chunks(of_classes, torch.from_numpy(problems.odds))
        fitted = [each for part in parts for each in part]
        knots, values = (
            torch.from_numpy(np.concatenate(each)) for each in zip(*fitted, strict=True)
        )
        offsets = torch.tensor([0, *(len(each.knots) for each in fitted)]).cumsum(0)
        return cls(
            classes=classes,
            knots=knots,
            values=values,
            offsets=offsets,
            origin=made_from(predictions),
        )

    @staticmethod
    def steps(scores: Values, own: np.ndarray, weights: Values) -> Steps:
        """Fit the function of one class, before the pseudo-example."""
        return pooled(scores, own, weights)

    @classmethod
    def _fitted(cls, scores: Values, own: np.ndarray, weights: Values, share: float) -> Steps:
        """Add a pseudo-example of which `share` is the class."""
        total = weights.sum()
        if total == 0:
            return Steps(np.log(GRID / (1 - GRID)), GRID)
        steps = cls.steps(scores, own, weights)
        return Steps(steps.knots, (total * steps.values + share) / (total + 1))

    def map_odds(self, odds: Odds) -> Odds:
        """Log-odds of the interpolated probability."""
        knots = _padded(self.knots.to(odds), self.offsets, torch.inf)
        values = _padded(self.values.to(odds), self.offsets, None)
        probs = interpolated(odds.T.contiguous(), knots, values).T
        # With very many examples the highest value rounds to 1 in float32.
        return probs.log() - torch.log1p(-probs.clamp(max=1 - torch.finfo(odds.dtype).eps / 2))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OrderPreservingIsotonic(Calibrator):
    r"""One increasing function for all classes; preserves the predicted class.

    $$q_j \propto f(p_j), \qquad
    f = \arg\min_{f\ \mathrm{increasing}} \sum_i \sum_j w_i\,(1[y_i = j] - f(p_{ij}))^2$$

    All n k pairs of a probability and its outcome are pooled, so few examples suffice and classes
    need not all occur. Two pseudo-examples make the function positive and strictly increasing,
    one spread evenly over the classes and one equal to the given probability,
    $(n f + 1 / k + p) / (n + 2)$. The order of the classes is therefore that of the logits, also
    after rounding. Between its blocks f is linear in the log-odds. Dividing by the sum is a
    heuristic, as in `OneVersusRest`.

    Attributes:
        knots: (b,) log-odds at the ends of the blocks.
        values: (b,) values of the function there, without the term in p.
        slope: the factor of p, 1 / (n + 2).

    References:
        Zhang et al., Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration
        in Deep Learning, ICML 2020, arXiv:2003.07329: "IRM". Their slope is a constant.
    """

    knots: Tensor
    values: Tensor
    slope: float

    keeps_argmax: ClassVar[bool] = True
    nonparametric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        functions(self.classes)
        if not 0 < self.slope < 1:
            raise ValueError(f"slope must lie between 0 and 1, got {self.slope}")
        if self.knots.ndim != 1 or not len(self.knots):
            raise ValueError(f"knots must be (b,), got {tuple(self.knots.shape)}")
        _check_steps(self.knots, self.values, torch.tensor([0, len(self.knots)]))

    @classmethod
    def fit(cls, predictions: Predictions) -> "OrderPreservingIsotonic":
        """Pool adjacent violators among all classes at once."""
        logits = fitting_logits(predictions)
        weights, classes = predictions.example_weights, predictions.classes
        total = float(weights.sum())
        if total < FEW:
            words = f"isotonic regression overfits {total:g} examples; use {FEW} or more"
            warn(words, stacklevel=2)
        odds = np.empty((len(logits), classes))

        def fill(part: slice) -> None:
            odds[part] = log_odds(logits[part].double()).numpy()

        for _ in map_chunks(fill, logits):
            pass
        own = predictions.labels.numpy()[:, None] == np.arange(classes)
        each, masked = np.repeat(weights, classes), mask_of(logits)
        if masked is not None:
            each[infinite_odds(masked).numpy().ravel()] = 0
        fitted = pooled(odds.ravel(), own.ravel(), each)
        share = 1 / int(ever_allowed(logits).sum())
        return cls(
            classes=classes,
            knots=torch.from_numpy(fitted.knots),
            values=torch.from_numpy((total * fitted.values + share) / (total + 2)),
            slope=1 / (total + 2),
            origin=made_from(predictions),
        )

    def log_probs(self, logits: Logits) -> Logits:
        """Interpolate every probability, and normalise."""
        knots, values = self.knots.to(logits)[None], self.values.to(logits)[None]

        def of_block(block: Logits) -> Logits:
            masked, odds = mask_of(block), log_odds(block)
            if masked is not None:
                odds = odds.masked_fill(masked, 0.0)
            found = interpolated(odds.reshape(1, -1), knots, values).reshape(odds.shape)
            found = found + self.slope * logsigmoid(odds).exp()
            return log_softmax(found.log(), masked)

        return map_blocks(of_block, logits)


def pooled(scores: Values, own: np.ndarray, weights: Values) -> Steps:
    """The best increasing function, with a knot at either end of each block."""
    blocks = pooled_blocks(scores, own, weights)
    first, last = blocks.ends
    knots = np.stack([first, last], 1)
    # A block of one point needs one knot.
    needed = np.stack([np.ones(len(first), dtype=bool), first != last], 1)
    return Steps(knots[needed], np.repeat(blocks.values, needed.sum(1)))


def pooled_blocks(scores: Values, own: np.ndarray, weights: Values) -> Blocks:
    """Pool adjacent violators; scores that differ by rounding are tied and one point."""
    scores, weights, own, starts = sorted_ties(scores, own, weights)
    size = np.add.reduceat(weights, starts)
    mean = np.add.reduceat(np.where(own, weights, 0.0), starts) / size
    fitted = isotonic_regression(mean, weights=size)
    at = fitted.blocks[:-1]
    return Blocks(scores, weights, starts[at], np.clip(fitted.x[at], 0, 1))


def sorted_ties(
    scores: Values, own: np.ndarray, weights: Values
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sort the examples that have weight by score.

    Returns:
        Scores, weights, labels, and where groups of tied scores start.
    """
    if not weights.all():
        used = weights > 0
        scores, own, weights = scores[used], own[used], weights[used]
    order = scores.argsort()
    scores = scores[order]
    return scores, weights[order], own[order], _starts_of_ties(scores)


def _starts_of_ties(scores: Values) -> np.ndarray:
    """Return where groups of tied scores start, in sorted scores.

    Equal probabilities, such as votes of trees, have log-odds that differ in the last digits.
    """
    near = TIED * min(1.0, scores[-1] - scores[0])
    gaps = np.diff(scores)
    starts = np.flatnonzero(np.append(True, gaps > near))
    lengths = np.diff(np.append(starts, len(scores)))
    # Continuous scores that are dense form long chains, which are no ties.
    chained = scores[starts + lengths - 1] - scores[starts] > 2 * near
    inside = np.repeat(chained, lengths)[1:]
    return np.flatnonzero(np.append(True, np.where(inside, gaps > 0, gaps > near)))


def interpolated(odds: Float[Tensor, "m n"], knots: Knots, values: Knots) -> Float[Tensor, "m n"]:
    """Values of m piecewise linear functions, constant beyond their ends, at n points of each."""
    position = torch.searchsorted(knots, odds.detach(), right=True)
    left = (position - 1).clamp(min=0)
    right = position.clamp(max=knots.shape[1] - 1)
    low, high = values.gather(1, left), values.gather(1, right)
    start, end = knots.gather(1, left), knots.gather(1, right)
    # Beyond the outermost knots both ends are equal.
    inside = (end > start) & end.isfinite()
    share = (odds - start) / torch.where(inside, end - start, 1)
    return low + torch.where(inside, (high - low) * share, 0)


def _padded(flat: Tensor, offsets: Tensor, filling: float | None) -> Knots:
    """Pad functions of different lengths to one table, with a number or the last value of each."""
    lengths = offsets.diff().to(flat.device)
    column = torch.arange(int(lengths.max()), device=flat.device)
    index = offsets[:-1, None].to(flat.device) + torch.minimum(column, lengths[:, None] - 1)
    table = flat[index]
    return table if filling is None else table.masked_fill(column >= lengths[:, None], filling)


def check_offsets(offsets: Tensor, classes: int) -> None:
    """Refuse offsets that do not delimit the functions of these classes."""
    if offsets.dtype != torch.int64 or offsets.ndim != 1:
        raise ValueError("offsets must be a 1-D tensor of int64")
    lengths, expected = offsets.diff(), functions(classes)
    if len(lengths) != expected or offsets[0] != 0 or bool((lengths < 1).any()):
        raise ValueError(f"offsets must increase from 0 and delimit {expected} functions")


def _check_steps(knots: Tensor, values: Tensor, offsets: Tensor) -> None:
    """Refuse functions that are not increasing, or not probabilities."""
    check_tensor("knots", knots, (int(offsets[-1]),))
    check_tensor("values", values, (int(offsets[-1]),))
    inner = torch.ones(len(knots), dtype=torch.bool)
    inner[offsets[:-1]] = False
    if bool((knots.diff() <= 0)[inner[1:]].any()):
        raise ValueError("knots must increase within each function")
    if bool((values.diff() < 0)[inner[1:]].any()):
        raise ValueError("values must not decrease within a function")
    check_probs(values)
