"""How time and memory are measured, and what one line of the results holds."""

import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

STATUS = Path("/proc/self/status")
PAUSE = 0.05


@dataclass(frozen=True)
class Line:
    """One comparison, and its goal, if any.

    Attributes:
        what: what was measured, on how much data.
        ours: the measured value of calibrant.
        rival: that of the other side, if there is one.
        unit: of both.
        value: the number that is held against the goal.
        goal: "at least 3x faster" and the like; empty where nothing is promised.
        passed: None where there is no goal.
    """

    what: str
    ours: float
    rival: float | None
    unit: str
    value: str
    goal: str = ""
    passed: bool | None = None

    def cells(self) -> list[str]:
        """Return the line as text, for the table."""
        verdict = "" if self.passed is None else "PASS" if self.passed else "FAIL"
        rival = "" if self.rival is None else _shown(self.rival, self.unit)
        return [self.what, _shown(self.ours, self.unit), rival, self.value, self.goal, verdict]


HEAD = ["what", "calibrant", "other", "measured", "goal", ""]


@dataclass
class Section:
    """Lines that belong together, with a few sentences on how they were measured."""

    title: str
    about: str
    lines: list[Line] = field(default_factory=list)

    def faster(self, what: str, ours: float, rival: float, *, at_least: float | None) -> None:
        """Add a comparison of seconds; the goal is on the ratio."""
        ratio = rival / ours
        goal, passed = "", None
        if at_least is not None:
            goal = f"at least {at_least:g}x" + (" faster" if at_least > 1 else " as fast")
            goal = "no slower" if at_least == 1 else goal
            passed = ratio >= at_least
        shown = f"{ratio:.2f}x" if ratio < 2 else f"{ratio:.1f}x"
        self.lines.append(Line(what, ours, rival, "s", shown, goal, passed))

    def times(self, what: str, ours: float, plain: float, *, most: float | None) -> None:
        """Add a cost as a multiple of that of the plain thing; the goal is on the multiple."""
        ratio = ours / plain
        goal = "" if most is None else f"at most {most:g}x"
        passed = None if most is None else ratio <= most
        self.lines.append(Line(what, ours, plain, "s", f"{ratio:.2f}x", goal, passed))

    def below(
        self, what: str, ours: float, unit: str, *, goal: float, rival: float | None = None
    ) -> None:
        """Add a measured value with an upper bound."""
        text = f"under {goal:g} {unit}".strip()
        self.lines.append(Line(what, ours, rival, unit, _shown(ours, unit), text, ours < goal))

    def note(self, what: str, ours: float, unit: str) -> None:
        """Add a measured value that nothing is promised about."""
        self.lines.append(Line(what, ours, None, unit, _shown(ours, unit)))


def _shown(value: float, unit: str) -> str:
    if unit == "s" and value < 1:
        return f"{1000 * value:.3g} ms"
    digits = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}".strip()


def in_pairs(
    ours: Callable[[], Any], rival: Callable[[], Any], *, repeats: int
) -> tuple[float, float]:
    """Seconds of both, the other's by the median ratio of neighbouring runs.

    For differences of a few percent: what else a machine does lasts longer than a pair of runs,
    so it cancels in their ratio, and a best time would depend on who met the quieter moment.
    """
    ours(), rival()
    pairs = []
    for turn in range(repeats):
        # Neither is always the second.
        first, second = (ours, rival) if turn % 2 else (rival, ours)
        took = {first: seconds(first), second: seconds(second)}
        pairs.append((took[ours], took[rival]))
    own = median(mine for mine, _ in pairs)
    return own, own * median(theirs / mine for mine, theirs in pairs)


def alternate(
    ours: Callable[[], Any],
    rival: Callable[[], Any],
    *,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Best seconds of each, run in turns after one run to warm up.

    Turns, because a neighbour's load then falls on both; the best, because load only adds time.
    """
    ours(), rival()
    best = [math.inf, math.inf]
    for _ in range(repeats):
        for side, call in enumerate((ours, rival)):
            # Threads of the other side keep a core busy for a while after their last work.
            time.sleep(PAUSE)
            best[side] = min(best[side], seconds(call, clock=clock))
    return best[0], best[1]


def best_of(
    call: Callable[[], Any],
    *,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Best seconds of several runs, after one to warm up."""
    call()
    return min(seconds(call, clock=clock) for _ in range(repeats))


def seconds(call: Callable[[], Any], *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that one call takes."""
    start = clock()
    call()
    return clock() - start


def resident() -> float:
    """Megabytes of memory that this process holds now."""
    return _status("VmRSS")


def extra_memory(call: Callable[[], Any]) -> float:
    """Megabytes by which memory rises above its level before the call, at the highest."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    call()
    return _status("VmHWM") - before


def _status(name: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def in_fresh_process(module: str, *arguments: str) -> list[float]:
    """Run a module of ours in a new process, and read the numbers that it prints last."""
    command = [sys.executable, "-m", module, *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
    return [float(number) for number in printed.splitlines()[-1].split()]
