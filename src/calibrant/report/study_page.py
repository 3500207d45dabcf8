"""The page of a study: tables, reliability diagrams and curves, from its saved files alone."""

import io
import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from calibrant.extras import need
from calibrant.files.atomic import replacing
from calibrant.metrics.runs import over_runs
from calibrant.predictions import Predictions
from calibrant.report.reliability import reliability_diagram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"
# Drawn along training, if the history has them.
CURVES = {"loss": "training loss", "val_nll": "NLL, val", "val_ece": "ECE, val"}
# Lines of a reliability diagram that can still be told apart.
LINES = 6
Row = dict[str, Any]

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ name }}</title>
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem;
 color: #222; }
h1 { margin-bottom: 0.2rem; } .about { color: #666; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: 0.25rem 0.7rem; }
td { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th { text-align: right; } th.name, td.name { text-align: left; }
thead th { border-bottom: 1px solid #999; } tr.first td { border-top: 1px solid #ddd; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
.figures svg { max-width: 100%; height: auto; }
</style></head><body>
<h1>{{ name }}</h1><p class="about">{{ about }}</p><p class="about">{{ state }}</p>
{% for part in parts %}<h2>{{ part.title }}</h2>
<table><thead><tr><th class="name">method</th><th class="name">calibrator</th>
{% for metric in metrics %}<th>{{ metric }}</th>{% endfor %}</tr></thead><tbody>
{% for line in part.lines %}<tr{% if line.first %} class="first"{% endif %}>
<td class="name">{{ line.method if line.first }}</td><td class="name">{{ line.calibrator }}</td>
{% for cell in line.cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table>
<p class="about">{{ part.note }}</p>
<div class="figures">{% for figure in part.figures %}{{ figure | safe }}{% endfor %}</div>
{% endfor %}
{% if problems %}<h2>Cells without a result</h2><table><thead><tr><th class="name">cell</th>
<th class="name">status</th><th class="name">reason</th></tr></thead><tbody>
{% for each in problems %}<tr><td class="name">{{ each.cell }}</td>
<td class="name">{{ each.status }}</td><td class="name">{{ each.reason }}</td></tr>
{% endfor %}</tbody></table>{% endif %}
</body></html>
"""


def study_page(folder: str | Path) -> Path:
    """Write the page of a study into its folder; nothing is trained or measured again."""
    jinja = need("jinja2", extra="report", what="the page of a study")
    where = Path(folder)
    if not (where / "rows.jsonl").exists():
        raise FileNotFoundError(f"no study with rows in {where}: run one with calibrant study")
    study = json.loads((where / "study.json").read_text(encoding="utf-8"))["study"]
    cells = json.loads((where / "cells.json").read_text(encoding="utf-8"))["cells"]
    rows = [row for row in _read(where / "rows.jsonl") if row["split"] == "test"]
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    setting = jinja.Environment(autoescape=True, undefined=jinja.StrictUndefined)
    text = setting.from_string(TEMPLATE).render(
        name=study["name"],
        about=study["about"],
        state=f"{sum(cell['status'] == 'done' for cell in cells)} of {len(cells)} cells are done.",
        metrics=metrics,
        parts=_parts(where, rows, cells, metrics),
        problems=[
            {"cell": _label(cell), "status": cell["status"], "reason": cell["reason"]}
            for cell in cells
            if cell["status"] != "done"
        ],
    )
    with replacing(where / PAGE) as handle:
        handle.write(text.encode())
    return where / PAGE


def _read(path: Path) -> list[Row]:
    found = []
    for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path}:{place} is damaged: run the study again") from None
    return found


def _label(cell: Row) -> str:
    parts = [cell[part] for part in ("dataset", "model", "optimizer", "method")]
    return ", ".join([*parts, f"seed {cell['seed']}"])


def _parts(where: Path, rows: list[Row], cells: list[Row], metrics: list[str]) -> list[Row]:
    """One section for each dataset, model and optimizer."""
    found: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["dataset"], row["model"], row["optimizer"]].append(row)
    parts = []
    for key, own in found.items():
        done = [
            cell
            for cell in cells
            if (cell["dataset"], cell["model"], cell["optimizer"]) == key
            and cell["status"] == "done"
        ]
        seeds = len({row["seed"] for row in own})
        many = f"mean over {seeds} seeds, 95 % intervals of one training over examples and seeds"
        parts.append(
            {
                "title": ", ".join(key),
                "lines": _lines(own, metrics),
                "note": f"Test split, {many if seeds > 1 else 'one seed, 95 % intervals'}.",
                "figures": [_reliability(where, done), *_curves(where, done)],
            }
        )
    return parts


def _lines(rows: list[Row], metrics: list[str]) -> list[Row]:
    groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        group = groups.setdefault((row["method"], row["calibrator"]), defaultdict(list))
        group[row["metric"]].append(row)
    seen: set[str] = set()
    lines = []
    for (method, calibrator), group in groups.items():
        texts = [_text(metric, group[metric]) for metric in metrics]
        first = method not in seen
        seen.add(method)
        lines.append({"method": method, "calibrator": calibrator, "cells": texts, "first": first})
    return lines


def _text(metric: str, rows: list[Row]) -> str:
    reading = over_runs(metric, [(row["value"], row["low"], row["high"]) for row in rows])
    return f"{reading.value:.4f} [{reading.low:.3f}, {reading.high:.3f}]" if reading else "-"


def _reliability(where: Path, cells: list[Row]) -> str:
    """Diagram of the first seed of each method, as trained."""
    chosen: dict[str, Predictions] = {}
    for cell in cells:
        if cell["method"] not in chosen and len(chosen) < LINES:
            chosen[cell["method"]] = Predictions.load(where / cell["folder"] / "test.npz")
    return _svg(reliability_diagram(chosen, title="test, as trained, first seed"))


def _curves(where: Path, cells: list[Row]) -> list[str]:
    """Mean over the seeds of what was measured after each epoch, one line for each method."""
    figures = need("matplotlib.figure", extra="report", what="the page of a study")
    histories: dict[str, list[list[Row]]] = defaultdict(list)
    for cell in cells:
        text = (where / cell["folder"] / "history.jsonl").read_text(encoding="utf-8")
        histories[cell["method"]].append([json.loads(line) for line in text.splitlines()])
    drawn = []
    for key, title in CURVES.items():
        figure = figures.Figure(figsize=(4.6, 3.4), layout="constrained")
        axes = figure.subplots()
        for method, runs in histories.items():
            length = min(map(len, runs))
            values = [mean(run[epoch][key] for run in runs) for epoch in range(length)]
            axes.plot(range(1, length + 1), values, label=method, linewidth=1.5)
        axes.set(xlabel="epoch", title=title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
        drawn.append(_svg(figure))
    return drawn


def _svg(figure: "Figure") -> str:
    """A picture as text, the same bytes each time."""
    matplotlib = need("matplotlib", extra="report", what="the page of a study")
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "calibrant", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)
