"""Out-of-fold predictions of many calibrators: shared folds, racing, a limit of time."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.fit_checks import convergence_remark
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.stacking import PRIOR, TEMPERING
from calibrant.predictions import Predictions
from calibrant.scoped_warnings import without_warnings
from calibrant.shapes import Index, Values

# Folds after which candidates are compared for the first time.
FIRST = 2
# A candidate is dropped if it is so many standard errors behind the best, and if its weight in the
# blend, which falls with the lower end of that difference, would be below exp(-NEGLIGIBLE).
ERRORS, NEGLIGIBLE = 3.0, 5.0
# Never dropped: what the others are compared with.
REFERENCE = "identity"


@dataclass(frozen=True, eq=False)
class Candidates:
    """What became of each candidate.

    Attributes:
        measured: predictions of all examples, each by a fit to the other folds.
        dropped: mean difference to the best and its standard error after the first folds.
        skipped: reasons why a candidate could not be compared.
        sizes: largest number of parameters of a fit.
        converged: whether all fits converged.
        independent: number of independent examples, see `independent_examples`.
    """

    measured: dict[str, Predictions]
    dropped: dict[str, tuple[float, float]]
    skipped: dict[str, str]
    sizes: dict[str, int]
    converged: dict[str, bool]
    independent: float


class _Part(NamedTuple):
    """One candidate, fitted to all folds but one."""

    log_probs: np.ndarray
    size: int
    converged: bool


Score = Callable[[np.ndarray, np.ndarray], Values]


def log_losses(log_probs: np.ndarray, labels: Index) -> Values:
    """Minus the log-probability of each label."""
    return np.asarray(-log_probs[np.arange(len(labels)), labels])


def brier_losses(log_probs: np.ndarray, labels: Index) -> Values:
    """Squared distance of the probabilities to the label, for each example."""
    probs = np.exp(log_probs)
    own = probs[np.arange(len(labels)), labels]
    return np.asarray(np.einsum("nk,nk->n", probs, probs) - 2 * own + 1)


LOSSES: dict[str, Score] = {"nll": log_losses, "brier": brier_losses}


def compare_out_of_fold(
    names: Sequence[str],
    predictions: Predictions,
    fold: Index,
    *,
    criterion: str,
    budget: float | None = None,
    step: Callable[[], None],
) -> Candidates:
    """Fit every candidate to all folds but one, for each fold, and apply it to that fold.

    All candidates see the same folds, so that steps which several have in common are computed once.
    After two folds those that are far behind the best are dropped. Folds run in threads.

    Args:
        names: names in `CALIBRATORS`.
        predictions: the examples.
        fold: fold of each example, (n,).
        criterion: name in `LOSSES`.
        budget: seconds after which no further candidate is started; the first two always are,
            and those with the largest prior weight come next.
        step: called after each fold of each candidate.
    """
    end = math.inf if budget is None else time.monotonic() + budget
    count = int(fold.max()) + 1
    rows = [np.flatnonzero(fold == number) for number in range(count)]
    folds = [
        (predictions.take(fold != number), predictions.take(rows[number]))
        for number in range(count)
    ]
    parts: dict[str, dict[int, _Part]] = {}
    skipped: dict[str, str] = {}
    if budget is not None:
        names = [*names[:FIRST], *sorted(names[FIRST:], key=lambda name: -PRIOR.get(name, 0.0))]
    workers = min(count, torch.get_num_threads())

    def measure(name: str, numbers: range) -> None:
        def run(number: int) -> _Part:
            with without_warnings():
                return _held_out(CALIBRATORS[name], *folds[number])

        done = parts.setdefault(name, {})
        try:
            for number, part in zip(numbers, pool.map(run, numbers), strict=True):
                done[number] = part
                step()
        except ValueError as error:
            skipped[name] = str(error)
            del parts[name]

    with ThreadPoolExecutor(workers) as pool:
        first = range(min(FIRST, count))
        for at, name in enumerate(names):
            if at >= FIRST and time.monotonic() > end:
                skipped[name] = f"the budget of {budget:g} s was used up"
            else:
                measure(name, first)
        losses = _losses(parts, rows[: len(first)], predictions, criterion)
        seen = predictions.take(np.concatenate(rows[: len(first)]))
        differences = _differences(losses, seen)
        units = independent_examples(predictions, losses, seen)
        found = Candidates({}, {}, skipped, {}, {}, units)
        for name in sorted(differences, key=lambda name: differences[name][0]):
            late = differences[name][0] > 0 and time.monotonic() > end
            drop = name != REFERENCE and (late or _far(*differences[name], units))
            if drop and count > len(first):
                found.dropped[name] = differences[name]
                for _ in range(count - len(first)):
                    step()
            elif name in parts:
                measure(name, range(len(first), count))
    for name, each in parts.items():
        found.sizes[name] = max(part.size for part in each.values())
        found.converged[name] = all(part.converged for part in each.values())
        if name not in found.dropped:
            found.measured[name] = _joined(each, rows, predictions)
    return found


def independent_examples(
    predictions: Predictions, losses: Mapping[str, Values], seen: Predictions
) -> float:
    """Number of examples; with groups, of independent ones that would say as much.

    That is the number of examples divided by the design effect: how many times larger the squared
    standard errors of the differences of losses are than without groups, in the median. It is at
    least the number of groups.

    Args:
        predictions: all examples.
        losses: losses of the calibrators for some examples, by name.
        seen: these examples.
    """
    total = float(predictions.example_weights.sum())
    if predictions.groups is None:
        return total
    grouped, single = _differences(losses, seen), _differences(losses, seen, grouped=False)
    effects = [(grouped[name][1] / error) ** 2 for name, (_, error) in single.items() if error]
    groups = float(predictions.groups.max()) + 1
    return max(groups, total / max(1.0, float(np.median(effects)))) if effects else groups


def _far(difference: float, error: float, units: float) -> bool:
    lowest = difference - ERRORS * error
    return lowest > 0 and TEMPERING * units * lowest > NEGLIGIBLE


def _held_out(kind: type[Calibrator], train: Predictions, test: Predictions) -> _Part:
    fitted = kind.fit(train)
    log_probs = test.map(fitted).logits.double().numpy()
    return _Part(log_probs, fitted.size, not convergence_remark(fitted))


def _losses(
    parts: Mapping[str, Mapping[int, _Part]],
    rows: Sequence[np.ndarray],
    predictions: Predictions,
    criterion: str,
) -> dict[str, Values]:
    """Loss of each example of these folds."""
    labels = predictions.labels.numpy()
    return {
        name: np.concatenate(
            [LOSSES[criterion](each[at].log_probs, labels[row]) for at, row in enumerate(rows)]
        )
        for name, each in parts.items()
    }


def _differences(
    losses: Mapping[str, Values], examples: Predictions, *, grouped: bool = True
) -> dict[str, tuple[float, float]]:
    """Mean difference of each loss to that of the best, and its standard error."""
    counts = examples.example_weights
    share = counts / counts.sum()
    if not losses:
        return {}
    best = min(losses.values(), key=lambda each: float(share @ each))
    found = {}
    for name, each in losses.items():
        behind = each - best
        mean = float(share @ behind)
        spread = share * (behind - mean)
        if grouped and examples.groups is not None:
            spread = np.bincount(examples.groups.numpy(), spread)
        found[name] = (mean, float(np.sqrt(spread @ spread)))
    return found


def _joined(
    parts: Mapping[int, _Part], rows: Sequence[np.ndarray], predictions: Predictions
) -> Predictions:
    mapped = np.empty((len(predictions), predictions.classes))
    for number, part in parts.items():
        mapped[rows[number]] = part.log_probs
    return predictions.map(lambda _: torch.from_numpy(mapped))
