"""`calibrant compare`: is one model really better than another on the same examples?"""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import options, screen
from calibrant.cli.screen import say, show_table
from calibrant.tables import p_text, range_text

if TYPE_CHECKING:
    import calibrant.metrics
    import calibrant.predictions

# The calibration error on which a comparison may rest. All others contain noise that depends on
# the spread of the confidences: calibrated models of different sharpness read differently.
FAIR = "debiased_ece"
METRICS_COMPARED = ("nll", "brier", "accuracy", "debiased_ece", "ece", "classwise_ece")


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Predictions of one model.")],
    second: Annotated[
        str,
        typer.Argument(
            metavar="B", help="Predictions of another model, same examples in the same order."
        ),
    ],
    logits: options.Logits = None,
    probs: options.Probs = None,
    labels: options.Labels = "labels",
    ignore: options.Ignore = None,
    max_expansion: options.Expansion = 100.0,
    metric: Annotated[
        list[str] | None,
        options.measuring(
            metavar="NAME",
            help=f"May be repeated; only {FAIR} says who is better calibrated. "
            f"Default: {', '.join(METRICS_COMPARED)}.",
        ),
    ] = None,
    bins: options.Bins = 15,
    resamples: options.Resamples = 1000,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Compare two models on the same examples: paired differences, A minus B."""
    names = list(dict.fromkeys(metric or METRICS_COMPARED))
    from calibrant.metrics import METRICS

    for name in names:
        if name not in METRICS:
            raise ValueError(f"no metric {name!r}; expected one of {', '.join(METRICS)}")
    reading = (logits, probs, labels, ignore, max_expansion)
    one, two = options.load(first, *reading), options.load(second, *reading)
    if resamples < enough_resamples(len(names), level):
        print(
            f"note: {resamples} resamples cannot show a difference in any of {len(names)} metrics; "
            f"use at least {enough_resamples(len(names), level)}",
            file=sys.stderr,
        )
    rows = _rows(one, two, names, bins=bins, resamples=resamples, level=level, seed=seed)
    record: dict[str, Any] = {
        "a": first,
        "b": second,
        "examples": len(one),
        "bins": bins,
        "level": level,
        "resamples": resamples,
        "seed": seed,
        "metrics": {
            name: asdict(row) | {"higher": row.higher, "better": row.better}
            for name, row in rows.items()
        },
        "remarks": remarks(rows),
        "verdict": verdict(rows, len(one)),
    }
    if as_json:
        screen.show_json(record)
    else:
        show(record, rows)


@dataclass(frozen=True)
class Row:
    """One metric of both models and their difference, A minus B; the p-value is corrected."""

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float

    @property
    def higher(self) -> str | None:
        """Whose value is higher significantly: "A", "B", or None."""
        if not self.p_value < 1 - self.level:
            return None
        return "A" if self.low > 0 else "B" if self.high < 0 else None

    @property
    def lower(self) -> str | None:
        """Whose value is lower significantly."""
        return None if self.higher is None else "AB".replace(self.higher, "")

    @property
    def better(self) -> str | None:
        """Who is better significantly; None where a metric does not say that."""
        best = self._descriptor.best
        if self.noisy or best in ("zero", "one"):
            return None
        return self.higher if best == "higher" else self.lower

    @property
    def noisy(self) -> bool:
        """Whether it is a calibration error whose sampling bias differs between models."""
        return self._descriptor.calibration_error and self.metric != FAIR

    @property
    def _descriptor(self) -> "calibrant.metrics.Metric":
        from calibrant.metrics import METRICS

        return METRICS[self.metric]


def enough_resamples(metrics: int, level: float) -> int:
    """Fewest resamples whose smallest p-value, 2 / (resamples + 1), survives the correction.

    >>> enough_resamples(6, 0.95)
    240
    """
    return math.floor(2 * metrics / (1 - level) + 1e-9)


def _rows(
    one: "calibrant.predictions.Predictions",
    two: "calibrant.predictions.Predictions",
    names: list[str],
    *,
    bins: int,
    resamples: int,
    level: float,
    seed: int,
) -> dict[str, Row]:
    """Difference of each metric; p-values are corrected for the number of metrics."""
    from calibrant import metrics

    rows = {}
    what = f"resampling {len(names)} metrics {resamples} times"
    with screen.progress(len(names) * resamples, what) as step:
        for name in names:
            metric = metrics.METRICS[name].with_bins(bins)
            found = metrics.compare(
                metric, one, two, resamples=resamples, level=level, seed=seed, progress=step
            )
            # Infinite for both: there is no difference to test.
            p_value = 1.0 if math.isnan(found.value) else found.p_value
            ends = (found.low, found.high)
            rows[name] = Row(name, metric(one), metric(two), found.value, *ends, p_value, level)
    corrected = metrics.holm([row.p_value for row in rows.values()])
    return {
        name: replace(row, p_value=p_value)
        for (name, row), p_value in zip(rows.items(), corrected, strict=True)
    }


def show(record: dict[str, Any], rows: Mapping[str, Row]) -> None:
    """Print who is compared, the table, and the verdict."""
    say(f"A: {record['a']}")
    say(f"B: {record['b']}")
    say(f"{record['examples']:,} examples, paired")
    say("")
    interval = f"{100 * record['level']:g}% interval"
    heads = ("metric", "A", "B", "A - B", interval, "p", "better")
    show_table(heads, [_cells(row) for row in rows.values()], numbers=heads[1:6])
    if len(rows) > 1:
        say(f"p-values are corrected for {len(rows)} metrics (Holm)")
    for line in record["remarks"]:
        say(line)
    say(record["verdict"], style="bold")


def _cells(row: Row) -> list[str]:
    return [
        row.metric,
        f"{row.a:.4f}",
        f"{row.b:.4f}",
        "-" if math.isnan(row.difference) else f"{row.difference:+.4f}",
        range_text(row.low, row.high, "+"),
        p_text(row.p_value),
        f"{row.lower} lower" if row.noisy and row.lower else row.better or "-",
    ]


def remarks(rows: Mapping[str, Row]) -> list[str]:
    """Which rows are no evidence of better calibration, and which metric is."""
    noisy = [row.metric for row in rows.values() if row.noisy]
    if not noisy:
        return []
    remedy = "rely on" if FAIR in rows else "add --metric"
    return [f"{', '.join(noisy)}: sampling bias differs between models; {remedy} {FAIR}"]


def verdict(rows: Mapping[str, Row], examples: int) -> str:
    """On calibration, from the debiased ECE, or else on the first metric; then on proper scores."""
    lead = rows.get(FAIR) or next(iter(rows.values()))
    parts = [_sentence(lead, examples)]
    better: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row._descriptor.proper and row is not lead and row.better:
            better.setdefault(row.better, []).append(name)
    parts += [f"{side} has the better {' and '.join(names)}" for side, names in better.items()]
    return "; ".join(parts)


def _sentence(row: Row, examples: int) -> str:
    if row.higher is None:
        return f"no significant difference in {row.metric} on {examples:,} examples"
    size, ends = abs(row.difference), sorted((abs(row.low), abs(row.high)))
    amount = f"by {size:.4f} [{ends[0]:.4f}, {ends[1]:.4f}]"
    if row.noisy:
        return f"{row.lower} has the lower {row.metric}, {amount}"
    if row.better is None:
        return f"{row.metric} of {row.higher} is higher {amount}"
    side = "higher" if row.better == row.higher else "lower"
    words = "better calibrated" if row.metric == FAIR else "better"
    return f"{row.better} is {words}: {row.metric} {side} {amount}"
