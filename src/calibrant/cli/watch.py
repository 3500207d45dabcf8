"""`calibrant watch`: calibration of predictions that arrive as files or as rows of a table."""

import json
import re
import sys
import time as clock
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import complain, options, printable
from calibrant.cli.options import measuring, reading, written
from calibrant.cli.screen import say, working

if TYPE_CHECKING:
    from calibrant.tables.watch import Watcher
    from calibrant.tables.watch_options import Event

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(option: str, text: str) -> float:
    """Read a duration.

    >>> seconds("--interval", "10m")
    600.0
    """
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if found is None:
        raise ValueError(f"{option} must be written as 30s, 10m, 1h or 1d, got {text!r}")
    return int(found[1]) * UNITS[found[2]]


def watch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder that receives parquet or csv files; or a table with a time column: a "
            "file, or a URL such as postgres://host/db#predictions.",
        ),
    ],
    state: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the state, the lines and the page.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Process what is new, then exit, as for cron.")
    ] = False,
    interval: Annotated[
        str, typer.Option(metavar="TIME", help="Pause between two steps: 30s, 10m, 1h.")
    ] = "60s",
    reset: Annotated[
        bool,
        typer.Option("--reset", help="Start a new e-process, as after recalibration."),
    ] = False,
    time: Annotated[
        str | None,
        reading(metavar="COLUMN", help="Times of the rows. Default: each file is a window."),
    ] = None,
    every: Annotated[str, reading(metavar="TIME", help="Width of a window: 15m, 1h, 1d.")] = "1d",
    include_last: Annotated[
        bool,
        reading("--include-last", help="Also count the newest window of a table, still growing."),
    ] = False,
    grace: Annotated[
        str, reading(metavar="TIME", help="How long to wait for an incomplete file.")
    ] = "10m",
    keep_going: Annotated[
        bool, reading("--keep-going", help="Leave out files that cannot be read; count them.")
    ] = False,
    drop_invalid: Annotated[
        bool, reading("--drop-invalid", help="Leave out invalid rows; count them.")
    ] = False,
    confidence: Annotated[
        str | None, reading(metavar="COLUMN", help="Confidence of the predicted class.")
    ] = None,
    correct: Annotated[
        str | None, reading(metavar="COLUMN", help="Whether it was correct: 0, 1.")
    ] = None,
    probs: Annotated[
        str | None, reading(metavar="COLUMNS", help="Probabilities: p0,p1 or 'p*'.")
    ] = None,
    logits: Annotated[str | None, reading(metavar="COLUMNS", help="Logits: z0,z1 or 'z*'.")] = None,
    labels: Annotated[
        str | None, reading(metavar="COLUMN", help="Labels; null if unknown.")
    ] = None,
    names: Annotated[
        str | None,
        reading(metavar="A,B,...", help="Class names in order, or a file with one in each line."),
    ] = None,
    positive: Annotated[
        str | None, reading(metavar="CLASS", help="Positive class of two: a label; default: 1.")
    ] = None,
    bins: options.Bins = 15,
    level: Annotated[
        float, measuring(help="Probability of a false alarm, over the whole stream.")
    ] = 0.05,
    on_alarm: Annotated[
        str | None,
        written(metavar="COMMAND", help="Command to run once for an alarm, without a shell."),
    ] = None,
    page: Annotated[
        Path | None, written(metavar="PATH", help="The page. Default: DIR/report.html.")
    ] = None,
    as_json: Annotated[bool, written("--json", help="Print JSON lines to stdout.")] = False,
) -> None:
    """Test calibration of what arrives: each file or row counts once, an alarm exits with 1.

    State is saved after each file: after a kill, re-run the same command to resume. With --on-alarm
    watching continues after an alarm; with --once the exit code is 1 as long as the alarm is on.
    """
    from calibrant.files.atomic import check_target
    from calibrant.tables.watch import PAGE, Watcher, check_command
    from calibrant.tables.watch_options import WatchOptions

    pause = seconds("--interval", interval)
    command = None if on_alarm is None else check_command(on_alarm)
    columns: dict[str, Any] = {
        "confidence": confidence, "correct": correct, "probs": probs, "logits": logits,
        "labels": labels, "names": options.class_names(names), "positive": positive,
    }  # fmt: skip
    wanted = WatchOptions(
        source, time=time, every=every, bins=bins, level=level, grace=seconds("--grace", grace),
        keep_going=keep_going, drop_invalid=drop_invalid, include_last=include_last,
        columns=columns,
    )  # fmt: skip
    if page is not None:
        check_target(page)
    elif find_spec("jinja2") is None:
        print("note: no page; it needs pip install 'calibrant[report]'", file=sys.stderr)
    else:
        page = state / PAGE
    with Watcher(state, wanted) as watcher:
        if reset:
            _show(watcher.reset(), as_json=as_json)
        first = True
        while True:
            alarm = _step(watcher, page, command, as_json=as_json, first=first, once=once)
            if alarm and (once or command is None):
                raise typer.Exit(1)
            if once:
                return
            first = False
            clock.sleep(pause)


def _step(
    watcher: "Watcher",
    page: Path | None,
    command: list[str] | None,
    *,
    as_json: bool,
    first: bool,
    once: bool,
) -> bool:
    """Process what is new, write the outputs, run the command; returns whether the alarm is on."""
    was_on, counted, failure = watcher.state.alarm is not None and not first, 0, None
    detailed = watcher.options.is_folder and watcher.options.time is not None
    try:
        with working(f"reading {watcher.options.name}"):
            for event in watcher.step():
                counted += 1
                # The line of its window says the same.
                if as_json or detailed or event.kind != "counted" or event.values.get("invalid"):
                    _show(event, as_json=as_json)
    except (ValueError, OSError) as error:
        # What was counted before is saved, and shown, before the error is.
        failure = error
    # A first step that fails leaves no page of nothing.
    if counted or (first and failure is None):
        watcher.write(page)
    alarm = watcher.alarm
    if alarm is not None and not was_on:
        _show(alarm, as_json=as_json)
    if command is not None:
        code = watcher.run_command(command, page)
        if code:
            complain(f"--on-alarm: the command failed with code {code}; it is run again next time")
    if failure is not None:
        raise failure
    if once and not as_json:
        say(f"{'' if counted else 'nothing new; '}{watcher.summary}")
        if page is not None:
            say(f"page: {page}")
    return alarm is not None


def _show(event: "Event", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(event.to_dict(), allow_nan=False), flush=True)
    else:
        say(printable(event.text), style="bold" if event.kind == "alarm" else "")
        sys.stdout.flush()
