"""The last linear layer of a network: which it is, what it sees, and a look without a trace."""

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from calibrant.model_modes import bare

# Attributes under which networks keep their last layer.
NAMES = ("head", "fc", "classifier")
Head = nn.Linear | nn.Conv2d
# Layers whose answer has its channels last.
CHANNELS_LAST = (nn.Linear, nn.Embedding, nn.LayerNorm)


@dataclass(frozen=True, eq=False)
class Seen:
    """What a network says about inputs, and what its layers saw.

    Attributes:
        logits: (n, k) or (n, k, ...), with their gradient.
        features: what the head saw, (n, d) or (n, d, ...), detached; the logits if there is none.
        head: the last linear layer; None if the network has none.
        inner: what an inner layer gave, (n, c) or (n, c, ...), detached; None if not asked.
    """

    logits: Tensor
    features: Tensor
    head: Head | None
    inner: Tensor | None = None


def find_head(model: nn.Module) -> Head | None:
    """The last linear layer, a 1x1 convolution included: by its usual names, or else by order."""
    inner = bare(model)
    for name in NAMES:
        found = getattr(inner, name, None)
        if _is_linear(found):
            return found
    return next((each for each in reversed(list(inner.modules())) if _is_linear(each)), None)


def find_inner(model: nn.Module, name: str = "") -> nn.Module:
    """A layer by its dotted name, or the middle one of those with weights before the head."""
    inner, head = bare(model), find_head(model)
    if name:
        try:
            return inner.get_submodule(name)
        except AttributeError:
            known = [each for each, _ in inner.named_modules() if each]
            raise ValueError(f"the network has no layer {name!r}; it has {known}") from None
    before = [each for each in inner.modules() if each is not head and _has_weights(each)]
    if not before:
        raise ValueError("an intermediate layer needs a network with layers before its head")
    return before[(len(before) - 1) // 2]


def look(model: nn.Module, inputs: Tensor, *, inner: nn.Module | None = None) -> Seen:
    """Ask the network, and keep what its head, and an inner layer if given, saw on the way."""
    head = find_head(model)
    at_head: list[tuple[Tensor, Tensor]] = []
    inside: list[Tensor] = []
    hooks = []
    if head is not None:
        hooks.append(head.register_forward_hook(lambda _, a, out: at_head.append((a[0], out))))
    if inner is not None:
        hooks.append(inner.register_forward_hook(lambda _, a, out: inside.append(out)))
    try:
        logits = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor):
        raise TypeError(f"a network must return logits, a tensor; got {type(logits).__name__}")
    given = None if inner is None else _given(inner, inside)
    if head is None:
        return Seen(logits, logits.detach(), None, given)
    if not at_head:
        raise ValueError(
            "the last linear layer of the network took no part: keep the one that makes the "
            "logits in an attribute named head"
        )
    features, answer = at_head[-1]
    if isinstance(head, nn.Linear) and features.ndim > 2:
        features, answer = features.movedim(-1, 1), answer.movedim(-1, 1)
    if not _same(answer, logits):
        raise ValueError(
            "the logits must be what the last linear layer gives, and nothing may come after it; "
            "keep the layer that makes them in an attribute named head"
        )
    return Seen(logits, features.detach(), head, given)


def _is_linear(module: object) -> TypeGuard[Head]:
    if isinstance(module, nn.Conv2d):
        return (
            module.kernel_size == (1, 1)
            and module.stride == (1, 1)
            and module.padding in ((0, 0), "valid", "same")
            and module.groups == 1
        )
    return isinstance(module, nn.Linear)


def _has_weights(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim > 1


def _given(layer: nn.Module, answers: list[Tensor]) -> Tensor:
    """What a layer gave last, channels first."""
    if not answers or not isinstance(answers[-1], Tensor) or answers[-1].ndim < 2:
        raise ValueError(f"the inner layer {layer} gave no (n, c, ...) tensor; name another one")
    out = answers[-1].detach()
    return out.movedim(-1, 1) if isinstance(layer, CHANNELS_LAST) else out


def _same(answer: Tensor, logits: Tensor) -> bool:
    if answer is logits:
        return True
    # Logits that are not finite are for whoever trains to find.
    return answer.shape == logits.shape and torch.allclose(
        answer.to(logits.dtype), logits, equal_nan=True
    )
