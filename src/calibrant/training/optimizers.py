"""Optimizers of torch with one interface."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from calibrant.losses.settings import at_least, one_of
from calibrant.training.muon import KernelMuon, hidden_kernels
from calibrant.training.sam import Sharpness

__all__ = ["OPTIMIZERS", "Optimizer", "Settings", "Sharpness", "build"]


@dataclass(frozen=True)
class Settings:
    """What the optimizers share: see `build`."""

    lr: float
    momentum: float
    nesterov: bool
    weight_decay: float
    betas: tuple[float, float]

    def __post_init__(self) -> None:
        at_least("lr", 0, self.lr)
        at_least("weight_decay", 0, self.weight_decay)
        named = {"momentum": self.momentum, "betas": self.betas[0], "betas ": self.betas[1]}
        for name, value in named.items():
            if not 0 <= value < 1:
                raise ValueError(f"{name.strip()} must lie in [0, 1), got {value}")


class Optimizer:
    """One or more optimizers of torch that step together.

    Args:
        parts: each with its own parameters; the learning rates they have now are their base rates.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        for group in self._groups():
            group["initial_lr"] = group["lr"]

    def step(self) -> None:
        """Move the weights along their gradients."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad()

    def set_rate(self, factor: float) -> None:
        """Scale the base rate of every group, as the schedule wants it for the next step."""
        for group in self._groups():
            group["lr"] = group["initial_lr"] * factor

    def state_dict(self) -> dict[str, Any]:
        """A copy of the states of the parts: tensors, numbers and names."""
        return {
            "kinds": self._kinds(),
            "parts": [copy.deepcopy(part.state_dict()) for part in self.parts],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; the next steps are those that would have followed it."""
        if list(state["kinds"]) != self._kinds():
            raise ValueError(
                f"the state is of another optimizer: it must be of {self._kinds()}, "
                f"got {list(state['kinds'])}"
            )
        for part, held in zip(self.parts, state["parts"], strict=True):
            # Torch would write to the tensors of the state it was given.
            part.load_state_dict(copy.deepcopy(held))

    def _groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def _kinds(self) -> list[str]:
        return [type(part).__name__ for part in self.parts]


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad]


def _decayed(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices and kernels decay; norms and biases, which have one axis, do not."""
    parameters = list(parameters)
    groups = (
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": weight_decay},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    )
    return [group for group in groups if group["params"]]


def sgd(model: nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """Stochastic gradient descent with momentum; the decay is part of the gradient."""
    return [
        torch.optim.SGD(
            _decayed(_trained(model), settings.weight_decay),
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov and settings.momentum > 0,
            foreach=True,
        )
    ]


def gd(model: nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """Plain gradient descent: no momentum, and the loop makes one batch of all the data."""
    groups = _decayed(_trained(model), settings.weight_decay)
    return [torch.optim.SGD(groups, lr=settings.lr, foreach=True)]


def adamw(model: nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """Adam with decoupled decay.

    References:
        Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101.
    """
    return [_adamw(_trained(model), settings)]


def muon(model: nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """Orthogonalised momentum for hidden matrices and kernels, AdamW for all the rest.

    Hidden means neither in `model.head` (or the last matrix, where there is no head), nor an
    embedding, nor the first layer. Updates are scaled to the size of AdamW's, so that one learning
    rate and one decay, those one would give AdamW, serve both.

    References:
        Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024,
        kellerjordan.github.io/posts/muon. Liu et al., Muon is Scalable for LLM Training, 2025,
        arXiv:2502.16982.
    """
    kernels = hidden_kernels(model)
    chosen = {id(each) for each in kernels}
    parts: list[torch.optim.Optimizer] = []
    if kernels:
        parts.append(
            KernelMuon(
                kernels,
                lr=settings.lr,
                momentum=settings.momentum,
                nesterov=settings.nesterov and settings.momentum > 0,
                weight_decay=settings.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    others = [each for each in _trained(model) if id(each) not in chosen]
    return [*parts, _adamw(others, settings)] if others else parts


def _adamw(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    groups = _decayed(parameters, settings.weight_decay)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, foreach=True)


OPTIMIZERS: dict[str, Callable[[nn.Module, Settings], list[torch.optim.Optimizer]]] = {
    "sgd": sgd,
    "adamw": adamw,
    "muon": muon,
    "gd": gd,
}


def build(
    name: str,
    model: nn.Module,
    *,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 5e-4,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Optimizer:
    """Make an optimizer of all weights of a model that ask for a gradient.

    Args:
        name: a key of `OPTIMIZERS`.
        model: to be trained; its memory format may change later, its parameters not.
        lr: base rate, which `set_rate` scales.
        momentum: of `sgd` and `muon`.
        nesterov: whether the momentum looks ahead.
        weight_decay: never on norms and biases. Part of the gradient in `sgd` and `gd`; decoupled
            in `adamw` and `muon`, where values near 0.01 are usual.
        betas: of `adamw`, and of the rest in `muon`.
    """
    one_of("optimizer", name, OPTIMIZERS)
    if not _trained(model):
        raise ValueError("the model must have weights that ask for a gradient, it has none")
    settings = Settings(lr, momentum, nesterov, weight_decay, betas)
    return Optimizer(OPTIMIZERS[name](model, settings))
