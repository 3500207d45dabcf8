"""Comparisons of methods over experiments: win rates, failures and paired intervals."""

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from benchmarks.arena_rows import NONE, Experiment, Experiments

RESAMPLES = 2000


def source(problem: str) -> str:
    """The table or network of a problem: models of a table, and classes of a network, share it."""
    return problem.split("/")[0].split(" ")[0]


def win_rates(given: Iterable[Experiment], score: str) -> dict[str, float]:
    """Mean over experiments of the fraction of the other methods that are beaten.

    A tie counts one half, also a tie of two failures, whose values are infinite.
    """
    rates = defaultdict(list)
    for each in given:
        names = list(each)
        values = np.array([each[name][score] for name in names])
        wins = (values[:, None] < values).sum(1) + ((values[:, None] == values).sum(1) - 1) / 2
        for name, rate in zip(names, wins / (len(names) - 1), strict=True):
            rates[name].append(rate)
    return {name: float(np.mean(found)) for name, found in rates.items()}


def common(given: Experiments, *names: str) -> Experiments:
    """The experiments that all these methods ran, whether or not they failed there."""
    return {key: each for key, each in given.items() if all(name in each for name in names)}


def paired_rates(given: Experiments, name: str, other: str, score: str) -> tuple[float, float]:
    """Win rates of two methods over the experiments that both ran."""
    rates = win_rates(common(given, name, other).values(), score)
    return rates[name], rates[other]


def nearest(given: Experiments, name: str, others: Iterable[str], score: str) -> str:
    """Of other methods the strongest against one: by the difference of their paired win rates."""

    def lead(other: str) -> float:
        own, theirs = paired_rates(given, name, other, score)
        return own - theirs

    return min(others, key=lead)


def wins(given: Experiments, name: str, other: str, score: str) -> float:
    """In what fraction of the experiments that both ran one is better; a tie counts one half."""
    values = [
        (each[name][score], each[other][score]) for each in common(given, name, other).values()
    ]
    return float(np.mean([(own < theirs) + (own == theirs) / 2 for own, theirs in values]))


def ran(given: Experiments, name: str) -> int:
    """The number of experiments that a method ran, with its failures."""
    return len(common(given, name))


def failed(given: Experiments, name: str) -> int:
    """In how many experiments a method raised an error, or had an infinite log loss."""
    return sum(math.isinf(each[name]["nll"]) for each in common(given, name).values())


def ratios(given: Experiments, name: str, other: str, score: str) -> dict[tuple[str, str], float]:
    """One score divided by another in each experiment in which both are finite."""
    found = {
        key: (each[name][score], each[other][score])
        for key, each in common(given, name, other).items()
    }
    return {key: a / b for key, (a, b) in found.items() if math.isfinite(a) and math.isfinite(b)}


def relative(given: Experiments, name: str, score: str) -> float:
    """Geometric mean of the score divided by that without calibration; failures are left out."""
    found = list(ratios(given, name, NONE, score).values())
    return math.exp(np.mean(np.log(found))) if found else math.nan


def interval(given: Experiments, name: str, other: str, score: str) -> str:
    """Mean ratio of two methods, and its interval over tables and networks, not experiments."""
    logs = defaultdict(list)
    for (problem, _), ratio in ratios(given, name, other, score).items():
        logs[source(problem)].append(math.log(ratio))
    if not logs:
        return "-"
    means = np.array([np.mean(values) for values in logs.values()])
    generator = np.random.default_rng(0)
    drawn = means[generator.integers(0, len(means), (RESAMPLES, len(means)))].mean(1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    shown = f" [{low:.4f}, {high:.4f}]" if len(means) > 1 else ""
    return f"{math.exp(means.mean()):.4f}{shown}"
