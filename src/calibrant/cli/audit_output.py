"""What `calibrant audit` prints."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant.cli.screen import print_table, say

if TYPE_CHECKING:
    from calibrant.metrics import Interval
    from calibrant.report.audit import Audit


def show(audit: "Audit", truth: Mapping[str, float] | None, files: Mapping[str, Path]) -> None:
    """Print the tables, the verdict, and which files were written."""
    say(f"{audit.name}: {audit.facts}")
    say("")
    print_table(audit.metrics_table())
    if audit.tests:
        print_table(audit.tests_table())
    for line in audit.remarks:
        say(line)
    if truth is not None:
        say(truth_line(truth, audit.metrics["ece"], audit.bins))
    if audit.verdict:
        say(audit.verdict, style="bold")
    for what, path in files.items():
        say(f"{what}: {path}")


def truth_line(truth: Mapping[str, float], ece: "Interval", bins: int) -> str:
    """Say the true error of an example, and whether the interval of the ECE contains it."""
    line = f"true error {truth['error']:.4f}, over {bins} bins {truth['binned_error']:.4f}"
    if math.isnan(ece.low):
        return line
    held = [ece.low <= truth[name] <= ece.high for name in ("error", "binned_error")]
    words = {
        (True, True): "contains both",
        (True, False): "contains the first",
        (False, True): "contains the second",
        (False, False): "contains neither",
    }
    return f"{line}; the interval of ece {words[held[0], held[1]]}"


def default_output(source: str, ending: str) -> Path:
    """Name what is written about a file, a pattern or an example, in the current folder.

    >>> str(default_output("runs/test.npz", "reliability.png"))
    'test.reliability.png'
    >>> str(default_output("parts/*.parquet", "audit.html"))
    'parts.audit.html'
    """
    path = Path(source)
    names = (re.sub(r"[*?!\[\]]", "", name).strip(" -_.") for name in (path.stem, path.parent.name))
    return Path(f"{next(filter(None, names), 'predictions')}.{ending}")
