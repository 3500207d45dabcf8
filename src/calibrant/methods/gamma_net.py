"""Focal loss whose gamma, one for each example, is learnt for calibration on held-out data."""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.checks import promote_dtype
from calibrant.data import Batch
from calibrant.losses import focal
from calibrant.losses.log_probs import log_probs, of_label, of_others, top_class
from calibrant.losses.sece import Form
from calibrant.losses.settings import flag, one_of, positive, whole
from calibrant.methods.base import larger_part, mixed, same_answers, same_classes
from calibrant.methods.gamma_history import GammaHistory
from calibrant.methods.gamma_inputs import INPUTS, Inputs, fed, noise
from calibrant.methods.gamma_networks import POSITIVITY, GammaNetwork, Positivity
from calibrant.methods.heads import Seen, find_inner, look
from calibrant.methods.meta_learning import (
    Derivative,
    MetaLearner,
    Objective,
    Pending,
    exact,
)
from calibrant.predictions import Predictions
from calibrant.shapes import Logits, PerExample

# Rows that go through the gamma network together.
CHUNK = 1 << 16


class GammaNet(MetaLearner):
    r"""Focal loss whose gamma a small network gives each example, learnt on held-out data.

    A network with weights $\phi$ reads what the last layer sees (without gradient) and says
    $\gamma_i$. Every few steps it learns: a plain gradient step of the last layer on the focal loss
    of the batch is tried, $\phi$ moves so that held-out data would be better calibrated after it,
    and the step is forgotten. Then the weights move by the focal loss with $\gamma$ held constant:
    its gradient would drive gamma to infinity. Held-out data never reach the weights, and at
    inference there is no gamma.

    Not known of the paper are the layers of its network, the map to positive numbers, and the exact
    error it minimises: here they are settings. Softplus with a large `meta_lr` runs to a gamma so
    high that no gradient brings it back; the default is bounded by `tau`. How high gamma ends
    depends on `bandwidth`, `meta_batch`, `every` and `meta_lr` together: choose them on validation
    data. The defaults are those of the settings in `studies/gamma_net-cpu.toml` with which gamma
    ended nearest to the same level for every seed.

    Args:
        classes: k.
        objective: what is minimised on held-out data: "sece", "dece", or cross entropy plus
            `weight` times one of them.
        weight: of the calibration error beside cross entropy.
        bandwidth: of SECE.
        estimator: form of SECE, "leave_one_out", "points" or "grid".
        positivity: how a number becomes a gamma: "sigmoid" $\tau\sigma(u)$, "tanh"
            $\tau|\tanh u|$, "softplus" of $u/\tau$, "softplus_sharp"
            $\mathrm{softplus}(\tau u)/\tau$, "softplus_scaled" $\mathrm{softplus}(u)/\tau$.
        tau: of that map.
        most: largest gamma, whatever the map.
        hidden: width of the hidden layer of the gamma network.
        attention: let examples of a batch look at each other; gamma then depends on the batch.
        inputs: what the gamma network is fed: "features"; to see whether they matter, "noise",
            "random_features" of the inputs, or an "intermediate" layer.
        layer: dotted name of that layer; by default the middle one of those with weights.
        derivative: "closed_form", or "double_backward" through the tried step: the same numbers.
        meta_batch: held-out examples of a step; by default 256, of masks as many as of training.
        every: steps from one update of the gamma network to the next.
        start: epochs before its first update. A network that is not sure yet asks for a gamma of
            zero, and may not come back from there.
        meta_lr: learning rate of its Adam.
        seed: of its first weights.

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
            objective=objective,
            weight=weight,
            bandwidth=bandwidth,
            estimator=estimator,
            derivative=derivative,
            meta_batch=meta_batch,
            every=every,
            meta_lr=meta_lr,
        )
        whole("classes", 2, classes)
        one_of("positivity", positivity, tuple(POSITIVITY))
        one_of("inputs", inputs, INPUTS)
        positive("tau", tau)
        positive("most", most)
        whole("hidden", 1, hidden)
        whole("start", 0, start)
        whole("seed", 0, seed)
        flag("attention", attention)
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
        self.learner: tuple[GammaNetwork, torch.optim.Adam] | None = None
        self.history = GammaHistory(self._make(1).top)
        self._noted: Batch | None = None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Focal loss of each example with its own gamma; learns first if there is what from."""
        inner = find_inner(model, self.layer) if self.inputs == "intermediate" else None
        seen = look(model, batch.inputs, inner=inner)
        logits, labels = self.rows(seen.logits, batch.labels)
        same_answers(logits, self.classes)
        given = self._given(seen, batch)
        pending, self.pending = self.pending, None
        if pending is not None:
            self._learn(seen, batch, given, pending)
        with exact(given):
            # A network that has diverged is for whoever trains to find: its loss is not finite.
            gamma = self.gamma(given).nan_to_num()
        if model.training and (pending is not None or batch is not self._noted):
            # The same batch again is the same step: sharpness-aware descent takes two gradients.
            self._noted = batch
            self._note(gamma, seen, batch)
        return mixed(partial(focal, gamma=gamma), batch, logits, labels)

    @torch.no_grad()
    def gamma(self, given: Tensor) -> PerExample:
        """Gamma of each row that the gamma network is fed; nothing flows back from it."""
        network, _ = self._built(given)
        if not self.attention:
            return torch.cat([network(part) for part in torch.split(given, CHUNK)])
        # Examples of other processes belong to the batch, too.
        mine = self.ranks.gather(torch.full((len(given),), self.ranks.rank, device=given.device))
        together: Tensor = network(self.ranks.gather(given))
        return together[mine == self.ranks.rank]

    def _given(self, seen: Seen, batch: Batch) -> Tensor:
        """What the gamma network is fed, (m, w): of examples, or of the pixels that count."""
        if self.attention and seen.logits.ndim > 2:
            raise ValueError("attention is over a batch of images: pixels are too many for it")
        if self.inputs == "noise":
            return noise(self.tags(batch), seed=self.seed).to(promote_dtype(seen.logits).dtype)
        each = fed(self.inputs, seen, batch.inputs, seed=self.seed)
        return self.rows(each, batch.labels, adjusted=False)[0]

    def _built(self, given: Tensor) -> tuple[GammaNetwork, torch.optim.Adam]:
        """The gamma network and its optimizer; their width is known from the first batch on."""
        if self.learner is None:
            self.learner = self._new(given.shape[1], given.dtype, given.device)
        width = self.learner[0].first.in_features
        if width != given.shape[1]:
            raise ValueError(
                f"the gamma network was made for inputs of width {width}, got {given.shape[1]}: "
                "make a new method for another network"
            )
        return self.learner

    def _new(
        self, width: int, dtype: torch.dtype, device: torch.device | None
    ) -> tuple[GammaNetwork, torch.optim.Adam]:
        network = self._make(width).to(device, dtype)
        return network, torch.optim.Adam(network.parameters(), lr=self.meta_lr)

    def _learn(self, seen: Seen, batch: Batch, given: Tensor, pending: Pending) -> None:
        """Move the gamma network by what a tried step of the head does to held-out data."""
        kept, gather = self.kept(batch), self.ranks.gather
        features, labels = self.rows(
            promote_dtype(seen.features), larger_part(batch), adjusted=False
        )
        labels, fed_to = gather(labels[kept]), gather(given[kept])
        view = self.view(seen, gather(features[kept]), pending)
        if view is None:
            return
        network, optimizer = self._built(given)

        def loss(logits: Tensor, own: Tensor) -> PerExample:
            return focal(self.adjusted(logits), labels, gamma=own)

        def slopes(logits: Tensor, own: Tensor) -> Logits:
            return focal_slopes(self.adjusted(logits), labels, own)

        with torch.enable_grad(), exact(given):
            gamma = network(fed_to)
            pull = self.tried(view, gamma, loss, slopes).to(gamma.dtype)
            weights = list(network.parameters())
            gradients = torch.autograd.grad(gamma, weights, pull)
        self.stepped(optimizer, weights, gradients)

    def _note(self, gamma: Tensor, seen: Seen, batch: Batch) -> None:
        """Count the gammas by confidence, of all processes alike: a saved state is of one."""
        logits, labels = self.rows(seen.logits.detach(), larger_part(batch), adjusted=False)
        if len(labels):
            both = torch.stack([gamma, *(each.to(gamma) for each in top_class(logits, labels))], 1)
        else:
            both = gamma.new_zeros(0, 3)
        self.history.add(*self.ranks.gather(both).unbind(1))

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """How gamma is spread and how it goes with confidence; warns where learning went wrong."""
        same_classes(val, self.classes)
        self._noted = None
        row = self.meta_row()
        accuracy = float(val.correct.float().mean())
        network = [] if self.learner is None else list(self.learner[0].parameters())
        row["gamma_weights"] = float(sum(each.numel() for each in network))
        objective = self.means.get("meta_objective", 0.0)
        return {**row, **self.history.row(objective, accuracy, len(val))}

    def state_dict(self) -> dict[str, Any]:
        """The gamma network and its optimizer, None before the first batch, and all sums."""
        network, optimizer = self.learner or (None, None)
        return {
            **super().state_dict(),
            "network": None if network is None else deepcopy(network.state_dict()),
            "optimizer": None if optimizer is None else deepcopy(optimizer.state_dict()),
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, also before the first batch."""
        self.checked(state)
        self.history.load_state_dict(state["history"])
        self.learner, self._noted = None, None
        if state["network"] is None:
            return
        held: Tensor = state["network"]["first.weight"]
        network, optimizer = self._new(held.shape[1], held.dtype, self.device)
        if network.first.weight.shape != held.shape or set(network.state_dict()) != set(
            state["network"]
        ):
            raise ValueError("the state is of a gamma network with other settings than these")
        network.load_state_dict(state["network"])
        # Loading would share the moments with the state, and move them in their place.
        optimizer.load_state_dict(deepcopy(state["optimizer"]))
        self.learner = network, optimizer

    def to(self, device: torch.device) -> None:
        """Move the gamma network and the moments of its optimizer."""
        self.device = device
        if self.learner is not None:
            network, optimizer = self.learner
            network.to(device)
            # Loading puts moments where the weights are.
            optimizer.load_state_dict(optimizer.state_dict())


def focal_slopes(logits: Logits, labels: Tensor, gamma: PerExample) -> Logits:
    r"""Derivative of the focal loss of each example with respect to its logits, (n, k).

    $$u_\gamma(p_y)\,(p - 1[\cdot = y]), \qquad
      u_\gamma(p) = (1 - p)^\gamma \Big(1 - \gamma\, p\, \frac{\log p}{1 - p}\Big)$$

    Written so that nothing overflows where p rounds to 1: the fraction tends to -1 there.
    """
    log_p = log_probs(logits)
    own, others = of_label(log_p, labels), of_others(log_p, labels)
    rest = others.exp()
    ratio = torch.where(rest > 1e-4, -own / rest, 1 + rest / 2 + rest**2 / 3)
    factor = torch.exp(gamma * others) * (1 + gamma * own.exp() * ratio)
    error = log_p.exp() - nn.functional.one_hot(labels, log_p.shape[1])
    return factor[:, None] * error
