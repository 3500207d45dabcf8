"""How long a selection takes, compared with fitting every calibrator to every fold on its own."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.calibrator_fits import drawn
from benchmarks.inputs import SEED
from benchmarks.measure import Section
from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, FocalTemperatureScaling, select
from calibrant.calibrators.selection import fold_of

FOLDS = 5
# Size, and the goal in seconds of CPU on one core.
SIZES = ((5_000, 10, 3.0), (50_000, 100, 60.0))
FOCAL = 0.05
ABOUT = f"""The logits of the section on fits. Seconds of CPU with one thread. "Each on its own"
fits all {len(CALIBRATORS)} calibrators to {FOLDS} folds without sharing steps between candidates
and without dropping any, and does not bootstrap their differences, which `select` does. The NLL is
measured on as many new examples; below 0 `select` is better than the candidate with the best
score, fitted to all examples. Before it shared steps and dropped candidates,
`select` took 4.4 s for 5,000 x 10 on the same machine, with 17 candidates."""


def run() -> Section:
    """Measure both sizes."""
    section, threads = Section("Selecting a calibrator", ABOUT), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for n, k, goal in SIZES:
                _selection(section, n, k, goal)
            given = Predictions(*drawn(*SIZES[0][:2], SEED))
            took, _ = _cpu(lambda: FocalTemperatureScaling.fit(_copy(given)))
            section.below("focal_temperature.fit, 5,000 x 10", took, "s", goal=FOCAL)
    finally:
        torch.set_num_threads(threads)
    return section


def _selection(section: Section, n: int, k: int, goal: float) -> None:
    given, test = (Predictions(*drawn(n, k, SEED + at)) for at in (0, 1))
    size = f"{n:,} x {k:,}"
    took, found = _cpu(lambda: select(_copy(given), folds=FOLDS, seed=SEED))
    section.below(f"select, {size}", took, "s", goal=goal)
    alone, scores = _cpu(lambda: _each_on_its_own(given))
    section.faster(f"select against each on its own, {size}", took, alone, at_least=None)
    best = CALIBRATORS[min(scores, key=lambda name: scores[name])].fit(given)
    gap = metrics.nll(test.map(found.best)) - metrics.nll(test.map(best))
    section.note(f"NLL of select above that of the best score, {size}", gap, "")
    gap = metrics.nll(test.map(found.blend)) - metrics.nll(test.map(best))
    section.note(f"NLL of its blend above that of the best score, {size}", gap, "")


def _each_on_its_own(given: Predictions) -> dict[str, float]:
    """Held-out NLL of every calibrator."""
    fold, scores = fold_of(given, folds=FOLDS, seed=SEED), dict.fromkeys(CALIBRATORS, 0.0)
    for name, kind in CALIBRATORS.items():
        for number in range(FOLDS):
            test = given.take(fold == number)
            scores[name] += metrics.nll(test.map(kind.fit(given.take(fold != number)))) * len(test)
    return scores


def _copy(given: Predictions) -> Predictions:
    """Nothing that another fit computed is used again."""
    return Predictions(given.logits, given.labels)


def _cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, found
