"""How strongly a network's answers depend on its weights."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from calibrant.checks import as_tensor
from calibrant.losses.settings import at_least
from calibrant.model_modes import bare, evaluating
from calibrant.shapes import PerExample

# Numbers of the Jacobians that are held at a time: 64 MB in float32.
ELEMENTS = 1 << 24
# Numbers that the layers of a network hold, guessed, for each number of an input.
LAYERS = 16


def jacobian_norms(model: nn.Module, inputs: Any, *, chunk: int | None = None) -> PerExample:
    r"""How far the logits of each example move, at most, for a step of length one in the weights.

    $$\|J_i\| = \sqrt{\lambda_{\max}(J_i J_i^\top)}, \qquad J_i = \partial z(x_i) / \partial\theta$$

    Exact, through k x k matrices, in evaluation mode and over the weights that are learnt. The
    largest of them is $C_J$ of the bounds. An example takes k gradients, and k numbers for each
    weight while its chunk is computed.

    Args:
        model: gives (n, k) logits, each from its own input.
        inputs: (n, ...), tensor or array.
        chunk: examples at a time, as many as fit in 64 MB unless given; with 1, networks do
            that `torch.func.vmap` cannot run over examples.

    Returns:
        Operator norms, float64, (n,).

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> linear = nn.Linear(2, 3)  # the norm is that of the input and a one for the bias
        >>> jacobian_norms(linear, [[2.0, 2.0]]).round(decimals=4).tolist()
        [3.0]
    """
    network = bare(model)
    given = placed(network, inputs)
    learnt = {
        name: each.detach() for name, each in network.named_parameters() if each.requires_grad
    }
    if not learnt:
        raise ValueError("the network has no weights that are learnt (requires_grad)")

    def gram(one: Tensor) -> Float[Tensor, "k k"]:
        def logits(weights: dict[str, Tensor]) -> Tensor:
            answer: Tensor = functional_call(network, weights, (one[None],))[0]
            return answer

        parts = [each.flatten(1) for each in jacrev(logits)(learnt).values()]
        return torch.stack([(each @ each.T).double() for each in parts]).sum(0)

    found = []
    with evaluating(network):
        with torch.no_grad():
            classes = logits_of(network, given[:1]).shape[1]
        if chunk is None:
            # Networks of few weights hold more numbers of the inputs' layers than of the weights.
            held = max(sum(each.numel() for each in learnt.values()), LAYERS * given[0].numel())
            chunk = max(1, ELEMENTS // (classes * held))
        at_least("chunk", 1, chunk)
        for start in range(0, len(given), chunk):
            part = given[start : start + chunk]
            grams = vmap(gram)(part) if chunk > 1 else gram(part[0])[None]
            if not grams.isfinite().all():
                raise FloatingPointError("the derivatives of the network's logits are not finite")
            found.append(torch.linalg.eigvalsh(grams)[:, -1])
    # Rounding may put the largest eigenvalue of a zero matrix a little below zero.
    return torch.cat(found).clamp(min=0).sqrt()


def placed(network: nn.Module, inputs: Any) -> Tensor:
    """At least one input, where the network is and, unless integers, in its precision."""
    given = as_tensor("inputs", inputs)
    if given.ndim == 0 or not len(given):
        raise ValueError(f"need at least 1 example, got inputs of shape {tuple(given.shape)}")
    like = next((each for each in network.parameters() if each.is_floating_point()), given)
    return given.to(like.device, like.dtype if given.is_floating_point() else given.dtype)


def labels_for(inputs: Tensor, labels: Any) -> Tensor:
    """One label for each input, where the inputs are."""
    truth = as_tensor("labels", labels)
    if truth.ndim == 0 or len(truth) != len(inputs):
        raise ValueError(
            f"inputs are {len(inputs)} examples, labels have shape {tuple(truth.shape)}"
        )
    return truth.to(inputs.device)


def logits_of(network: nn.Module, inputs: Tensor) -> Tensor:
    """What a network says about inputs; one row of logits for each of them."""
    logits: Tensor = network(inputs)
    if logits.ndim != 2 or len(logits) != len(inputs):
        raise ValueError(
            f"the network must give ({len(inputs)}, k) logits, got {tuple(logits.shape)}: "
            "for pixels or tokens let it give one position of each"
        )
    return logits
