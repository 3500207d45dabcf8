"""The page of the arena, a function of its rows."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.arena_few import SAMPLES
from benchmarks.arena_problems import CHOSEN_ON, GROUPS
from benchmarks.pages import machine, table, versions
from calibrant.calibrators import CALIBRATORS

RESULTS = Path(__file__).with_name("results")
FIELDS = ("problem", "size", "half", "method", "shift", "nll", "brier", "ece", "fit", "apply")
OURS = ("uncalibrated", *CALIBRATORS, "select", "blend")
BLEND, NONE = "blend", "uncalibrated"
SCORES = {"nll": "log loss", "brier": "Brier score"}
# Methods in the table of a group, besides blend, select and no calibration.
SHOWN = 8
RESAMPLES = 2000
# Logarithm of a relative loss that matters.
WORSE = 0.01

Row = Mapping[str, str]
# Scores of all methods in one experiment: a problem with so many examples for the fit.
Experiment = dict[str, dict[str, float]]
Experiments = dict[tuple[str, str], Experiment]

ABOUT = """# The arena: which calibrator is best?

This page compares every calibrator of calibrant with those of other libraries, on tables, images
and text. Use it to choose a calibrator. In short:

{verdict}

`make arena` measures again and rewrites this page; the rows are in `benchmarks/results`. Re-run the
command to resume.

## What was measured

{problems}

Each problem is calibrated with {sizes} examples, and tested on others. {machine}. {versions}.

- **Two halves.** Which calibrators exist, and all settings of `select` and `blend`, were chosen on
  half of the problems: the tables {chosen}, and every other file of logits. All tables below are
  about the other half, unless they say otherwise.
- **Win rate.** In each experiment a method meets every other method. The win rate is the fraction
  of meetings in which its test score is lower; a tie counts one half, a failure loses. Methods that
  cannot run on a problem (made for two classes, or minutes for one fit) do not meet there.
- **Relative score.** The geometric mean of the test score divided by that without calibration.
- **Other libraries** are called with their defaults, and under a second name with the setting that
  their documentation recommends. Probabilities of exactly 0 that they return are raised to 1e-12.
  Probabilities of 0 in the input are replaced for all methods by the same floor."""


def read_rows(name: str) -> list[dict[str, str]]:
    """Rows of a committed file; none if it is not there."""
    path = RESULTS / f"arena-{name}.csv"
    if not path.exists():
        return []
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def group_rows() -> list[dict[str, str]]:
    """All rows of experiments, with their group."""
    return [row | {"group": group} for group in GROUPS for row in read_rows(group)]


def page(rows: Sequence[Row], few: Sequence[Row]) -> str:
    """The whole page, from rows of the experiments and from those of few examples."""
    plain = [row for row in rows if not row["shift"]]
    groups = {group: _experiments(plain, group, "report") for group in GROUPS}
    groups = {group: found for group, found in groups.items() if found}
    both = {group: _experiments(plain, group, None) for group in groups}
    sizes = [
        size for size in ("100", "300", "1000", "all") if any(r["size"] == size for r in plain)
    ]
    counts = [
        [GROUPS[group]]
        + [
            str(len({row["problem"] for row in plain if row["group"] == group and half(row)}))
            for half in (lambda row: row["half"] == "choices", lambda row: row["half"] == "report")
        ]
        + [str(len(groups[group]))]
        for group in groups
    ]
    about = ABOUT.format(
        verdict=_verdict(groups),
        problems=table(("group", "problems for choices", "reported", "experiments"), counts),
        sizes=", ".join(sizes[:-1]) + f" and {sizes[-1]}",
        machine=machine(),
        versions=versions(),
        chosen=", ".join(CHOSEN_ON),
    )
    parts = [about]
    for group, found in groups.items():
        parts.append(f"## {GROUPS[group].capitalize()}\n\n{_group_table(found)}")
        parts.append(_rivals_sentence(found))
    parts += [
        f"## All methods\n\nWin rate by log loss and by Brier score, in percent.\n\n"
        f"{_all_table(groups)}",
        f"## Blend against each method\n\n{_pairs(groups)}",
        f"## Calibration sets of different sizes\n\n{_sizes(groups, sizes)}",
        f"## Few examples\n\n{_few(few)}",
        f"## The half that choices were made on\n\n{_halves(plain, groups)}",
        f"## Under shift\n\n{_shift(rows)}",
        f"## Time\n\n{_times(plain, both)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _experiments(rows: Iterable[Row], group: str, half: str | None) -> Experiments:
    found: Experiments = defaultdict(dict)
    for row in rows:
        if row["group"] == group and half in (None, row["half"]):
            keys = ("nll", "brier", "ece", "fit", "apply")
            values = {key: float(row[key]) if row[key] else math.inf for key in keys}
            found[row["problem"], row["size"]][row["method"]] = values
    return dict(found)


def _win_rates(experiments: Iterable[Experiment], score: str) -> dict[str, float]:
    """Mean over experiments of the fraction of the other methods that are beaten."""
    rates = defaultdict(list)
    for each in experiments:
        names = list(each)
        values = np.array([each[name][score] for name in names])
        wins = (values[:, None] < values).sum(1) + ((values[:, None] == values).sum(1) - 1) / 2
        for name, rate in zip(names, wins / (len(names) - 1), strict=True):
            rates[name].append(rate)
    return {name: float(np.mean(found)) for name, found in rates.items()}


def _relative(experiments: Iterable[Experiment], name: str, score: str) -> float:
    """Geometric mean of the score divided by that without calibration; of finite ones."""
    ratios = [
        each[name][score] / each[NONE][score]
        for each in experiments
        if name in each and math.isfinite(each[name][score]) and math.isfinite(each[NONE][score])
    ]
    return math.exp(np.mean(np.log(ratios))) if ratios else math.nan


def _verdict(groups: Mapping[str, Experiments]) -> str:
    """Where blend has the highest win rate, and who is ahead elsewhere."""
    lines = []
    for score, label in SCORES.items():
        ahead, behind = [], []
        for group, found in groups.items():
            rates = _win_rates(found.values(), score)
            best = max((n for n in rates if n != BLEND), key=lambda name: rates[name])
            text = f"{GROUPS[group]} ({rates[BLEND]:.2f}; next {best} {rates[best]:.2f})"
            (ahead if rates[BLEND] >= rates[best] else behind).append(text)
        line = f"- By {label} `blend` has the highest win rate in: {'; '.join(ahead) or 'none'}."
        if behind:
            line += f" It has not in: {'; '.join(behind)}."
        lines.append(line)
    whole = [each for found in groups.values() for each in found.values()]
    worse = [each for each in whole if each[BLEND]["nll"] > each[NONE]["nll"] * 1.005]
    lines.append(
        f"- `calibrant fit` uses `blend` by default. Its log loss was more than 0.5 % above that "
        f"without calibration in {len(worse)} of {len(whole)} experiments."
    )
    return "\n".join(lines)


def _group_table(found: Experiments) -> str:
    rates = {score: _win_rates(found.values(), score) for score in SCORES}
    order = sorted(rates["nll"], key=lambda name: -sum(rates[s][name] for s in SCORES))
    named = [n for n in order[: SHOWN + 3] if n not in (BLEND, "select", NONE)][:SHOWN]
    shown = [n for n in order if n in named or n in (BLEND, "select", NONE)]
    rows = [
        [f"**{name}**" if name == BLEND else name]
        + [f"{rates[score][name]:.3f}" for score in SCORES]
        + [f"{_relative(found.values(), name, score):.4f}" for score in SCORES]
        for name in shown
    ]
    heads = ("method", "win rate, log loss", "Brier", "relative log loss", "relative Brier")
    return table(heads, rows)


def _rivals_sentence(found: Experiments) -> str:
    """The best method of other libraries, with the paired interval of blend against it."""
    parts = []
    for score, label in SCORES.items():
        rates = _win_rates(found.values(), score)
        theirs = max((n for n in rates if n not in OURS), key=lambda name: rates[name])
        parts.append(
            f"by {label} {theirs} (win rate {rates[theirs]:.3f}; {label} of `blend` relative to "
            f"it {_interval(found, theirs, score)})"
        )
    return f"The best method of another library is {', and '.join(parts)}."


def _interval(found: Experiments, other: str, score: str) -> str:
    """Mean ratio of blend to another method, resampling problems, not experiments."""
    logs = defaultdict(list)
    for (problem, _), each in found.items():
        if other in each and math.isfinite(each[other][score]):
            # Models of one table are not independent of each other, nor are sizes.
            logs[problem.split("/")[0]].append(math.log(each[BLEND][score] / each[other][score]))
    if not logs:
        return "-"
    means = np.array([np.mean(values) for values in logs.values()])
    generator = np.random.default_rng(0)
    drawn = means[generator.integers(0, len(means), (RESAMPLES, len(means)))].mean(1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return f"{math.exp(means.mean()):.4f} [{low:.4f}, {high:.4f}]"


def _all_table(groups: Mapping[str, Experiments]) -> str:
    rates = {
        group: {score: _win_rates(found.values(), score) for score in SCORES}
        for group, found in groups.items()
    }
    names = {name for each in rates.values() for name in each["nll"]}

    def mean(name: str) -> float:
        given = [each["nll"][name] for each in rates.values() if name in each["nll"]]
        return float(np.mean(given))

    rows = []
    for name in sorted(names, key=lambda name: (-len(_in(rates, name)) < -2, -mean(name))):
        cells = [
            f"{100 * each['nll'][name]:.0f} / {100 * each['brier'][name]:.0f}"
            if name in each["nll"]
            else "-"
            for each in rates.values()
        ]
        rows.append([name, "calibrant" if name in OURS else "other", *cells])
    return table(("method", "library", *(GROUPS[group] for group in groups)), rows)


def _in(rates: Mapping[str, Mapping[str, Mapping[str, float]]], name: str) -> list[str]:
    return [group for group, each in rates.items() if name in each["nll"]]


def _pairs(groups: Mapping[str, Experiments]) -> str:
    """Blend divided by each method of other libraries, per group."""
    names = sorted({n for found in groups.values() for each in found.values() for n in each})
    rows = [
        [name, *(_interval(found, name, "nll") for found in groups.values())]
        for name in names
        if name not in OURS
    ]
    text = (
        "Mean log loss of `blend` divided by that of the other method, with a 95 % interval over "
        "problems (the four models of a table are one problem); below 1 `blend` is better."
    )
    return f"{text}\n\n{table(('method', *(GROUPS[group] for group in groups)), rows)}"


def _sizes(groups: Mapping[str, Experiments], sizes: Sequence[str]) -> str:
    """Few examples: blend and others relative to no calibration."""
    rows = []
    names = (BLEND, "select", "temperature", "structured_matrix", "spline", "isotonic")
    for name in names:
        cells = []
        for size in sizes:
            some = [e for found in groups.values() for (_, s), e in found.items() if s == size]
            ratios = [e[name]["nll"] / e[NONE]["nll"] for e in some if name in e]
            finite = [ratio for ratio in ratios if math.isfinite(ratio)]
            worse = sum(ratio > 1.005 for ratio in ratios)
            mean = math.exp(np.mean(np.log(finite)))
            cells.append(f"{mean:.4f}, {max(ratios):.3f}, {worse} of {len(ratios)}")
        rows.append([name, *cells])
    text = (
        "Log loss relative to no calibration: geometric mean, the worst experiment, and in how "
        "many experiments it was more than 0.5 % worse."
    )
    return f"{text}\n\n{table(('method', *(f'{size} examples' for size in sizes)), rows)}"


def _halves(plain: Sequence[Row], groups: Mapping[str, Experiments]) -> str:
    rows = []
    for group in groups:
        found = _experiments(plain, group, "choices")
        if not found:
            continue
        cells = []
        for score in SCORES:
            rates = _win_rates(found.values(), score)
            best = max((n for n in rates if n != BLEND), key=lambda name: rates[name])
            cells.append(f"{rates[BLEND]:.3f} (next {best} {rates[best]:.3f})")
        rows.append([GROUPS[group], *cells])
    text = "Win rates of `blend` there. They are optimistic, and shown only to be complete."
    return f"{text}\n\n{table(('group', 'log loss', 'Brier'), rows)}"


def _shift(rows: Sequence[Row]) -> str:
    """Fitted to all examples of the clean half, tested on shifted data."""
    shifted = [row for row in rows if row["shift"]]
    if not shifted:
        return ""
    names = (NONE, "temperature", "focal_temperature", "gap_temperature", "ensemble_temperature")
    names += ("structured_vector", "structured_matrix", "spline", "isotonic", "venn_abers")
    names += ("select", BLEND, "probmetrics sms", "scikit-learn temperature")
    found = {(row["method"], row["problem"], row["shift"]): row for row in shifted}
    columns = list(dict.fromkeys((row["problem"], row["shift"]) for row in shifted))
    cells = [
        [name, *(f"{float(found[name, *column]['nll']):.3f}" for column in columns)]
        for name in names
    ]
    text = (
        "Log loss on shifted data of calibrators that were fitted to all clean examples. No "
        "calibrator here knows of the shift: use `PriorShift` for other class frequencies, and "
        "`calibrant watch` to notice one."
    )
    heads = ("method", *(f"{problem.split('_c10')[0]} {shift}" for problem, shift in columns))
    return f"{text}\n\n{table(heads, cells)}"


def _few(rows: Sequence[Row]) -> str:
    """Selections from few examples relative to no calibration, over random samples of each size."""
    if not rows:
        return ""
    losses: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        losses[row["method"], row["size"], row["problem"]].append(float(row["nll"]))
    sizes = sorted({row["size"] for row in rows}, key=int)
    cells = []
    for method in ("temperature", "select", BLEND):
        line = [method]
        for size in sizes:
            relative = [
                np.log(losses[method, size, name]) - np.log(losses[NONE, size, name])
                for name in {name for other, at, name in losses if (other, at) == (method, size)}
            ]
            relative = [each for each in relative if len(each) > 1]
            means = np.array([each.mean() for each in relative])
            errors = np.array([each.std(ddof=1) / math.sqrt(len(each)) for each in relative])
            worse = (means > WORSE) & (means > 2 * errors)
            line.append(
                f"{math.exp(means.mean()):.3f}, {math.exp(means.max()):.3f}, "
                f"{worse.sum()} of {len(means)}"
            )
        cells.append(line)
    text = (
        f"Log loss relative to no calibration, for {SAMPLES} random samples of each size from each "
        "table and file, both halves: geometric mean, the worst problem in the mean of its "
        "samples, and how many problems were worse by more than 1 % and by more than two standard "
        "errors of that mean."
    )
    return f"{text}\n\n{table(('method', *(f'{size} examples' for size in sizes)), cells)}"


def _times(plain: Sequence[Row], both: Mapping[str, Experiments]) -> str:
    """Median CPU time of fits to all examples, in milliseconds."""
    names = sorted({row["method"] for row in plain})
    whole = {
        group: [each for (_, size), each in found.items() if size == "all"]
        for group, found in both.items()
    }

    def median(group: str, name: str, key: str) -> float:
        return float(np.median([e[name][key] for e in whole[group] if name in e] or [math.nan]))

    def slowness(name: str) -> float:
        return float(np.nanmax([median(group, name, "fit") for group in both]))

    def shown(group: str, name: str) -> str:
        fit, apply = (1000 * median(group, name, key) for key in ("fit", "apply"))
        return "-" if math.isnan(fit) else f"{fit:,.0f} / {apply:,.0f}"

    rows = [
        [name, *(shown(group, name) for group in both)]
        for name in sorted(names, key=slowness, reverse=True)
    ]
    text = (
        "Median CPU time on one core of the fit to all examples (1,900 to 5,000), and of applying "
        "it to the test examples, in milliseconds; both halves. `select` and `blend` fit every "
        "calibrator of calibrant to five folds."
    )
    return f"{text}\n\n{table(('method', *(GROUPS[group] for group in both)), rows)}"
