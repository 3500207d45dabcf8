"""The verdict of the arena and its limits, computed from the rows."""

from collections.abc import Mapping, Sequence

from benchmarks.arena_problems import GROUPS, ONE
from benchmarks.arena_rows import BLEND, NONE, OURS, SCORES, SELECT, Experiments, Row, experiments
from benchmarks.arena_scores import nearest, paired_rates, ran, source, win_rates, wins
from benchmarks.pages import table

# A log loss relative to no calibration that is worse.
WORSE = 1.005

Groups = Mapping[str, Experiments]


def verdict(groups: Groups) -> str:
    """How often blend and select are ahead, and of whom; then the table of it."""
    places = [(group, score) for group in groups for score in SCORES]
    ahead = {
        name: [
            (other, *place)
            for place in places
            for other in methods(groups[place[0]])
            if (name == BLEND or other not in OURS) and _is_ahead(groups, name, other, *place)
        ]
        for name in (BLEND, SELECT)
    }
    first = {name: len(places) - len({each[1:] for each in found}) for name, found in ahead.items()}
    return (
        f"- `blend`, the default of `calibrant fit`, has the highest win rate in {first[BLEND]} of "
        f"{len(places)} comparisons: each group by log loss and by Brier score. It is compared "
        f"with each method on the experiments that both ran.{_named(ahead[BLEND])}\n"
        f"- `select`, a single calibrator, is ahead of every method of another library in "
        f"{first[SELECT]} of {len(places)}.{_named(ahead[SELECT])}\n"
        f"{_one_against_one(groups, places)}\n"
        f"{_worse(groups)}\n\n"
        f"{_table(groups, places)}"
    )


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count} {noun}{'s' * (count != 1)}"


def methods(found: Experiments) -> list[str]:
    """Names of all methods in these experiments."""
    return list(dict.fromkeys(name for each in found.values() for name in each))


def rivals(found: Experiments) -> list[str]:
    """Names of the methods of other libraries."""
    return [name for name in methods(found) if name not in OURS]


def _is_ahead(groups: Groups, name: str, other: str, group: str, score: str) -> bool:
    own, theirs = paired_rates(groups[group], name, other, score)
    return theirs > own


def _named(found: Sequence[tuple[str, str, str]], begin: str = "Ahead of it") -> str:
    """A sentence on methods with their group and score, if there are any."""
    named = [f"{name} ({GROUPS[group]}, {SCORES[score]})" for name, group, score in found]
    return f" {begin}: {', '.join(named)}." if named else ""


def _one_against_one(groups: Groups, places: Sequence[tuple[str, str]]) -> str:
    pairs = [(name, *place) for place in places for name in rivals(groups[place[0]])]
    lost = [
        (name, group, score)
        for name, group, score in pairs
        if wins(groups[group], BLEND, name, score) <= 0.5
    ]
    count = len({name for name, _, _ in pairs})
    return (
        f"- One against one, `blend` is better in most of the experiments that both ran in "
        f"{len(pairs) - len(lost)} of {len(pairs)} pairings with {counted(count, 'method')} of "
        f"other libraries.{_named(lost, 'In the others it is not')}"
    )


def _worse(groups: Groups) -> str:
    whole = [(size, e) for found in groups.values() for (_, size), e in found.items()]
    sizes = [size for size, each in whole if each[BLEND]["nll"] > each[NONE]["nll"] * WORSE]
    return (
        f"- The log loss of `blend` is more than {100 * (WORSE - 1):.1f} % above that without "
        f"calibration in {len(sizes)} of {len(whole)} experiments. {sizes.count('100')} of these "
        "have 100 examples."
    )


def _table(groups: Groups, places: Sequence[tuple[str, str]]) -> str:
    cells = []
    for group, score in places:
        found = groups[group]
        rates = win_rates(found.values(), score)
        own = [name for name in methods(found) if name in OURS and name not in (BLEND, SELECT)]
        named = [_strongest(found, some, score) for some in (own, rivals(found))]
        shown = [f"{rates[name]:.3f}" for name in (BLEND, SELECT)]
        cells.append([GROUPS[group], SCORES[score], *shown, *named])
    heads = ("group", "win rate by", "blend", "select", "best single calibrator of calibrant")
    return table((*heads, "best method of another library"), cells)


def _strongest(found: Experiments, names: Sequence[str], score: str) -> str:
    """The strongest of some methods against blend, and on which experiments if not on all."""
    if not names:
        return "-"
    name = nearest(found, BLEND, names, score)
    own, theirs = paired_rates(found, BLEND, name, score)
    count = ran(found, name)
    missing = f"; blend {own:.3f} on the same {count} of {len(found)} experiments"
    return f"{theirs:.3f} ({name}{missing if count < len(found) else ''})"


def limits(rows: Sequence[Row], groups: Groups) -> str:
    """What stands behind each group of the reported half, and what it cannot show."""
    chosen = {group: experiments(rows, group, "choices") for group in groups}
    cells = [
        [GROUPS[group], *_counts(found), str(len(found)), *_counts(chosen[group])]
        for group, found in groups.items()
    ]
    heads = ("group", "tables or networks", "problems", "experiments")
    heads += ("for choices: tables or networks", "problems")
    points = [*_single(groups), *_against_rest(groups, chosen), *_same_images(groups, chosen)]
    points.append(
        "Models of one table share its examples, and so do calibration sets of different sizes. "
        "The intervals resample tables and networks, not experiments, as if these were independent."
    )
    return f"{table(heads, cells)}\n\n" + "\n".join(f"- {point}" for point in points)


def _counts(found: Experiments) -> tuple[str, str]:
    names = {problem for problem, _ in found}
    return str(len({source(name) for name in names})), str(len(names))


def _single(groups: Groups) -> list[str]:
    """Groups with one table or network."""
    return [
        f"{GROUPS[group].capitalize()}: one {'table' if group.startswith('tables') else 'network'} "
        f"({name}), so there is no interval."
        for group, found in groups.items()
        for name, *more in [sorted({source(problem) for problem, _ in found})]
        if not more
    ]


def is_against_rest(problem: str) -> bool:
    """Whether a problem tells one class of a network from the rest."""
    return problem.split(" ")[-1] in ONE


def _against_rest(groups: Groups, chosen: Groups) -> list[str]:
    """How many problems of two classes are made from ten classes."""
    found = {problem for problem, _ in groups.get("images-2", {})}
    if not found:
        return []
    made = {problem for problem in found if is_against_rest(problem)}
    own = {problem for problem, _ in chosen["images-2"] if not is_against_rest(problem)}
    text = (
        f"{GROUPS['images-2'].capitalize()}: "
        f"{'all ' if made == found else f'{len(made)} of '}{len(found)} problems tell one class of "
        f"CIFAR-10 from the rest, with {counted(len(set(map(source, made))), 'network')}."
    )
    if made == found and own:
        text += (
            f" Files that have two classes themselves ({', '.join(sorted(own))}) are only in the "
            "half for choices."
        )
    return [text]


def _same_images(groups: Groups, chosen: Groups) -> list[str]:
    """Networks of CIFAR-10 in both halves: those that also tell one class from the rest."""
    counts = [
        len({source(name) for name, _ in half.get("images-2", {}) if is_against_rest(name)})
        for half in (chosen, groups)
    ]
    if not all(counts):
        return []
    return [
        "The halves differ in networks, not in images: CIFAR-10 has "
        f"{counted(counts[0], 'network')} in the half for choices and {counts[1]} in the reported "
        "half. Nearly all of these are tested on the same images. The "
        "networks of CIFAR-100 also share theirs."
    ]


def failures(groups: Groups) -> str:
    """On which calibration sets methods of scikit-learn fail, and what else fails there."""
    sets = {
        (group, key)
        for group, found in groups.items()
        for key, each in found.items()
        if any(_fails(each, name) for name in each if name.startswith("scikit-learn"))
    }
    if not sets:
        return ""
    where = "; ".join(
        f"{GROUPS[group]}, {_listed(sizes)} examples"
        for group in groups
        if (sizes := {size for at, (_, size) in sets if at == group})
    )
    there = [groups[group][key] for group, key in sets]
    also = [
        name
        for name in {name: None for each in there for name in each}
        if not name.startswith("scikit-learn")
        and all(_fails(each, name) for each in there if name in each)
    ]
    own = sum(name in OURS for name in also)
    others = [f"{counted(own, 'method')} of calibrant"] if own else []
    others += [name for name in also if name not in OURS]
    text = (
        " Calibrators of scikit-learn fail if the calibration set lacks a class: "
        f"{counted(len(sets), 'experiment')} ({where})."
    )
    return text + (f" The same holds for {' and '.join(others)}." if others else "")


def _fails(each: Mapping[str, Mapping[str, float]], name: str) -> bool:
    return name in each and each[name]["nll"] == float("inf")


def _listed(sizes: set[str]) -> str:
    order = sorted(sizes, key=lambda size: (size == "all", int(size) if size != "all" else 0))
    return " and ".join([", ".join(order[:-1]), order[-1]]) if len(order) > 1 else order[0]
