"""The head of a network, its last linear layer: find it, and record its inputs."""

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from calibrant.model_modes import bare

# Usual attribute names of the head.
NAMES = ("head", "fc", "classifier")
Head = nn.Linear | nn.Conv2d
# Layers whose output has its channels last.
CHANNELS_LAST = (nn.Linear, nn.Embedding, nn.LayerNorm)


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """Logits of a forward pass, and recorded features.

    Attributes:
        logits: (n, k) or (n, k, ...), with gradient.
        features: input of the head, (n, d) or (n, d, ...), detached; the logits without a head.
        head: the last linear layer; None if the network has none.
        inner: output of an inner layer, (n, c) or (n, c, ...), detached; None if not requested.
    """

    logits: Tensor
    features: Tensor
    head: Head | None
    inner: Tensor | None = None


def find_head(model: nn.Module) -> Head | None:
    """The last linear layer or 1x1 convolution: by its usual names, otherwise by order."""
    inner = bare(model)
    for name in NAMES:
        found = getattr(inner, name, None)
        if _is_linear(found):
            return found
    return next((each for each in reversed(list(inner.modules())) if _is_linear(each)), None)


def find_inner(model: nn.Module, name: str = "") -> nn.Module:
    """A layer by its dotted name, or the middle one of the layers with weights before the head."""
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


def forward_with_features(
    model: nn.Module, inputs: Tensor, *, inner: nn.Module | None = None
) -> ForwardPass:
    """Run the network, and record the input of its head and the output of an inner layer."""
    head = find_head(model)
    head_calls: list[tuple[Tensor, Tensor]] = []
    inner_outputs: list[Tensor] = []
    hooks = []
    if head is not None:
        hooks.append(head.register_forward_hook(lambda _, a, out: head_calls.append((a[0], out))))
    if inner is not None:
        hooks.append(inner.register_forward_hook(lambda _, a, out: inner_outputs.append(out)))
    try:
        logits = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor):
        raise TypeError(f"a network must return logits, a tensor; got {type(logits).__name__}")
    recorded = None if inner is None else _channels_first(inner, inner_outputs)
    if head is None:
        return ForwardPass(logits, logits.detach(), None, recorded)
    if not head_calls:
        raise ValueError(
            "the last linear layer of the network was not called: name the layer that computes "
            "the logits head"
        )
    features, output = head_calls[-1]
    if isinstance(head, nn.Linear) and features.ndim > 2:
        features, output = features.movedim(-1, 1), output.movedim(-1, 1)
    if not _same(output, logits):
        raise ValueError(
            "the logits must be the output of the last linear layer, with nothing after it; "
            "name the layer that computes them head"
        )
    return ForwardPass(logits, features.detach(), head, recorded)


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


def _channels_first(layer: nn.Module, outputs: list[Tensor]) -> Tensor:
    """The last output of a layer, channels first."""
    if not outputs or not isinstance(outputs[-1], Tensor) or outputs[-1].ndim < 2:
        raise ValueError(f"inner layer {layer} returned no (n, c, ...) tensor; name another one")
    out = outputs[-1].detach()
    return out.movedim(-1, 1) if isinstance(layer, CHANNELS_LAST) else out


def _same(output: Tensor, logits: Tensor) -> bool:
    if output is logits:
        return True
    # Non-finite logits are reported by the training loop, not here.
    return output.shape == logits.shape and torch.allclose(
        output.to(logits.dtype), logits, equal_nan=True
    )
