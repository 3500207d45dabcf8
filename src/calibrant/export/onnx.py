"""Calibrators as ONNX graphs, built node by node without tracing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from calibrant import __version__
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.masks import FAR
from calibrant.calibrators.sliced import SlicedCalibrator, SliceMap
from calibrant.calibrators.storage import calibrator_name
from calibrant.checks import Kind
from calibrant.export import sliced
from calibrant.export.builders import BUILDERS
from calibrant.export.graph import Graph
from calibrant.export.single import refuse_labels
from calibrant.extras import need
from calibrant.files.atomic import replacing
from calibrant.predictions import Predictions
from calibrant.score_array import BELOW, SMALLEST

# Names of the input.
INPUTS: dict[Kind, str] = {"logits": "logits", "probs": "given_probs"}
# Largest difference of probabilities between graph and calibrator.
TOLERANCE = 1e-6
RANDOM_ROWS = 10_000
# Elements in one batch of the comparison.
BATCH = 1 << 20
# Two units in the last place of float32 at 1.
CLOSE = 2.4e-7


def export_onnx(
    calibrator: Calibrator | SlicedCalibrator, path: str | Path, *, kind: Kind = "logits"
) -> None:
    """Write a calibrator as an ONNX file, after verifying the graph.

    Input `logits`, (n, k) float32 for any n; outputs `log_probs` and `probs`. Logits of -inf mask
    classes. With kind "probs" the input is `given_probs` instead, such as the probabilities of a
    forest, and the graph replaces zeros by the `zero_floor` of the fit.

    A `SlicedCalibrator` has a second input, `slice`, (n,) int64: the number of the slice of each
    row, or -1. Its metadata also hold `base`, the kind of calibrator, and as JSON the `columns`
    and `slices`, in the order of these numbers. Unknown numbers use the calibrator of all examples.

    The graph is run in onnxruntime on 10,000 random and on extreme rows first; nothing is written
    unless all probabilities agree within 1e-6. Metadata of the file: `method`, `classes`,
    `calibrant` (the version), `sha256` of the fitted examples, and `zero_floor` if there is one.

    Raises:
        ValueError: another suffix or kind, or different results.
        ImportError: the extra `export` is not installed.
    """
    refuse_labels(calibrator)
    path = Path(path)
    if path.suffix.lower() != ".onnx":
        raise ValueError(f"cannot export to {path}: expected a name that ends in .onnx")
    if kind not in INPUTS:
        raise ValueError(f"kind must be one of {', '.join(INPUTS)}, got {kind!r}")
    content: bytes = graph_of(calibrator, kind).SerializeToString()
    difference = largest_difference(content, calibrator, kind)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"{path} was not written: the graph of {calibrator_name(calibrator)} differs from the "
            f"calibrator by {difference:.1e}, more than {TOLERANCE:g}"
        )
    with replacing(path) as handle:
        handle.write(content)


def graph_of(calibrator: Calibrator | SlicedCalibrator, kind: Kind = "logits") -> Any:
    """Build the ONNX model of a calibrator."""
    graph, name = Graph(), calibrator_name(calibrator)
    given = graph("Cast", INPUTS[kind], to=graph.onnx.TensorProto.DOUBLE)
    if kind == "probs":
        scores = _without_zeros(graph, given, calibrator.zero_floor or SMALLEST)
    else:
        graph.masked = graph("IsInf", given, detect_positive=0)
        # Relative to the largest logit of float32, as in `calibrators.masks.far_below`.
        scores = graph.where_masked(-FAR * float(np.finfo(np.float32).max), given)
    if isinstance(calibrator, SlicedCalibrator):
        built = sliced.build(graph, scores, calibrator)
    else:
        built = BUILDERS[name](graph, scores, **calibrator.parameters)
    log_probs = graph.normalised(built)
    if calibrator.keeps_argmax:
        log_probs = _with_top_of(graph, scores, log_probs)
    graph.output("log_probs", log_probs)
    graph.output("probs", graph("Exp", log_probs))
    properties = {
        "method": name,
        "classes": str(calibrator.classes),
        "calibrant": __version__,
        "sha256": "" if calibrator.origin is None else calibrator.origin.sha256,
    }
    if calibrator.zero_floor is not None:
        properties["zero_floor"] = repr(calibrator.zero_floor)
    integers = []
    if isinstance(calibrator, SlicedCalibrator):
        properties |= sliced.properties(calibrator)
        integers = [sliced.INPUT]
    return graph.model(INPUTS[kind], name, calibrator.classes, properties, integers=integers)


def _without_zeros(graph: Graph, probs: str, floor: float) -> str:
    """Logits of probabilities, as in `score_array.without_zeros`."""
    zero = graph("Equal", probs, 0.0)
    least = graph.over_classes("ReduceMin", graph("Where", zero, np.inf, probs))
    filling = graph("Min", graph("Mul", least, BELOW), floor)
    return graph("Log", graph("Where", zero, filling, probs))


def _with_top_of(graph: Graph, logits: str, log_probs: str) -> str:
    """Lower other classes to at least two units in the last place below the top class."""
    own = graph.is_top(logits)
    best = graph.over_classes("ReduceMax", graph("Where", own, log_probs, -np.inf))
    room = graph("Add", graph("Mul", graph("Abs", best), CLOSE), CLOSE)
    return graph("Where", own, log_probs, graph("Min", log_probs, graph("Sub", best, room)))


def largest_difference(
    content: bytes, calibrator: Calibrator | SlicedCalibrator, kind: Kind = "logits"
) -> float:
    """Compare a graph with its calibrator; infinity if it returns NaN or another class.

    The absolute difference of probabilities, and the relative one of log-probabilities.
    """
    runtime = need("onnxruntime", extra="export", what="checking an ONNX file before it is written")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    worst, generator = 0.0, np.random.default_rng(0)
    for logits in comparison_logits(calibrator.classes):
        given, inputs = logits, {}
        mapped: Calibrator | SliceMap
        if not isinstance(calibrator, SlicedCalibrator):
            mapped = calibrator
        else:
            index = generator.integers(-1, len(calibrator.keys) + 1, len(logits))
            inputs[sliced.INPUT] = index
            mapped = calibrator.at(np.where(index < len(calibrator.keys), index, -1))
        if kind == "probs":
            given = torch.from_numpy(logits).softmax(1).numpy()
            rows = Predictions.from_probs(given.astype(np.float64), np.zeros(len(given), np.int64))
            expected = rows.map(mapped).logits.numpy()
        else:
            expected = mapped(torch.from_numpy(logits).double()).numpy()
        log_probs, probs = session.run(["log_probs", "probs"], {INPUTS[kind]: given, **inputs})
        same_class = not calibrator.keeps_argmax or (probs.argmax(1) == given.argmax(1)).all()
        allowed = expected > -np.inf
        if not same_class or not np.array_equal(log_probs > -np.inf, allowed):
            return np.inf
        found, exact = log_probs[allowed], expected[allowed]
        relative = np.abs(found - exact) / (1 + np.abs(exact))
        gaps = np.abs(probs - np.exp(expected)).max(), relative.max()
        # max would ignore NaN.
        if not np.isfinite(gaps).all():
            return np.inf
        worst = max(worst, *map(float, gaps))
    return worst


def comparison_logits(classes: int) -> Iterator[Float[np.ndarray, "n k"]]:
    """Yield batches of float32 logits: extreme ones, then 10,000 rows of usual scales."""
    generator = np.random.default_rng(0)
    yield _extremes(classes, generator)
    left = RANDOM_ROWS
    while left:
        rows = min(left, max(1, BATCH // classes))
        scales = 10 ** generator.uniform(-2, 2, (rows, 1))
        yield (generator.normal(size=(rows, classes)) * scales).astype(np.float32)
        left -= rows


def _extremes(classes: int, generator: np.random.Generator) -> Float[np.ndarray, "n k"]:
    """Ties, certainty up to a gap of 10,000, the smallest and the largest logits, masks."""
    one = np.zeros(classes)
    one[generator.integers(classes)] = 1
    noise = generator.normal(size=classes)
    rows = [0 * one, one, -one, noise, np.linspace(-1, 1, classes), 1 - 2 * one]
    zeros = np.where(one > 0, 1.0, -np.inf)
    close = np.where(one > 0, np.nextafter(np.float32(1), np.float32(2)), 1.0)
    scales = (1e-30, 1e-8, 1e-3, 1.0, 20.0, 100.0, 1e3, 1e4)
    shifts = (0.0, 50.0, -50.0)
    every = [row * scale + shift for row in rows for scale in scales for shift in shifts]
    half = np.where(noise >= np.median(noise), noise, -np.inf)
    every += [zeros, half, np.where(noise > noise.min(), noise, -np.inf), close]
    return np.array(every, dtype=np.float32)
