"""Settings of a study: data, splits, versions, seeds, recipe; and failed runs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calibrant.report.charts.svg import escape
from calibrant.report.charts.tables import table
from calibrant.report.saved import Saved, SavedCell, without_folders
from calibrant.report.sections.panel import Panel

# Of the identity of a training: fingerprints, and what a table of its own has.
FINGERPRINTS = {"data", "network", "first_weights"}
APART = FINGERPRINTS | {"seed", "method"}


def settings(saved: Saved) -> Panel | None:
    """Tables of everything that is needed to reproduce the study."""
    done = [cell for cell in saved.cells if cell.record is not None]
    parts = [
        _study(saved),
        _splits(done),
        _fingerprints(done),
        _machine(done),
        _recipe(done),
        *(_choices(done, part) for part in ("dataset", "model", "method")),
        _unfinished(saved),
    ]
    about = "All that is needed to reproduce the study; settings are those of the finished runs."
    return Panel("settings", "Settings", about, "".join(parts))


def _study(saved: Saved) -> str:
    names = ("seeds", "calibrators", "metrics", "resamples")
    ended: dict[str, int] = {}
    for cell in saved.cells:
        ended[cell.status] = ended.get(cell.status, 0) + 1
    lines = [["runs", ", ".join(f"{count} {status}" for status, count in ended.items())]]
    lines += [[name, said(saved.study[name])] for name in names if name in saved.study]
    return table(["setting", "value"], lines, caption="Study", texts=2)


def _splits(cells: Sequence[SavedCell]) -> str:
    """Examples of each split, and its role."""
    jobs: dict[str, str] = {}
    sizes: dict[str, dict[str, list[int]]] = {}
    for cell in cells:
        record = cell.record or {}
        jobs |= record.get("jobs") or {}
        own = sizes.setdefault(cell.labels["dataset"], {})
        for split, count in (record.get("examples") or {}).items():
            own.setdefault(split, []).append(count)
    if not sizes:
        return ""
    splits = list(dict.fromkeys(split for own in sizes.values() for split in own))
    lines = [
        [name, *(_range(own.get(split, [])) for split in splits)] for name, own in sizes.items()
    ]
    fed = "".join(
        f"<dt>{escape(split)}</dt><dd>{escape(said(job))}</dd>" for split, job in jobs.items()
    )
    return table(["dataset", *splits], lines, caption="Examples in each split") + (
        f'<dl class="jobs">{fed}</dl>' if fed else ""
    )


def _range(counts: Sequence[int]) -> str:
    if not counts:
        return "-"
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _fingerprints(cells: Sequence[SavedCell]) -> str:
    """Digests of the data after splitting, which may depend on the seed."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for cell in cells:
        found = _identity(cell).get("data")
        if found:
            seeds.setdefault((cell.labels["dataset"], str(found)), []).append(cell.seed)
    lines = [
        [name, ", ".join(map(str, sorted(set(own)))), found] for (name, found), own in seeds.items()
    ]
    caption = "SHA-256 of the data after splitting"
    return table(["dataset", "seeds", "SHA-256"], lines, caption=caption, texts=3, folded=True)


def _machine(cells: Sequence[SavedCell]) -> str:
    held = [
        {key: v for key, v in _identity(cell).items() if "." not in key and key not in APART}
        for cell in cells
    ]
    return _pairs(held, "Versions and machine")


def _recipe(cells: Sequence[SavedCell]) -> str:
    return _pairs([_part(cell, "recipe") for cell in cells], "Recipe", folded=True)


def _pairs(held: Sequence[Mapping[str, Any]], caption: str, *, folded: bool = False) -> str:
    """Every setting with all of its values."""
    names = list(dict.fromkeys(key for each in held for key in each))
    lines = [[name, _all(each[name] for each in held if name in each)] for name in names]
    return (
        table(["setting", "value"], lines, caption=caption, texts=2, folded=folded) if lines else ""
    )


def _choices(cells: Sequence[SavedCell], part: str) -> str:
    """Settings of every dataset, model or method."""
    held: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        held.setdefault(cell.labels[part], []).append(_part(cell, part))
    lines = []
    for label, own in held.items():
        names = list(dict.fromkeys(key for each in own for key in each))
        texts = [f"{name} = {_all(each[name] for each in own if name in each)}" for name in names]
        lines.append([label, ", ".join(texts) or "-"])
    caption = f"{part.capitalize()}s"
    return table([part, "settings"], lines, caption=caption, texts=2, folded=True) if lines else ""


def _unfinished(saved: Saved) -> str:
    lines = [
        [cell.label, cell.status, said(cell.reason) or "-"] for cell in saved.cells if not cell.done
    ]
    if not lines:
        return ""
    caption = f"Runs without a result: {len(lines)} of {len(saved.cells)}"
    return table(["run", "status", "reason"], lines, caption=caption, texts=3)


def _identity(cell: SavedCell) -> dict[str, Any]:
    found = (cell.record or {}).get("identity")
    return found if isinstance(found, dict) else {}


def _part(cell: SavedCell, part: str) -> dict[str, Any]:
    """Settings of one part, without its name before each."""
    prefix = f"{part}."
    held = _identity(cell).items()
    return {key.removeprefix(prefix): value for key, value in held if key.startswith(prefix)}


def _all(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(map(said, values)))


def said(value: Any) -> str:
    """A setting as text, without the folders of the machine."""
    if isinstance(value, list):
        return ", ".join(map(said, value)) or "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return without_folders(text)
