"""Calibration, margins and curvature, measured while a network trains."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from calibrant import metrics
from calibrant.curvature.batches import (
    Data,
    Pair,
    flatten_valid,
    join_batches,
    model_logits,
    move_inputs,
    same_randomness,
    take,
)
from calibrant.curvature.margins import logit_norm, margin_tail, margins
from calibrant.curvature.products import gradient
from calibrant.curvature.sharpness import batch_sharpness
from calibrant.curvature.spectrum import top_eigenvalues
from calibrant.curvature.trace import trace
from calibrant.deprecated import Renamed, renamed_arguments
from calibrant.losses import cross_entropy
from calibrant.losses.settings import at_least, one_of, positive
from calibrant.model_modes import bare, evaluating
from calibrant.predictions import Predictions

# Logits (m, k) and labels (m,), without ignored ones.
LogitsAndLabels = tuple[Tensor, Tensor]
# Recorded quantiles of the training margins, in percent.
QUANTILES = (0, 5, 25, 50, 75, 95)
# Examples per forward pass.
CHUNK = 512


@renamed_arguments("test")
@dataclass(eq=False, repr=False)
class Probe:
    """Measures a network regularly during training, always on the same examples.

    It has no side effects: gradients, running statistics, modes and random states stay the same.
    Everything is measured in evaluation mode. The curvature is that of the probe's own loss, so
    that runs with different methods can be compared.

    Args:
        model: the network in training.
        train: inputs and labels of training examples, or batches of them.
        held_out: the same of validation or test examples; None skips their measurements.
        split: name of the held-out examples in the records, such as "val".
        every: steps between two measurements.
        examples: sample size of each of the two, drawn once; all if there are fewer.
        measures: names in `MEASURES`.
        tolerance: relative error of eigenvalues.
        products: number of products with random vectors, for the trace.
        batch: examples of each batch of the batch sharpness.
        batches: number of these batches.
        seed: seed of all random draws.
        loss: loss of logits and labels, per example or the mean.
        ignore_index: label of ignored pixels.

    Examples:
        >>> from calibrant import data, models
        >>> splits = data.load("blobs", 0)
        >>> model = models.build("mlp", classes=splits.classes, shape=splits.shape)
        >>> probe = Probe(model, (splits.train.inputs, splits.train.labels), every=10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> for _ in range(20):
        ...     probe.step(lr=0.1)
        ...     loss = cross_entropy(model(splits.train.inputs), splits.train.labels).mean()
        ...     optimizer.zero_grad(); loss.backward(); optimizer.step()
        >>> [record["step"] for record in probe.records]
        [0, 10]

    References:
        Morosini et al., Too Sharp, Too Sure: When Calibration Follows Curvature, 2026,
        arXiv:2604.20614
    """

    rows = Renamed()
    test = Renamed()

    model: nn.Module
    train: Data
    held_out: Data | None = None
    _: KW_ONLY
    split: str = "test"
    every: int = 100
    examples: int = 1000
    measures: Sequence[str] = (
        "calibration",
        "margins",
        "norms",
        "gauss_newton",
        "hessian",
        "batch_sharpness",
        "trace",
    )
    tolerance: float = 1e-2
    products: int = 10
    batch: int = 128
    batches: int = 8
    seed: int = 0
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    ignore_index: int | None = None
    records: list[dict[str, float]] = field(default_factory=list, init=False)
    _steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        names = ("every", "examples", "batch", "batches", "products", "seed")
        counts = {name: getattr(self, name) for name in names}
        check(tolerance=self.tolerance, measures=self.measures, **counts)
        if not any(each.requires_grad for each in self.model.parameters()):
            raise ValueError("no weight of the model requires a gradient")
        self.measures = tuple(self.measures)
        self.train = _some(self.train, self.examples, self.seed)
        if self.held_out is not None:
            self.held_out = _some(self.held_out, self.examples, self.seed)

    def step(self, *, lr: float | None = None, number: int | None = None) -> None:
        """Count a step; call it before each. Measures at the first and every `every`-th step.

        Args:
            lr: learning rate, for the edge of stability of plain gradient descent.
            number: number of this step, for a resumed run.
        """
        self._steps = self._steps if number is None else number
        if self._steps % self.every == 0:
            rates = {} if lr is None else {"lr": lr}
            if lr:
                rates["edge"] = edge(lr)
            self.records.append({"step": self._steps, **rates, **self.read()})
        self._steps += 1

    def read(self) -> dict[str, float]:
        """Measure the network now; non-finite values are left out.

        The record of a diverged network is empty.
        """
        record: dict[str, float] = {}
        with evaluating(bare(self.model)), same_randomness():
            outputs = {"train": self._logits(self.train)}
            if self.held_out is not None:
                outputs[self.split] = self._logits(self.held_out)
            if not all(logits.isfinite().all() for logits, _ in outputs.values()):
                return record
            for name in self.measures:
                # The gradient is zero, or eigenvalues do not converge.
                with suppress(FloatingPointError):
                    record |= MEASURES[name](self, outputs)
        return {name: value for name, value in record.items() if math.isfinite(value)}

    def _logits(self, data: Pair) -> LogitsAndLabels:
        """Logits (m, k) and labels, without ignored ones."""
        inputs, labels = data
        network = bare(self.model)
        like = next(network.parameters())
        parts = [slice(start, start + CHUNK) for start in range(0, len(labels), CHUNK)]
        # Copies, for networks that write to their buffers in evaluation mode.
        buffers = {name: each.clone() for name, each in network.named_buffers()}
        with torch.no_grad():
            chunks = [
                model_logits(network, buffers, move_inputs(take(inputs, part), like))
                for part in parts
            ]
        logits = torch.cat(chunks).to(labels.device)
        return flatten_valid(logits, labels, ignore_index=self.ignore_index)


def check(
    *, tolerance: float = 1.0, measures: Sequence[str] = ("calibration",), **counts: int
) -> None:
    """Check the settings of a probe, before there is a network."""
    for name, value in counts.items():
        if not isinstance(value, int):
            raise ValueError(f"{name} must be an integer, got {value!r}")
        # A standard error needs two draws.
        at_least(name, {"seed": 0, "products": 2, "batches": 2}.get(name, 1), value)
    if not isinstance(tolerance, int | float):
        raise ValueError(f"tolerance must be a number, got {tolerance!r}")
    positive("tolerance", tolerance)
    if isinstance(measures, str) or not measures:
        raise ValueError(f"measures must be a list of {', '.join(MEASURES)}; got {measures!r}")
    for name in measures:
        one_of("measures", name, MEASURES)


def edge(lr: float, momentum: float = 0.0, *, nesterov: bool = False) -> float:
    r"""Edge of stability: the curvature above which descent on a quadratic diverges.

    $2 / \eta$ without momentum, $(2 + 2\beta) / \eta$ with momentum $\beta$, divided by
    $1 + 2\beta$ for Nesterov momentum.

    References:
        Cohen et al., Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability,
        ICLR 2021, arXiv:2103.00065
    """
    positive("lr", lr)
    return (2 + 2 * momentum) / lr / (1 + 2 * momentum if nesterov else 1)


def _calibration(probe: Probe, outputs: Mapping[str, LogitsAndLabels]) -> dict[str, float]:
    """Accuracy, NLL and ECE, on training and held-out examples."""
    record = {}
    for name, each in outputs.items():
        predictions = Predictions(*each)
        for metric in ("accuracy", "nll", "ece"):
            record[f"{name}_{metric}"] = metrics.METRICS[metric](predictions)
    return record


def _margins(probe: Probe, outputs: Mapping[str, LogitsAndLabels]) -> dict[str, float]:
    """Quantiles of the training margins, and the logarithm of the tail, mean exp(-margin)."""
    record = {}
    for name, each in outputs.items():
        found = margins(*each).double()
        record[f"{name}_log_tail"] = margin_tail(found, log=True)
        if name == "train":
            levels = found.new_tensor(QUANTILES) / 100
            values = torch.quantile(found[:: max(1, len(found) >> 20)], levels).tolist()
            record |= {f"margin_{q}": v for q, v in zip(QUANTILES, values, strict=True)}
    return record


def _norms(probe: Probe, outputs: Mapping[str, LogitsAndLabels]) -> dict[str, float]:
    """Mean norm of the logits, and norm of the gradient of the loss."""
    found = _measured(probe, gradient)
    return {"logit_norm": logit_norm(outputs["train"][0]), "gradient_norm": float(found.norm())}


def _gauss_newton(probe: Probe, outputs: Mapping[str, LogitsAndLabels]) -> dict[str, float]:
    """Largest eigenvalue of the Gauss-Newton matrix."""
    options = {"tolerance": probe.tolerance, "seed": probe.seed}
    found = _measured(probe, top_eigenvalues, matrix="gauss_newton", **options)
    return {"gauss_newton": float(found[0])}


def _hessian(probe: Probe, outputs: Mapping[str, LogitsAndLabels]) -> dict[str, float]:
    """Largest eigenvalue of the Hessian."""
    found = _measured(probe, top_eigenvalues, tolerance=probe.tolerance, seed=probe.seed)
    return {"hessian": float(found[0])}


def _batch_sharpness(probe: Probe, outputs: Mapping[str, LogitsAndLabels]) -> dict[str, float]:
    """Curvature of random batches along their own gradients, with its standard error."""
    sizes = {"batch": min(probe.batch, len(probe.train[1])), "batches": probe.batches}
    found = _measured(probe, batch_sharpness, seed=probe.seed, **sizes)
    return {"batch_sharpness": found.value, "batch_sharpness_error": found.error}


def _trace(probe: Probe, outputs: Mapping[str, LogitsAndLabels]) -> dict[str, float]:
    """Trace of the Gauss-Newton matrix, with its standard error."""
    options = {"products": probe.products, "seed": probe.seed}
    found = _measured(probe, trace, matrix="gauss_newton", **options)
    return {"trace": found.value, "trace_error": found.error}


def _measured(probe: Probe, measure: Callable[..., Any], **options: Any) -> Any:
    """A measure of the probe's loss on its training examples."""
    problem = bare(probe.model), probe.loss, probe.train
    return measure(*problem, ignore_index=probe.ignore_index, **options)


# Measures of a probe; each returns one or more columns.
MEASURES: dict[str, Callable[[Probe, Mapping[str, LogitsAndLabels]], dict[str, float]]] = {
    "calibration": _calibration,
    "margins": _margins,
    "norms": _norms,
    "gauss_newton": _gauss_newton,
    "hessian": _hessian,
    "batch_sharpness": _batch_sharpness,
    "trace": _trace,
}


def draw_examples(count: int, examples: int, seed: int) -> Tensor:
    """Sorted positions of a random sample of examples; all if there are no more than requested."""
    if count <= examples:
        return torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:examples].sort().values


def _some(data: Data, examples: int, seed: int) -> Pair:
    inputs, labels = join_batches(data)
    index = draw_examples(len(labels), examples, seed).to(labels.device)
    return take(inputs, index), labels[index]
