"""`calibrant audit --multi-label`: each label, macro and micro, a page."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from calibrant.cli import complain, options, screen
from calibrant.cli.screen import print_table, say

if TYPE_CHECKING:
    from calibrant.prediction_files import PredictionArrays
    from calibrant.report.label_audit import LabelAudit

# Labels in the table of a terminal; the page has all.
SHOWN = 50


def audit_labels(
    file: str,
    reads: options.Reading,
    *,
    page: Path | None,
    as_json: bool,
    max_ece: float | None,
    settings: dict[str, Any],
) -> None:
    """Audit the labels of one file; print the audit, write its page."""
    from calibrant.files.atomic import check_target
    from calibrant.multi_label import multi_label_from_arrays
    from calibrant.report.audit import audit

    if page is not None:
        check_target(page)
    arrays = reads.multi_label_arrays(file)
    multi = multi_label_from_arrays(arrays)
    resamples = settings["resamples"]
    with screen.progress(resamples, f"resampling {resamples} times") as step:
        found = audit(multi, name=file, progress=step, **settings)
    found = replace(found, file=shlex.join([file, *reads.given]))
    if page is not None:
        with screen.working("writing the page"):
            found.save(page)
    above = max_ece is not None and found.ece > max_ece
    if as_json:
        limit = None if max_ece is None else {"max_ece": max_ece, "passed": not above}
        screen.show_json(found.to_dict() | {"limit": limit, "page": page and str(page)})
    else:
        _show(found, read_as(arrays), page)
    if above:
        complain(f"{found.gate} {found.ece:.4f} is above --max-ece {max_ece:g}")
        raise typer.Exit(1)


def read_as(arrays: "PredictionArrays") -> str:
    """What was read: which columns are scores, of which kind, and which are labels."""
    scores = arrays.names.scores
    what = scores[0] if len(scores) == 1 else f"{scores[0]} to {scores[-1]}"
    return f"{arrays.names.kind} of {arrays.scores.shape[1]:,} labels: {what}"


def _show(found: "LabelAudit", understood: str, page: Path | None) -> None:
    """Print the tables, the verdict, and which file was written."""
    say(f"{found.name}: {found.facts}")
    say(understood)
    say("")
    table = found.table
    shown = type(table)(table.columns, table.rows[:SHOWN])
    if hidden := print_table(shown, keep=3):
        say(f"hidden, terminal too narrow: {', '.join(hidden)}; see the page or --json")
    if len(table.rows) > SHOWN:
        say(f"and {len(table.rows) - SHOWN:,} more labels; the page and --json have all\n")
    print_table(found.averages_table())
    for line in found.remarks:
        say(line)
    if found.verdict:
        say(found.verdict, style="bold")
    if page is not None:
        say(f"page: {page}")
