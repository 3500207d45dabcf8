"""Second derivatives of one batch, by reverse mode alone, through graphs that are kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from calibrant.curvature.batches import same_randomness
from calibrant.curvature.layers import quick
from calibrant.model_modes import evaluating
from calibrant.shapes import Logits, Scalar

# A matrix times tensors like the weights; may be called again and again.
Product = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def hessian(
    total: Callable[[Logits], Scalar], logits: Logits, weights: Sequence[Tensor]
) -> Product:
    """Hessian of a sum of losses: the gradient of the gradient's inner product with a vector.

    The graph of the gradient is made here, once; a product is one backward pass through it.
    """
    slopes = _slopes(total(logits), weights)
    bent = [place for place, slope in enumerate(slopes) if slope.requires_grad]

    def product(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        return _pulled([slopes[at] for at in bent], weights, [vectors[at] for at in bent])

    return product


def gauss_newton(
    total: Callable[[Logits], Scalar], logits: Logits, weights: Sequence[Tensor]
) -> Product:
    r"""Gauss-Newton matrix $J^T H J$, J of the logits in the weights, H of the loss in the logits.

    $J^T u$ is linear in u, so its derivative in u along v is $J v$: no forward mode is needed.
    """
    given = torch.zeros_like(logits).requires_grad_()
    pulled = _pulled([logits], weights, [given], create_graph=True)
    moving = [place for place, each in enumerate(pulled) if each.requires_grad]
    ends = logits.detach().requires_grad_()
    (slope,) = _slopes(total(ends), [ends])

    def product(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        (along,) = _pulled([pulled[at] for at in moving], [given], [vectors[at] for at in moving])
        bent = _pulled([slope], [ends], [along])
        return _pulled([logits], weights, bent)

    return product


MATRICES = {"hessian": hessian, "gauss_newton": gauss_newton}


def _slopes(value: Scalar, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    return _pulled([value], inputs, [torch.ones_like(value)], create_graph=True)


def _pulled(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    create_graph: bool = False,
) -> Sequence[Tensor]:
    """Vectors times the Jacobian; zero where an input has no part in an output."""
    if not any(each.requires_grad for each in outputs):
        return [torch.zeros_like(each) for each in inputs]
    return grad(
        outputs,
        inputs,
        vectors,
        retain_graph=True,
        create_graph=create_graph,
        materialize_grads=True,
    )


def check_twice(value: Scalar, weights: Sequence[Tensor]) -> None:
    """Refuse an operation whose gradient cannot be differentiated: its part would be missing.

    Torch marks such gradients with a node that raises, but only on the way to what it was made of.
    """
    seen: set[object] = set()
    waiting = [each.grad_fn for each in _slopes(value, weights)]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "Error" in node.name():
            raise ValueError(
                "an operation of the model or the loss is differentiable only once "
                "(once_differentiable): its curvature is not known"
            )
        waiting += [each for each, _ in node.next_functions]


@contextmanager
def measuring(model: nn.Module, *, twice: bool = True) -> Iterator[None]:
    """Evaluation mode, layers that are quick to differentiate twice, the same random numbers.

    Afterwards modes and random state are as before. Fused attention has no second derivative, so
    it is written out.

    Args:
        model: as the user has it.
        twice: whether gradients will be differentiated in the weights.
    """
    with (
        evaluating(model),
        quick(model, twice=twice),
        same_randomness(),
        sdpa_kernel(SDPBackend.MATH),
        torch.enable_grad(),
    ):
        yield


def saved_bytes(graph: Callable[[], object], *, besides: Iterable[Tensor]) -> int:
    """Memory that autograd holds for a graph, besides tensors that are there anyway."""
    known = {each.untyped_storage().data_ptr() for each in besides}
    sizes: dict[int, int] = {}

    def saved(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        # Not the tensor itself: a graph that holds its own output would never be freed.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
        graph()
    return sum(size for place, size in sizes.items() if place not in known)
