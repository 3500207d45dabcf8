"""What `calibrant train` shows: a live view, and the summary of a result."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.cli import screen

if TYPE_CHECKING:
    from rich.progress import Progress

    from calibrant.training import Trained
    from calibrant.training.loop import Loop

# Seconds between two plain lines, where the output is no terminal.
PATIENCE = 5.0
LINE = "epoch {epoch:>3}  loss {loss:.4f}  accuracy {val_accuracy:.4f}  nll {val_nll:.4f}  "
LINE += "ece {val_ece:.4f}"


class View:
    """A bar over all steps with the last epoch's numbers; plain lines away from a terminal."""

    def __init__(self, folder: Path, epochs: int, *, quiet: bool) -> None:
        self.folder, self.epochs, self.quiet = folder, epochs, quiet
        self.trained = False
        self.last = "first epoch"
        self.said = time.monotonic()
        self.bar: Progress | None = None
        self.task: Any = None
        if not self.quiet and sys.stderr.isatty():
            self.bar = screen.progress_bar()
            self.bar.start()
            self.task = self.bar.add_task(self.last, total=None)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.stop()

    def step(self, loop: "Loop") -> None:
        """Move the bar."""
        self.trained = True
        if self.bar is not None:
            total = loop.steps * self.epochs
            self.bar.update(self.task, completed=loop.step, total=total, description=self.last)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """Show the numbers of an epoch, on validation data."""
        self.trained = True
        self.last = LINE.format(**metrics)
        late = time.monotonic() - self.said > PATIENCE
        final = metrics["epoch"] + 1 == self.epochs
        if not self.quiet and self.bar is None and (late or final):
            print(self.last, file=sys.stderr, flush=True)
            self.said = time.monotonic()


def show_result(folder: Path, trained: "Trained", *, already: bool) -> None:
    """Metrics of both splits, what was used for what, and where everything is."""
    record = trained.record
    if already:
        screen.say("this run is finished; nothing was trained")
    parts = record["metrics"]
    rows = [
        (name, *(f"{values[name]:.4f}" for values in parts.values()))
        for name in next(iter(parts.values()))
    ]
    screen.show_table(("metric", *parts), rows, numbers=tuple(parts))
    for role, meaning in record["roles"].items():
        if record["examples"][role]:
            screen.say(f"{role}: {record['examples'][role]:,} examples; {meaning}")
    for name, (before, now) in record["drift"].items():
        screen.say(f"note: {name} was {before} at first and is {now} now")
    if record["damaged_checkpoints"]:
        screen.say(f"note: damaged checkpoints: {', '.join(record['damaged_checkpoints'])}")
    best = record["best_epoch"]
    kept = "" if best is None else f", weights of epoch {best}"
    if record.get("best_average"):
        kept += f", their average with decay {record['best_average']:g}"
    screen.say(f"epochs: {record['epochs']}{kept}")
    screen.say(f"written: {folder}")
    screen.say(f"next: calibrant audit {folder / 'test.npz'}")
