"""What `calibrant audit` prints, from a record of plain values."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli.screen import p_text, range_text, say, show_table
from calibrant.cli.wording import TESTS

if TYPE_CHECKING:
    from calibrant.predictions import Predictions


def show(record: dict[str, Any]) -> None:
    """Print the tables, the verdict, and where the figures are."""
    say(f"{record['source']}: {facts(record)}")
    say("")
    heads = metric_heads(record)
    show_table(heads, metric_rows(record["metrics"]), numbers=["value"])
    if record.get("tests"):
        heads = ["test", "p-value", "asks"]
        show_table(heads, test_rows(record["tests"]), numbers=["p-value"])
    for line in record["remarks"]:
        say(line)
    if record["truth"] is not None:
        say(truth_line(record["truth"], record["metrics"]["ece"], record["bins"]))
    if "verdict" in record:
        say(record["verdict"], style="bold")
    for key in ("figure", "classwise_figure", "page"):
        if record[key] is not None:
            say(f"{key.replace('_', ' ')}: {record[key]}")


def facts(record: dict[str, Any]) -> str:
    """How much there is."""
    return (
        f"{record['examples']:,} examples, {record['classes']:,} classes, "
        f"mean confidence {record['mean_confidence']:.4f}"
    )


def metric_heads(record: dict[str, Any]) -> list[str]:
    """Heads of the table of metrics, with intervals if there are any."""
    interval = [f"{100 * record['level']:g}% interval"] if "verdict" in record else []
    return ["metric", "value", *interval, "what it is; lower is better"]


def write_page(path: Path, predictions: "Predictions", record: dict[str, Any]) -> None:
    """Write all of it as one page of HTML, whole or not at all."""
    from calibrant.files.atomic import replacing
    from calibrant.report.audit_page import audit_page

    text = audit_page(
        predictions,
        name=Path(record["source"]).name,
        facts=facts(record),
        heads=metric_heads(record),
        rows=metric_rows(record["metrics"]),
        verdict=record.get("verdict", ""),
        remarks=record["remarks"],
        bins=record["bins"],
    )
    with replacing(path) as handle:
        handle.write(text.encode())


def metric_rows(metrics: dict[str, dict[str, float]]) -> list[list[str]]:
    """Name, value, interval if there is one, and a few words."""
    from calibrant.metrics import METRICS

    return [
        [
            name,
            f"{found['value']:.4f}",
            *([range_text(found["low"], found["high"])] if "low" in found else []),
            METRICS[name].meaning,
        ]
        for name, found in metrics.items()
    ]


def test_rows(tests: dict[str, dict[str, float]]) -> list[list[str]]:
    """Name, p-value, and the question that the test asks."""
    return [[name, p_text(found["p_value"]), TESTS.get(name, "")] for name, found in tests.items()]


def infinite(metrics: dict[str, dict[str, float]]) -> list[str]:
    """Explain an infinite log score, the one metric that can be infinite."""
    if not math.isinf(metrics["nll"]["value"]):
        return []
    return ["nll is infinite: some label was given probability zero"]


def truth_line(truth: dict[str, float], ece: dict[str, float], bins: int) -> str:
    """Say the true error of an example, and whether the interval of the ECE holds it."""
    line = f"true error {truth['error']:.4f}, over {bins} bins {truth['binned_error']:.4f}"
    if "low" not in ece:
        return line
    held = [ece["low"] <= truth[name] <= ece["high"] for name in ("error", "binned_error")]
    words = {
        (True, True): "contains both",
        (True, False): "contains the first",
        (False, True): "contains the second",
        (False, False): "contains neither",
    }
    return f"{line}; the interval of ece {words[held[0], held[1]]}"


def default_output(source: str, ending: str) -> Path:
    """Name what is written about a file, a pattern or an example, in the current folder.

    >>> str(default_output("runs/test.npz", "reliability.png"))
    'test.reliability.png'
    >>> str(default_output("parts/*.parquet", "audit.html"))
    'parts.audit.html'
    """
    path = Path(source)
    names = (re.sub(r"[*?!\[\]]", "", name).strip(" -_.") for name in (path.stem, path.parent.name))
    return Path(f"{next(filter(None, names), 'predictions')}.{ending}")
