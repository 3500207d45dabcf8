"""Norms of the Jacobian of a network's logits in its weights."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from calibrant.checks import as_tensor
from calibrant.losses.settings import at_least
from calibrant.model_modes import bare, evaluating
from calibrant.shapes import PerExample

# Elements of the Jacobians in memory at a time: 64 MB in float32.
ELEMENTS = 1 << 24
# Estimated activations of a network per element of its input.
LAYERS = 16


def jacobian_norms(model: nn.Module, inputs: Any, *, chunk: int | None = None) -> PerExample:
    r"""Operator norm of each example's Jacobian: the largest change of its logits per weight step.

    $$\|J_i\| = \sqrt{\lambda_{\max}(J_i J_i^\top)}, \qquad J_i = \partial z(x_i) / \partial\theta$$

    Exact, through k x k matrices, in evaluation mode and over the weights that require a gradient.
    The largest of them is $C_J$ of the bounds. An example takes k gradients, and memory for k
    gradients while its chunk is computed.

    Args:
        model: returns (n, k) logits, each from its own input.
        inputs: (n, ...), tensor or array.
        chunk: examples at a time, by default as many as fit in 64 MB; 1 for networks that
            `torch.func.vmap` does not support.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> linear = nn.Linear(2, 3)  # the norm of the input with a one for the bias
        >>> jacobian_norms(linear, [[2.0, 2.0]]).round(decimals=4).tolist()
        [3.0]
    """
    network = bare(model)
    given = move_inputs(network, inputs)
    named = network.named_parameters()
    learnt = {name: each.detach() for name, each in named if each.requires_grad}
    if not learnt:
        raise ValueError("no weight of the network requires a gradient")

    def gram(one: Tensor) -> Float[Tensor, "k k"]:
        def logits(weights: dict[str, Tensor]) -> Any:
            return functional_call(network, weights, (one[None],))[0]

        parts = [each.flatten(1) for each in jacrev(logits)(learnt).values()]
        return torch.stack([(each @ each.T).double() for each in parts]).sum(0)

    found = []
    with evaluating(network):
        with torch.no_grad():
            classes = logits_of(network, given[:1]).shape[1]
        if chunk is None:
            # Networks with few weights need more memory for activations than for weights.
            size = max(sum(each.numel() for each in learnt.values()), LAYERS * given[0].numel())
            chunk = max(1, ELEMENTS // (classes * size))
        at_least("chunk", 1, chunk)
        for start in range(0, len(given), chunk):
            part = given[start : start + chunk]
            grams = vmap(gram)(part) if chunk > 1 else gram(part[0])[None]
            if not grams.isfinite().all():
                raise FloatingPointError("the derivatives of the network's logits are not finite")
            found.append(torch.linalg.eigvalsh(grams)[:, -1])
    # Rounding may put the largest eigenvalue of a zero matrix slightly below zero.
    return torch.cat(found).clamp(min=0).sqrt()


def move_inputs(network: nn.Module, inputs: Any) -> Tensor:
    """Inputs, at least one, with the device of the network and, unless integers, its dtype."""
    given = as_tensor("inputs", inputs)
    if given.ndim == 0 or not len(given):
        raise ValueError(f"need at least 1 example, got inputs of shape {tuple(given.shape)}")
    like = next((each for each in network.parameters() if each.is_floating_point()), given)
    return given.to(like.device, like.dtype if given.is_floating_point() else given.dtype)


def logits_of(network: nn.Module, inputs: Tensor) -> Tensor:
    """Logits of the inputs, (n, k)."""
    logits: Tensor = network(inputs)
    if logits.ndim != 2 or len(logits) != len(inputs):
        raise ValueError(
            f"the network must return ({len(inputs)}, k) logits, got {tuple(logits.shape)}: "
            "for pixels or tokens select one position of each example"
        )
    return logits
