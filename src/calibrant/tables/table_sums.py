"""What one scan of a table keeps of it: sums per bin, which add over parts of the table."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from calibrant.metrics.bins import BinSums, bin_edges, cells_per_bin, equal_mass_index

# Sums over the examples of a cell: rows n, weight w, value v (confidence, probability or score),
# hit h (correct, or the class is the label), (v - h) ** 2 as s, v ** 2 as q. Those that end in 2
# have squared weights, for variances.
MOMENTS = ("n", "w", "v", "h", "s", "q", "w2", "v2", "h2", "s2", "q2")
# The key of a sum is part * STRIDE + cell.
STRIDE = 1 << 28

Keys = Int64[np.ndarray, " cells"]
Sums = Float64[np.ndarray, "cells moments"]
Joint = Float64[np.ndarray, "bins 4"]
Covariance = Float64[np.ndarray, "bins 4 4"]


@dataclass(frozen=True, eq=False)
class TableSums:
    """Sums of a table or of a part of it; `a + b` are those of both together.

    The parts: 0 is the top label, 1 to k are the classes, k + 1 is the NLL, k + 2 the Brier score.
    The top label, and of two classes the positive one, are summed over fine cells of the bins, so
    that equal-mass bins can be formed.

    Attributes:
        keys: `part * STRIDE + cell`, in order; only cells that have examples.
        sums: the `MOMENTS` of each cell.
        classes: number of classes; 1 if only the confidence is known.
        bins: number of equal-width bins.
        fine: whether there are fine cells; otherwise the cells are the bins.
        weighted: whether the rows have weights.
    """

    keys: Keys
    sums: Sums
    classes: int
    bins: int
    fine: bool
    weighted: bool

    @classmethod
    def of_rows(
        cls,
        rows: Mapping[str, np.ndarray],
        *,
        classes: int,
        bins: int,
        fine: bool,
        weighted: bool,
    ) -> "TableSums":
        """Collect the rows of a query: one for each cell, in any order, also repeatedly."""
        given = {name: np.asarray(rows[name], np.float64) for name in MOMENTS if name in rows}
        given.setdefault("w", given["n"])
        if "q" not in given:
            # The cells are so narrow that the mean of a cell tells its squares, to 1e-8.
            width = 1 / (bins * cells_per_bin(bins))
            given["q"] = _ratio(given["v"] ** 2, given["w"]) + given["w"] * width**2 / 12
        for name in ("w", "v", "h", "s", "q"):
            given.setdefault(f"{name}2", given[name])
        sums = np.stack([given[name] for name in MOMENTS], axis=-1)
        keys, at = np.unique(np.asarray(rows["cell"], np.int64), return_inverse=True)
        return cls(keys, _sum_by(at, sums, len(keys)), classes, bins, fine, weighted)

    def __add__(self, other: "TableSums") -> "TableSums":
        """Sums of both parts together."""
        for name in ("classes", "bins", "fine", "weighted"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(
                    f"cannot add sums of tables: {name} {getattr(self, name)} and "
                    f"{getattr(other, name)}"
                )
        keys, at = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        sums = _sum_by(at, np.concatenate([self.sums, other.sums]), len(keys))
        return replace(self, keys=keys, sums=sums)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same bits back."""
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        return record | {"keys": self.keys.tolist(), "sums": self.sums.tolist()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "TableSums":
        """Load what `to_dict` saved."""
        names = {each.name for each in fields(cls)}
        if not isinstance(record, Mapping) or set(record) != names:
            raise ValueError(f"sums of a table need {', '.join(sorted(names))}")
        keys = np.asarray(record["keys"], np.int64)
        sums = np.asarray(record["sums"], np.float64).reshape(-1, len(MOMENTS))
        if keys.ndim != 1 or len(keys) != len(sums) or (np.diff(keys) <= 0).any():
            raise ValueError("keys of the sums of a table must increase, one for each sum")
        if np.isnan(sums).any() or (sums[:, 0] < 0).any():
            raise ValueError("sums of a table must be numbers, their counts at least 0")
        classes, bins = int(record["classes"]), int(record["bins"])
        return cls(keys, sums, classes, bins, bool(record["fine"]), bool(record["weighted"]))

    @cached_property
    def rows(self) -> int:
        """Number of rows: every part counts each of them."""
        own = self.keys // STRIDE == (self.keys[0] // STRIDE if len(self.keys) else 0)
        return int(self.sums[own, 0].sum())

    @property
    def focus(self) -> int:
        """The part a verdict is about: of two classes the positive one, else the top label."""
        return 2 if self.classes == 2 else 0

    def cells(self, part: int) -> tuple[Int64[np.ndarray, " c"], Sums]:
        """Cells of a part that have examples, and their sums."""
        start, end = np.searchsorted(self.keys, [part * STRIDE, (part + 1) * STRIDE])
        return self.keys[start:end] - part * STRIDE, self.sums[start:end]

    def bin_of_cells(self, part: int) -> tuple[Int64[np.ndarray, " c"], int]:
        """Bin of each cell of a part, from 0, and the number of bins: 1 for a score."""
        cell = self.cells(part)[0]
        if part > self.classes:
            return np.zeros_like(cell), 1
        # A confidence of exactly 0 belongs to the first bin; one above 1 by rounding to the last.
        each = cells_per_bin(self.bins) if self.fine and part in (0, self.focus) else 1
        return (-(-cell // each) - 1).clip(0, self.bins - 1), self.bins

    def moments(self, part: int) -> dict[str, Float64[np.ndarray, " b"]]:
        """The sums of each bin of a part, by name."""
        if part not in self._moments:
            at, size = self.bin_of_cells(part)
            sums = _sum_by(at, self.cells(part)[1], size)
            self._moments[part] = dict(zip(MOMENTS, sums.T, strict=True))
        return self._moments[part]

    @cached_property
    def _moments(self) -> dict[int, dict[str, Float64[np.ndarray, " b"]]]:
        """What `moments` gave before."""
        return {}

    def part(self, index: int) -> BinSums:
        """Sums per bin of the top label (0) or of class `index - 1`."""
        found = self.moments(index)
        return BinSums(found["w"], found["v"], found["h"], tuple(bin_edges(self.bins)))

    @cached_property
    def adaptive(self) -> tuple[Int64[np.ndarray, " c"], BinSums]:
        """Equal-mass bin of each cell of the top label, and the sums over these bins."""
        if not self.fine:
            raise ValueError("equal-mass bins need fine cells")
        sums = self.cells(0)[1]
        at = equal_mass_index(sums[:, 1], self.bins)
        found = _sum_by(at, sums, self.bins)
        return at, BinSums(found[:, 1], found[:, 2], found[:, 3], None)

    def joint(
        self, part: int, at: Int64[np.ndarray, " c"] | None = None
    ) -> tuple[Joint, Covariance]:
        """Sums (w, v, h, s) of each bin, and their covariance under resampling of rows.

        Under Poisson resampling the sums of different bins are independent, and the covariance
        within a bin is the sum of squared weights times products. In a cell all values count as
        equal to their mean. `at` gives other bins than those of equal width.
        """
        index, size = self.bin_of_cells(part) if at is None else (at, self.bins)
        sums = self.cells(part)[1]
        w, v, h, s, q = sums[:, 6:].T
        mean = _ratio(v, w).clip(0, None)
        own = part <= self.classes
        vh = (q + h - s) / 2 if own else np.zeros_like(v)
        # Of a score, s is no error.
        s = s if own else np.zeros_like(v)
        hs = h * (1 - mean) ** 2 if own else s
        ss = h * (1 - mean) ** 4 + (w - h) * mean**4 if own else s
        rows = ((w, v, h, s), (v, q, vh, mean * s), (h, vh, h, hs), (s, mean * s, hs, ss))
        products = np.stack([np.stack(row, -1) for row in rows], -2)
        covariance = _sum_by(index, products.reshape(-1, 16), size).reshape(size, 4, 4)
        return _sum_by(index, sums[:, 1:5], size), covariance


def _sum_by(at: Int64[np.ndarray, " c"], values: np.ndarray, size: int) -> np.ndarray:
    """Sum rows of values by their index."""
    if not len(at):
        return np.zeros((size, values.shape[1]))
    return np.stack([np.bincount(at, column, size) for column in values.T], axis=-1)


def _ratio(value: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(value, by, out=np.zeros_like(value), where=by > 0))
