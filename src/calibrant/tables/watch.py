"""Watch a folder or a table that grows: count what is new once, test calibration, write a page."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from calibrant.files.atomic import replacing, sweep
from calibrant.files.locks import GLANCE, BusyError, FileLock
from calibrant.metrics import CalibrationEProcess
from calibrant.tables.watch_folder import new_files
from calibrant.tables.watch_options import Event, WatchOptions, e_text
from calibrant.tables.watch_state import WatchState, load_state, save_state
from calibrant.tables.watch_table import new_windows

# Its file descriptor, also where `sys.stderr` has none.
STDERR = 2
WINDOWS, PAGE, LOCK = "windows.jsonl", "report.html", "lock"


class Watcher:
    """The owner of a state folder; other processes are refused while it is open.

    Each file, and each step of a table, ends with one atomic write that holds the new sums together
    with what they came from. So a process that is killed at any instant neither counts anything
    twice nor loses it. Lines and page are made from the state, and can always be made again.

    Args:
        folder: folder of the state; it is created.
        options: what to watch.
    """

    def __init__(self, folder: Path, options: WatchOptions) -> None:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file: name a folder for the state")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.options = folder, options
        self._lock = FileLock(folder / LOCK)
        if not self._lock.acquire(seconds=GLANCE):
            self._lock.close()
            raise BusyError(f"another process watches with the state {folder}: wait for it")
        try:
            sweep(folder)
            self.state = load_state(folder) or WatchState.start(options.fixed)
            for name, value in options.fixed.items():
                before = self.state.settings.get(name)
                if before != value:
                    raise ValueError(
                        f"{folder} was made with {name} = {before}, now {value}: use the same "
                        "options, or another --state"
                    )
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def reset(self) -> Event:
        """Start a new e-process, as after recalibration; windows and files are kept."""
        fresh = CalibrationEProcess.start(self.options.bins)
        self._save(replace(self.state, process=fresh, alarm=None, resets=self.state.resets + 1))
        return Event("reset", "new e-process: the alarm is off, the level holds anew")

    def step(self) -> Iterator[Event]:
        """Process what is new; the state is saved before an event is given.

        Raises:
            ValueError: a file or the table cannot be read; what came before it is saved.
        """
        before = self.state
        if self.options.is_folder:
            for state, event in new_files(self.options, lambda: self.state):
                self._save(state)
                if event is not None:
                    yield event
        else:
            state, events = new_windows(self.options, self.state)
            self._save(state)
            yield from events
        for number, window in self.state.windows.items():
            if window is not before.windows.get(number):
                record = self.state.record(number)
                yield Event("window", _window_text(record), record)

    def write(self, page: Path | None) -> None:
        """Write the lines of the windows and the page, each whole or not at all."""
        lines = [json.dumps(self.state.record(number)) for number in self.state.windows]
        with replacing(self.folder / WINDOWS) as handle:
            handle.write("".join(f"{line}\n" for line in lines).encode())
        if page is not None:
            from calibrant.tables.watch_page import WatchPage

            WatchPage(self.options.name, self.state, self.options.level).save(page)

    @property
    def summary(self) -> str:
        """How much was counted so far, and the evidence."""
        process, windows = self.state.process, self.state.windows.values()
        rows = sum(each.labelled_rows for each in windows)
        return (
            f"{len(windows):,} windows, {rows:,} labelled rows, "
            f"e-value {e_text(process.log_e_value)} (alarm at {1 / self.options.level:.3g})"
        )

    @property
    def alarm(self) -> Event | None:
        """The alarm, if it is on."""
        alarm = self.state.alarm
        if alarm is None:
            return None
        text = (
            f"calibration broke: e-value {e_text(alarm.log_e_value)} in window {alarm.window}, "
            f"alarm at {1 / alarm.level:.3g}; leading bet: {alarm.bet}"
        )
        return Event("alarm", text, asdict(alarm))

    def run_command(self, command: list[str], page: Path | None) -> int | None:
        """Run a command for an alarm, unless it has run: gives its exit code.

        It counts as run once it ended with code 0 and that is saved: killed in between, it runs
        again. Its output goes to stderr.
        """
        alarm = self.state.alarm
        if alarm is None or alarm.handled:
            return None
        added = {
            "CALIBRANT_WINDOW": alarm.window,
            "CALIBRANT_E_VALUE": e_text(alarm.log_e_value),
            "CALIBRANT_PAGE": "" if page is None else str(page.resolve()),
        }
        done = subprocess.run(  # noqa: S603, the user's own command
            command, env={**os.environ, **added}, stdin=subprocess.DEVNULL, stdout=STDERR,
            check=False,
        )  # fmt: skip
        if done.returncode == 0:
            self._save(replace(self.state, alarm=replace(alarm, handled=True)))
        return done.returncode

    def _save(self, state: WatchState) -> None:
        if state is not self.state:
            save_state(self.folder, state)
            self.state = state


def check_command(command: str) -> list[str]:
    """Split the command for alarms as a shell would, without running a shell."""
    parts = shlex.split(command)
    if not parts or shutil.which(parts[0]) is None:
        raise ValueError(f"--on-alarm must name a program, got {command!r}")
    return parts


def _window_text(record: Mapping[str, Any]) -> str:
    """One line about a window."""
    parts = [f"{record['window']}: {record['rows']:,} labelled rows"]
    metrics = record["metrics"]
    if metrics:
        ece = metrics.get("binary_ece") or metrics["ece"]
        parts += [f"accuracy {metrics['accuracy']['value']:.4f}", f"ECE {ece['value']:.4f}"]
        parts += [f"e-value {e_text(record['log_e_value'])}"]
    estimated = record["estimated_accuracy"]
    if estimated:
        parts.append(
            f"{record['unlabelled_rows']:,} unlabelled rows, estimated accuracy "
            f"{estimated['value']:.4f} [{estimated['low']:.4f}, {estimated['high']:.4f}]"
        )
    return ", ".join(parts)
