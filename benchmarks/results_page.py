"""The page of study results, from the tables in studies/results alone."""

import csv
import json
import tomllib
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

from matplotlib.figure import Figure

from benchmarks import probe_results
from benchmarks.pages import table
from benchmarks.real_data import ROOT

PAGE = ROOT / "docs" / "results.md"
ABOUT = """# Results of our studies

This page shows how each training method does on small data, before and after temperature scaling.
[claims.md](claims.md) compares these results with what the papers say. To repeat a study:

```console
calibrant study studies/cals-cpu.toml --workers 2    # 20 to 60 minutes on two cores
make results                                         # keep its rows and rewrite this page
```

How to read the tables:

- All values are measured on test data: mean over the seeds ± standard deviation.
- **T** means after temperature scaling, **FT** after focal temperature scaling. Both are fitted on
  the validation data.
- **NLL, T, minus CE** compares a method with cross entropy, both after temperature scaling, seed by
  seed. Below zero, the method is better.
- [benchmarks.md](benchmarks.md) has the cost of a training step of each method.
- The networks and datasets are small, so results at full size may differ.
- Every row behind the tables is in `studies/results`.
"""
HEAD = (
    "method",
    "accuracy",
    "NLL",
    "ECE",
    "NLL, T",
    "ECE, T",
    "NLL, FT",
    "ECE, FT",
    "NLL, T, minus CE",
)
PLACE = ("dataset", "model", "optimizer", "method")
GROUPS = ("head", "medium", "tail")

# (calibrator, split, metric) -> values by seed.
Values = dict[tuple[str, str, str], dict[int, float]]


def write_page(kept: Path) -> None:
    """Write docs/results.md and a figure for each study."""
    parts = [ABOUT.rstrip()]
    for about in sorted(kept.glob("*.json")):
        parts += _study(about)
    PAGE.write_text("\n\n".join(parts) + "\n")
    print(f"written: {PAGE.relative_to(ROOT)}")


def _study(about: Path) -> list[str]:
    name, held = about.stem, json.loads(about.read_text())
    given = tomllib.loads((ROOT / "studies" / f"{name}.toml").read_text())
    # What is compared: methods, or optimizers where there is one method.
    axis = (
        "method" if len(given["method"]) > 1 or len(given.get("optimizer", [])) < 2 else "optimizer"
    )
    cells: dict[str, dict[str, Values]] = defaultdict(lambda: defaultdict(dict))
    with about.with_suffix(".csv").open() as handle:
        for row in csv.DictReader(handle):
            where = ", ".join(row[key] for key in PLACE if key != axis)
            values = cells[where][row[axis]]
            key = (row["calibrator"], row["split"], row["metric"])
            if row["value"]:
                values.setdefault(key, {})[int(row["seed"])] = float(row["value"])
    seeds = ", ".join(map(str, given["seeds"]))
    parts = [
        f"## {name}",
        f"{given['about']} {held['cells']} runs, seeds {seeds}, "
        f"{held['seconds'] / 60:.0f} minutes in total, shared by two workers. {held['machine']}; "
        f"{held['versions']}.",
    ]
    parts += [f"Did not finish: {each}." for each in held["failed"]]
    for where, methods in cells.items():
        parts += [f"{where}:", table(HEAD, [_row(m, v, methods) for m, v in methods.items()])]
        parts += _chosen(methods)
        parts += _more(methods)
    if held.get("gammas"):
        lines = [f"- {key}: {', '.join(map(str, each))}" for key, each in held["gammas"].items()]
        parts += ["Mean gamma after the last epoch, seed by seed:", "\n".join(lines)]
    if held.get("gamma_weights"):
        sizes = {f"{each:,.0f}" for sizes in held["gamma_weights"].values() for each in sizes}
        parts.append(f"Weights of the gamma network: {', '.join(sorted(sizes))}.")
    parts += probe_results.section(about.parent, PAGE, name)
    figure = PAGE.with_name(f"results-{name}.png")
    _draw(about.with_name(f"{name}-curves.csv"), figure, axis)
    parts.append(f"![ECE and NLL of the validation data along training]({figure.name})")
    for kind, said in (
        ("multipliers", "Multipliers of each class along training"),
        ("gamma", "Gamma of the examples along training"),
    ):
        drawn = PAGE.with_name(f"{kind}-{name}.png")
        parts += [f"![{said}]({drawn.name})"] if drawn.exists() else []
    return parts


def _row(method: str, values: Values, methods: dict[str, Values]) -> list[str]:
    columns = [("none", "accuracy"), ("none", "nll"), ("none", "ece")]
    columns += [(c, m) for c in ("temperature", "focal_temperature") for m in ("nll", "ece")]
    cells = [_cell(values.get((c, "test", metric), {})) for c, metric in columns]
    key = ("temperature", "test", "nll")
    plain = methods["cross_entropy"].get(key, {}) if "cross_entropy" in methods else {}
    own = values.get(key, {})
    apart = {seed: own[seed] - plain[seed] for seed in own if seed in plain}
    return [method, *cells, _cell(apart, sign="+") if method != "cross_entropy" else "-"]


def _chosen(methods: dict[str, Values]) -> list[str]:
    """The methods with the lowest validation NLL, where there is a choice."""
    key = ("none", "val", "nll")
    best = sorted((mean(v[key].values()), name) for name, v in methods.items() if key in v)
    if len(best) < 2:
        return []
    said = [f"{name} ({each:.4f})" for each, name in best[:3]]
    return [f"Lowest NLL on validation data, as trained: {', '.join(said)}."]


def _more(methods: dict[str, Values]) -> list[str]:
    """Tables of rare classes and of images, where there are rows of them."""
    parts = []
    if any(("none", "test: tail", "accuracy") in values for values in methods.values()):
        head = (
            "method",
            *(f"{what}, {g}" for g in GROUPS for what in ("accuracy", "ECE", "ECE, T")),
        )
        rows = []
        for method, values in methods.items():
            cells = [method]
            for group in GROUPS:
                split = f"test: {group}"
                for calibrator, metric in (
                    ("none", "accuracy"),
                    ("none", "ece"),
                    ("temperature", "ece"),
                ):
                    cells.append(_cell(values.get((calibrator, split, metric), {})))
            rows.append(cells)
        parts.append(table(head, rows))
    if any(("none", "test", "group_ece") in values for values in methods.values()):
        head = ("method", "ECE of all pixels", "ECE within images", "the same, T")
        keys = (("none", "ece"), ("none", "group_ece"), ("temperature", "group_ece"))
        rows = [
            [method, *(_cell(values.get((c, "test", m), {})) for c, m in keys)]
            for method, values in methods.items()
        ]
        parts.append(table(head, rows))
    return parts


def _cell(values: dict[int, float], sign: str = "") -> str:
    found = list(values.values())
    if not found:
        return "-"
    spread = f" ± {stdev(found):.4f}" if len(found) > 1 else ""
    return f"{mean(found):{sign}.4f}{spread}"


def _draw(curves: Path, path: Path, axis: str) -> None:
    """ECE and NLL of the validation data along training, a row of pictures for each dataset."""
    held: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    with curves.open() as handle:
        for row in csv.DictReader(handle):
            where = ", ".join(row[key] for key in PLACE if key != axis)
            held[where][row[axis]].append(row)
    figure = Figure(figsize=(9, 3.2 * len(held)), layout="constrained", dpi=80)
    panels = figure.subplots(len(held), 2, squeeze=False)
    for line, (where, methods) in zip(panels, held.items(), strict=True):
        for axes, key, title in zip(line, ("val_ece", "val_nll"), ("ECE", "NLL"), strict=True):
            for place, (method, rows) in enumerate(methods.items()):
                epochs = [int(row["epoch"]) + 1 for row in rows]
                style = "--" if place >= 10 else "-"
                axes.plot(epochs, [float(row[key]) for row in rows], style, label=method, lw=1.4)
            axes.set(xlabel="epoch", ylabel=f"{title} on validation data")
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set_title(where, fontsize=9, loc="left")
        line[1].legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path)
