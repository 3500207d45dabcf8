"""`calibrant compare`: is one model really better than another on the same examples?"""

import math
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import options, screen
from calibrant.cli.compare_output import FAIR, Row, remarks, show, verdict

if TYPE_CHECKING:
    import calibrant.predictions

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
