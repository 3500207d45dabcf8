r"""One lookahead step of the last layer, and the gradient of its outcome in per-example parameters.

With features $h_i$ (a one appended where there is a bias), weights W, and a loss of each example
with its own parameter $a_i$, the lookahead step and its outcome on held-out data are

$$W' = W - \frac{\eta}{n} \sum_i s_i h_i^\top, \qquad
  s_i = \frac{\partial \ell(W h_i; a_i)}{\partial z}, \qquad
  F(a) = \mathrm{outer}(\{W' h'_j\}_j),$$

plain gradient descent without momentum or weight decay. The step is never applied to the network.
Both functions here return $\partial F / \partial a$. Since W' is linear in s, the closed form needs
no second derivative by autograd:

$$\frac{\partial F}{\partial s_i} = -\frac{\eta}{n}\, G h_i, \qquad
  G = \frac{\partial F}{\partial W'}.$$
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calibrant.checks import promote_dtype
from calibrant.shapes import Logits, PerExample, Scalar

# Of logits (n, k) and the parameter of each example: the losses (n,), or their gradients (n, k).
Loss = Callable[[Tensor, Tensor], PerExample]
LossGradient = Callable[[Tensor, Tensor], Logits]


@dataclass(frozen=True, eq=False)
class Lookahead:
    """A lookahead step: the last layer, training features, and the held-out objective.

    Attributes:
        weight: (k, d), with the bias as last column.
        features: (n, d) of the training examples.
        meta: (m, d) of the held-out examples.
        lr: learning rate of the step.
        objective: a scalar function of the held-out logits (m, k).
    """

    weight: Tensor
    features: Tensor
    meta: Tensor
    lr: float
    objective: Callable[[Tensor], Scalar]

    @classmethod
    def of(
        cls,
        head: nn.Linear | nn.Conv2d,
        features: Tensor,
        meta: Tensor,
        lr: float,
        objective: Callable[[Tensor], Scalar],
    ) -> "Lookahead":
        """A step of a linear layer or a 1x1 convolution; all tensors are detached."""
        weight, bias = promote_dtype(head.weight.detach().flatten(1)), head.bias
        features, meta = (each.detach().to(weight.dtype) for each in (features, meta))
        if bias is not None:
            weight = torch.cat([weight, bias.detach().to(weight.dtype)[:, None]], 1)
            features, meta = (
                torch.cat([each, each.new_ones(len(each), 1)], 1) for each in (features, meta)
            )
        return cls(weight, features, meta, lr, objective)


def closed_form(
    step: Lookahead, parameter: Tensor, loss_gradient: LossGradient
) -> tuple[Tensor, Tensor]:
    """Objective after the step, and its gradient in the parameter of each example, (n,) or (n, c).

    Needs the derivative of the loss of each example with respect to its logits.
    """
    parameter = parameter.detach().requires_grad_()
    gradients = loss_gradient(step.features @ step.weight.T, parameter)
    rate = step.lr / len(step.features)
    weight = step.weight - rate * gradients.detach().T @ step.features
    logits = (step.meta @ weight.T).requires_grad_()
    value = step.objective(logits)
    (outer,) = torch.autograd.grad(value, logits)
    vector = -rate * step.features @ (step.meta.T @ outer)
    (gradient,) = torch.autograd.grad(gradients, parameter, vector)
    return value.detach(), gradient


def double_backward(step: Lookahead, parameter: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """The same as `closed_form` by differentiating through the step: slower, for any loss."""
    parameter, weight = parameter.detach().requires_grad_(), step.weight.clone().requires_grad_()
    mean = loss(step.features @ weight.T, parameter).mean()
    (inner,) = torch.autograd.grad(mean, weight, create_graph=True)
    value = step.objective(step.meta @ (weight - step.lr * inner).T)
    (gradient,) = torch.autograd.grad(value, parameter)
    return value.detach(), gradient
