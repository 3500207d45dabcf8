r"""A step of the last layer that is tried and not taken: how its outcome depends on the loss.

With features $h_i$ (a one appended where there is a bias), weights W, and a loss of each example
that has a parameter $a_i$ of its own, the tried step and what becomes of it are

$$W' = W - \frac{\eta}{n} \sum_i s_i h_i^\top, \qquad
  s_i = \frac{\partial \ell(W h_i; a_i)}{\partial z}, \qquad
  F(a) = \mathrm{outer}(\{W' h'_j\}_j),$$

plain gradient descent without momentum or decay. Both functions here give $\partial F / \partial
a$. Since W' is linear in s, the closed form needs no second derivative by autograd:

$$\frac{\partial F}{\partial s_i} = -\frac{\eta}{n}\, G h_i, \qquad
  G = \frac{\partial F}{\partial W'}.$$
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calibrant.checks import promote_dtype
from calibrant.shapes import Logits, PerExample, Scalar

# Of logits (n, k) and the parameter of each example: the loss of each, or its slopes (n, k).
Loss = Callable[[Tensor, Tensor], PerExample]
Slopes = Callable[[Tensor, Tensor], Logits]


@dataclass(frozen=True, eq=False)
class View:
    """What a tried step sees: the last layer, training data, and held-out data to judge it by.

    Attributes:
        weight: (k, d), the bias as its last column.
        features: (n, d) of the training examples.
        meta: (m, d) of the held-out examples.
        lr: learning rate of the step.
        outer: what is made of the held-out logits (m, k), one number.
    """

    weight: Tensor
    features: Tensor
    meta: Tensor
    lr: float
    outer: Callable[[Tensor], Scalar]

    @classmethod
    def of(
        cls,
        head: nn.Linear | nn.Conv2d,
        features: Tensor,
        meta: Tensor,
        lr: float,
        outer: Callable[[Tensor], Scalar],
    ) -> "View":
        """A view from a linear layer or a 1x1 convolution; nothing in it has a gradient."""
        weight, bias = promote_dtype(head.weight.detach().flatten(1)), head.bias
        features, meta = (each.detach().to(weight.dtype) for each in (features, meta))
        if bias is not None:
            weight = torch.cat([weight, bias.detach().to(weight.dtype)[:, None]], 1)
            features, meta = (
                torch.cat([each, each.new_ones(len(each), 1)], 1) for each in (features, meta)
            )
        return cls(weight, features, meta, lr, outer)


def closed_form(view: View, parameter: Tensor, slopes: Slopes) -> tuple[Tensor, Tensor]:
    """Outcome of the tried step and its gradient, from the slopes of the loss in the logits.

    Args:
        view: layer, data, rate and judge.
        parameter: of each example, (n,) or (n, c).
        slopes: derivative of the loss of each example with respect to its logits.

    Returns:
        What the judge says after the step, and its gradient, shaped as the parameter.
    """
    own = parameter.detach().requires_grad_()
    each = slopes(view.features @ view.weight.T, own)
    rate = view.lr / len(view.features)
    moved = view.weight - rate * each.detach().T @ view.features
    answers = (view.meta @ moved.T).requires_grad_()
    value = view.outer(answers)
    (pull,) = torch.autograd.grad(value, answers)
    back = -rate * view.features @ (view.meta.T @ pull)
    (gradient,) = torch.autograd.grad(each, own, back)
    return value.detach(), gradient


def double_backward(view: View, parameter: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """The same numbers by differentiating through the step: slower, and needs no slopes.

    Args:
        view: layer, data, rate and judge.
        parameter: of each example, (n,) or (n, c).
        loss: of each example.

    Returns:
        What the judge says after the step, and its gradient, shaped as the parameter.
    """
    own, weight = parameter.detach().requires_grad_(), view.weight.clone().requires_grad_()
    mean = loss(view.features @ weight.T, own).mean()
    (slope,) = torch.autograd.grad(mean, weight, create_graph=True)
    value = view.outer(view.meta @ (weight - view.lr * slope).T)
    (gradient,) = torch.autograd.grad(value, own)
    return value.detach(), gradient
