"""`calibrant compare`: is one model really better than another?"""

import math
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import compare_many, options, screen
from calibrant.cli.screen import say, show_table
from calibrant.setting_errors import did_you_mean
from calibrant.table_values import p_text, range_text

if TYPE_CHECKING:
    import calibrant.metrics
    import calibrant.predictions

# The calibration errors on which a comparison may rest, the first of them that is there. All others
# contain noise that depends on the spread of the confidences: calibrated models of different
# sharpness read differently.
FAIR = ("debiased_binary_ece", "debiased_ece")
METRICS_COMPARED = ("nll", "brier", "accuracy", "debiased_ece", "ece", "classwise_ece")
METRICS_OF_TWO = (
    *("nll", "binary_brier", "roc_auc", "calibration_in_the_large"),
    *("debiased_binary_ece", "binary_ece"),
)


READ = options.TopLabelReading()


@options.with_reading
def compare(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="A B...",
            help="Predictions of two models or more, same examples in the same order. Of two, each "
            "may be a pattern of parts; else a pattern names several models.",
        ),
    ],
    unpaired: Annotated[bool, options.reading("--unpaired", help=options.UNPAIRED)] = False,
    baseline: Annotated[
        str | None,
        options.reading(
            metavar="FILE",
            help="Of more than two, what the others are compared with; default: the first.",
        ),
    ] = None,
    reads: options.TopLabelReading = READ,
    metric: Annotated[
        list[str] | None,
        options.measuring(
            metavar="NAME",
            help=f"May be repeated; only {' and '.join(FAIR)} say who is better calibrated. "
            f"Default: {', '.join(METRICS_COMPARED)}; "
            f"of two classes {', '.join(METRICS_OF_TWO)}.",
        ),
    ] = None,
    bins: options.Bins = 15,
    resamples: options.Resamples = 1000,
    level: options.Level = 0.95,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Compare models on the same examples: paired differences, A minus B.

    Of more than two, each is compared with the first, and p-values are corrected for all of them.
    A file that does not have the named arrays is read by the names it has.
    """
    from calibrant.metrics import METRICS
    from calibrant.metrics.resampling.comparisons import check_same_examples, in_one_class_order

    for name in metric or ():
        if name not in METRICS:
            raise ValueError(f"no metric {name!r}; {did_you_mean(name, METRICS)}")
    paths = _sources(files, baseline)
    sides = "AB" if len(paths) == 2 else paths
    models = in_one_class_order(dict(zip(sides, _load_all(paths, reads), strict=True)))
    binary = all(each.classes == 2 for each in models.values())
    known: tuple[str, ...] = METRICS_OF_TWO if binary else METRICS_COMPARED
    if any(each.top_label_only for each in models.values()):
        left = tuple(name for name in known if not METRICS[name].every_class)
        known = ("top_label_brier", *left)
    names = list(dict.fromkeys(metric or known))
    first, *others = models
    tests = len(names) * len(others)
    if resamples < enough_resamples(tests, level):
        print(
            f"note: {resamples} resamples cannot show a difference in any of {tests} "
            f"{'metrics' if len(others) == 1 else 'tests'}; "
            f"use at least {enough_resamples(tests, level)}",
            file=sys.stderr,
        )
    settings: dict[str, Any] = {"bins": bins, "level": level, "resamples": resamples, "seed": seed}
    paired = not unpaired
    if paired:
        for path, other in zip(paths[1:], others, strict=True):
            check_same_examples(models[first], models[other], (paths[0], path))
    if len(others) > 1:
        rows_of = _rows(models, names, baseline=first, paired=paired, **settings)
        sizes = {path: len(each) for path, each in models.items()}
        said = remarks(rows_of[others[0]])
        settings = {"paired": paired, **settings, "remarks": said}
        compare_many.report(first, sizes, rows_of, settings, as_json=as_json)
        return
    rows = _rows(models, names, baseline="B", paired=paired, **settings)["A"]
    one, two = models.values()
    record: dict[str, Any] = {
        "a": paths[0],
        "b": paths[1],
        "examples": len(one),
        "paired": paired,
        **settings,
        "metrics": {
            name: asdict(row) | {"higher": row.higher, "better": row.better}
            for name, row in rows.items()
        },
        "remarks": remarks(rows),
        "verdict": verdict(rows, min(len(one), len(two))),
    }
    if as_json:
        screen.show_json(record)
    else:
        show(record, rows)


def _load_all(
    paths: list[str], reads: options.TopLabelReading
) -> "list[calibrant.predictions.Predictions]":
    """Read each file by the options, or by its own names if it lacks those that another has."""
    named = [path for path in paths if reads.holds(path)]
    found = {path: reads.load(path) for path in named or paths}
    classes = next(iter(found.values())).class_names
    for path in paths:
        if path not in found:
            asked = ", ".join(reads.named_scores)
            warnings.warn(f"{path} has no {asked}: read by the names it has", stacklevel=1)
            found[path] = reads.without_names().load(path, classes)
    return [found[path] for path in paths]


def _sources(files: list[str], baseline: str | None) -> list[str]:
    """The files to compare, the baseline first."""
    from calibrant.files import expand

    paths = files if len(files) == 2 else [str(path) for each in files for path in expand(each)]
    if len(paths) < 2:
        raise ValueError(f"give two files or more to compare, got {paths[0]}")
    if len(paths) > 2 and len(set(paths)) < len(paths):
        again = next(path for at, path in enumerate(paths) if path in paths[:at])
        raise ValueError(f"{again} is given twice; give each file once")
    if baseline is None:
        return list(paths)
    if len(paths) == 2:
        raise ValueError("--baseline is for more than two files: of two, B is subtracted from A")
    named = [path for path in paths if baseline in (path, Path(path).name, Path(path).stem)]
    if len(named) != 1:
        raise ValueError(f"--baseline must be one of {', '.join(paths)}, got {baseline!r}")
    return [*named, *(path for path in paths if path not in named)]


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
    smallest: float = 0.0

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
        return self._descriptor.calibration_error and self.metric not in FAIR

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
    models: Mapping[str, "calibrant.predictions.Predictions"],
    names: list[str],
    *,
    baseline: str,
    paired: bool,
    bins: int,
    level: float,
    **settings: Any,
) -> dict[str, dict[str, Row]]:
    """Differences of each other model to the baseline; p-values are corrected for all of them."""
    from calibrant import metrics

    others = {path: each for path, each in models.items() if path != baseline}
    two = models[baseline]
    rows = {}
    count, times = len(others) * len(names), settings["resamples"]
    what = f"resampling {count} {'metrics' if len(others) == 1 else 'differences'} {times} times"
    with screen.progress(count * times, what) as step:
        for path, one in others.items():
            for name in names:
                metric = metrics.METRICS[name].with_bins(bins)
                found = metrics.compare(
                    metric, one, two, paired=paired, level=level, progress=step, **settings
                )
                # Infinite for both: there is no difference to test.
                p_value = 1.0 if math.isnan(found.value) else found.p_value
                ends = (found.low, found.high, p_value, level, found.smallest)
                rows[path, name] = Row(name, metric(one), metric(two), found.value, *ends)
    corrected = metrics.holm([row.p_value for row in rows.values()])
    by_model: dict[str, dict[str, Row]] = {path: {} for path in others}
    for ((path, name), row), p_value in zip(rows.items(), corrected, strict=True):
        # The smallest p-value that the test can give, corrected as well.
        smallest = min(1.0, count * row.smallest)
        by_model[path][name] = replace(row, p_value=p_value, smallest=smallest)
    return by_model


def show(record: dict[str, Any], rows: Mapping[str, Row]) -> None:
    """Print who is compared, the table, and the verdict."""
    say(f"A: {record['a']}")
    say(f"B: {record['b']}")
    say(f"{record['examples']:,} examples, {'paired' if record['paired'] else 'unpaired'}")
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
        p_text(row.p_value, row.smallest),
        f"{row.lower} lower" if row.noisy and row.lower else row.better or "-",
    ]


def remarks(rows: Mapping[str, Row]) -> list[str]:
    """Which rows are no evidence of better calibration, and which metric is."""
    from calibrant.metrics import METRICS

    noisy = [row.metric for row in rows.values() if row.noisy]
    if not noisy:
        return []
    two = all(METRICS[name].two_classes for name in noisy)
    fair = fair_metric(rows)
    remedy = f"rely on {fair}" if fair else f"add --metric {FAIR[0] if two else FAIR[1]}"
    return [f"{', '.join(noisy)}: sampling bias differs between models; {remedy}"]


def fair_metric(names: Iterable[str]) -> str | None:
    """The metric that says which model is better calibrated, if it is there."""
    held = set(names)
    return next((name for name in FAIR if name in held), None)


def verdict(rows: Mapping[str, Row], examples: int) -> str:
    """On calibration, from the debiased ECE, or else on the first metric; then on proper scores."""
    lead = rows[fair_metric(rows) or next(iter(rows))]
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
    words = "better calibrated" if row.metric in FAIR else "better"
    return f"{row.better} is {words}: {row.metric} {side} {amount}"
