"""JSON records of how a calibrator was fitted, treated as untrusted input."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from calibrant.calibrators.base import Fit
from calibrant.calibrators.records import check_keys, short, typed
from calibrant.files.checks import one_line

REQUIRED = {
    "examples": int,
    "sha256": str,
    "converged": bool,
    "gradient_norm": float,
    "remark": str,
}
# Files without these are those of earlier releases.
OPTIONAL = {"zero_floor": float, "class_frequencies": list, "class_names": list, "scores": str}
TEXTS = ("sha256", "remark", "scores")
# Rounding of a sum of frequencies.
TOLERANCE = 1e-9


def encoded(fit: Fit | None) -> dict[str, Any] | None:
    """Convert to JSON."""
    if fit is None:
        return None
    record = {key: value for key, value in asdict(fit).items() if value is not None}
    if not math.isfinite(fit.gradient_norm):
        # JSON has neither NaN nor infinity.
        record["gradient_norm"] = None
    return record


def decoded(record: Any, classes: int) -> Fit | None:
    """Convert JSON to the record of a fit."""
    if record is None:
        return None
    check_keys("fit", typed("fit", record, dict), REQUIRED, optional=OPTIONAL)
    given = {**record, "gradient_norm": math.nan} if record["gradient_norm"] is None else record
    kinds = {**REQUIRED, **OPTIONAL}
    values = {name: typed(f"fit.{name}", given[name], kinds[name]) for name in given}
    values |= {name: one_line(values[name], 1000) for name in TEXTS if name in values}
    values["gradient_norm"] = float(values["gradient_norm"])
    if "zero_floor" in values:
        values["zero_floor"] = float(values["zero_floor"])
        if not 0 < values["zero_floor"] < 1:
            raise ValueError(
                f"fit.zero_floor must lie between 0 and 1, got {short(record['zero_floor'])}"
            )
    return Fit(**{**values, **_of_classes(values, classes)})


def _of_classes(values: Mapping[str, Any], classes: int) -> dict[str, tuple[Any, ...]]:
    """Check the lists with an entry for each class."""
    found: dict[str, tuple[Any, ...]] = {}
    kinds: dict[str, type] = {"class_frequencies": float, "class_names": str}
    for name, kind in kinds.items():
        if name in values:
            found[name] = tuple(kind(typed(f"fit.{name}", each, kind)) for each in values[name])
            if len(found[name]) != classes:
                raise ValueError(f"fit.{name} has {len(found[name])} entries for {classes} classes")
    shares, names = found.get("class_frequencies", (1.0,)), found.get("class_names", ())
    if min(shares) < 0 or not abs(sum(shares) - 1) <= TOLERANCE:
        raise ValueError("fit.class_frequencies must not be negative and sum to 1")
    if len(set(names)) < len(names):
        raise ValueError("fit.class_names must be different")
    for text in names:
        if not text or not text.isprintable():
            raise ValueError(f"fit.class_names must be printable, got {short(text)}")
    return found
