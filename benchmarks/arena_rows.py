"""Rows of the arena: how they are kept, and the experiments in them."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.arena_problems import GROUPS
from calibrant.calibrators import CALIBRATORS

RESULTS = Path(__file__).with_name("results")
KEYS = ("problem", "size", "half", "shift")
# Times are kept of the fits to all examples only.
VALUES, TIMES = ("nll", "brier"), ("fit", "apply")
NONE, SELECT, BLEND = "uncalibrated", "select", "blend"
OURS = (NONE, *CALIBRATORS, SELECT, BLEND)
SCORES = {"nll": "log loss", "brier": "Brier score"}

Row = Mapping[str, str]
# Values of all methods in one experiment: a problem with so many examples for the fit.
Experiment = dict[str, dict[str, float]]
Experiments = dict[tuple[str, str], Experiment]


def write_group(group: str, rows: Iterable[Row]) -> None:
    """Keep the rows of a group: a line for each experiment and value, a column for each method."""
    lines: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    methods: dict[str, None] = {}
    for row in rows:
        methods[row["method"]] = None
        for value in VALUES + (TIMES if row["size"] == "all" and not row["shift"] else ()):
            lines[*(row[key] for key in KEYS), value][row["method"]] = row.get(value, "")
    cells = [[*key, *(line.get(name, "-") for name in methods)] for key, line in lines.items()]
    write(f"arena-{group}", [*KEYS, "value", *methods], cells)


def write(name: str, heads: Sequence[str], cells: Iterable[Sequence[str]]) -> None:
    """Write a file of results."""
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{name}.csv", "w", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(cells)


def read(name: str) -> list[dict[str, str]]:
    """Lines of a file of results; none if it is not there."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def group_rows() -> list[dict[str, str]]:
    """All lines of experiments, with their group."""
    return [line | {"group": group} for group in GROUPS for line in read(f"arena-{group}")]


def of_methods(line: Row) -> dict[str, float]:
    """The values of a line by method; a failure is infinite, what did not run is left out."""
    named = {name: text for name, text in line.items() if name not in (*KEYS, "value", "group")}
    return {name: _value(text) for name, text in named.items() if text != "-"}


def _value(text: str) -> float:
    value = float(text or "inf")
    return math.inf if math.isnan(value) else value


def experiments(lines: Iterable[Row], group: str, half: str | None = None) -> Experiments:
    """The experiments of a group without shift, of one half or of both."""
    found: Experiments = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        if line["group"] == group and half in (None, line["half"]) and not line["shift"]:
            for method, value in of_methods(line).items():
                found[line["problem"], line["size"]][method][line["value"]] = value
    return {key: dict(each) for key, each in found.items()}
