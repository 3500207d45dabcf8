"""What the seeds of a study read, from its rows, for figures that show all of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from calibrant.report.saved import PARTS

NEEDED = (*PARTS, "seed", "calibrator", "split", "metric", "value")


class Key(NamedTuple):
    """What the seeds of a reading share."""

    name: str
    calibrator: str
    split: str
    metric: str


def seed_values(rows: Iterable[Any]) -> dict[Key, list[float]]:
    """Values of all seeds, in the order of the rows; none where no seed has a value.

    A name is what trainings differ in: the method, or whichever of dataset, model, optimizer and
    method have more than one value.
    """
    held = [row if isinstance(row, Mapping) else getattr(row, "__dict__", {}) for row in rows]
    if not held or any(name not in row for row in held for name in NEEDED):
        raise ValueError(f"need rows of a study, each with {', '.join(NEEDED)}")
    parts = [part for part in PARTS if len({row[part] for row in held}) > 1] or ["method"]
    found: dict[Key, dict[int, float]] = {}
    for row in held:
        name = ", ".join(row[part] for part in parts)
        key = Key(name, row["calibrator"], row["split"], row["metric"])
        seeds = found.setdefault(key, {})
        if row["value"] is None or not math.isfinite(row["value"]):
            continue
        if row["seed"] in seeds:
            raise ValueError(f"two rows of {', '.join(key)}, seed {row['seed']}: give one study's")
        seeds[row["seed"]] = row["value"]
    return {key: list(seeds.values()) for key, seeds in found.items()}


def summary(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, lowest and highest; NaN where there is no value."""
    if not values:
        return (math.nan,) * 3
    return math.fsum(values) / len(values), min(values), max(values)


def among(what: str, given: str, known: Iterable[str]) -> None:
    """Refuse a name that no row has."""
    names = list(dict.fromkeys(known))
    if given not in names:
        raise ValueError(f"{what} must be one of {names}, which the rows have; got {given!r}")
