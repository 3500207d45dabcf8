"""What `calibrant compare` prints."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.cli.screen import p_text, range_text, say, show_table
from calibrant.cli.wording import HIGHER_IS_BETTER, SCORES, SIGNED


@dataclass(frozen=True)
class Row:
    """One metric of both models and their difference, A minus B; the p-value is corrected."""

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    level: float

    @property
    def higher(self) -> str | None:
        """Whose value is higher beyond doubt: "A", "B", or None."""
        if not self.p_value < 1 - self.level:
            return None
        return "A" if self.low > 0 else "B" if self.high < 0 else None

    @property
    def better(self) -> str | None:
        """Who is better beyond doubt, where the metric has a better side."""
        if self.higher is None or self.metric in SIGNED:
            return None
        return self.higher if self.metric in HIGHER_IS_BETTER else "AB".replace(self.higher, "")


def show(record: dict[str, Any], rows: Mapping[str, Row]) -> None:
    """Print who is compared, the table, and the verdict."""
    say(f"A: {record['a']}")
    say(f"B: {record['b']}")
    say(f"{record['examples']:,} examples, paired")
    say("")
    interval = f"{100 * record['level']:g}% interval"
    heads = ("metric", "A", "B", "A - B", interval, "p", "better")
    show_table(heads, [_cells(row) for row in rows.values()], numbers=heads[1:6])
    if len(rows) > 1:
        say(f"p-values are corrected for {len(rows)} metrics (Holm)")
    say(record["verdict"], style="bold")


def _cells(row: Row) -> list[str]:
    return [
        row.metric,
        f"{row.a:.4f}",
        f"{row.b:.4f}",
        "-" if math.isnan(row.difference) else f"{row.difference:+.4f}",
        range_text(row.low, row.high, "+"),
        p_text(row.p_value),
        row.better or "-",
    ]


def verdict(rows: Mapping[str, Row], examples: int) -> str:
    """One sentence on the ECE, or on the first metric if the ECE was not asked for."""
    row = rows.get("ece") or next(iter(rows.values()))
    if row.higher is None:
        return f"no difference in {row.metric} that {examples:,} examples could show"
    size, ends = abs(row.difference), sorted((abs(row.low), abs(row.high)))
    amount = f"by {size:.4f} [{ends[0]:.4f}, {ends[1]:.4f}]"
    if row.better is None:
        return f"{row.metric} of {row.higher} is higher {amount}"
    side = "higher" if row.better == row.higher else "lower"
    words = "better" if row.metric in SCORES else "better calibrated"
    return f"{row.better} is {words}: {row.metric} {side} {amount}"
