"""Choose among calibrators by cross-validation, on a proper score."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from calibrant import metrics
from calibrant.calibrators.base import Calibrator, fitting_logits
from calibrant.calibrators.blend import blended
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.metrics import Difference
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import without_warnings
from calibrant.shapes import Index

# Proper scores: the truth has the best expected value. Calibration errors are not, and the least
# of them is reached by answering the base rates.
CRITERIA: dict[str, Callable[[Predictions], float]] = {"nll": metrics.nll, "brier": metrics.brier}
# A simpler calibrator is taken if it loses no more than this part of the score, and if the
# examples cannot tell the two apart.
TOLERANCE = 0.002
# The same for a part of the blend, which is not chosen but averaged with the others.
BLENDED = 0.01


@dataclass(frozen=True)
class Candidate:
    """One calibrator of a selection, measured on examples it was not fitted to.

    Attributes:
        name: in `CALIBRATORS`.
        score: the criterion over all folds.
        behind: by how much it is worse than the best score, paired, with its interval; None for
            the one with the best score.
        size: how many numbers it fits.
        keeps_argmax: whether the predicted class is always kept.
    """

    name: str
    score: float
    behind: Difference | None
    size: int
    keeps_argmax: bool


@dataclass(frozen=True)
class Selection:
    """What `select` found; prints as a table.

    Attributes:
        name: of the choice.
        best: the choice, fitted to all examples.
        criterion: the proper score it is ranked by.
        folds: in how many parts the examples were cut.
        rows: the candidates, best score first.
        skipped: name to reason, for those that could not be fitted.
        ties: names of the parts of `blend`, best score first; the choice is one of them.
        examples: what was selected on.
    """

    name: str
    best: Calibrator
    criterion: str
    folds: int
    rows: tuple[Candidate, ...]
    skipped: Mapping[str, str]
    ties: tuple[str, ...]
    examples: Predictions = field(repr=False, compare=False)

    @cached_property
    def blend(self) -> Calibrator:
        """The mean of all that tie, fitted to all examples when first asked for.

        Where nothing ties with the choice it is the choice itself.
        """
        others = {m: CALIBRATORS[m].fit(self.examples) for m in self.ties if m != self.name}
        return blended([others.get(name, self.best) for name in self.ties])

    def __str__(self) -> str:
        heads = f"{'calibrator':24} {self.criterion:>8}  {'behind the best':28} {'numbers':>8}"
        lines = [f"{self.folds} folds, ranked by {self.criterion} on held-out examples", heads]
        for row in self.rows:
            gap = row.behind
            behind = "-" if gap is None else f"{gap.value:.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"
            lines.append(f"{row.name:24} {row.score:8.4f}  {behind:28} {row.size:8,}")
        lines += [f"left out: {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([*lines, self.verdict])

    @property
    def verdict(self) -> str:
        """One sentence: what was chosen, and why."""
        first = self.rows[0]
        own = next(row for row in self.rows if row.name == self.name)
        if own.behind is None:
            return f"chosen: {self.name}, the best {self.criterion}"
        why = "simpler" if own.size < first.size else "a formula and not a free curve"
        return (
            f"chosen: {self.name}, {why}, and within the noise of {first.name} "
            f"({own.behind.value:.4f} [{own.behind.low:+.4f}, {own.behind.high:+.4f}])"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "chosen": self.name,
            "criterion": self.criterion,
            "folds": self.folds,
            "candidates": [asdict(row) for row in self.rows],
            "skipped": dict(self.skipped),
            "ties": list(self.ties),
            "verdict": self.verdict,
        }


def select(
    predictions: Predictions,
    *,
    folds: int = 5,
    criterion: str = "nll",
    candidates: Sequence[str] | None = None,
    keep_argmax: bool = False,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Selection:
    """Fit every calibrator to parts of the examples, measure it on the rest, choose one.

    Ranked by a proper score over held-out folds. The one with the best score is chosen, unless a
    simpler one (fewer fitted numbers) is within 0.2 % of its score and the interval of the paired
    difference holds zero: then the simplest of those. Free curves (isotonic, histogram), whose
    scores vary most, have to be better than every formula beyond the interval. The choice is
    fitted to all examples. `blend` of the result averages all, free curves too, that are within
    1 % of the score and not worse beyond the interval.

    Args:
        predictions: held-out examples, not those the network was trained on.
        folds: parts; whole groups go into one part if there are groups.
        criterion: "nll" or "brier".
        candidates: names in `CALIBRATORS`; all if not given.
        keep_argmax: consider only those that never change the predicted class.
        level: coverage of the intervals.
        resamples: how often the examples are drawn again for the intervals.
        seed: of the folds and of the resampling.
        progress: called once after each fold of each candidate: folds times candidates.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(3000, seed=0).predictions
        >>> select(p, candidates=["identity", "temperature"], folds=2).name
        'temperature'
    """
    names = wanted(candidates, keep_argmax=keep_argmax)
    with without_warnings():
        fitting_logits(predictions)
    if criterion not in CRITERIA:
        raise ValueError(
            f"criterion must be a proper score, one of {list(CRITERIA)}, got {criterion!r}"
        )
    fold = fold_of(predictions, folds=folds, seed=seed)
    measured: dict[str, Predictions] = {}
    sizes: dict[str, int] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            # Nothing about parts: what is wrong with all examples is said of the final fit.
            with without_warnings():
                measured[name], sizes[name] = _held_out(
                    CALIBRATORS[name], predictions, fold, progress
                )
        except ValueError as error:
            skipped[name] = str(error)
    if not measured:
        raise ValueError(f"no calibrator could be fitted: {next(iter(skipped.values()))}")
    score = CRITERIA[criterion]
    scores = {name: score(found) for name, found in measured.items()}
    order = sorted(measured, key=lambda name: scores[name])

    def behind(best: str, others: Sequence[str]) -> dict[str, Difference]:
        rivals = {name: measured[name] for name in others}
        return metrics.compare_many(
            score, measured[best], rivals, level=level, resamples=resamples, seed=seed
        )

    gaps = behind(order[0], order[1:])
    chosen, ties = _choose(order, scores, sizes, gaps, behind)
    return Selection(
        name=chosen,
        best=CALIBRATORS[chosen].fit(predictions),
        criterion=criterion,
        folds=folds,
        rows=tuple(
            Candidate(
                name, scores[name], gaps.get(name), sizes[name], CALIBRATORS[name].keeps_argmax
            )
            for name in order
        ),
        skipped=skipped,
        ties=ties,
        examples=predictions,
    )


def _choose(
    order: Sequence[str],
    scores: Mapping[str, float],
    sizes: Mapping[str, int],
    gaps: Mapping[str, Difference],
    behind: Callable[[str, Sequence[str]], Mapping[str, Difference]],
) -> tuple[str, tuple[str, ...]]:
    """The simplest of those that tie with the best, and all parts of the blend.

    The best is a free curve only if that is clearly better.
    """
    best = order[0]
    formulas = [name for name in order if not CALIBRATORS[name].free_form]
    if CALIBRATORS[best].free_form and formulas and gaps[formulas[0]].low <= 0:
        best = formulas[0]
    room = BLENDED * abs(scores[best])
    near = [name for name in order if name != best and abs(scores[name] - scores[best]) <= room]
    if best != order[0]:
        gaps = behind(best, near)
    ties = [name for name in order if name == best or (name in near and gaps[name].low <= 0)]
    limit = scores[best] + TOLERANCE * abs(scores[best])
    simple = [name for name in ties if name in formulas and scores[best] <= scores[name] <= limit]
    return min([best, *simple], key=lambda name: (sizes[name], scores[name])), tuple(ties)


def wanted(candidates: Sequence[str] | None, *, keep_argmax: bool) -> list[str]:
    """Check the names of candidates; all that are allowed if none are given."""
    if isinstance(candidates, str):
        candidates = [candidates]
    names = list(CALIBRATORS if candidates is None else candidates)
    unknown = [name for name in names if name not in CALIBRATORS]
    if unknown:
        raise ValueError(f"no calibrator {unknown[0]!r}; expected one of {', '.join(CALIBRATORS)}")
    names = [name for name in names if CALIBRATORS[name].keeps_argmax or not keep_argmax]
    if not names:
        raise ValueError("no candidates are left; name one or more that keep the predicted class")
    return names


def fold_of(predictions: Predictions, *, folds: int, seed: int) -> Index:
    """Number of the part each example belongs to, (n,).

    Parts hold the same share of every class; with groups, about as many examples.
    """
    units = len(predictions)
    if predictions.groups is not None:
        units = int(predictions.groups.max()) + 1
    if not 2 <= folds <= units:
        what = "examples" if predictions.groups is None else "groups"
        raise ValueError(f"folds must lie between 2 and the {units} {what}, got {folds}")
    generator = np.random.default_rng(seed)
    if predictions.groups is None:
        shuffled = generator.permutation(units)
        order = shuffled[np.argsort(predictions.labels.numpy()[shuffled], kind="stable")]
        place = np.empty(units, dtype=np.int64)
        place[order] = np.arange(units)
        return place % folds
    sizes = np.bincount(predictions.groups.numpy(), minlength=units)
    order = generator.permutation(units)
    part = np.empty(units, dtype=np.int64)
    part[order] = np.minimum(np.cumsum(sizes[order]) * folds // (sizes.sum() + 1), folds - 1)
    # Groups of very different sizes can leave a part empty: then deal them out in turn.
    if len(np.unique(part)) < folds:
        part[order] = np.arange(units) % folds
    return np.asarray(part[predictions.groups.numpy()])


def _held_out(
    kind: type[Calibrator],
    predictions: Predictions,
    fold: Index,
    progress: Callable[[], None] | None,
) -> tuple[Predictions, int]:
    """Calibrated by fits that did not see them: all examples, in their order, and the size."""
    mapped = torch.empty(predictions.logits.shape, dtype=torch.float64)
    size = 0
    for number in range(int(fold.max()) + 1):
        out = fold == number
        fitted = kind.fit(predictions.take(~out))
        mapped[torch.from_numpy(out)] = fitted(predictions.take(out).logits).double()
        size = max(size, fitted.size)
        if progress is not None:
            progress()
    return predictions.map(lambda _: mapped), size
