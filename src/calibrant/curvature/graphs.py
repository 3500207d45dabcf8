"""Matrix-vector products with second derivatives of one batch, by reverse mode only."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from calibrant.curvature.batches import same_randomness
from calibrant.curvature.layers import twice_differentiable
from calibrant.model_modes import evaluating
from calibrant.shapes import Logits, Scalar

# A matrix times tensors with the shapes of the weights; can be called repeatedly.
Product = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def hessian(
    total: Callable[[Logits], Scalar], logits: Logits, weights: Sequence[Tensor]
) -> Product:
    """Hessian of a sum of losses: the gradient of the gradient's inner product with a vector.

    The graph of the gradient is built here, once; a product is one backward pass through it.
    """
    gradients = _gradients(total(logits), weights)
    active = [index for index, each in enumerate(gradients) if each.requires_grad]

    def product(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        return _vjp([gradients[i] for i in active], weights, [vectors[i] for i in active])

    return product


def gauss_newton(
    total: Callable[[Logits], Scalar], logits: Logits, weights: Sequence[Tensor]
) -> Product:
    r"""Gauss-Newton matrix $J^T H J$: J of the logits in the weights, H of the loss in the logits.

    $J^T u$ is linear in u, so its derivative in u along v is $J v$: no forward mode is needed.
    """
    cotangent = torch.zeros_like(logits).requires_grad_()
    pullback = _vjp([logits], weights, [cotangent], create_graph=True)
    active = [index for index, each in enumerate(pullback) if each.requires_grad]
    leaf = logits.detach().requires_grad_()
    (gradient,) = _gradients(total(leaf), [leaf])

    def product(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        (jv,) = _vjp([pullback[i] for i in active], [cotangent], [vectors[i] for i in active])
        return _vjp([logits], weights, _vjp([gradient], [leaf], [jv]))

    return product


MATRICES = {"hessian": hessian, "gauss_newton": gauss_newton}


def _gradients(value: Scalar, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    return _vjp([value], inputs, [torch.ones_like(value)], create_graph=True)


def _vjp(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    create_graph: bool = False,
) -> Sequence[Tensor]:
    """Vector-Jacobian products; zero for inputs that no output depends on."""
    if not any(each.requires_grad for each in outputs):
        return [torch.zeros_like(each) for each in inputs]
    options = {"create_graph": create_graph, "materialize_grads": True}
    return grad(outputs, inputs, vectors, retain_graph=True, **options)


def check_twice_differentiable(value: Scalar, weights: Sequence[Tensor]) -> None:
    """Raise for an operation whose gradient cannot be differentiated: its part would be missing.

    Torch marks such gradients by an error node in the graph, which not every backward pass reaches.
    """
    visited: set[object] = set()
    queue = [each.grad_fn for each in _gradients(value, weights)]
    while queue:
        node = queue.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if "Error" in node.name():
            raise ValueError(
                "an operation of the model or the loss is differentiable only once "
                "(once_differentiable): its curvature is unknown"
            )
        queue += [each for each, _ in node.next_functions]


@contextmanager
def measurement_mode(model: nn.Module, *, twice: bool = True) -> Iterator[None]:
    """Evaluation mode, fast second derivatives, fixed random numbers; all restored afterwards.

    Fused attention has no second derivative, so the plain implementation is used. `twice` is that
    of `twice_differentiable`.
    """
    with (
        evaluating(model),
        twice_differentiable(model, twice=twice),
        same_randomness(),
        sdpa_kernel(SDPBackend.MATH),
        torch.enable_grad(),
    ):
        yield


def saved_bytes(graph: Callable[[], object], *, besides: Iterable[Tensor]) -> int:
    """Memory that autograd saves for a graph, without tensors that exist anyway."""
    known = {each.untyped_storage().data_ptr() for each in besides}
    sizes: dict[int, int] = {}

    def saved(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        # Detached: a graph that references its own output would never be freed.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
        graph()
    return sum(size for pointer, size in sizes.items() if pointer not in known)
