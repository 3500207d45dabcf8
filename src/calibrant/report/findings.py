"""What a study found: the comparison, the recommendation, and where that fails."""

from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.metrics import METRICS
from calibrant.report.comparison import NONE, Combination, Comparison, compare
from calibrant.report.differences import LEVEL, CombinationDifference, differences, is_better
from calibrant.report.saved import Group, Saved, SavedCell
from calibrant.report.verdict import Baseline, Certainty, Verdict
from calibrant.report.weak_spots import weak_spots

# The best value of these is that of the true probabilities; the first that was measured is used.
PROPER = tuple(name for name, metric in METRICS.items() if metric.proper)
TEMPERATURE = "temperature"
PLAIN = frozenset({"cross_entropy"})


@dataclass(frozen=True)
class Findings:
    """Everything that is said about one group of a study."""

    group: Group
    comparison: Comparison
    verdict: Verdict
    weak_spots: tuple[str, ...]


def findings(saved: Saved) -> list[Findings]:
    """What each group of a study found, in the order of the study."""
    found = []
    for group in saved.groups():
        comparison = compare(group.rows, axis=group.axis)
        advice = verdict(comparison, plain=saved.plain_names, cells=group.cells)
        spots = weak_spots(group, comparison, advice.line)
        found.append(Findings(group, comparison, advice, spots))
    return found


def verdict(
    comparison: Comparison, *, plain: frozenset[str] = PLAIN, cells: Sequence[SavedCell] = ()
) -> Verdict:
    """Find the combination to use: the best proper score without a significant loss of accuracy.

    `plain` are the names of methods that are cross entropy and nothing else; runs without a result
    are counted in `cells`.
    """
    missing = sum(not cell.done for cell in cells)
    ended = sum(cell.status in ("failed", "diverged") for cell in cells)
    for proper in PROPER:
        whole = [
            x
            for x in comparison.combinations
            if proper in x.readings and not x.readings[proper].missing and not x.remarks
        ]
        if whole:
            break
    else:
        return Verdict(comparison, missing, len(cells), ended)
    fair = [line for line in whole if not _less_accurate(line)] or whole
    line = min(fair, key=lambda each: each.readings[proper].cost)
    best = line.readings[proper]
    # The marks of the comparison refer to the best of all, which accuracy may rule out.
    changes = differences([each.readings[proper] for each in fair], best)
    compared_with = list(zip(fair, changes, strict=True))
    ties = tuple(each for each, gap in compared_with if gap is not None and gap.low <= 0)
    known = [each for each, gap in compared_with if gap is not None or each is line]
    unfair = [each for each in whole if each not in fair]
    baseline, kind = _baseline(whole, plain)
    gains, certainty = _gains(comparison, proper, line, baseline)
    return Verdict(
        comparison,
        missing,
        len(cells),
        ended,
        line=line,
        proper=proper,
        baseline=baseline if len(comparison.combinations) > 1 else None,
        kind=kind,
        gains=gains,
        relative=_relative(gains.get(proper), baseline, line, proper),
        certainty=certainty,
        ties=ties,
        unknown=tuple(each for each in comparison.combinations if each not in [*known, *unfair]),
        simplest=_simplest(line, ties, proper, plain),
        better=tuple(each for each in unfair if each.readings[proper].cost < best.cost),
    )


def _less_accurate(line: Combination) -> bool:
    return "accuracy" in line.readings and line.readings["accuracy"].mark == "worse"


def _simplest(
    line: Combination, ties: Sequence[Combination], proper: str, plain: frozenset[str]
) -> Combination:
    """Of the combination and its ties: cross entropy first, then no calibrator, then temperature.

    Over few seeds nearly everything is a tie, so its score must lie within the interval of the
    combination.
    """
    most = line.readings[proper].interval.high
    near = [each for each in ties if each.readings[proper].interval.value <= most]
    return min(
        [line, *near],
        key=lambda each: (
            each.name not in plain,
            (NONE, TEMPERATURE, each.calibrator).index(each.calibrator),
        ),
    )


def _baseline(lines: Sequence[Combination], plain: frozenset[str]) -> tuple[Combination, Baseline]:
    """Cross entropy with temperature scaling, or what comes nearest to it."""
    own = [line for line in lines if line.name in plain]
    first = own or [line for line in lines if line.name == lines[0].name]
    for calibrator in (TEMPERATURE, NONE, first[0].calibrator):
        found = [line for line in first if line.calibrator == calibrator]
        if found:
            kind: Baseline = "usual" if calibrator == TEMPERATURE else "plain"
            return found[0], kind if own else "first"
    return first[0], "first"


def _gains(
    comparison: Comparison, proper: str, line: Combination, baseline: Combination
) -> tuple[dict[str, CombinationDifference], Certainty]:
    """Differences to the baseline; their p-values are corrected for all combinations."""
    found = {}
    for metric in (proper, "accuracy", "ece"):
        readings = [each.readings.get(metric) for each in comparison.combinations]
        changes = differences(readings, baseline.readings.get(metric))
        gap = changes[comparison.combinations.index(line)]
        if gap is not None:
            found[metric] = gap
    main = found.get(proper)
    if main is None:
        return found, "unknown"
    if not is_better(proper, main):
        return found, "open"
    sure = main.how == "seeds" and main.adjusted < 1 - LEVEL
    return found, "certain" if sure else "likely"


def _relative(
    gap: CombinationDifference | None, baseline: Combination, line: Combination, proper: str
) -> float | None:
    """The gap as a part of the baseline's score in the same seeds."""
    if gap is None:
        return None
    runs = line.readings[proper].runs
    common = [value for seed, value in baseline.readings[proper].values.items() if seed in runs]
    total = sum(common)
    return gap.value * len(common) / total if total > 0 else None
