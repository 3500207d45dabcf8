"""Choose among calibrators by cross-validation, on a proper score."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from calibrant import metrics
from calibrant.calibrators.base import Calibrator, fitting_logits
from calibrant.calibrators.fit_checks import convergence_remark
from calibrant.calibrators.out_of_fold import Candidates, compare_out_of_fold
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.selection_result import Candidate, Selection
from calibrant.calibrators.stacking import log_weights, stack
from calibrant.deprecated import with_old_arguments
from calibrant.metrics import Difference
from calibrant.predictions import Predictions
from calibrant.progress import steps
from calibrant.scoped_warnings import warn, without_warnings
from calibrant.setting_errors import did_you_mean
from calibrant.shapes import Index

# Proper scoring rules. Calibration errors are not proper: predicting the base rates minimises them.
CRITERIA: dict[str, Callable[[Predictions], float]] = {"nll": metrics.nll, "brier": metrics.brier}
# Largest relative loss of score for which a converged calibrator is chosen instead of one that did
# not converge.
UNCONVERGED = 0.002
# Names of what `select` makes, beside those of `CALIBRATORS`.
AUTO, BLEND = "auto", "blend"
# The so many of the largest weight, and the identity, can be parts of the blend.
BLENDED = 16


@with_old_arguments
def select(
    predictions: Predictions,
    *,
    folds: int = 5,
    criterion: str = "nll",
    candidates: Sequence[str] | None = None,
    preserve_class: bool = False,
    budget: float | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Selection:
    """Select a calibrator by cross-validation, and weight all of them for a blend.

    Candidates are ranked by a proper score over held-out folds. The one with the largest weight is
    selected and fitted to all examples: weights rise with the likelihood of the out-of-fold
    predictions, and calibrators that are reliable on other data have a larger prior weight
    (`calibrators.stacking`). So with few examples, where scores are mostly noise, a regularised
    calibrator is selected, and with many the one with the best score. One that did not converge (a
    parameter at its bound) is selected only if no converged one is within 0.2 % of its score, and
    then with a warning.

    `blend` of the result combines the sixteen of the largest weight and the identity; it is more
    accurate than any single calibrator on most data, see docs/arena.md. Candidates that are far
    behind after two folds are dropped before.

    Args:
        predictions: held-out examples, not the training data of the network.
        folds: number of folds; groups are not split.
        criterion: "nll" or "brier", for scores and weights; the pool of `blend` minimises the NLL.
        candidates: names in `CALIBRATORS`; all if not given.
        preserve_class: consider only calibrators that preserve the predicted class.
        budget: seconds for the comparison. When they are used up, candidates that were not
            compared are skipped, and those that were only compared in part are treated as dropped.
            Candidates with the largest prior weight come first.
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
    if budget is not None and not budget > 0:
        raise ValueError(f"budget must be a positive number of seconds, got {budget}")
    fold = fold_of(predictions, folds=folds, seed=seed)
    with steps(progress, folds * len(names), "comparing calibrators") as step:
        found = compare_out_of_fold(
            names, predictions, fold, criterion=criterion, budget=budget, step=step
        )
    measured, converged = found.measured, found.converged
    if not measured:
        raise ValueError(f"no calibrator could be fitted: {next(iter(found.skipped.values()))}")
    score = CRITERIA[criterion]
    scores = {name: score(found) for name, found in measured.items()}
    order = sorted(measured, key=lambda name: scores[name])
    rivals = {name: measured[name] for name in order[1:]}
    gaps = metrics.compare_many(
        score, measured[order[0]], rivals, level=level, resamples=resamples, seed=seed
    )
    weights = log_weights(scores, examples=found.independent)
    while True:
        chosen = _choose(scores, weights, converged)
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
    without = scores.get("identity")
    if without is None:
        # Mapped, as a probability of 0 has no finite score.
        without = score(predictions.map(CALIBRATORS["identity"].fit(predictions)))
    if scores[chosen] > without + UNCONVERGED * abs(without):
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
        candidates=_candidates(order, scores, gaps, found, level),
        skipped=found.skipped,
        weights=_weights(scores, found, predictions),
        remarks=tuple(remarks),
        examples=predictions,
    )


def fit_by_name(name: str, predictions: Predictions) -> Calibrator:
    """Fit the calibrator of this name; "auto" and "blend" are those of `select`."""
    if name in CALIBRATORS:
        return CALIBRATORS[name].fit(predictions)
    found = select(predictions)
    return found.best if name == AUTO else found.blend


def _candidates(
    order: Sequence[str],
    scores: Mapping[str, float],
    gaps: Mapping[str, Difference],
    found: Candidates,
    level: float,
) -> tuple[Candidate, ...]:
    """The candidates by score, with those that were dropped."""
    gaps, estimated = dict(gaps), dict(scores)
    for name, (difference, error) in found.dropped.items():
        estimated[name] = scores[order[0]] + difference
        reach = NormalDist().inv_cdf((1 + level) / 2) * error
        p_value = math.erfc(difference / error / math.sqrt(2)) if error else 1.0
        gaps[name] = Difference(difference, difference - reach, difference + reach, p_value, level)
    return tuple(
        Candidate(
            name=name,
            score=estimated[name],
            difference_to_best=gaps.get(name),
            size=found.sizes[name],
            keeps_argmax=CALIBRATORS[name].keeps_argmax,
            converged=found.converged[name],
            dropped=name in found.dropped,
        )
        for name in sorted(estimated, key=lambda name: estimated[name])
    )


def _weights(
    scores: Mapping[str, float], out_of_fold: Candidates, predictions: Predictions
) -> dict[str, tuple[float, float]]:
    """Weight and exponent of each part of the blend, the largest first."""
    measured = out_of_fold.measured
    losses = {name: each for name, each in scores.items() if out_of_fold.converged[name]}
    if not losses:
        return {}
    given = log_weights(losses, examples=out_of_fold.independent)
    order = sorted(given, key=lambda name: -given[name])
    names = order[:BLENDED] + [name for name in order[BLENDED:] if name == "identity"]
    found = stack(
        [measured[name].logits.double().numpy() for name in names],
        [given[name] for name in names],
        predictions.labels.numpy(),
        predictions.example_weights,
        independent=out_of_fold.independent / float(predictions.example_weights.sum()),
    )
    parts = zip(names, found.weights.tolist(), found.exponents.tolist(), strict=True)
    used = {name: (weight, exponent) for name, weight, exponent in parts if weight or exponent}
    return dict(sorted(used.items(), key=lambda item: item[1], reverse=True))


def _choose(
    scores: Mapping[str, float], weights: Mapping[str, float], converged: Mapping[str, bool]
) -> str:
    """Return the candidate of the largest weight; one that converged, unless it is far behind."""
    limit = min(scores.values())
    limit += UNCONVERGED * abs(limit)
    reliable = [name for name in scores if converged[name]]
    if any(scores[name] <= limit for name in reliable):
        return max(reliable, key=lambda name: weights[name])
    return max(scores, key=lambda name: weights[name])


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
        which = " that preserves the predicted class" if preserve_class else ""
        raise ValueError(f"no candidates: name at least one calibrator{which}")
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
