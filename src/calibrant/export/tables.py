"""Lookups in ONNX graphs: step and piecewise linear functions of the log-odds.

Positions are found by binary search, a few nodes for each bit, so that memory does not grow with
the length of the tables.
"""

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.natural_spline import curvatures, end_slopes
from calibrant.export.graph import Graph


class Tables:
    """Sorted tables, one for each of m functions, in a graph.

    Args:
        graph: the graph.
        tables: 1-D arrays of one or more sorted numbers.
    """

    def __init__(self, graph: Graph, tables: list[Tensor]) -> None:
        self.graph = graph
        lengths = [len(table) for table in tables]
        self.bits = max(lengths).bit_length()
        self.width = 2**self.bits - 1
        self.last = np.array([lengths]) - 1
        # Where each table starts in the flat one, (1, m).
        self.start = np.arange(len(tables))[None] * self.width
        self.flat = self.column(tables)

    def column(self, tables: list[Tensor]) -> str:
        """Add other numbers at the same positions."""
        padded = torch.full((len(tables), self.width), torch.inf, dtype=torch.float64)
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        return self.graph.constant(padded.flatten())

    def count_below(self, points: str, comparison: str) -> str:
        """Count the entries that a point is greater than: "Greater" or "GreaterOrEqual"; (n, m)."""
        graph = self.graph
        # Zeros of the same shape.
        found = graph("Cast", graph("Less", points, points), to=graph.onnx.TensorProto.INT64)
        for bit in reversed(range(self.bits)):
            tried = graph("Add", found, np.array(2**bit))
            entry = self.at(graph("Sub", tried, np.array(1)))
            found = graph("Where", graph(comparison, points, entry), tried, found)
        return found

    def at(self, position: str, column: str | None = None) -> str:
        """Return the entries at positions, (n, m), in each table."""
        index = self.graph("Add", position, self.start)
        return self.graph("Gather", column or self.flat, index)


def step(graph: Graph, points: str, edges: list[Tensor], values: list[Tensor]) -> str:
    """Value of the bin that each point falls into; a point on an edge is in the lower bin."""
    # One more entry than edges, so that both have the same positions.
    tables = Tables(graph, [torch.cat([each, each.new_tensor([torch.inf])]) for each in edges])
    return tables.at(tables.count_below(points, "Greater"), tables.column(values))


def interpolation(graph: Graph, points: str, knots: list[Tensor], values: list[Tensor]) -> str:
    """Values of piecewise linear functions, constant beyond their ends."""
    tables = Tables(graph, knots)
    column = tables.column(values)
    position = tables.count_below(points, "GreaterOrEqual")
    left = graph("Max", graph("Sub", position, np.array(1)), np.array(0))
    right = graph("Min", position, tables.last)
    low, high = tables.at(left, column), tables.at(right, column)
    start, end = tables.at(left), tables.at(right)
    inside = graph("Greater", end, start)
    width = graph("Where", inside, graph("Sub", end, start), 1.0)
    share = graph("Div", graph("Sub", points, start), width)
    rise = graph("Mul", graph("Sub", high, low), graph("Where", inside, share, 0.0))
    return graph("Add", low, rise)


def cubic(graph: Graph, points: str, knots: Tensor, values: Tensor) -> str:
    """Values of natural cubic splines of as many knots each; see `calibrators.natural_spline`.

    A slope below 0 at an end is 0 beyond it.
    """
    curvature = curvatures(knots, values)
    slopes = [each.clamp(min=0).mT for each in end_slopes(knots, values, curvature)]
    first, last = knots[:, :1].mT, knots[:, -1:].mT
    tables = Tables(graph, list(knots))
    height, bend = tables.column(list(values)), tables.column(list(curvature))
    inside = graph("Min", graph("Max", points, first), last)
    position = graph("Sub", tables.count_below(inside, "GreaterOrEqual"), np.array(1))
    left = graph("Min", position, np.array(knots.shape[1] - 2))
    right = graph("Add", left, np.array(1))
    start = tables.at(left)
    gap = graph("Sub", tables.at(right), start)
    share = graph("Div", graph("Sub", inside, start), gap)
    parts = []
    for weight, end in ((graph("Sub", 1.0, share), left), (share, right)):
        cube = graph("Mul", weight, graph("Mul", weight, weight))
        bent = graph("Mul", graph("Sub", cube, weight), tables.at(end, bend))
        bent = graph("Mul", graph("Div", graph("Mul", gap, gap), 6.0), bent)
        parts += [graph("Mul", weight, tables.at(end, height)), bent]
    below = graph("Mul", graph("Min", graph("Sub", points, first), 0.0), slopes[0])
    above = graph("Mul", graph("Max", graph("Sub", points, last), 0.0), slopes[1])
    return graph("Sum", *parts, below, above)
