"""Choose among calibrators by cross-validation, on a proper score."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from calibrant import metrics
from calibrant.calibrators.base import Calibrator, fitting_logits
from calibrant.calibrators.fit_checks import convergence_remark
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.selection_result import Candidate, Selection
from calibrant.deprecated import with_old_arguments
from calibrant.metrics import Difference
from calibrant.predictions import Predictions
from calibrant.progress import steps
from calibrant.scoped_warnings import warn, without_warnings
from calibrant.setting_errors import did_you_mean
from calibrant.shapes import Index

if TYPE_CHECKING:
    pass

# Proper scoring rules. Calibration errors are not proper: predicting the base rates minimises them.
CRITERIA: dict[str, Callable[[Predictions], float]] = {"nll": metrics.nll, "brier": metrics.brier}
# Largest relative loss of score for which a simpler calibrator is chosen, if the difference is not
# significant.
TOLERANCE = 0.002
# The same for a part of the blend.
BLENDED = 0.01


@with_old_arguments
def select(
    predictions: Predictions,
    *,
    folds: int = 5,
    criterion: str = "nll",
    candidates: Sequence[str] | None = None,
    preserve_class: bool = False,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Selection:
    """Select a calibrator by cross-validation.

    Candidates are ranked by a proper score over held-out folds. The best one is selected, unless
    simpler ones (fewer parameters) are within 0.2 % of its score and the interval of the paired
    difference contains zero: then the simplest of those. Non-parametric calibrators (isotonic,
    histogram), whose scores vary most, must be significantly better than every parametric one.
    One that did not converge (a parameter at its bound) is selected only if no converged one is
    within 0.2 % of its score, and then with a warning.
    The selected one is fitted to all examples. `blend` of the result averages all, including
    non-parametric ones, that are within 1 % of the score and not significantly worse.

    Args:
        predictions: held-out examples, not the training data of the network.
        folds: number of folds; groups are not split.
        criterion: "nll" or "brier".
        candidates: names in `CALIBRATORS`; all if not given.
        preserve_class: consider only calibrators that preserve the predicted class.
        level: coverage of the intervals.
        resamples: bootstrap resamples for the intervals.
        seed: seed of the folds and of the bootstrap.
        progress: called after each fold of each candidate; by default long work shows its
            progress itself.

    Examples:
        >>> from calibrant.data import SYNTHETIC
        >>> p = SYNTHETIC["tempered"].sample(3000, seed=0).predictions
        >>> select(p, candidates=["identity", "temperature"], folds=2).name
        'temperature'
    """
    names = check_candidates(candidates, preserve_class=preserve_class)
    with without_warnings():
        fitting_logits(predictions)
    if criterion not in CRITERIA:
        raise ValueError(
            f"criterion must be a proper score, got {criterion!r}; "
            f"{did_you_mean(criterion, CRITERIA)}"
        )
    fold = fold_of(predictions, folds=folds, seed=seed)
    measured: dict[str, Predictions] = {}
    sizes: dict[str, int] = {}
    converged: dict[str, bool] = {}
    skipped: dict[str, str] = {}
    with steps(progress, folds * len(names), "comparing calibrators") as step:
        for name in names:
            try:
                # The fit to all examples warns.
                with without_warnings():
                    measured[name], sizes[name], converged[name] = _held_out(
                        CALIBRATORS[name], predictions, fold, step
                    )
            except ValueError as error:
                skipped[name] = str(error)
    if not measured:
        raise ValueError(f"no calibrator could be fitted: {next(iter(skipped.values()))}")
    score = CRITERIA[criterion]
    scores = {name: score(found) for name, found in measured.items()}
    order = sorted(measured, key=lambda name: scores[name])

    def differences(best: str, others: Sequence[str]) -> dict[str, Difference]:
        rivals = {name: measured[name] for name in others}
        return metrics.compare_many(
            score, measured[best], rivals, level=level, resamples=resamples, seed=seed
        )

    gaps = differences(order[0], order[1:])
    while True:
        chosen, ties = _choose(order, scores, sizes, converged, gaps, differences)
        best = CALIBRATORS[chosen].fit(predictions)
        # The fit to all examples may not converge where those to the folds do.
        if not converged[chosen] or not convergence_remark(best):
            break
        converged[chosen] = False
    remarks = []
    if not converged[chosen]:
        remarks.append(
            f"{chosen} did not converge, but no converged calibrator has as good a {criterion}"
        )
    if "identity" not in measured:
        measured["identity"] = _held_out(CALIBRATORS["identity"], predictions, fold, None)[0]
    without = score(measured["identity"])
    if scores[chosen] > without + TOLERANCE * abs(without):
        remarks.append(
            f"{criterion} of {chosen} on held-out folds is worse than without calibration: "
            f"{scores[chosen]:.4f} against {without:.4f}"
        )
    for remark in remarks:
        warn(remark, stacklevel=2)
    return Selection(
        name=chosen,
        best=best,
        criterion=criterion,
        folds=folds,
        candidates=tuple(
            Candidate(
                name=name,
                score=scores[name],
                difference_to_best=gaps.get(name),
                size=sizes[name],
                keeps_argmax=CALIBRATORS[name].keeps_argmax,
                converged=converged[name],
            )
            for name in order
        ),
        skipped=skipped,
        ties=ties,
        remarks=tuple(remarks),
        examples=predictions,
    )


def _choose(
    order: Sequence[str],
    scores: Mapping[str, float],
    sizes: Mapping[str, int],
    converged: Mapping[str, bool],
    gaps: Mapping[str, Difference],
    differences: Callable[[str, Sequence[str]], Mapping[str, Difference]],
) -> tuple[str, tuple[str, ...]]:
    """Return the simplest candidate that ties with the best, and all parts of the blend."""
    best = order[0]
    parametric = [name for name in order if not CALIBRATORS[name].nonparametric]
    if best not in parametric and parametric and gaps[parametric[0]].low <= 0:
        best = parametric[0]

    def tied(tolerance: float) -> list[str]:
        limit = tolerance * abs(scores[best])
        near = [n for n in order if n != best and abs(scores[n] - scores[best]) <= limit]
        found = gaps if best == order[0] else differences(best, near)
        return [n for n in order if n == best or (n in near and converged[n] and found[n].low <= 0)]

    if not converged[best]:
        near = scores[best] + TOLERANCE * abs(scores[best])
        best = next((name for name in order if converged[name] and scores[name] <= near), best)
    limit = scores[best] + TOLERANCE * abs(scores[best])
    ties = tied(BLENDED)
    simple = [name for name in ties if name in parametric and scores[best] <= scores[name] <= limit]
    return min([best, *simple], key=lambda name: (sizes[name], scores[name])), tuple(ties)


def check_candidates(candidates: Sequence[str] | None, *, preserve_class: bool) -> list[str]:
    """Check the names of candidates; all that are allowed if none are given."""
    if isinstance(candidates, str):
        candidates = [candidates]
    names = list(CALIBRATORS if candidates is None else candidates)
    unknown = [name for name in names if name not in CALIBRATORS]
    if unknown:
        raise ValueError(f"no calibrator {unknown[0]!r}; {did_you_mean(unknown[0], CALIBRATORS)}")
    names = [name for name in names if CALIBRATORS[name].keeps_argmax or not preserve_class]
    if not names:
        raise ValueError(
            "no candidates are left; name one or more that preserve the predicted class"
        )
    return names


def fold_of(predictions: Predictions, *, folds: int, seed: int) -> Index:
    """Return the fold of each example, (n,).

    Folds are stratified by class; with groups, which are not split, they have about equal size.
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
    # Groups of very different sizes can leave a fold empty: then assign them in turn.
    if len(np.unique(part)) < folds:
        part[order] = np.arange(units) % folds
    return np.asarray(part[predictions.groups.numpy()])


def _held_out(
    kind: type[Calibrator],
    predictions: Predictions,
    fold: Index,
    progress: Callable[[], None] | None,
) -> tuple[Predictions, int, bool]:
    """Return out-of-fold predictions in order, the largest size, and if all folds converged."""
    mapped = torch.empty((len(predictions), predictions.classes), dtype=torch.float64)
    size, converged = 0, True
    for number in range(int(fold.max()) + 1):
        out = fold == number
        fitted = kind.fit(predictions.take(~out))
        mapped[torch.from_numpy(out)] = predictions.take(out).map(fitted).logits.double()
        size = max(size, fitted.size)
        converged &= not convergence_remark(fitted)
        if progress is not None:
            progress()
    return predictions.map(lambda _: mapped), size, converged
