"""Few examples in the arena: is a selection ever worse than no calibration by more than noise?"""

import numpy as np

from benchmarks.arena_problems import Problem
from calibrant import metrics
from calibrant.calibrators import CALIBRATORS, TemperatureScaling, select

SIZES, SAMPLES, RESAMPLES = (50, 100, 200, 500, 1000), 4, 100
FIELDS = ("problem", "group", "half", "size", "sample", "method", "nll", "brier")


def few_rows(problem: Problem, size: int) -> list[dict[str, str]]:
    """Scores of fits to random samples of this size; those of a single class are left out."""
    found = []
    for sample in range(SAMPLES):
        order = np.random.default_rng([sample, size]).permutation(len(problem.fit))[:size]
        fit = problem.fit.take(order)
        if len(set(fit.labels.tolist())) == 1:
            continue
        selection = select(fit, resamples=RESAMPLES)
        made = {
            "uncalibrated": CALIBRATORS["identity"].fit(fit),
            "temperature": TemperatureScaling.fit(fit),
            "select": selection.best,
            "blend": selection.blend,
        }
        for method, calibrator in made.items():
            tested = problem.test.map(calibrator)
            row = {"problem": problem.name, "group": problem.group, "size": str(size)}
            row |= {"half": problem.half, "sample": str(sample), "method": method}
            scores = {"nll": metrics.nll(tested), "brier": metrics.brier(tested)}
            found.append(row | {name: f"{value:.5g}" for name, value in scores.items()})
    return found
