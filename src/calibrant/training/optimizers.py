"""Optimizers of torch with one interface, and sharpness-aware minimisation around any of them."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Parts = list[torch.optim.Optimizer]


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
        """Set the gradients of all weights to None."""
        for part in self.parts:
            part.zero_grad()

    def set_rate(self, factor: float) -> None:
        """Scale the base rate of every group, as the schedule wants it for the next step."""
        for group in self._groups():
            group["lr"] = group["initial_lr"] * factor

    def state_dict(self) -> dict[str, Any]:
        """A copy of the states of the parts: tensors, numbers and names."""
        parts = [copy.deepcopy(part.state_dict()) for part in self.parts]
        return {"kinds": self._kinds(), "parts": parts}

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


def sgd(model: nn.Module, weight_decay: float, **settings: Any) -> Parts:
    """Stochastic gradient descent with momentum; the decay is part of the gradient."""
    return [torch.optim.SGD(_decayed(_trained(model), weight_decay), foreach=True, **settings)]


def gd(model: nn.Module, weight_decay: float, *, lr: float, **others: Any) -> Parts:
    """Plain gradient descent: no momentum, and the loop makes one batch of all the data."""
    return sgd(model, weight_decay, lr=lr)


def adamw(model: nn.Module, weight_decay: float, *, lr: float, **others: Any) -> Parts:
    """Adam with decoupled decay.

    References:
        Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101.
    """
    return [torch.optim.AdamW(_decayed(_trained(model), weight_decay), lr=lr, foreach=True)]


def muon(model: nn.Module, weight_decay: float, **settings: Any) -> Parts:
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
    others = [each for each in _trained(model) if id(each) not in chosen]
    parts: Parts = []
    if kernels:
        settings |= {"weight_decay": weight_decay, "adjust_lr_fn": "match_rms_adamw"}
        parts.append(KernelMuon(kernels, **settings))
    if others:
        groups = _decayed(others, weight_decay)
        parts.append(torch.optim.AdamW(groups, lr=settings["lr"], foreach=True))
    return parts


class KernelMuon(torch.optim.Muon):
    """Torch's Muon, which takes matrices only, for weights with more axes.

    A kernel (out, in, height, width) is the matrix (out, in * height * width). It is a view where
    memory allows; a kernel in channels_last is copied and written back. So the order of columns,
    and with it the state, does not depend on the memory format.
    """

    def __init__(self, kernels: Sequence[nn.Parameter], **settings: Any) -> None:
        self.kernels = list(kernels)
        super().__init__([nn.Parameter(_matrix(kernel)) for kernel in kernels], **settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Point the matrices at the kernels of now, step, and see that the kernels have moved."""
        matrices = self.param_groups[0]["params"]
        for kernel, matrix in zip(self.kernels, matrices, strict=True):
            # Fresh each time: `model.to(...)` gives a kernel new memory.
            matrix.data = _matrix(kernel)
            matrix.grad = None if kernel.grad is None else _matrix(kernel.grad)
        super().step()  # type: ignore[no-untyped-call]
        for kernel, matrix in zip(self.kernels, matrices, strict=True):
            if matrix.data_ptr() != kernel.data_ptr():
                kernel.copy_(matrix.view(kernel.shape))
            matrix.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the kernels."""
        for kernel in self.kernels:
            kernel.grad = None


def _matrix(kernel: Tensor) -> Tensor:
    return kernel.detach().reshape(len(kernel), -1)


def hidden_kernels(model: nn.Module) -> list[nn.Parameter]:
    """The weights with two axes or more between the first layer and the head."""
    matrices = [each for each in model.parameters() if each.ndim > 1]
    head = getattr(model, "head", None)
    outer = list(head.parameters()) if isinstance(head, nn.Module) else matrices[-1:]
    outer += matrices[:1]
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            outer += list(module.parameters())
    excluded = {id(each) for each in outer}
    return [each for each in matrices if each.requires_grad and id(each) not in excluded]


OPTIMIZERS: dict[str, Callable[..., Parts]] = {
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
) -> Optimizer:
    """Make an optimizer of all weights of a model that ask for a gradient.

    Its memory format may change later, its parameters not. The settings are those of a `Recipe`,
    which has checked them. The decay is part of the gradient in `sgd` and `gd`; it is decoupled in
    `adamw` and `muon`, where values near 0.01 are usual.
    """
    if not _trained(model):
        raise ValueError("the model must have weights that ask for a gradient, it has none")
    settings = {"lr": lr, "momentum": momentum, "nesterov": nesterov and momentum > 0}
    return Optimizer(OPTIMIZERS[name](model, weight_decay, **settings))


class Sharpness:
    r"""Sharpness-aware minimisation: the gradient is taken where the loss is worst nearby.

    $$w \leftarrow w - lr\, \nabla L(w + \rho\, g / \|g\|), \qquad g = \nabla L(w)$$

    Use: `backward`, `ascend`, `zero_grad`, `backward` again, `restore`, then the optimizer's step.
    BatchNorm sees both passes.

    References:
        Foret et al., Sharpness-Aware Minimization, ICLR 2021, arXiv:2010.01412.
    """

    def __init__(self, rho: float) -> None:
        self.rho = rho
        self._before: list[tuple[nn.Parameter, Tensor]] = []

    @torch.no_grad()
    def ascend(self, parameters: Iterable[nn.Parameter]) -> None:
        """Move the weights by rho along the gradient; nowhere if it is zero."""
        moving = [(each, each.grad) for each in parameters if each.grad is not None]
        norm = nn.utils.get_total_norm([gradient for _, gradient in moving])
        scale = torch.where(norm > 0, self.rho / norm, torch.zeros_like(norm))
        for each, gradient in moving:
            self._before.append((each, each.clone()))
            each.addcmul_(gradient, scale.to(each.dtype))

    @torch.no_grad()
    def restore(self) -> None:
        """Put the weights back, bit for bit."""
        for each, before in self._before:
            each.copy_(before)
        self._before = []
