"""Intervals and tests for tables whose rows come in clusters, such as all rows of a user."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64
from scipy import sparse, stats

from calibrant.metrics import TestResult
from calibrant.tables.columns import Columns
from calibrant.tables.scan import Key, Sets, fetch
from calibrant.tables.table_sums import STRIDE

if TYPE_CHECKING:
    import ibis

GROUP = "calibrant_group"


@dataclass(frozen=True, eq=False)
class Clusters:
    """How the sums of a table vary if whole clusters are resampled.

    Attributes:
        covariance: part to the covariance of its sums (w, v, h, s) of all bins, (4 b, 4 b).
        number: number of clusters.
    """

    covariance: dict[int, Float64[np.ndarray, "d d"]]
    number: int

    @classmethod
    def scan(
        cls,
        table: "ibis.Table",
        columns: Columns,
        *,
        bins: int = 15,
        keys: Mapping[str, "ibis.Value"] | None = None,
        sets: Sets | None = None,
        scores: bool = True,
    ) -> "dict[Key, Clusters]":
        """Clusters of each combination of values of the keys, with a scan of its own.

        Rows without a cluster count as one cluster. `scores` also sums NLL and Brier score.
        """
        if columns.group is None:
            raise ValueError("clusters need a group column")
        keys = dict(keys or {})
        sets = [tuple(keys)] if sets is None else sets
        k = columns.classes
        parts = list(dict.fromkeys([0, columns.focus] if scores else [columns.focus]))
        parts += [k + 1, k + 2] if scores and k > 1 else []
        group = table[columns.group].cast("string").fill_null("")
        each, at, arrays = fetch(
            table, columns, bins=bins, keys={**keys, GROUP: group},
            sets=[(*one, GROUP) for one in sets], parts=parts, fine=False,
        )  # fmt: skip
        arrays.setdefault("w", arrays["n"])
        full = [key[:-1] for key in each]
        found: dict[Key, Clusters] = {}
        code = {key: index for index, key in enumerate(dict.fromkeys(full))}
        prefix = np.array([code[key] for key in full])[at]
        order = np.argsort(prefix, kind="stable")
        starts = np.searchsorted(prefix[order], np.arange(len(code) + 1))
        for key, (start, end) in zip(code, pairwise(starts), strict=True):
            rows = order[start:end]
            members, cluster = np.unique(at[rows], return_inverse=True)
            own = {name: values[rows] for name, values in arrays.items()}
            found[key] = cls.of_arrays(own, cluster, len(members), parts, bins=bins, classes=k)
        return found

    @classmethod
    def of_arrays(
        cls,
        arrays: Mapping[str, np.ndarray],
        cluster: np.ndarray,
        number: int,
        parts: Sequence[int],
        *,
        bins: int,
        classes: int,
    ) -> "Clusters":
        """Covariance of the sums, given the rows of a query and the cluster of each row."""
        covariance = {}
        for part in parts:
            size = bins if part <= classes else 1
            cell = arrays["cell"] - part * STRIDE
            own = np.flatnonzero((cell >= 0) & (cell < STRIDE))
            index = (cell[own].astype(np.int64) - 1).clip(0, size - 1)
            data = np.concatenate([arrays[name][own] for name in ("w", "v", "h", "s")])
            columns = np.concatenate([4 * index + column for column in range(4)])
            rows = np.tile(cluster[own], 4)
            matrix = sparse.csr_array((data, (rows, columns)), shape=(number, 4 * size))
            covariance[part] = np.asarray((matrix.T @ matrix).todense())
        return cls(covariance, number)

    def has(self, parts: Sequence[int]) -> bool:
        """Whether all these parts were summed."""
        return all(part in self.covariance for part in parts)

    def draws(
        self, part: int, draws: int, rng: np.random.Generator
    ) -> tuple[Float64[np.ndarray, "r b 4"], Float64[np.ndarray, "r b"]]:
        """Draws of the sums, less their mean; and of the gaps h - v, for calibrated predictions."""
        roots, vectors = np.linalg.eigh(self.covariance[part])
        root = vectors * np.sqrt(roots.clip(0))
        noise = rng.standard_normal((draws, len(roots))) @ root.T
        noise = noise.reshape(draws, -1, 4)
        again = (rng.standard_normal((draws, len(roots))) @ root.T).reshape(draws, -1, 4)
        return noise, again[..., 2] - again[..., 1]

    def test(
        self,
        part: int,
        pool: np.ndarray,
        gap: Float64[np.ndarray, " p"],
        variance: Float64[np.ndarray, " p"],
    ) -> TestResult:
        r"""Chi-squared test of pooled bins, corrected for clusters as by Rao and Scott.

        With the covariance C of the gaps over clusters and the variances V of independent rows, the
        eigenvalues of $V^{-1/2} C V^{-1/2}$ are design effects. The statistic is divided by their
        mean, and the degrees of freedom are lowered by how they vary (Satterthwaite). Unlike
        Hotelling's test it does not invert C, which bins of few events make unstable.

        References:
            Rao and Scott, The analysis of categorical data from complex sample surveys, JASA 1981
        """
        bins, size = len(pool), len(gap)
        contrast = np.zeros((size, 4 * bins))
        contrast[pool, 4 * np.arange(bins) + 2] = 1
        contrast[pool, 4 * np.arange(bins) + 1] = -1
        # Around the mean of the clusters, not around zero.
        covariance = contrast @ self.covariance[part] @ contrast.T
        covariance -= np.outer(gap, gap) / self.number
        used = variance > 0
        if self.number < 2 or not used.any():
            return TestResult(math.nan, math.nan)
        scale = 1 / np.sqrt(variance[used])
        effects = np.linalg.eigvalsh(covariance[np.ix_(used, used)] * np.outer(scale, scale))
        mean = effects.mean()
        spread = effects.var() / mean**2
        statistic = float((gap[used] ** 2 / variance[used]).sum() / (mean * (1 + spread)))
        freedom = float(used.sum() / (1 + spread))
        # As the variances are estimated from the clusters, an F distribution.
        p_value = stats.f.sf(statistic / freedom, freedom, self.number - 1)
        return TestResult(statistic, float(p_value))
