"""Tables of the arena by group: win rates, relative scores and blend against each method."""

from collections.abc import Mapping, Sequence

from benchmarks.arena_problems import GROUPS
from benchmarks.arena_rows import BLEND, NONE, OURS, SCORES, SELECT, Experiments, Row, experiments
from benchmarks.arena_scores import (
    failed,
    interval,
    nearest,
    paired_rates,
    ran,
    relative,
    win_rates,
    wins,
)
from benchmarks.arena_tables import FOR_REPORT
from benchmarks.arena_verdict import Groups, is_against_rest, methods, rivals
from benchmarks.pages import table

# Methods in the table of a group, besides blend, select and no calibration.
SHOWN = 8


def group_section(found: Experiments) -> str:
    """The best methods of a group, and blend against the best of other libraries."""
    rates = {score: win_rates(found.values(), score) for score in SCORES}
    order = sorted(rates["nll"], key=lambda name: -sum(rates[s][name] for s in SCORES))
    named = [n for n in order if n not in (BLEND, SELECT, NONE)][:SHOWN]
    rows = [
        [f"**{name}**" if name == BLEND else name]
        + [f"{rates[score][name]:.3f}" for score in SCORES]
        + [f"{relative(found, name, score):.4f}" for score in SCORES]
        + [str(ran(found, name)), str(failed(found, name))]
        for name in order
        if name in (*named, BLEND, SELECT, NONE)
    ]
    heads = ("method", "win rate, log loss", "Brier", "relative log loss", "relative Brier")
    return f"{table((*heads, 'experiments', 'failed'), rows)}\n\n{_best_rival(found)}".rstrip()


def _best_rival(found: Experiments) -> str:
    """The best method of other libraries, with the paired interval of blend against it."""
    if not rivals(found):
        return ""
    parts = []
    for score, label in SCORES.items():
        name = nearest(found, BLEND, rivals(found), score)
        parts.append(f"{label} {interval(found, BLEND, name, score)} ({name})")
    return f"`blend` divided by the best method of another library: {', '.join(parts)}."


def all_methods(groups: Groups) -> str:
    """Win rates of all methods in all groups; those for two classes last."""
    rates = {
        group: {score: win_rates(found.values(), score) for score in SCORES}
        for group, found in groups.items()
    }

    def order(name: str) -> tuple[bool, float]:
        given = [each["nll"][name] for each in rates.values() if name in each["nll"]]
        return len(given) < len(rates) - 1, -sum(given) / len(given)

    names = {name for each in rates.values() for name in each["nll"]}
    rows = []
    for name in sorted(names, key=order):
        cells = [
            f"{100 * each['nll'][name]:.0f} / {100 * each['brier'][name]:.0f}"
            if name in each["nll"]
            else "-"
            for each in rates.values()
        ]
        counts = [sum(count(found, name) for found in groups.values()) for count in (ran, failed)]
        rows.append([name, "calibrant" if name in OURS else "other", *cells, *map(str, counts)])
    heads = ("method", "library", *(GROUPS[group] for group in groups), "experiments", "failed")
    return (
        "Win rate by log loss and by Brier score, in percent. The last columns count experiments: "
        "in how many the method ran, and in how many of these it failed.\n\n"
        f"{table(heads, rows)}"
    )


def pairs(groups: Groups) -> str:
    """Blend against each method of other libraries, on the experiments that both ran."""
    text = (
        "First the score of `blend` divided by that of the other method: the geometric mean, and "
        "its 95 % interval over tables and networks. Below 1 `blend` is better. Failures are left "
        "out. Then the percentage of experiments in which `blend` is better; there a failure "
        "loses. Both are of the experiments that both methods ran."
    )
    names = sorted({name for found in groups.values() for name in rivals(found)})
    heads = ("method", *(GROUPS[group] for group in groups))
    parts = [
        f"{label[0].upper()}{label[1:]}:\n\n"
        + table(heads, [[name, *_against(groups, name, score)] for name in names])
        for score, label in SCORES.items()
    ]
    return "\n\n".join([text, *parts])


def _against(groups: Groups, name: str, score: str) -> list[str]:
    return [
        f"{interval(found, BLEND, name, score)}, {100 * wins(found, BLEND, name, score):.0f} %"
        if ran(found, name)
        else "-"
        for found in groups.values()
    ]


def _ahead(found: Experiments) -> list[str]:
    """Win rates of blend and of the strongest other method on the same experiments."""
    cells = []
    for score in SCORES:
        others = [name for name in methods(found) if name != BLEND]
        best = nearest(found, BLEND, others, score)
        own, theirs = paired_rates(found, BLEND, best, score)
        cells.append(f"{own:.3f} (next {best} {theirs:.3f})")
    return cells


def added(groups: Groups) -> str:
    """Reported problems that had never been looked at when the last choices were made."""
    tables = {each.name for each in FOR_REPORT}
    cells = []
    for group, found in groups.items():
        some = {key: each for key, each in found.items() if _is_added(key[0], tables)}
        if some:
            cells.append([GROUPS[group], str(len({name for name, _ in some})), *_ahead(some)])
    text = "Win rates of `blend` on the reported problems that were added after the first look."
    return f"{text}\n\n{table(('group', 'problems', 'log loss', 'Brier'), cells)}"


def _is_added(problem: str, tables: set[str]) -> bool:
    against_rest = is_against_rest(problem) and problem.split(" ")[-1] != "cat"
    return problem.split(".")[0] in tables or against_rest


def for_choices(rows: Sequence[Row], groups: Mapping[str, Experiments]) -> str:
    """Win rates of blend on the problems that choices were made on."""
    chosen = {group: experiments(rows, group, "choices") for group in groups}
    cells = [[GROUPS[group], *_ahead(found)] for group, found in chosen.items() if found]
    text = "Win rates of `blend` there. They are optimistic, and shown only to be complete."
    return f"{text}\n\n{table(('group', 'log loss', 'Brier'), cells)}"
