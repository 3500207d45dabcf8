"""Results of a study as long rows: one number each, with its interval and where it belongs."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant import metrics
from calibrant.calibrators.selection import fit_by_name
from calibrant.data import frequency_groups
from calibrant.extras import need
from calibrant.files.checks import check_file
from calibrant.metrics import METRICS, Interval
from calibrant.metrics.metric import MetricFunction
from calibrant.metrics.resampling.intervals import intervals
from calibrant.predictions import Predictions
from calibrant.table_values import Table, plain_html
from calibrant.training.checkpoint import write

if TYPE_CHECKING:
    import pandas

ROWS, TABLE = "rows.jsonl", "rows.csv"
# What the rows of a run were made with, and their checksum; written after them.
MEASURED = "measured.json"
# The predictions as the network makes them.
NONE = "none"


# Rows that a notebook shows.
SHOWN = 20


@dataclass(frozen=True)
class Row:
    """One metric of one network after one calibrator on one split.

    `low` and `high` are the ends of its interval over examples; None where it has none. `remark`
    says why the fit of the calibrator did not converge, such as a temperature at its bound.
    """

    dataset: str
    model: str
    optimizer: str
    method: str
    seed: int
    calibrator: str
    split: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    remark: str = ""


COLUMNS = [each.name for each in fields(Row)]


class Rows(list[Row]):
    """Rows of a study; a notebook shows them as a table."""

    def to_pandas(self) -> "pandas.DataFrame":
        """A data frame with a column for each field."""
        pandas = need("pandas", extra="pandas", what="a data frame")
        return pandas.DataFrame([asdict(row) for row in self], columns=COLUMNS)

    def _repr_html_(self) -> str:
        cells = [["-" if v is None else v for v in asdict(row).values()] for row in self[:SHOWN]]
        caption = f"{min(len(self), SHOWN)} of {len(self):,} rows"
        return plain_html(Table.of(COLUMNS, cells, caption=caption))


def measured_rows(
    labels: dict[str, Any],
    seed: int,
    val: Predictions,
    test: Predictions,
    *,
    calibrators: Sequence[str],
    names: Sequence[str],
    resamples: int,
    counts: Sequence[int] = (),
    shifted: Mapping[str, Predictions] = MappingProxyType({}),
) -> list[Row]:
    """Every metric of both splits as they are, and of test after each calibrator.

    Calibrators are fitted to val: values there would be in-sample and are not made. Pixels have a
    row `group_ece` as well, the mean of the ECE within each image. If training had many more
    examples of some classes, `counts`, there are rows of "test: head", "test: medium" and "test:
    tail", the examples of frequent to rare classes, and `classwise_ece: CLASS` of each.
    Predictions of shifted test data have rows "shift: NAME" without intervals.
    """
    found: list[tuple[str, str, str, Interval | None]] = []
    parts = [(NONE, "val", val), (NONE, "test", test)]
    moved = [(NONE, f"shift: {name}", each) for name, each in shifted.items()]
    remarks: dict[str, str] = {}
    for name in calibrators:
        try:
            fitted = fit_by_name(name, val)
        except ValueError:
            # More parameters than examples, or a single class: the rows have no value.
            found += [(name, "test", metric, None) for metric in names]
            continue
        if fitted.origin is not None:
            remarks[name] = fitted.origin.remark
        parts.append((name, "test", test.map(fitted)))
        moved += [(name, f"shift: {key}", each.map(fitted)) for key, each in shifted.items()]
    chosen: dict[str, MetricFunction] = {name: METRICS[name] for name in names}
    if test.groups is not None:
        chosen["group_ece"] = metrics.group_ece
    # Whether some class had at least twice as many examples as another.
    long_tailed = bool(counts) and max(counts) >= 2 * min(counts)
    for calibrator, split, predictions in parts:
        pieces = {split: predictions}
        if long_tailed:
            pieces |= _by_frequency(split, predictions, counts)
        read = {
            key: intervals(chosen, of, resamples=resamples, seed=0) for key, of in pieces.items()
        }
        if long_tailed:
            read[split] |= _by_class(predictions)
        for key, readings in read.items():
            found += [(calibrator, key, *each) for each in readings.items()]
    for calibrator, split, predictions in moved:
        found += [(calibrator, split, name, _alone(METRICS[name](predictions))) for name in names]
    return [
        Row(**labels, seed=seed, **_reading(*each), remark=remarks.get(each[0], ""))
        for each in found
    ]


def _alone(value: float) -> Interval:
    """A value without an interval."""
    return Interval(float(value), math.nan, math.nan, math.nan)


def _by_frequency(
    split: str, predictions: Predictions, counts: Sequence[int]
) -> dict[str, Predictions]:
    """Examples of frequent, middling and rare classes, where training had all kinds."""
    groups = frequency_groups(counts)
    if len(set(groups)) < 2:
        return {}
    of_example = np.array(groups)[predictions.labels.numpy()]
    named = ((name, of_example == name) for name in ("head", "medium", "tail"))
    return {f"{split}: {name}": predictions.take(mask) for name, mask in named if mask.any()}


def _by_class(predictions: Predictions) -> dict[str, Interval]:
    """Calibration error of the probability of each class; NaN where it never occurs."""
    errors = metrics.per_class_ece(predictions)
    names = predictions.class_names or range(len(errors))
    named = zip(names, errors, strict=True)
    return {f"classwise_ece: {name}": _alone(error) for name, error in named}


def _reading(calibrator: str, split: str, metric: str, reading: Interval | None) -> dict[str, Any]:
    """The fields of a row after its labels; a number that is not finite is None."""
    numbers = {} if reading is None else {k: getattr(reading, k) for k in ("value", "low", "high")}
    finite = {key: each if math.isfinite(each) else None for key, each in numbers.items()}
    return {"calibrator": calibrator, "split": split, "metric": metric, "value": None, **finite}


def write_rows(folder: Path, rows: Iterable[Row]) -> None:
    """Write rows as lines of JSON and as a table, each whole or not at all."""
    held = list(rows)
    lines = [json.dumps(asdict(row), allow_nan=False) for row in held]
    write(folder / ROWS, "".join(f"{line}\n" for line in lines).encode())
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows(asdict(row).values() for row in held)
    write(folder / TABLE, text.getvalue().encode())


def read_rows(folder: Path) -> list[Row]:
    """Read what `write_rows` wrote."""
    path = folder / ROWS
    check_file(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [Row(**json.loads(line)) for line in lines]
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: remove it and re-run the study") from error
