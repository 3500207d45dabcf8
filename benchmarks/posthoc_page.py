"""The page docs/posthoc.md, from what was measured."""

from typing import Any

import numpy as np

from benchmarks.pages import machine, table, versions
from calibrant.calibrators import CALIBRATORS

Records = dict[str, dict[str, Any]]
# What `select` returns: one calibrator, and the combination of several.
SELECTED = ("select", "blend")

HEAD = """# Post-hoc calibrators compared

This page compares all calibrators of calibrant with those of scikit-learn, netcal and probmetrics
on published logits of real networks. Use it to choose a calibrator, or let calibrant choose:

```console
calibrant fit val.npz -o cal.json                      # the blend of all calibrators
calibrant fit val.npz --calibrator auto -o cal.json    # the selected calibrator alone
```

`make posthoc` wrote this page, as follows:

- Each file is split into halves five times (seeds 0 to 4). Calibrators are fitted on one half and
  evaluated on the other; values are means over the five splits.
- `select` is the one calibrator that `calibrators.select` chooses by cross-validation on the
  fitting half. `blend` combines the candidates: half of it is their weighted mean, half a
  logarithmic opinion pool. Weights and exponents are fitted to out-of-fold predictions.
- Some libraries return probabilities of exactly zero, whose log loss is infinite. They are clipped
  to 1e-12.
- netcal's logistic and beta calibration take up to 90 seconds for each fit. They are evaluated on
  the first split only."""

OVERVIEW = """## All files

NLL is relative to temperature scaling, in percent, averaged over the files; lower is better. "best
on" counts the files where the method has the lowest NLL of all. Brier score, ECE and smECE are
means over the files. Matrix and Dirichlet scaling need more examples than parameters, so their
means leave some files out."""

SELECT = """## How well `select` and `blend` choose

NLL of `select` and `blend` compared with the best single method of any library on that file, which
is known only from the test half. The difference is the cost of selecting on the fitting half. The
table contains methods evaluated on all five splits; netcal's slow methods follow below it. "parts"
is the mean number of calibrators in the blend.

The settings of both were chosen on half of the data of `make arena`, which includes some of these
files. So results on other files may be a little worse."""

FOCAL = """## Focal temperature scaling against temperature scaling

Held-out difference of focal temperature scaling minus temperature scaling, with 95 % intervals:
over paired examples for NLL, by the bootstrap for ECE. The last column is the difference in NLL on
the fitting half, which is never above zero."""

SHIFT = """## Under distribution shift

Calibrators are fitted on half of the clean examples (first split) and evaluated on shifted ones.
The corruptions of akamaster's ResNet-20 are noise, contrast and blur made with numpy; they are not
CIFAR-10-C. In labelshift, 97 % of the test labels are of one class."""

EACH = """## File by file

The last column is the difference in NLL to temperature scaling, with a 95 % interval over paired
examples."""


def page(records: Records) -> str:
    """Compose the page."""
    parts = [
        HEAD,
        f"{machine()}.",
        f"{versions()}.",
        OVERVIEW,
        overview(records),
        SELECT,
        selection(records),
        FOCAL,
        focal(records),
        SHIFT,
        shift(records),
        EACH,
        *(part for name in records for part in one_file(name, records[name])),
    ]
    return "\n\n".join(parts) + "\n"


def mean(record: dict[str, Any], method: str, metric: str) -> float:
    """Mean over the splits of a file."""
    return float(np.mean(record["scores"][method][metric]))


def methods(records: Records) -> list[str]:
    """All that were measured, ours first."""
    found = {name: None for record in records.values() for name in record["scores"]}
    return sorted(found, key=lambda name: name not in (*CALIBRATORS, *SELECTED))


def whole(record: dict[str, Any], method: str) -> bool:
    """Whether a method was measured on all splits of a file."""
    return len(record["scores"].get(method, {"nll": []})["nll"]) > 1


def overview(records: Records) -> str:
    """One row for each method."""
    best = [
        min((m for m in record["scores"] if whole(record, m)), key=lambda m: mean(record, m, "nll"))
        for record in records.values()
    ]
    rows = []
    for method in methods(records):
        held = [record for record in records.values() if whole(record, method)]
        if not held:
            continue
        ratios = [mean(r, method, "nll") / mean(r, "temperature", "nll") for r in held]
        rows.append(
            [
                method,
                str(len(held)),
                f"{100 * (np.mean(ratios) - 1):+.2f} %",
                str(best.count(method)),
                *(f"{np.mean([mean(r, method, m) for r in held]):.4f}" for m in ("brier", "ece")),
                f"{np.mean([mean(r, method, 'smece') for r in held]):.4f}",
            ]
        )
    rows.sort(key=lambda row: float(row[2].split()[0]))
    return table(["method", "files", "NLL", "best on", "Brier", "ECE", "smECE"], rows)


def selection(records: Records) -> str:
    """`select` and `blend` against the best method of each file, and against the goal."""
    rows: list[list[str]] = []
    losses: dict[str, list[float]] = {own: [] for own in SELECTED}
    for name, record in records.items():
        best = min(_single(record), key=lambda m: mean(record, m, "nll"))
        for own in SELECTED:
            losses[own].append(_behind(record, own, best))
        parts = np.mean([len(names) for names in record["blended"]])
        rows.append(
            [
                name,
                ", ".join(dict.fromkeys(record["chosen"])),
                f"{parts:.1f}",
                best,
                *(f"{mean(record, m, 'nll'):.4f}" for m in (best, *SELECTED)),
                *(f"{100 * losses[own][-1]:+.2f} %" for own in SELECTED),
            ]
        )
    heads = ["file", "chosen", "parts", "best method", "its NLL", "select", "blend"]
    heads += ["select minus best", "blend minus best"]
    said = [_said(records, own, losses[own]) for own in SELECTED]
    return "\n\n".join([table(heads, rows), *said])


def _said(records: Records, own: str, losses: list[float]) -> str:
    """Difference of one of ours to the best, to the other libraries, and to any one method."""
    theirs, slow = [], []
    for name, record in records.items():
        others = [m for m in _single(record) if m not in CALIBRATORS]
        theirs.append(min((mean(record, m, "nll"), _behind(record, own, m)) for m in others)[1])
        ours = record["scores"][own]["nll"][0]
        for method, found in record["scores"].items():
            if not whole(record, method):
                slow.append((ours / found["nll"][0] - 1, method, name))
    everywhere = set.intersection(*(set(_single(record)) for record in records.values()))
    singles = {
        m: float(np.mean([1 + _behind(record, own, m) for record in records.values()])) - 1
        for m in everywhere
    }
    closest = max(singles, key=lambda m: singles[m])
    return (
        f"`{own}`: worst file {100 * max(losses):+.2f} % (the goal is at most 0.5 %), mean over "
        f"the files {100 * np.mean(losses):+.2f} %. Against the best of the other libraries on "
        f"each file: {100 * np.mean(theirs):+.2f} % on average. Against the best "
        f"single method used on all files, {closest}: {100 * singles[closest]:+.2f} %. On the one "
        f"split of netcal's slow methods the difference is "
        f"{100 * np.mean([gap for gap, *_ in slow]):+.2f} % on average, at most "
        f"{100 * max(slow)[0]:+.2f} % ({max(slow)[1]}, {max(slow)[2]})."
    )


def _single(record: dict[str, Any]) -> list[str]:
    """Single methods, of any library, that were measured on all splits of a file."""
    return [m for m in record["scores"] if m not in SELECTED and whole(record, m)]


def _behind(record: dict[str, Any], own: str, other: str) -> float:
    return mean(record, own, "nll") / mean(record, other, "nll") - 1


def focal(records: Records) -> str:
    """Focal against plain temperature scaling, and on how many files it wins."""
    rows, wins = [], {"nll": [0, 0, 0], "ece": [0, 0, 0]}
    worst = -np.inf
    for name, record in records.items():
        gap, error = record["behind"]["focal_temperature"]
        nll = (gap, gap - 1.96 * error, gap + 1.96 * error)
        ece = tuple(record["focal_ece"])
        fitted = record["fitted_nll"]
        gain = np.subtract(fitted["focal_temperature"], fitted["temperature"])
        worst = max(worst, float(gain.max()))
        for metric, (value, low, high) in (("nll", nll), ("ece", ece)):
            wins[metric][0] += value < 0
            wins[metric][1] += high < 0
            wins[metric][2] += low > 0
        rows.append([name, _range(*nll), _range(*ece), f"{gain.mean():+.5f}"])
    said = "\n".join(
        f"- Held-out {metric.upper()}: lower on {won} of {len(records)} files, {sure} of them with "
        f"an interval below zero; higher with an interval above zero on {lost}."
        for metric, (won, sure, lost) in wins.items()
    )
    heads = ["file", "NLL, focal minus plain", "ECE, focal minus plain", "fitted NLL"]
    return (
        f"{table(heads, rows)}\n\n{said}\n- Fitted NLL: the largest difference over all files and "
        f"splits is {worst:+.1e}, so focal temperature is never above temperature scaling."
    )


def _range(value: float, low: float, high: float) -> str:
    return f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"


def shift(records: Records) -> str:
    """NLL and ECE of every calibrator of ours on shifted examples."""
    parts = []
    for name, record in records.items():
        if not record["shifted"]:
            continue
        splits = list(record["shifted"])
        rows = []
        for method in (*CALIBRATORS, *SELECTED):
            if method not in record["scores"]:
                continue
            clean = record["scores"][method]
            cells = [f"{clean['nll'][0]:.3f} / {clean['ece'][0]:.3f}"]
            for split in splits:
                found = record["shifted"][split][method]
                cells.append(f"{found['nll']:.3f} / {found['ece']:.3f}")
            rows.append([method, *cells])
        heads = ["NLL / ECE", "clean half", *splits]
        best = {split: _best(record["shifted"][split]) for split in splits}
        said = "; ".join(f"{split}: {method}" for split, method in best.items())
        parts.append(
            f"### {name}\n\n{table(heads, rows)}\n\nLowest NLL of our calibrators: {said}."
        )
    return "\n\n".join(parts)


def _best(found: dict[str, dict[str, float]]) -> str:
    ours = {m: row["nll"] for m, row in found.items() if m in CALIBRATORS}
    return min(ours, key=lambda m: ours[m])


def one_file(name: str, record: dict[str, Any]) -> list[str]:
    """All methods on one file, the lowest NLL first."""
    rows = []
    for method in sorted(record["scores"], key=lambda m: mean(record, m, "nll")):
        gap = record["behind"].get(method)
        interval = "one split" if gap is None else _range(gap[0], *_ends(*gap))
        cells = [
            f"{mean(record, method, metric):.4f}" for metric in ("nll", "brier", "ece", "smece")
        ]
        rows.append([method, *cells, interval])
    heads = ["method", "NLL", "Brier", "ECE", "smECE", "NLL minus temperature"]
    return [
        f"### {name}, {record['examples']:,} x {record['classes']}",
        table(heads, rows),
    ]


def _ends(gap: float, error: float) -> tuple[float, float]:
    return gap - 1.96 * error, gap + 1.96 * error
