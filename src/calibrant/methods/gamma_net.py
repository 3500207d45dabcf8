"""Focal loss with a gamma per example, learnt for calibration on held-out data."""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.checks import promote_dtype
from calibrant.data import Batch
from calibrant.losses import focal
from calibrant.losses.log_probs import (
    confidence_and_correct,
    log_one_minus_p,
    log_probs,
    take_label,
)
from calibrant.losses.sece import Form
from calibrant.losses.settings import boolean, integer, one_of, positive
from calibrant.methods.base import check_classes, dominant_labels, mixup_loss
from calibrant.methods.gamma_history import GammaHistory
from calibrant.methods.gamma_networks import (
    INPUTS,
    POSITIVITY,
    GammaNetwork,
    Inputs,
    Positivity,
    gamma_inputs,
    noise,
)
from calibrant.methods.heads import ForwardPass, find_inner, forward_with_features
from calibrant.methods.meta_learning import (
    Derivative,
    MetaLearner,
    Objective,
    full_precision,
)
from calibrant.predictions import Predictions
from calibrant.shapes import Labels, Logits, PerExample

# Examples or pixels per forward pass of the gamma network.
CHUNK = 1 << 16


class GammaNet(MetaLearner):
    r"""Focal loss with a gamma per example, predicted by a small network (gamma-net).

    A gamma network with weights $\phi$ predicts $\gamma_i$ from the input of the last layer,
    detached. Every few steps a lookahead step of the last layer on the focal loss is computed,
    without applying it, and $\phi$ is updated so that held-out data are better calibrated after
    that step. Then the weights are updated by the focal loss with constant $\gamma$: the gradient
    of the loss itself would drive gamma to infinity. Held-out data never update the weights, and
    inference does not use gamma.

    The layers of the paper's network, its map to positive numbers and its exact calibration error
    are not public: here they are settings. Softplus with a large `meta_lr` reaches a gamma so high
    that its gradient vanishes; the default is bounded by `tau`. The final gamma depends on
    `bandwidth`, `meta_batch`, `every` and `meta_lr` together: choose them on validation data. The
    defaults are the settings of `studies/gamma_net-cpu.toml` whose final gamma varied least between
    seeds.

    Args:
        objective: minimised on held-out data: "sece", "dece", or cross entropy plus `weight` times
            one of them ("sece+ce", "dece+ce").
        weight: weight of the calibration error.
        bandwidth: of SECE.
        estimator: form of SECE, "leave_one_out", "points" or "grid".
        positivity: map from the output u to gamma: "sigmoid" $\tau\sigma(u)$, "tanh"
            $\tau|\tanh u|$, "softplus" of $u/\tau$, "softplus_sharp"
            $\mathrm{softplus}(\tau u)/\tau$, "softplus_scaled" $\mathrm{softplus}(u)/\tau$.
        tau: parameter of that map.
        most: largest gamma with any map.
        hidden: width of the hidden layer of the gamma network.
        attention: let examples of a batch attend to each other; gamma then depends on the batch.
        inputs: inputs of the gamma network: "features", or as controls "noise", "random_features"
            of the inputs, or an "intermediate" layer.
        layer: dotted name of that layer; by default the middle one of the layers with weights.
        derivative: "closed_form" or "double_backward", which give the same numbers.
        meta_batch: held-out examples per step; default 256, for masks the size of the batch.
        every: steps between two updates of the gamma network.
        start: epochs before its first update. While the network is under-confident, gamma is
            driven to zero, and may not return from there.
        meta_lr: learning rate of its Adam.
        seed: seed of its initial weights.

    References:
        Wang and Golebiowski, Meta-Calibration Regularized Neural Networks, arXiv:2303.15057
    """

    usual_batch: ClassVar[int] = 256

    def __init__(
        self,
        classes: int,
        *,
        objective: Objective = "sece",
        weight: float = 0.5,
        bandwidth: float = 0.05,
        estimator: Form = "leave_one_out",
        positivity: Positivity = "sigmoid",
        tau: float = 5.0,
        most: float = 20.0,
        hidden: int = 128,
        attention: bool = False,
        inputs: Inputs = "features",
        layer: str = "",
        derivative: Derivative = "closed_form",
        meta_batch: int | None = None,
        every: int = 2,
        start: int = 0,
        meta_lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        super().__init__(
            objective, weight, bandwidth, estimator, derivative, meta_batch, every, meta_lr
        )
        integer("classes", 2, classes)
        one_of("positivity", positivity, tuple(POSITIVITY))
        one_of("inputs", inputs, INPUTS)
        positive("tau", tau)
        positive("most", most)
        integer("hidden", 1, hidden)
        integer("start", 0, start)
        integer("seed", 0, seed)
        boolean("attention", attention)
        if not isinstance(layer, str):
            raise TypeError(f"layer must be the dotted name of a layer, got {layer!r}")
        self.classes, self.inputs, self.layer = classes, inputs, layer
        self.attention, self.seed, self.meta_start = attention, seed, start
        self.settings |= {"positivity": positivity, "tau": tau, "most": most, "inputs": inputs}
        self._make = partial(
            GammaNetwork,
            hidden=hidden,
            attention=attention,
            positivity=positivity,
            tau=tau,
            most=most,
            seed=seed,
        )
        self.device: torch.device | None = None
        self.network: GammaNetwork | None = None
        self.history = GammaHistory(self._make(1).top)
        self._counted: Batch | None = None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Focal loss of each example with its own gamma; first updates the gamma network."""
        inner = find_inner(model, self.layer) if self.inputs == "intermediate" else None
        forward = forward_with_features(model, batch.inputs, inner=inner)
        logits, labels = self.flatten(forward.logits, batch.labels)
        check_classes("logits", logits.shape[1], self.classes)
        inputs = self._gamma_inputs(forward, batch)
        updates = self.pending is not None
        self.learn(forward, batch, self._build(inputs), inputs)
        with full_precision(inputs):
            # A diverged network is reported by the training loop: its loss is not finite.
            gamma = self.gamma(inputs).nan_to_num()
        if model.training and (updates or batch is not self._counted):
            # The same batch twice is one step: SAM computes two gradients.
            self._counted = batch
            self._count(gamma, forward, batch)
        return mixup_loss(partial(focal, gamma=gamma), batch, logits, labels)

    @torch.no_grad()
    def gamma(self, inputs: Tensor) -> PerExample:
        """Gamma of each input of the gamma network, without gradient."""
        network = self._build(inputs)
        if not self.attention:
            return torch.cat([network(part) for part in torch.split(inputs, CHUNK)])
        # The batch includes the examples of other processes.
        rank = self.ranks.gather(torch.full((len(inputs),), self.ranks.rank, device=inputs.device))
        gamma: Tensor = network(self.ranks.gather(inputs))
        return gamma[rank == self.ranks.rank]

    def _gamma_inputs(self, forward: ForwardPass, batch: Batch) -> Tensor:
        """Inputs of the gamma network, (m, w): one per example or valid pixel."""
        if self.attention and forward.logits.ndim > 2:
            raise ValueError("attention is over the images of a batch, not over pixels")
        if self.inputs == "noise":
            return noise(self.pixel_ids(batch), seed=self.seed).to(
                promote_dtype(forward.logits).dtype
            )
        inputs = gamma_inputs(self.inputs, forward, batch.inputs, seed=self.seed)
        return self.flatten(inputs, batch.labels, adjusted=False)[0]

    def _build(self, inputs: Tensor) -> GammaNetwork:
        """The gamma network, made for the width of the first batch."""
        network = self.network or self._new(inputs.shape[1], inputs.dtype, inputs.device)
        width = network.first.in_features
        if width != inputs.shape[1]:
            raise ValueError(
                f"the gamma network was made for inputs of width {width}, got {inputs.shape[1]}: "
                "make a new method for another network"
            )
        return network

    def _new(self, width: int, dtype: torch.dtype, device: torch.device | None) -> GammaNetwork:
        self.network = self._make(width).to(device, dtype)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.meta_lr)
        return self.network

    def example_loss(self, logits: Logits, labels: Labels, parameter: Tensor) -> PerExample:
        """Focal loss; the parameter is gamma."""
        return focal(logits, labels, gamma=parameter)

    def example_gradient(self, logits: Logits, labels: Labels, parameter: Tensor) -> Logits:
        """`focal_gradient`."""
        return focal_gradient(logits, labels, parameter)

    def _count(self, gamma: Tensor, forward: ForwardPass, batch: Batch) -> None:
        """Add the gammas of all processes to the history: a checkpoint is saved by one process."""
        logits, labels = self.flatten(
            forward.logits.detach(), dominant_labels(batch), adjusted=False
        )
        columns = gamma.new_zeros(0, 3)
        if len(labels):
            confidence, correct = confidence_and_correct(logits, labels)
            columns = torch.stack([gamma, confidence.to(gamma), correct.to(gamma)], 1)
        self.history.add(*self.ranks.gather(columns).unbind(1))

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Statistics of gamma, overall and by confidence; warns if learning gamma failed."""
        check_classes("predictions", val.classes, self.classes)
        self._counted = None
        record = self.meta_record()
        accuracy = float(val.correct.float().mean())
        weights = [] if self.network is None else list(self.network.parameters())
        record["gamma_weights"] = float(sum(each.numel() for each in weights))
        objective = self.means.get("meta_objective", 0.0)
        return {**record, **self.history.record(objective, accuracy, len(val))}

    def state_dict(self) -> dict[str, Any]:
        """The gamma network and its optimizer (None before the first batch), and all sums."""
        network = None if self.network is None else deepcopy(self.network.state_dict())
        return {**super().state_dict(), "network": network, "history": self.history.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load state, also before the first batch."""
        self.check_state(state)
        self.history.load_state_dict(state["history"])
        self.network = self.optimizer = self._counted = None
        weights = state["network"]
        if weights is not None:
            first: Tensor = weights["first.weight"]
            network = self._new(first.shape[1], first.dtype, self.device)
            if network.first.weight.shape != first.shape or set(network.state_dict()) != set(
                weights
            ):
                raise ValueError(
                    "the state is of a gamma network with other settings than the method"
                )
            network.load_state_dict(weights)
        super().load_state_dict(state)

    def to(self, device: torch.device) -> None:
        """Move the gamma network and its optimizer state."""
        self.device = device
        super().to(device)


def focal_gradient(logits: Logits, labels: Tensor, gamma: PerExample) -> Logits:
    r"""Derivative of the focal loss of each example with respect to its logits, (n, k).

    $$u_\gamma(p_y)\,(p - 1[\cdot = y]), \qquad
      u_\gamma(p) = (1 - p)^\gamma \Big(1 - \gamma\, p\, \frac{\log p}{1 - p}\Big)$$

    No overflow where p rounds to 1: the fraction tends to -1 there.
    """
    log_p = log_probs(logits)
    label, others = take_label(log_p, labels), log_one_minus_p(log_p, labels)
    rest = others.exp()
    ratio = torch.where(rest > 1e-4, -label / rest, 1 + rest / 2 + rest**2 / 3)
    factor = torch.exp(gamma * others) * (1 + gamma * label.exp() * ratio)
    error = log_p.exp() - nn.functional.one_hot(labels, log_p.shape[1])
    return factor[:, None] * error
