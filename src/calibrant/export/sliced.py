"""ONNX graphs of sliced calibrators: each row looks its parameters up by the number of its slice.

Builders are `(graph, logits, **parameters) -> calibrated logits`, with the names of looked-up
parameters, (n, 1) or (n, k).
"""

import json
from collections.abc import Callable

import numpy as np
import torch

from calibrant.calibrators.sliced import SlicedCalibrator
from calibrant.calibrators.storage import calibrator_name
from calibrant.export import builders
from calibrant.export.graph import Graph

INPUT = "slice"


def _temperature(graph: Graph, logits: str, *, temperature: str) -> str:
    return graph("Div", logits, temperature)


def _focal(graph: Graph, logits: str, *, temperature: str, gamma: str) -> str:
    plain = graph.log_softmax(graph("Div", logits, temperature))
    mapped = builders.focal_of(graph, plain, gamma)
    # Without gamma the map is 0 times infinity where a probability rounds to 1.
    return graph("Where", graph("Equal", gamma, 0.0), plain, mapped)


def _vector(graph: Graph, logits: str, *, scale: str, bias: str) -> str:
    return graph("Add", graph("Mul", logits, scale), bias)


def _platt(graph: Graph, logits: str, *, coefficients: str) -> str:
    odds = builders.binary_odds(graph, logits)
    return _logistic(graph, [odds], coefficients)


def _beta(graph: Graph, logits: str, *, coefficients: str) -> str:
    odds = builders.binary_odds(graph, logits)
    against = graph("Neg", builders.log_sigmoid(graph, graph("Neg", odds)))
    return _logistic(graph, [builders.log_sigmoid(graph, odds), against], coefficients)


def _logistic(graph: Graph, terms: list[str], coefficients: str) -> str:
    """Sigmoid of the weighted terms; the last coefficient is the constant."""

    def column(at: int) -> str:
        return graph("Gather", coefficients, np.array([at]), axis=1)

    parts = [graph("Mul", term, column(at)) for at, term in enumerate(terms)]
    return builders.binary_sigmoids(graph, [*parts, column(len(terms))])


BUILDERS: dict[str, Callable[..., str]] = {
    "temperature": _temperature,
    "focal_temperature": _focal,
    "vector": _vector,
    "platt": _platt,
    "beta": _beta,
}


def build(graph: Graph, logits: str, sliced: SlicedCalibrator) -> str:
    """Calibrated logits; numbers that are no slice use the calibrator of all examples."""
    name, last = calibrator_name(sliced.overall), len(sliced.keys)
    if name not in BUILDERS:
        raise ValueError(f"slices of {name} cannot be exported; only {', '.join(BUILDERS)} can")
    known = graph(
        "And", graph("GreaterOrEqual", INPUT, np.array(0)), graph("Less", INPUT, np.array(last))
    )
    row = graph("Where", known, INPUT, np.array(last))
    every = [each.parameters for each in (*sliced.calibrators, sliced.overall)]
    found = {}
    for key in every[0]:
        table = torch.stack(
            [torch.as_tensor(of[key], dtype=torch.float64).flatten() for of in every]
        )
        found[key] = graph("Gather", table, row, axis=0)
    return BUILDERS[name](graph, logits, **found)


def properties(sliced: SlicedCalibrator) -> dict[str, str]:
    """Metadata: the kind of calibrator, the columns, and the slices in the order of numbers."""
    return {
        "base": calibrator_name(sliced.overall),
        "columns": json.dumps(sliced.columns, ensure_ascii=False),
        "slices": json.dumps(sliced.keys, ensure_ascii=False),
    }
