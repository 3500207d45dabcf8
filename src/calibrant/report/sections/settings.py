"""Settings of a study: data, splits, versions, seeds, recipe; and failed runs."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calibrant.report.charts.svg import escape
from calibrant.report.charts.tables import table
from calibrant.report.saved import Saved, SavedCell, without_folders
from calibrant.report.sections.panel import Panel

# Parts of the identity of a run that other tables have, or that are digests.
APART = {"data", "network", "first_weights", "seed", "method"}


def settings(saved: Saved) -> Panel | None:
    """Tables of everything that is needed to reproduce the study."""
    done = [cell for cell in saved.cells if cell.record is not None]
    machine = [
        {key: v for key, v in _identity(cell).items() if "." not in key and key not in APART}
        for cell in done
    ]
    recipe = [_part(cell, "recipe") for cell in done]
    parts = [
        _study(saved),
        _splits(done),
        _fingerprints(done),
        _table(["setting", "value"], _values(machine), "Versions and machine"),
        _table(["setting", "value"], _values(recipe), "Recipe", folded=True),
        *(_choices(done, part) for part in ("dataset", "model", "method")),
        _unfinished(saved),
    ]
    about = "All that is needed to reproduce the study; settings are those of the finished runs."
    return Panel("settings", "Settings", about, "".join(parts))


def _table(heads: list[str], lines: list[list[str]], caption: str, *, folded: bool = False) -> str:
    """A table of text; nothing without a line."""
    texts = len(heads)
    return table(heads, lines, caption=caption, folded=folded, texts=texts) if lines else ""


def _study(saved: Saved) -> str:
    names = ("seeds", "calibrators", "metrics", "resamples")
    ended = Counter(cell.status for cell in saved.cells)
    lines = [["runs", ", ".join(f"{count} {status}" for status, count in ended.items())]]
    lines += [[name, setting_text(saved.study[name])] for name in names if name in saved.study]
    return _table(["setting", "value"], lines, "Study")


def _splits(cells: Sequence[SavedCell]) -> str:
    """Examples of each split, and its role."""
    roles: dict[str, str] = {}
    sizes: dict[str, dict[str, list[int]]] = {}
    for cell in cells:
        record = cell.record or {}
        roles |= record.get("roles") or record.get("jobs") or {}
        own = sizes.setdefault(cell.labels["dataset"], {})
        for split, count in (record.get("examples") or {}).items():
            own.setdefault(split, []).append(count)
    if not sizes:
        return ""
    splits = list(dict.fromkeys(split for own in sizes.values() for split in own))
    lines = [[name, *(_range(own.get(s, [])) for s in splits)] for name, own in sizes.items()]
    terms = "".join(
        f"<dt>{escape(split)}</dt><dd>{escape(setting_text(role))}</dd>"
        for split, role in roles.items()
    )
    examples = table(["dataset", *splits], lines, caption="Examples in each split")
    return examples + (f'<dl class="roles">{terms}</dl>' if terms else "")


def _range(counts: Sequence[int]) -> str:
    ends = [f"{count:,}" for count in sorted({min(counts), max(counts)})] if counts else ["-"]
    return " to ".join(ends)


def _fingerprints(cells: Sequence[SavedCell]) -> str:
    """Digests of the data after splitting, which may depend on the seed."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        found = _identity(cell).get("data")
        if found:
            seeds.setdefault((cell.labels["dataset"], str(found)), set()).add(cell.seed)
    lines = [[name, ", ".join(map(str, sorted(own))), sha] for (name, sha), own in seeds.items()]
    caption = "SHA-256 of the data after splitting"
    return _table(["dataset", "seeds", "SHA-256"], lines, caption, folded=True)


def _choices(cells: Sequence[SavedCell], part: str) -> str:
    """Settings of every dataset, model or method."""
    held: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        held.setdefault(cell.labels[part], []).append(_part(cell, part))
    lines = [
        [label, ", ".join(f"{name} = {value}" for name, value in _values(own)) or "-"]
        for label, own in held.items()
    ]
    return _table([part, "settings"], lines, f"{part.capitalize()}s", folded=True)


def _unfinished(saved: Saved) -> str:
    lines = [[c.label, c.status, setting_text(c.reason) or "-"] for c in saved.cells if not c.done]
    caption = f"Runs without a result: {len(lines)} of {len(saved.cells)}"
    return _table(["run", "status", "reason"], lines, caption)


def _identity(cell: SavedCell) -> dict[str, Any]:
    found = (cell.record or {}).get("identity")
    return found if isinstance(found, dict) else {}


def _part(cell: SavedCell, part: str) -> dict[str, Any]:
    """Settings of one part, without its name before each."""
    prefix = f"{part}."
    held = _identity(cell).items()
    return {key.removeprefix(prefix): value for key, value in held if key.startswith(prefix)}


def _values(held: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Every setting with all of its values."""
    found: dict[str, dict[str, None]] = {}
    for each in held:
        for name, value in each.items():
            found.setdefault(name, {})[setting_text(value)] = None
    return [[name, ", ".join(values)] for name, values in found.items()]


def setting_text(value: Any) -> str:
    """A setting as text, without the folders of the machine."""
    if isinstance(value, list):
        return ", ".join(map(setting_text, value)) or "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return without_folders(text)
