"""An instrument for any training: calibration, margins and curvature along the way."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from calibrant import metrics
from calibrant.curvature.batches import (
    Data,
    Pair,
    answers,
    placed,
    rows,
    same_randomness,
    taken,
    whole,
)
from calibrant.curvature.margins import logit_norm, margin_tail, margins
from calibrant.curvature.products import Matrix, gradient
from calibrant.curvature.sharpness import batch_sharpness
from calibrant.curvature.spectrum import top_eigenvalues
from calibrant.curvature.trace import trace
from calibrant.losses import cross_entropy
from calibrant.losses.settings import at_least, one_of, positive
from calibrant.model_modes import bare, evaluating
from calibrant.predictions import Predictions

# Logits (m, k) and labels (m,) of what counts.
Said = tuple[Tensor, Tensor]
# Parts of the training examples that lie below each margin of a reading.
QUANTILES = (0, 5, 25, 50, 75, 95)
# Examples that pass through the network together.
CHUNK = 512


class Probe:
    """Reads a network now and then while it is trained, on examples that stay the same.

    It changes nothing: no gradient, running statistic, mode or random number. Everything is
    measured in evaluation mode. The loss whose curvature is read is that of the probe, whatever the
    network is trained with, so that trainings by different methods can be compared.

    Args:
        model: the network under training.
        train: inputs and labels of training examples, or batches of them, which are joined.
        test: the same of others; None leaves out what is read on them.
        every: steps from one reading to the next.
        examples: of each of the two, drawn once; all if there are fewer.
        measures: names in `MEASURES`.
        tolerance: of eigenvalues, relative.
        products: with random vectors, for the trace.
        batch: examples of each batch of the batch sharpness.
        batches: how many of them.
        seed: of everything that is drawn.
        loss: of logits and labels, for each example or the mean.
        ignore_index: label of pixels that do not count.

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
        >>> [row["step"] for row in probe.rows]
        [0, 10]

    References:
        Calibration follows curvature, arXiv:2604.20614
    """

    def __init__(
        self,
        model: nn.Module,
        train: Data,
        test: Data | None = None,
        *,
        every: int = 100,
        examples: int = 1000,
        measures: Sequence[str] = (
            "calibration",
            "margins",
            "norms",
            "gauss_newton",
            "hessian",
            "batch_sharpness",
            "trace",
        ),
        tolerance: float = 1e-2,
        products: int = 10,
        batch: int = 128,
        batches: int = 8,
        seed: int = 0,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        ignore_index: int | None = None,
    ) -> None:
        counts = {"every": every, "examples": examples, "batch": batch, "batches": batches}
        check(**counts, products=products, tolerance=tolerance, measures=measures, seed=seed)
        if not any(each.requires_grad for each in model.parameters()):
            raise ValueError("the model has no weights that are learnt (requires_grad)")
        self.model, self.loss, self.ignore_index = model, loss, ignore_index
        self.every, self.measures, self.tolerance = every, tuple(measures), tolerance
        self.products, self.batch, self.batches, self.seed = products, batch, batches, seed
        self.train = _some(train, examples, seed)
        self.test = None if test is None else _some(test, examples, seed)
        self.rows: list[dict[str, float]] = []
        self._steps = 0

    def step(self, *, lr: float | None = None, number: int | None = None) -> None:
        """Count a step; call it before each. The first and then every `every`-th is read.

        Args:
            lr: learning rate, for the edge of stability of plain descent.
            number: of this step, for a loop that goes on where another ended.
        """
        self._steps = self._steps if number is None else number
        if self._steps % self.every == 0:
            where = {} if lr is None else {"lr": lr}
            if lr:
                where["edge"] = edge(lr)
            self.rows.append({"step": self._steps, **where, **self.read()})
        self._steps += 1

    def read(self) -> dict[str, float]:
        """Measure the network as it is now; what has no finite value is left out.

        Of a network that has diverged nothing can be measured: the row is empty.
        """
        row: dict[str, float] = {}
        with evaluating(bare(self.model)), same_randomness():
            said = {"train": self._rows(self.train)}
            if self.test is not None:
                said["test"] = self._rows(self.test)
            if not all(logits.isfinite().all() for logits, _ in said.values()):
                return row
            for name in self.measures:
                # No gradient to look along, or eigenvalues that do not converge.
                with suppress(FloatingPointError):
                    row |= MEASURES[name](self, said)
        return {name: value for name, value in row.items() if math.isfinite(value)}

    def _rows(self, data: Pair) -> Said:
        """Logits (m, k) of what counts, and labels."""
        inputs, labels = data
        network = bare(self.model)
        like = next(network.parameters())
        parts = [slice(start, start + CHUNK) for start in range(0, len(labels), CHUNK)]
        # Copies, for networks that write into their buffers in evaluation mode, too.
        held = {name: each.clone() for name, each in network.named_buffers()}
        with torch.no_grad():
            found = [answers(network, held, placed(taken(inputs, part), like)) for part in parts]
        logits = torch.cat(found).to(labels.device)
        return rows(logits, labels, ignore_index=self.ignore_index)


def check(
    *, tolerance: float = 1.0, measures: Sequence[str] = ("calibration",), **counts: int
) -> None:
    """Refuse settings of a probe that mean nothing, before there is a network."""
    for name, value in counts.items():
        if not isinstance(value, int):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        # An error needs two draws.
        at_least(name, {"seed": 0, "products": 2, "batches": 2}.get(name, 1), value)
    if not isinstance(tolerance, int | float):
        raise ValueError(f"tolerance must be a number, got {tolerance!r}")
    positive("tolerance", tolerance)
    if isinstance(measures, str) or not measures:
        raise ValueError(f"measures must be a list of {', '.join(MEASURES)}; got {measures!r}")
    for name in measures:
        one_of("measures", name, MEASURES)


def edge(lr: float, momentum: float = 0.0, *, nesterov: bool = False) -> float:
    r"""Curvature beyond which descent on a quadratic is unstable: $2 / \eta$ without momentum.

    $(2 + 2\beta) / \eta$ with momentum $\beta$, and less by $1 + 2\beta$ if it looks ahead.

    References:
        Cohen et al., Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability,
        ICLR 2021, arXiv:2103.00065
    """
    positive("lr", lr)
    return (2 + 2 * momentum) / lr / (1 + 2 * momentum if nesterov else 1)


def _calibration(probe: Probe, said: Mapping[str, Said]) -> dict[str, float]:
    """Accuracy, NLL and ECE, on training and test examples."""
    row = {}
    for name, each in said.items():
        held = Predictions(*each)
        for metric in ("accuracy", "nll", "ece"):
            row[f"{name}_{metric}"] = metrics.METRICS[metric](held)
    return row


def _margins(probe: Probe, said: Mapping[str, Said]) -> dict[str, float]:
    """Quantiles of the training margins, and the logarithm of the tail, mean exp(-margin)."""
    row = {}
    for name, each in said.items():
        found = margins(*each).double()
        row[f"{name}_log_tail"] = margin_tail(found, log=True)
        if name == "train":
            levels = found.new_tensor(QUANTILES) / 100
            values = torch.quantile(found[:: max(1, len(found) >> 20)], levels).tolist()
            row |= {f"margin_{q}": v for q, v in zip(QUANTILES, values, strict=True)}
    return row


def _norms(probe: Probe, said: Mapping[str, Said]) -> dict[str, float]:
    """Mean norm of the logits, and norm of the gradient of the loss."""
    return {
        "logit_norm": logit_norm(said["train"][0]),
        "gradient_norm": float(gradient(*_what(probe), ignore_index=probe.ignore_index).norm()),
    }


def _gauss_newton(probe: Probe, said: Mapping[str, Said]) -> dict[str, float]:
    """Largest eigenvalue of the Gauss-Newton matrix."""
    return {"gauss_newton": _sharpness(probe, "gauss_newton")}


def _hessian(probe: Probe, said: Mapping[str, Said]) -> dict[str, float]:
    """Largest eigenvalue of the Hessian."""
    return {"hessian": _sharpness(probe, "hessian")}


def _batch_sharpness(probe: Probe, said: Mapping[str, Said]) -> dict[str, float]:
    """Curvature of random batches along their own gradients, with its error."""
    found = batch_sharpness(
        *_what(probe),
        batch=min(probe.batch, len(probe.train[1])),
        batches=probe.batches,
        seed=probe.seed,
        ignore_index=probe.ignore_index,
    )
    return {"batch_sharpness": found.value, "batch_sharpness_error": found.error}


def _trace(probe: Probe, said: Mapping[str, Said]) -> dict[str, float]:
    """Trace of the Gauss-Newton matrix, with its error."""
    found = trace(
        *_what(probe),
        matrix="gauss_newton",
        products=probe.products,
        seed=probe.seed,
        ignore_index=probe.ignore_index,
    )
    return {"trace": found.value, "trace_error": found.error}


def _sharpness(probe: Probe, matrix: Matrix) -> float:
    found = top_eigenvalues(
        *_what(probe),
        matrix=matrix,
        tolerance=probe.tolerance,
        seed=probe.seed,
        ignore_index=probe.ignore_index,
    )
    return float(found[0])


def _what(probe: Probe) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], Pair]:
    return bare(probe.model), probe.loss, probe.train


# What a probe can read; each gives one or more columns.
MEASURES: dict[str, Callable[[Probe, Mapping[str, Said]], dict[str, float]]] = {
    "calibration": _calibration,
    "margins": _margins,
    "norms": _norms,
    "gauss_newton": _gauss_newton,
    "hessian": _hessian,
    "batch_sharpness": _batch_sharpness,
    "trace": _trace,
}


def drawn(count: int, examples: int, seed: int) -> Tensor:
    """Places of the examples of a probe, in order; all if there are no more than asked for."""
    if count <= examples:
        return torch.arange(count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:examples].sort().values


def _some(data: Data, examples: int, seed: int) -> Pair:
    inputs, labels = whole(data)
    rows = drawn(len(labels), examples, seed).to(labels.device)
    return taken(inputs, rows), labels[rows]
