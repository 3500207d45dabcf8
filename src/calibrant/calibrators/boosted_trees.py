"""Boosted trees as plain arrays: their evaluation, and the checks of untrusted ones."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

Features = Float64[np.ndarray, "n d"]
Scores = Float64[np.ndarray, "n outputs"]

# Rows whose features stay in cache.
ROWS = 1 << 13
MOST_NODES, MOST_ROUNDS = 1 << 20, 100
# Nodes of one tree: bounds the memory of its evaluation, whatever the order of its nodes.
MOST_OF_TREE = 1000
# Largest value of a leaf, in log-odds: no sum of values overflows.
LARGEST = 100.0
# Feature of a leaf.
LEAF = -1


@dataclass(frozen=True, eq=False, repr=False)
class BoostedTrees:
    """Rounds of regression trees, whose values are summed for each output.

    The nodes of all trees are numbered through; a tree is a run of them that starts at its root.
    A row goes left if its feature is at most the threshold; where it is NaN, as `missing_left`
    says. Children have higher numbers than their parent, so there are no cycles.

    Attributes:
        features: number of features d.
        rounds: number of trees of each round, (r,).
        sizes: number of nodes of each tree, (t,).
        outputs: the output that each tree adds to, (t,).
        feature: feature of each node, (m,); -1 for a leaf.
        threshold: (m,); 0 for a leaf.
        left: number of the left child, (m,); 0 for a leaf.
        right: number of the right child, (m,); 0 for a leaf.
        missing_left: 1 where missing values go left, (m,).
        value: what a leaf adds, (m,); 0 for a node that is none.
    """

    features: int
    rounds: Tensor
    sizes: Tensor
    outputs: Tensor
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    missing_left: Tensor
    value: Tensor

    def __post_init__(self) -> None:
        t, m = len(self.sizes), len(self.feature)
        shapes = {"rounds": (len(self.rounds),), "sizes": (t,), "outputs": (t,)}
        for name in TENSORS:
            tensor, shape = getattr(self, name), shapes.get(name, (m,))
            dtype = torch.float64 if name in ("threshold", "value") else torch.int64
            if tensor.dtype != dtype or tuple(tensor.shape) != shape:
                raise ValueError(f"{name} must be {dtype} of shape {shape}")
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{name} must be finite")
        if m > MOST_NODES or len(self.rounds) > MOST_ROUNDS:
            raise ValueError(f"at most {MOST_NODES:,} nodes and {MOST_ROUNDS} rounds are allowed")
        if len(self.value) and float(self.value.abs().max()) > LARGEST:
            raise ValueError(f"values of leaves must not exceed {LARGEST:g}")
        self._check_nodes()

    def _check_nodes(self) -> None:
        """Refuse nodes that are not trees: every node but the roots has one parent before it."""
        a = self.arrays
        counts = (*a["rounds"].tolist(), *a["sizes"].tolist())
        # Python integers: a sum of large ones cannot overflow.
        if any(each < 1 for each in counts) or sum(counts[: len(self.rounds)]) != len(self.sizes):
            raise ValueError("rounds must add up to the number of trees")
        if max(counts[len(self.rounds) :], default=0) > MOST_OF_TREE:
            raise ValueError(f"a tree has at most {MOST_OF_TREE} nodes")
        if sum(counts[len(self.rounds) :]) != len(self.feature):
            raise ValueError("sizes must add up to the number of nodes")
        if ((a["outputs"] < 0) | (a["outputs"] > MOST_NODES)).any():
            raise ValueError("outputs must not be negative")
        if ((a["feature"] < LEAF) | (a["feature"] >= self.features)).any():
            raise ValueError(f"feature must lie between -1 and {self.features - 1}")
        if not np.isin(a["missing_left"], (0, 1)).all():
            raise ValueError("missing_left must be 0 or 1")
        m, inner = len(self.feature), np.flatnonzero(a["feature"] != LEAF)
        ends = np.repeat(np.cumsum(a["sizes"]), a["sizes"])
        parents = np.zeros(m, dtype=np.int64)
        for side in ("left", "right"):
            child = a[side][inner]
            if ((child <= inner) | (child >= ends[inner])).any():
                raise ValueError(f"{side} must be a later node of the same tree")
            parents += np.bincount(child, minlength=m)
        expected = np.ones(m, dtype=np.int64)
        expected[self.roots] = 0
        if (parents != expected).any():
            raise ValueError("every node but the roots must have one parent")

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors as numpy arrays."""
        return {name: getattr(self, name).numpy() for name in TENSORS}

    @cached_property
    def roots(self) -> np.ndarray:
        """Number of the root of each tree."""
        sizes = self.arrays["sizes"]
        return np.asarray(np.cumsum(sizes) - sizes)

    def add(self, at: int, features: Features, scores: Scores) -> None:
        """Add the trees of a round to the scores of the rows, in place."""
        first = int(self.arrays["rounds"][:at].sum())
        trees = range(first, first + int(self.arrays["rounds"][at]))
        nodes = {name: self.arrays[name].tolist() for name in NODES}
        for start in range(0, len(scores), ROWS):
            part = slice(start, start + ROWS)
            columns = np.ascontiguousarray(features[part].T)
            missing = np.isnan(columns)
            gaps = missing.any(1).tolist()
            for tree in trees:
                scores[part, self.arrays["outputs"][tree]] += self._of_tree(
                    tree, nodes, columns, missing, gaps
                )

    def _of_tree(
        self,
        tree: int,
        nodes: dict[str, list[Any]],
        columns: np.ndarray,
        missing: np.ndarray,
        gaps: list[bool],
    ) -> Any:
        """Value of a tree for each row: from the last node to the root."""
        root = int(self.roots[tree])
        found: dict[int, Any] = {}
        for node in reversed(range(root, root + int(self.arrays["sizes"][tree]))):
            at = nodes["feature"][node]
            if at == LEAF:
                found[node] = nodes["value"][node]
                continue
            # A comparison with NaN is false: missing values go right.
            goes_left = columns[at] <= nodes["threshold"][node]
            if gaps[at] and nodes["missing_left"][node]:
                goes_left |= missing[at]
            left, right = (found.pop(nodes[side][node]) for side in ("left", "right"))
            found[node] = np.where(goes_left, left, right)
        return found[root]

    def __repr__(self) -> str:
        return f"BoostedTrees({len(self.rounds)} rounds, {len(self.sizes)} trees)"


TENSORS = tuple(BoostedTrees.__annotations__)[1:]
NODES = TENSORS[3:]


def no_trees(features: int) -> BoostedTrees:
    """No rounds."""
    return joined([], features)


def joined(rounds: list[list[tuple[int, dict[str, Any]]]], features: int) -> BoostedTrees:
    """Rounds of trees of LightGBM, each with its output, as arrays.

    Trees are those of `Booster.dump_model()["tree_info"]`. Where training saw no missing value,
    those go to the child with more examples.
    """
    columns: dict[str, list[float]] = {name: [] for name in TENSORS}

    def walk(node: dict[str, Any]) -> int:
        at = len(columns["feature"])
        for name in NODES:
            columns[name].append(0)
        if "split_feature" not in node:
            columns["feature"][at], columns["value"][at] = LEAF, node["leaf_value"]
            return at
        children = node["left_child"], node["right_child"]
        larger = _examples(children[0]) >= _examples(children[1])
        seen = node["missing_type"] == "NaN"
        columns["feature"][at] = node["split_feature"]
        columns["threshold"][at] = node["threshold"]
        columns["missing_left"][at] = int(node["default_left"] if seen else larger)
        columns["left"][at], columns["right"][at] = map(walk, children)
        return at

    for trees in rounds:
        columns["rounds"].append(len(trees))
        for output, tree in trees:
            root = walk(tree)
            columns["sizes"].append(len(columns["feature"]) - root)
            columns["outputs"].append(output)
    floats = ("threshold", "value")
    return BoostedTrees(
        features,
        **{
            name: torch.tensor(values, dtype=torch.float64 if name in floats else torch.int64)
            for name, values in columns.items()
        },
    )


def _examples(node: dict[str, Any]) -> int:
    return int(node.get("internal_count", node.get("leaf_count", 0)))
