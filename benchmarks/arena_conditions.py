"""Sections of the arena on sizes of calibration sets, few examples, shifted data and time."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from benchmarks.arena_few import SAMPLES
from benchmarks.arena_problems import GROUPS
from benchmarks.arena_rows import BLEND, NONE, OURS, SELECT, Row, of_methods
from benchmarks.arena_scores import failed, ratios
from benchmarks.arena_verdict import WORSE, Groups, methods
from benchmarks.pages import table

# Logarithm of a relative loss that matters with few examples.
MATTERS = 0.01
HALVES = {"choices": "the half for choices", "report": "the reported half"}


def sizes_section(groups: Groups, sizes: Sequence[str]) -> str:
    """Blend and others relative to no calibration, for each size."""
    names = (BLEND, SELECT, "temperature", "structured_matrix", "spline", "isotonic")
    rows = [[name, *(_relative(groups, name, size) for size in sizes)] for name in names]
    text = (
        "Log loss relative to no calibration: geometric mean, the worst experiment, and in how "
        "many experiments it was more than 0.5 % worse. Failures are left out, and counted."
    )
    return f"{text}\n\n{table(('method', *(f'{size} examples' for size in sizes)), rows)}"


def _relative(groups: Groups, name: str, size: str) -> str:
    some = {
        (f"{group} {problem}", at): each
        for group, found in groups.items()
        for (problem, at), each in found.items()
        if at == size
    }
    found = np.array(list(ratios(some, name, NONE, "nll").values()))
    if not len(found):
        return "-"
    lost = failed(some, name)
    shown = f"{math.exp(np.log(found).mean()):.4f}, {found.max():.3f}"
    worse = f"{(found > WORSE).sum()} of {len(found)}"
    return f"{shown}, {worse}{f', {lost} failed' if lost else ''}"


def few_section(rows: Sequence[Row]) -> str:
    """Selections from few examples relative to no calibration, over random samples of each size."""
    if not rows:
        return ""
    losses: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        losses[row["method"], row["size"], row["problem"]].append(float(row["nll"]))
    sizes = sorted({row["size"] for row in rows}, key=int)
    cells = []
    for method in ("temperature", SELECT, BLEND):
        line = [method]
        for size in sizes:
            relative = [
                np.log(losses[method, size, name]) - np.log(losses[NONE, size, name])
                for name in {name for other, at, name in losses if (other, at) == (method, size)}
            ]
            relative = [each for each in relative if len(each) > 1]
            means = np.array([each.mean() for each in relative])
            errors = np.array([each.std(ddof=1) / math.sqrt(len(each)) for each in relative])
            worse = (means > MATTERS) & (means > 2 * errors)
            line.append(
                f"{math.exp(means.mean()):.3f}, {math.exp(means.max()):.3f}, "
                f"{worse.sum()} of {len(means)}"
            )
        cells.append(line)
    text = (
        f"Log loss relative to no calibration, for {SAMPLES} random samples of each size from each "
        "table and file, both halves. Shown are the geometric mean, the worst problem in the mean "
        "of its samples, and how many problems were worse: by more than 1 % and by more than two "
        "standard errors of that mean."
    )
    return f"{text}\n\n{table(('method', *(f'{size} examples' for size in sizes)), cells)}"


def shift_section(rows: Sequence[Row]) -> str:
    """Fitted to all examples of the clean half, tested on shifted data."""
    shifted = [row for row in rows if row["shift"] and row["value"] == "nll"]
    if not shifted:
        return ""
    names = (NONE, "temperature", "focal_temperature", "gap_temperature", "ensemble_temperature")
    names += ("structured_vector", "structured_matrix", "spline", "isotonic", "venn_abers")
    names += (SELECT, BLEND, "probmetrics sms", "scikit-learn temperature")
    values = [of_methods(row) for row in shifted]
    cells = [[name, *(_shown(each, name) for each in values)] for name in names]
    text = (
        "Log loss on shifted data of calibrators that were fitted to all clean examples. No "
        "calibrator here knows of the shift: use `PriorShift` for other class frequencies, and "
        f"`calibrant watch` to notice one.\n\n{_halves_of(shifted)}"
    )
    heads = [f"{row['problem'].split('_c10')[0]} {row['shift']}" for row in shifted]
    return f"{text}\n\n{table(('method', *heads), cells)}"


def _shown(values: dict[str, float], name: str) -> str:
    if name not in values:
        return "-"
    return "failed" if math.isinf(values[name]) else f"{values[name]:.3f}"


def _halves_of(shifted: Sequence[Row]) -> str:
    """Which half the shifted files belong to."""
    named = {
        half: sorted({row["problem"] for row in shifted if row["half"] == half}) for half in HALVES
    }
    parts = [f"in {HALVES[half]}: {', '.join(names)}" for half, names in named.items() if names]
    only = "All of these files are" if len(parts) == 1 else "These files are"
    return (
        f"{only} {'; '.join(parts)}. Choices were made on clean data only: no shifted file was "
        "used for them."
    )


def times_section(both: Groups) -> str:
    """Median CPU time of fits to all examples, in milliseconds."""
    whole = {
        group: [each for (_, size), each in found.items() if size == "all"]
        for group, found in both.items()
    }
    names = {name for found in both.values() for name in methods(found)}

    def median(group: str, name: str, key: str) -> float:
        return float(np.median([e[name][key] for e in whole[group] if name in e] or [math.nan]))

    def slowness(name: str) -> tuple[float, str]:
        times = [median(group, name, "fit") for group in both]
        return -max(filter(math.isfinite, times), default=0.0), name

    def shown(group: str, name: str) -> str:
        fit, apply = (1000 * median(group, name, key) for key in ("fit", "apply"))
        if math.isnan(fit):
            return "-"
        return "failed" if math.isinf(fit) else f"{fit:,.0f} / {apply:,.0f}"

    def theirs(group: str) -> str:
        """All other libraries together, in multiples of one blend."""
        total = sum(
            median(group, name, key)
            for name in names
            for key in ("fit", "apply")
            if name not in OURS and math.isfinite(median(group, name, key))
        )
        own = median(group, BLEND, "fit") + median(group, BLEND, "apply")
        return f"{total / own:.1f}"

    rows = [[name, *(shown(group, name) for group in both)] for name in sorted(names, key=slowness)]
    text = (
        "Median CPU time on one core of the fit to all examples, and of applying it to the test "
        "examples, in milliseconds. Both halves count; two experiments ran at a time. `select` and "
        "`blend` fit every calibrator of calibrant to five folds.\n\nTo fit and apply all methods "
        "of the other libraries once, without cross-validation, takes the time of a blend "
        "multiplied by " + ", ".join(f"{theirs(group)} ({GROUPS[group]})" for group in both)
    )
    heads = ("method", *(GROUPS[group] for group in both))
    return f"{text}.\n\n{table(heads, rows)}"
