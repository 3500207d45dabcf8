"""New files of a watched folder: each is counted once, or named with the reason why not."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from calibrant.advice import AdvisedError, InputError
from calibrant.tables.examples import invalid_text
from calibrant.tables.increments import Increment, add_increment, opened, read_rows
from calibrant.tables.sources import ENDINGS, engine_errors, file_schema
from calibrant.tables.watch_options import Event, WatchOptions
from calibrant.tables.watch_state import SeenFile, WatchState

KEEP_GOING = ("keep_going=True", "--keep-going")
CHUNK = 1 << 20
CHANGED = "changed after it was counted; not counted again: deliver corrections as new files"
Step = Iterator[tuple[WatchState, Event | None]]


def new_files(options: WatchOptions, current: Callable[[], WatchState]) -> Step:
    """Give the state after each new file, to be saved before the next one is read."""
    root = Path(options.source)
    for path in _listed(root):
        name = path.relative_to(root).as_posix()
        known = current().files.get(name)
        # A file may be moved away at any time.
        with suppress(FileNotFoundError):
            stamp = _stamp(path)
            same = known is not None and (known.size, known.modified) == stamp
            # What was left out is tried again, because the reason may have been the machine.
            if known is None or not same or known.status == "left_out":
                yield _processed(options, current(), path, name)


def _processed(
    options: WatchOptions, state: WatchState, path: Path, name: str
) -> tuple[WatchState, Event | None]:
    stamp, known, about = _stamp(path), state.files.get(name), {"file": name}
    age = time.time() - stamp[1] / 1e9
    if age < options.grace and not _is_complete(path):
        return state, Event("waiting", f"{name}: not complete yet, tried again next time", about)
    digest = _digest(path)
    if known is not None and known.status == "counted":
        said = "" if digest == known.digest else CHANGED
        seen = replace(known, size=stamp[0], modified=stamp[1], note=said or known.note)
        event = Event("changed", f"{name}: {said}", about) if said else None
        return state.with_file(name, seen), event
    counted = {
        each.digest: other for other, each in state.files.items() if each.status == "counted"
    }
    if digest in counted:
        note = f"the same content as {counted[digest]}"
        seen = SeenFile(*stamp, digest, "redelivered", note=note)
        text = f"{name}: re-delivered, {note}; not counted again"
        return state.with_file(name, seen), Event("redelivered", text, about)
    after, increments, invalid = state, dict[int, Increment](), dict[str, int]()
    try:
        # Its message does not advise an option of other commands.
        file_schema(path)
        with engine_errors(str(path)), opened(str(path), options.time) as table:
            # The columns of a csv file without rows have no types.
            if table.count().to_pyarrow().as_py():
                after, increments, invalid = read_rows(table, options, state)
    except (ValueError, TypeError) as error:
        problem = error.on_command_line if isinstance(error, AdvisedError) else str(error)
        problem = problem.removeprefix(f"{path}: ").removeprefix(f"{path} ")
        if not options.keep_going:
            python, command = (f"{name} leaves such files out" for name in KEEP_GOING)
            raise InputError(f"{path}: {problem}", python, command) from error
        if known is not None and known.note == problem:
            return state, None
        seen = SeenFile(*stamp, digest, "left_out", note=problem)
        return state.with_file(name, seen), Event("left_out", f"{name}: left out: {problem}", about)
    if _stamp(path) != stamp:
        return state, Event("waiting", f"{name}: changed while it was read, tried again", about)
    newest = max(state.windows, default=None)
    if options.time is None and increments:
        increments = {1 if newest is None else newest + 1: increments[0]}
    late, rows, unlabelled = [], 0, 0
    for number, each in increments.items():
        is_late = newest is not None and number < newest
        title = name if options.time is None else state.name_of(number)
        after = add_increment(after, number, title, each, late=is_late, level=options.level)
        late += [f"{each.rows:,} late rows added to {title}"] if is_late else []
        rows, unlabelled = rows + each.rows, unlabelled + each.rows - each.labelled_rows
    dropped = f"{sum(invalid.values()):,} invalid rows left out" if invalid else ""
    note = "; ".join(filter(None, [*late, dropped]))
    after = after.with_file(name, SeenFile(*stamp, digest, "counted", rows, note))
    parts = [f"{rows:,} rows", f"{unlabelled:,} without a label" if unlabelled else "", *late]
    parts += [f"{dropped} ({invalid_text(invalid)})" if invalid else ""]
    values = {**about, "rows": rows, "unlabelled_rows": unlabelled, "invalid": invalid}
    text = f"{name}: {', '.join(filter(None, parts))}"
    return after, Event("late" if late else "counted", text, values)


def _listed(root: Path) -> list[Path]:
    """Files of a folder that hold tables, by name; hidden and temporary ones are not listed."""
    found = (path for path in root.rglob("*") if path.suffix.lower() in ENDINGS)
    return sorted(
        path
        for path in found
        if not any(part[0] in "._" for part in path.relative_to(root).parts) and path.is_file()
    )


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _is_complete(path: Path) -> bool:
    """Whether a file ends as a complete one does: parquet with its magic, csv with a line end."""
    parquet = ENDINGS[path.suffix.lower()] == "parquet"
    with open(path, "rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, size - 4))
        last = handle.read()
    return last == b"PAR1" and size > 8 if parquet else last[-1:] in (b"\n", b"\r")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while chunk := handle.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
