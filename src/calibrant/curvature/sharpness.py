"""Sharpness of random batches, and SAM sharpness."""

from collections.abc import Sequence

import torch
from torch import nn

from calibrant.curvature.batches import Data, join_batches, take
from calibrant.curvature.problem import Loss, make_problem
from calibrant.curvature.products import Operator
from calibrant.curvature.trace import Estimate, average
from calibrant.losses.settings import at_least, positive


def batch_sharpness(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    batch: int = 128,
    batches: int = 16,
    seed: int = 0,
    ignore_index: int | None = None,
    parameters: Sequence[str] | None = None,
) -> Estimate:
    r"""Mean over random batches of the curvature along the gradient of the batch.

    $$E_B\left[ \frac{g_B^T H_B\, g_B}{\|g_B\|^2} \right]$$

    Stochastic gradient descent keeps it near 2 / lr, as full-batch descent keeps the largest
    eigenvalue. The error is the standard error over batches; if a batch is the whole dataset,
    there is one batch and the error is zero.

    Args:
        data: as for `operator`; batches are concatenated first, so shapes must agree.
        batch: examples of a batch, drawn without replacement.
        batches: number of batches.

    References:
        Andreyev and Beneventano, Edge of Stochastic Stability, 2024, arXiv:2412.20553.
    """
    positive("batch", batch)
    at_least("batches", 2, batches)
    inputs, labels = join_batches(data)
    if ignore_index is not None:
        # Examples without a valid label have no gradient.
        kept = (labels != ignore_index).reshape(len(labels), -1).any(1)
        inputs, labels = take(inputs, kept), labels[kept]
    if not len(labels):
        raise ValueError(f"all labels are ignore_index, {ignore_index}")
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(batches if batch < len(labels) else 1):
        index = torch.randperm(len(labels), generator=generator)[:batch].to(labels.device)
        drawn = take(inputs, index), labels[index]
        problem = make_problem(model, loss, drawn, parameters=parameters, ignore_index=ignore_index)
        direction = problem.value_and_gradient()[1]
        square = float(direction @ direction)
        if not square:
            raise FloatingPointError("the gradient of a batch is zero: no curvature along it")
        hessian = Operator(problem, "hessian")
        found.append(float(direction @ hessian.product(direction)) / square)
    return average(found)


def sam_sharpness(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    rho: float = 0.05,
    steps: int = 1,
    parameters: Sequence[str] | None = None,
    ignore_index: int | None = None,
) -> float:
    r"""Largest increase of the loss within a distance rho of the weights.

    $$\max_{\|e\| \le \rho} L(w + e) - L(w)$$

    The first step moves rho along the gradient, as sharpness-aware minimisation (SAM) does. Each
    further step moves rho along the current gradient and projects onto the ball. The result is the
    largest increase of all steps: a lower bound of the maximum, and zero if no step increases.

    References:
        Foret et al., Sharpness-Aware Minimization, ICLR 2021, arXiv:2010.01412.
    """
    positive("rho", rho)
    at_least("steps", 1, steps)
    problem = make_problem(model, loss, data, parameters=parameters, ignore_index=ignore_index)
    start, direction = problem.value_and_gradient()
    offset, increase = torch.zeros_like(direction), 0.0
    for _ in range(steps):
        length = direction.norm()
        if not length:
            break
        offset = offset + rho * direction / length
        offset = offset * (rho / offset.norm()).clamp(max=1)
        value, direction = problem.moved(offset).value_and_gradient()
        increase = max(increase, value - start)
    return increase
