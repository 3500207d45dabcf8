"""`calibrant audit` of tables: folders, large files, databases; slices and time."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from calibrant.cli import complain, options, screen
from calibrant.cli.screen import print_table, say
from calibrant.table_values import Table, p_text

if TYPE_CHECKING:
    from calibrant.tables import TableAudit

# Slices and windows shown in the terminal; the page has all.
SHOWN = 20


def is_table(files: Sequence[str], reads: options.TableReading, *, pool: bool) -> bool:
    """Whether the files are parts of one table, which an engine reads.

    So are folders, databases and large files or patterns. Otherwise several files are models.
    """
    from calibrant.tables.sources import is_large

    if reads.of_tables:
        return True
    if reads.format is not None:
        return False
    large = [file for file in files if is_large(file)]
    return bool(large) and (len(files) == 1 or pool)


def hide_password(source: str) -> str:
    """A source as it may be shown."""
    from calibrant.tables.sources import hide_password as hidden

    return hidden(source)


def audit_table(
    files: Sequence[str],
    reads: options.TableReading,
    *,
    page: Path | None,
    as_json: bool,
    max_ece: float | None,
    **measuring: Any,
) -> None:
    """Audit one table; print it, write its page."""
    from calibrant import tables

    if page is not None:
        from calibrant.files.atomic import check_target

        check_target(page)
    if reads.format is not None:
        found = _audit_log(files, reads, **measuring)
    else:
        with screen.working(f"summing {hide_password(files[0])}"):
            given = _source_options(reads) | _columns(reads) | _slicing(reads)
            found = tables.audit_source(list(files), **given, **measuring)
    if reads.find_slices and found.worst is None and not as_json:
        say("search: no slice has enough rows in both halves")
    if page is not None:
        found.save(page)
    ece = found.metrics[found.gate].value
    above = max_ece is not None and ece > max_ece
    if as_json:
        limit = None if max_ece is None else {"max_ece": max_ece, "passed": not above}
        screen.show_json(found.to_dict() | {"limit": limit, "page": page and str(page)})
    else:
        show(found, page)
    if above:
        complain(f"{found.gate} {ece:.4f} is above --max-ece {max_ece:g}")
        raise typer.Exit(1)


def _audit_log(files: Sequence[str], reads: options.TableReading, **measuring: Any) -> "TableAudit":
    """Audit answers of a language model by columns of its logs, such as the task."""
    from calibrant import tables
    from calibrant.extras import need

    ibis: Any = need("ibis", extra="tables", what="--by")
    pyarrow: Any = need("pyarrow", extra="tables", what="--by")
    known = ("by", "depth", "min_rows", "correction", *(f.name for f in fields(reads.in_memory)))
    reads.refuse_others(known, f"--format {reads.format}")
    log = reads.in_memory.log(files)
    columns = dict(log.arrays(names_of(reads.by)).slices)
    if log.kind == "confidence":
        columns |= {"confidence": log.scores, "correct": log.labels}
    else:
        columns |= {f"logit_{at}": each for at, each in enumerate(log.scores.T)}
        columns["label"] = log.labels
    table = ibis.memtable(pyarrow.table(columns))
    given = {"name": files[0], "notes": (log.facts,), **_slicing(reads), **measuring}
    with screen.working(f"summing {files[0]}"):
        return tables.audit(table, **given)


def _source_options(reads: options.TableReading) -> dict[str, Any]:
    unused = {"normalize": reads.normalize, "ignore-index": reads.ignore_index is not None}
    refused = [f"--{name}" for name, given in unused.items() if given]
    if refused:
        raise ValueError(f"{', '.join(refused)} cannot be used with tables: use --sql")
    return {"engine": reads.engine or "duckdb", "sql": reads.sql, "keep_going": reads.keep_going}


def _columns(reads: options.TableReading) -> dict[str, Any]:
    return {
        "confidence": reads.confidence,
        "correct": reads.correct,
        "probs": reads.probs,
        "logits": reads.logits,
        "labels": reads.labels,
        "names": options.class_names(reads.names),
        "positive": reads.positive,
        "weight": reads.weight,
        "group": reads.group,
    }


def _slicing(reads: options.TableReading) -> dict[str, Any]:
    return {
        "by": names_of(reads.by),
        "depth": reads.depth,
        "least": reads.min_rows,
        "correction": reads.correction,
        "search": names_of(reads.find_slices),
        "time": reads.time,
        "every": reads.every,
        "bootstrap": reads.bootstrap,
        "key": reads.key,
        "drop_invalid": reads.drop_invalid,
    }


def names_of(text: str | None) -> list[str]:
    """Columns of a list.

    >>> names_of("region, version")
    ['region', 'version']
    """
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def show(found: "TableAudit", page: Path | None) -> None:
    """Print the tables, the verdict, and which file was written."""
    say(f"{found.name}: {found.facts}")
    for note in found.notes:
        say(note)
    say("")
    print_table(found.metrics_table())
    say(f"intervals: {found.intervals}")
    say(f"test of calibration: p-value {p_text(found.test.p_value)}")
    if found.slices is not None:
        _print(found.slices_table(SHOWN))
        say(found.slices.facts)
    if found.worst is not None:
        say(found.worst.facts)
    if found.series is not None:
        _print(found.series_table(SHOWN))
        if len(found.series.windows) > SHOWN:
            say(f"the last {SHOWN} of {len(found.series.windows):,} windows; the page has all")
    say(found.verdict, style="bold")
    if page is not None:
        say(f"page: {page}")


def _print(table: Table) -> None:
    """Print a table, and name the columns that did not fit."""
    if hidden := print_table(table, keep=4):
        say(f"hidden, terminal too narrow: {', '.join(hidden)}; see the page or --json")
