"""ONNX graphs of calibrators: `(graph, logits, **parameters) -> calibrated logits`.

The result of a builder is normalised afterwards.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.focal_map import NEAR_ONE
from calibrant.calibrators.gap_temperature import LARGEST_FACTOR
from calibrant.calibrators.storage import BLEND, PRIOR_SHIFT, calibrator_name
from calibrant.export.graph import Graph
from calibrant.export.tables import cubic, interpolation, step

# Log-odds and log-probabilities are clipped at this.
FARTHEST = 1e30


def identity(graph: Graph, logits: str) -> str:
    """Return the logits."""
    return logits


def temperature(graph: Graph, logits: str, *, temperature: float) -> str:
    """Divide."""
    return graph("Div", logits, temperature)


def focal_temperature(graph: Graph, logits: str, *, temperature: float, gamma: float) -> str:
    """Divide, then apply the focal map in log space; see `calibrators.focal_map`."""
    log_p = graph.log_softmax(graph("Div", logits, temperature))
    return log_p if gamma == 0 else focal_of(graph, log_p, gamma)


def focal_of(graph: Graph, log_p: str, gamma: str | float) -> str:
    """The focal map of log-probabilities, before normalisation."""
    log_miss, p = _log_misses(graph, log_p), graph("Exp", log_p)
    miss = graph("Exp", log_miss)
    near = graph("Less", miss, NEAR_ONE)
    series: str | float = 1 / 5
    for power in (4, 3, 2, 1):
        series = graph("Add", graph("Mul", miss, series), 1 / power)
    direct = graph("Div", graph("Neg", log_p), graph("Where", near, 1.0, miss))
    ratio = graph("Mul", p, graph("Where", near, series, direct))
    log_h = graph("Sub", log_p, graph("Mul", log_miss, gamma))
    return graph("Sub", log_h, graph("Log", graph("Add", graph("Mul", ratio, gamma), 1.0)))


def _log_misses(graph: Graph, log_p: str) -> str:
    """Log(1 - p); for the top class from the sum of the others, without cancellation."""
    own = graph.is_top(log_p)
    masked = graph("Where", own, -math.inf, log_p)
    best = graph.over_classes("ReduceMax", masked)
    total = graph.over_classes("ReduceSum", graph("Exp", graph("Sub", masked, best)))
    others = graph("Add", best, graph("Log", total))
    below = graph("Log", graph("Sub", 1.0, graph("Where", own, 0.5, graph("Exp", log_p))))
    return graph("Where", own, others, below)


def gap_temperature(graph: Graph, logits: str, *, temperature: float, b: float) -> str:
    """Divide by a temperature that depends on the gap of the two largest logits."""
    top = graph.over_classes("ReduceMax", logits)
    others = graph("Where", graph.is_top(logits), -math.inf, logits)
    second = graph.over_classes("ReduceMax", others)
    alone = graph("Less", second, -FARTHEST * FARTHEST)
    gap = graph("Sub", top, graph("Where", alone, top, second))
    slow = graph("Log", graph("Add", graph("Div", gap, temperature), 1.0))
    log_factor = graph("Sub", graph("Mul", slow, b), math.log(temperature))
    factor = graph("Exp", graph("Min", log_factor, LARGEST_FACTOR))
    return graph("Max", graph("Mul", graph("Sub", logits, top), factor), -FARTHEST)


def ensemble_temperature(graph: Graph, logits: str, *, temperature: float, weights: Tensor) -> str:
    """Mix the tempered, the plain and the uniform probabilities."""
    tempered = graph.log_softmax(graph("Div", logits, temperature))
    parts = [tempered, graph.log_softmax(logits), _log_uniform(graph, logits)]
    return _log_mixture(graph, parts, weights.tolist())


def _log_uniform(graph: Graph, logits: str) -> str:
    """Minus the log of the number of allowed classes, (n, k); far below that where masked."""
    return graph.log_softmax(graph.where_masked(-FARTHEST, graph("Mul", logits, 0.0)))


def _log_mixture(graph: Graph, parts: list[str], weights: list[float]) -> str:
    """Log of a weighted sum of probabilities; components of weight zero are skipped."""
    pairs = [pair for pair in zip(parts, weights, strict=True) if pair[1] > 0]
    return graph.log_sum([graph("Add", part, math.log(weight)) for part, weight in pairs])


def vector(graph: Graph, logits: str, *, scale: Tensor, bias: Tensor) -> str:
    """Scale and shift every class."""
    return graph("Add", graph("Mul", logits, scale[None]), bias[None])


def matrix(graph: Graph, logits: str, *, weight: Tensor, bias: Tensor) -> str:
    """A linear layer, weights as [out, in]; masked classes add nothing."""
    given = graph.where_masked(0.0, logits)
    return graph("Add", graph("MatMul", given, weight.T), bias[None])


def dirichlet(graph: Graph, logits: str, *, weight: Tensor, bias: Tensor) -> str:
    """A linear layer on the log-probabilities."""
    return matrix(graph, graph.log_softmax(logits), weight=weight, bias=bias)


def structured(
    graph: Graph, logits: str, *, temperature: float, mix: float, gamma: float = 0.0, **of: Tensor
) -> str:
    """Vector or matrix scaling of tempered (and focal) probabilities with a uniform component."""
    first = focal_temperature(graph, logits, temperature=temperature, gamma=gamma)
    parts = [graph.log_softmax(first), _log_uniform(graph, logits)]
    scores = _log_mixture(graph, parts, [1 - mix, mix])
    return vector(graph, scores, **of) if "scale" in of else matrix(graph, scores, **of)


def platt(graph: Graph, logits: str, *, coefficients: Tensor) -> str:
    """A linear function of the log-odds of each class."""
    odds = _odds(graph, logits, coefficients)
    return _one_versus_rest(graph, [odds, None], coefficients)


def beta(graph: Graph, logits: str, *, coefficients: Tensor) -> str:
    """A linear function of log(p) and log(1 - p) of each class."""
    odds = _odds(graph, logits, coefficients)
    against = graph("Neg", log_sigmoid(graph, graph("Neg", odds)))
    return _one_versus_rest(graph, [log_sigmoid(graph, odds), against, None], coefficients)


def quadratic(graph: Graph, logits: str, *, coefficients: Tensor) -> str:
    """A quadratic function of the log-odds of each class."""
    odds = _odds(graph, logits, coefficients)
    return _one_versus_rest(graph, [None, odds, graph("Mul", odds, odds)], coefficients)


def spline(graph: Graph, logits: str, *, knots: Tensor, values: Tensor, bound: float) -> str:
    """A natural cubic spline of the log-odds of each class."""
    found = cubic(graph, _odds(graph, logits, knots), knots, values)
    return _one_versus_rest(
        graph, [graph("Clip", found, -bound, bound)], torch.ones(len(knots), 1).to(knots)
    )


def top_label_spline(
    graph: Graph, logits: str, *, temperature: float, knots: Tensor, values: Tensor, bound: float
) -> str:
    """A natural cubic spline of the log-odds of the top class; the others keep their ratios."""
    log_p = graph.log_softmax(graph("Div", logits, temperature))
    # Log-probabilities of a near tie may be equal after rounding.
    own = graph.is_top(logits)
    rest = graph("Where", own, -math.inf, log_p)
    # Finite for a row with a single allowed class, where all others are masked in the end.
    others = graph.log_softmax(graph("Max", rest, -FARTHEST))
    all_odds = graph("Sub", log_p, _log_misses(graph, log_p))
    odds = graph.over_classes("ReduceMax", graph("Where", own, all_odds, -math.inf))
    odds = graph("Clip", odds, -FARTHEST, FARTHEST)
    found = graph("Clip", cubic(graph, odds, knots[None], values[None]), -bound, bound)
    tie = graph.over_classes("ReduceMax", graph("Where", own, -math.inf, others))
    found = graph("Max", found, tie)
    missed = graph("Add", others, log_sigmoid(graph, graph("Neg", found)))
    return graph("Where", own, log_sigmoid(graph, found), missed)


def isotonic(graph: Graph, logits: str, *, knots: Tensor, values: Tensor, offsets: Tensor) -> str:
    """A piecewise linear function of the log-odds of each class."""
    lengths = offsets.diff().tolist()
    odds = _odds(graph, logits, offsets[1:])
    tables = [list(torch.split(each, lengths)) for each in (knots, values)]
    found = interpolation(graph, odds, *tables)
    return _binary_probs(graph, found, len(lengths))


def kernel(graph: Graph, logits: str, *, knots: Tensor, values: Tensor, bandwidth: float) -> str:
    """Piecewise linear log-odds of each class; the bandwidth was needed for the fit only."""
    found = interpolation(graph, _odds(graph, logits, knots), list(knots), list(values))
    return _one_versus_rest(graph, [found], torch.ones(len(knots), 1).to(knots))


def histogram(graph: Graph, logits: str, *, edges: Tensor, values: Tensor) -> str:
    """A step function of the log-odds of each class."""
    found = step(graph, _odds(graph, logits, values), list(edges), list(values))
    return _binary_probs(graph, found, len(values))


def scaling_binning(
    graph: Graph, logits: str, *, coefficients: Tensor, edges: Tensor, values: Tensor
) -> str:
    """A step function of a linear function of the log-odds of each class."""
    slope, shift = coefficients.T[:, None]
    scores = graph("Add", graph("Mul", _odds(graph, logits, values), slope), shift)
    return _binary_probs(graph, step(graph, scores, list(edges), list(values)), len(values))


def venn_abers(
    graph: Graph, logits: str, *, edges: Tensor, low: Tensor, high: Tensor, offsets: Tensor
) -> str:
    """A step function of the log-odds of each class."""
    lengths = offsets.diff()
    merged = torch.split(high / (1 - low + high), lengths.tolist())
    tables = torch.split(edges, (lengths - 1).tolist())
    found = step(graph, _odds(graph, logits, offsets[1:]), list(tables), list(merged))
    return _binary_probs(graph, found, len(lengths))


def irm(graph: Graph, logits: str, *, knots: Tensor, values: Tensor, slope: float) -> str:
    """One piecewise linear function of all log-odds, and a term in the probability."""
    odds = _all_odds(graph, logits)
    probs = graph("Exp", log_sigmoid(graph, odds))
    found = interpolation(graph, odds, [knots], [values])
    return graph("Log", graph("Add", found, graph("Mul", probs, slope)))


def _binary_probs(graph: Graph, probs: str, functions: int) -> str:
    """Logarithms of the probabilities of one function for class 1, or of one for each class."""
    if functions > 1:
        return graph("Log", probs)
    return graph("Log", graph("Concat", graph("Sub", 1.0, probs), probs, axis=1))


def _odds(graph: Graph, logits: str, functions: Tensor) -> str:
    """Log-odds of class 1, (n, 1), if there is one function; else of each class against all."""
    return binary_odds(graph, logits) if len(functions) == 1 else _all_odds(graph, logits)


def binary_odds(graph: Graph, logits: str) -> str:
    """Log-odds of class 1 of two, (n, 1)."""
    first, second = (graph("Gather", logits, np.array([at]), axis=1) for at in (0, 1))
    return graph("Sub", second, first)


def _all_odds(graph: Graph, logits: str) -> str:
    """Log-odds of each class against all others, (n, k)."""
    log_p = graph.log_softmax(logits)
    return graph("Sub", log_p, _log_misses(graph, log_p))


def _one_versus_rest(graph: Graph, terms: list[str | None], coefficients: Tensor) -> str:
    """Sigmoids of the weighted terms, where None is the constant 1."""
    parts = [
        graph.constant(column[None]) if term is None else graph("Mul", term, column[None])
        for term, column in zip(terms, coefficients.T, strict=True)
    ]
    if len(coefficients) == 1:
        return binary_sigmoids(graph, parts)
    return log_sigmoid(graph, graph("Clip", graph("Sum", *parts), -FARTHEST, FARTHEST))


def binary_sigmoids(graph: Graph, parts: list[str]) -> str:
    """Log-probabilities of two classes from the parts of the log-odds of class 1."""
    odds = graph("Clip", graph("Sum", *parts), -FARTHEST, FARTHEST)
    both = log_sigmoid(graph, graph("Neg", odds)), log_sigmoid(graph, odds)
    return graph("Concat", *both, axis=1)


def log_sigmoid(graph: Graph, odds: str) -> str:
    """Log of the logistic function, finite for any log-odds."""
    small = graph("Exp", graph("Neg", graph("Abs", odds)))
    return graph("Sub", graph("Min", odds, 0.0), graph("Log", graph("Add", small, 1.0)))


def blend(
    graph: Graph,
    logits: str,
    *,
    parts: Sequence[Calibrator],
    weights: Sequence[float],
    exponents: Sequence[float],
) -> str:
    """Half the weighted mean of the parts, half their logarithmic pool; or the mean alone."""
    built = []
    for part in parts:
        build = BUILDERS[calibrator_name(part)]
        log_probs = graph.normalised(build(graph, logits, **part.parameters))
        # Masked classes are masked again after the sum.
        built.append(graph.where_masked(-FARTHEST, log_probs))
    mean = _log_mixture(graph, built, list(weights))
    if not any(exponents):
        return mean
    pairs = [(part, each) for part, each in zip(built, exponents, strict=True) if each > 0]
    raised = [graph("Mul", part, each) for part, each in pairs]
    pool = graph.normalised(graph("Sum", *raised) if len(raised) > 1 else raised[0])
    return graph.log_sum([mean, graph.where_masked(-FARTHEST, pool)])


def prior_shift(
    graph: Graph, logits: str, *, source: Tensor, target: Tensor, calibrator: Calibrator
) -> str:
    """Apply the calibrator inside, and add the log of the ratio of the priors."""
    built = BUILDERS[calibrator_name(calibrator)](graph, logits, **calibrator.parameters)
    return graph("Add", graph.normalised(built), torch.log(target / source)[None])


# By name in `calibrators.CALIBRATORS`, the blend, and a change of priors.
BUILDERS: dict[str, Callable[..., str]] = {
    "identity": identity,
    "temperature": temperature,
    "focal_temperature": focal_temperature,
    "gap_temperature": gap_temperature,
    "ensemble_temperature": ensemble_temperature,
    "vector": vector,
    "matrix": matrix,
    "structured_vector": structured,
    "structured_matrix": structured,
    "focal_structured_vector": structured,
    "focal_structured_matrix": structured,
    "dirichlet": dirichlet,
    "platt": platt,
    "beta": beta,
    "quadratic": quadratic,
    "spline": spline,
    "top_label_spline": top_label_spline,
    "isotonic": isotonic,
    "centered_isotonic": isotonic,
    "irm": irm,
    "kernel": kernel,
    "venn_abers": venn_abers,
    "histogram": histogram,
    "scaling_binning": scaling_binning,
    BLEND: blend,
    PRIOR_SHIFT: prior_shift,
}
