"""What one scan of a table keeps of it: sums per bin, which add over parts of the table."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64

from calibrant.metrics.bins import GRID_HALF, BinSums, bin_edges, grid_index

# Why a row is invalid; its index is the code in the query.
INVALID = ("", "null", "nan", "range", "label", "sum", "size", "weight")
REASONS = {
    "null": "a null",
    "nan": "NaN",
    "range": "a score out of range",
    "label": "a label outside the classes",
    "sum": "probabilities that do not sum to 1",
    "size": "another number of classes",
    "weight": "a negative or infinite weight",
}
# Sums of a bin over its examples: weight w, value v (confidence or probability), hit h (correct, or
# the class is the label). Those that end in w2 have squared weights, for variances.
MOMENTS = (
    "w", "v", "h", "vv", "vh", "w2", "v_w2", "h_w2", "vv_w2", "vh_w2",
    "nll", "zero", "brier", "nll_w2", "brier_w2", "nll_nll", "brier_brier",
)  # fmt: skip
BINNED = MOMENTS[:10]

Sums = Float64[np.ndarray, "parts bins moments"]


@dataclass(frozen=True, eq=False)
class TableSums:
    """Sums of a table or of a part of it; `a + b` are those of both together.

    Attributes:
        sums: for the top label (part 0) and each class (part 1 to k), each bin, each of `BINNED`.
        scores: sums of `MOMENTS[10:]` over all examples: NLL, Brier score and their squares.
        grid: the cells of `BinSums.on_grid` for the top label; None if they were not summed.
        rows: number of valid rows.
        invalid: number of rows left out, by reason.
        classes: number of classes; 1 if only the confidence is known.
        weighted: whether the rows have weights.
    """

    sums: Sums
    scores: Float64[np.ndarray, " s"]
    grid: Float64[np.ndarray, "3 cells"] | None
    rows: int
    invalid: Mapping[str, int]
    classes: int
    weighted: bool

    @classmethod
    def of_rows(
        cls, rows: Mapping[str, np.ndarray], *, classes: int, bins: int, weighted: bool
    ) -> "TableSums":
        """Collect the rows of a query: one for each part, bin and cell."""
        at = rows["bin"].astype(np.int64)
        part = rows["part"].astype(np.int64) if "part" in rows else np.zeros_like(at)
        counts = rows["rows"].astype(np.int64)
        bad = (at < 0) & (part == 0)
        invalid = {
            name: int(counts[bad & (at == -code)].sum())
            for code, name in enumerate(INVALID)
            if code and (bad & (at == -code)).any()
        }
        good = at >= 0
        parts = 1 if classes == 1 else classes + 1
        # A confidence of exactly 0 belongs to the first bin.
        index = (part * bins + np.maximum(at, 1) - 1)[good]
        moments = _moments(rows, counts, good, weighted=weighted)
        sums = np.stack(
            [np.bincount(index, moments[name], parts * bins) for name in BINNED], axis=-1
        ).reshape(parts, bins, len(BINNED))
        scores = np.array([moments[name].sum() for name in MOMENTS[len(BINNED) :]])
        grid = None
        if "cell" in rows:
            top = good & (part == 0)
            own = part[good] == 0
            signed = rows["cell"][top].astype(np.float64)
            # A cell of 0 holds confidences of exactly 0 (bin 0) or of 1 (the last bin).
            upper = (signed < 0) | ((signed == 0) & (at[top] > 0))
            cell = grid_index(np.abs(signed), upper)
            grid = np.stack(
                [np.bincount(cell, moments[name][own], 2 * GRID_HALF) for name in ("w", "v", "h")]
            )
        count = int(counts[good & (part == 0)].sum())
        return cls(sums, scores, grid, count, invalid, classes, weighted)

    def __add__(self, other: "TableSums") -> "TableSums":
        """Sums of both parts together."""
        if self.sums.shape != other.sums.shape or self.weighted != other.weighted:
            raise ValueError("cannot add sums over different bins, classes or weights")
        grid = None if self.grid is None or other.grid is None else self.grid + other.grid
        reasons = dict.fromkeys([*self.invalid, *other.invalid])
        return replace(
            self,
            sums=self.sums + other.sums,
            scores=self.scores + other.scores,
            grid=grid,
            rows=self.rows + other.rows,
            invalid={
                name: self.invalid.get(name, 0) + other.invalid.get(name, 0) for name in reasons
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the grid; `from_dict` reads them."""
        return {
            "sums": self.sums.tolist(),
            "scores": self.scores.tolist(),
            "rows": self.rows,
            "invalid": dict(self.invalid),
            "classes": self.classes,
            "weighted": self.weighted,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "TableSums":
        """Read what `to_dict` gave."""
        names = {each.name for each in fields(cls)} - {"grid"}
        if set(record) != names:
            raise ValueError(f"sums of a table need {', '.join(sorted(names))}")
        sums, scores = (np.asarray(record[key], dtype=np.float64) for key in ("sums", "scores"))
        classes = int(record["classes"])
        parts = 1 if classes == 1 else classes + 1
        if sums.ndim != 3 or sums.shape[0] != parts or sums.shape[2] != len(BINNED):
            raise ValueError(f"sums of a table of {classes} classes have shape {sums.shape}")
        if not (np.isfinite(sums).all() and np.isfinite(scores).all()):
            raise ValueError("sums of a table must be finite")
        invalid = {str(key): int(value) for key, value in record["invalid"].items()}
        return cls(
            sums, scores, None, int(record["rows"]), invalid, classes, bool(record["weighted"])
        )

    @property
    def bins(self) -> int:
        """Number of equal-width bins."""
        return int(self.sums.shape[1])

    def moment(self, name: str, part: int = 0) -> Float64[np.ndarray, " b"]:
        """One sum of each bin of a part."""
        return np.asarray(self.sums[part, :, BINNED.index(name)])

    def total(self, name: str, part: int = 0) -> float:
        """One sum over all bins of a part, or over all examples."""
        if name in BINNED:
            return float(self.moment(name, part).sum())
        return float(self.scores[MOMENTS.index(name) - len(BINNED)])

    def part(self, index: int) -> BinSums:
        """Sums per bin of the top label (0) or of class `index - 1`."""
        edges = tuple(bin_edges(self.bins))
        count, value, hit = (self.moment(name, index) for name in ("w", "v", "h"))
        return BinSums(count, value, hit, edges)

    @cached_property
    def top_label(self) -> BinSums:
        """Sums per bin of the top label."""
        return self.part(0)

    @property
    def focus(self) -> int:
        """The part a verdict is about: of two classes the positive one, else the top label."""
        return 2 if self.classes == 2 else 0

    def adaptive(self) -> BinSums | None:
        """Sums over equal-mass bins of the top label; None without the grid."""
        if self.grid is None:
            return None
        return BinSums(self.grid[0], self.grid[1], self.grid[2], None).equal_mass(self.bins)


def _moments(
    rows: Mapping[str, np.ndarray], counts: np.ndarray, good: np.ndarray, *, weighted: bool
) -> dict[str, np.ndarray]:
    """All of `MOMENTS` for the valid rows of a query; without weights several are equal."""
    found = {
        name: rows[name][good].astype(np.float64) if name in rows else np.zeros(int(good.sum()))
        for name in MOMENTS
    }
    if not weighted:
        found["w"] = counts[good].astype(np.float64)
        pairs = {"w2": "w", "v_w2": "v", "h_w2": "h", "vv_w2": "vv", "vh_w2": "vh"}
        pairs |= {"nll_w2": "nll", "brier_w2": "brier"}
        found |= {name: found[same] for name, same in pairs.items()}
    return found
