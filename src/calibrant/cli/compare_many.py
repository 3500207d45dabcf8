"""What `calibrant compare` says about more than two models: each against the baseline."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from calibrant.cli import screen
from calibrant.cli.screen import say, show_table
from calibrant.table_values import p_text, range_text

if TYPE_CHECKING:
    from calibrant.cli.compare import Row

Rows = Mapping[str, Mapping[str, "Row"]]


def report(
    baseline: str,
    sizes: Mapping[str, int],
    rows: Rows,
    settings: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print one table of all differences, or JSON.

    Args:
        baseline: the model that is subtracted.
        sizes: number of examples of each model.
        rows: other model to metric to its difference, with p-values corrected for all.
        settings: settings of the comparison, and remarks.
        as_json: print only JSON.
    """
    if as_json:
        models = {
            name: {metric: _record(name, baseline, row) for metric, row in found.items()}
            for name, found in rows.items()
        }
        record = {"baseline": baseline, "examples": dict(sizes), **settings, "models": models}
        screen.show_json(record | {"verdict": verdict(baseline, rows)})
        return
    counts = sorted(set(sizes.values()))
    n = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    say(f"baseline: {baseline}")
    say(f"{len(sizes)} models, {n} examples, {'paired' if settings['paired'] else 'unpaired'}")
    say("")
    interval = f"{100 * settings['level']:g}% interval"
    heads = ("metric", "model", "value", "baseline", "difference", interval, "p", "better")
    metrics = next(iter(rows.values()))
    lines = [
        _cells(name, baseline, found[metric]) for metric in metrics for name, found in rows.items()
    ]
    show_table(heads, lines, numbers=heads[2:7])
    say(f"p-values are corrected for {len(lines)} tests (Holm)")
    for line in settings["remarks"]:
        say(line)
    say(verdict(baseline, rows), style="bold")


def verdict(baseline: str, rows: Rows) -> str:
    """Which models are better than the baseline, and which are worse, in the leading metric."""
    metrics = next(iter(rows.values()))
    from calibrant.cli.compare import fair_metric

    lead = fair_metric(metrics) or next(iter(metrics))
    sides = {
        name: found[lead].lower if found[lead].noisy else found[lead].better
        for name, found in rows.items()
    }
    words = {
        "better": [name for name, side in sides.items() if side == "A"],
        "worse": [name for name, side in sides.items() if side == "B"],
        "not significantly different": [name for name, side in sides.items() if side is None],
    }
    said = [f"{what}: {', '.join(names)}" for what, names in words.items() if names]
    return f"{lead} against {baseline}: {'; '.join(said)}"


def _name(side: str | None, model: str, baseline: str) -> str | None:
    return {"A": model, "B": baseline}.get(side or "")


def _record(model: str, baseline: str, row: "Row") -> dict[str, Any]:
    found = asdict(row)
    value, of_baseline = found.pop("a"), found.pop("b")
    named = {key: _name(getattr(row, key), model, baseline) for key in ("higher", "better")}
    return {"value": value, "baseline": of_baseline} | found | named


def _cells(model: str, baseline: str, row: "Row") -> list[str]:
    lower = _name(row.lower, model, baseline)
    return [
        row.metric,
        model,
        f"{row.a:.4f}",
        f"{row.b:.4f}",
        "-" if row.difference != row.difference else f"{row.difference:+.4f}",
        range_text(row.low, row.high, "+"),
        p_text(row.p_value, row.smallest),
        f"{lower} lower" if row.noisy and lower else _name(row.better, model, baseline) or "-",
    ]
