"""Methods that minimise a fixed loss: nothing is learnt beside the weights."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.losses import LOSSES
from calibrant.losses.settings import at_least
from calibrant.methods.base import Method, mixed

# Statistics of a batch, each with the weight its authors add it to a loss with.
TERMS = {
    "mmce": 4.0,
    "weighted_mmce": 2.0,
    "dca": 1.0,
    "mdca": 1.0,
    "dece": 0.5,
    "sece": 0.5,
}
Loss = Callable[..., Tensor]


class Plain(Method):
    """Minimise one loss of each example, a function in `LOSSES` with its settings."""

    per_example = True

    def __init__(self, name: str, classes: int, **settings: Any) -> None:
        self.each: Loss = partial(LOSSES[name], **settings)
        _tried(self.each, classes)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each example, mixed as the images are."""
        logits = model(batch.inputs)
        return mixed(self.each, batch, *self.rows(logits, batch.labels))


class WithTerm(Method):
    """Minimise a loss of each example plus a statistic of the whole batch.

    The statistic is that of all processes together: the mean of what each of them sees is another
    number with another gradient.
    """

    def __init__(
        self,
        name: str,
        classes: int,
        *,
        base: str = "cross_entropy",
        weight: float | None = None,
        **settings: Any,
    ) -> None:
        if base not in LOSSES or base in TERMS:
            known = ", ".join(each for each in LOSSES if each not in TERMS)
            raise ValueError(f"base must be a loss of each example, one of {known}; got {base!r}")
        self.weight = TERMS[name] if weight is None else weight
        if not 0 <= self.weight < float("inf"):
            raise ValueError(f"weight must be at least 0 and finite, got {self.weight}")
        self.each: Loss = LOSSES[base]
        self.term: Loss = partial(LOSSES[name], **settings)
        _tried(self.term, classes)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each example, with the weighted statistic added to each."""
        logits, labels = self.rows(model(batch.inputs), batch.labels)
        each = mixed(self.each, batch, logits, labels)
        if batch.other_labels is not None and batch.share is not None:
            # A statistic needs one answer for each image: that of the larger part.
            labels = torch.where(batch.share >= 0.5, labels, batch.other_labels)
        together = self.term(self.ranks.gather(logits), self.ranks.gather(labels))
        return each + self.weight * together


def _tried(loss: Loss, classes: int) -> None:
    """Refuse a wrong value of a setting now, and not in the middle of a run."""
    loss(torch.zeros(2, classes), torch.zeros(2, dtype=torch.int64))


def logit_adjustment(classes: int, *, tau: float = 1.0) -> Plain:
    r"""Cross entropy of logits to which the logarithm of each class's share is added in training.

    $$\ell = -\log \operatorname{softmax}(z + \tau \log \pi)_y$$

    With $\tau = 1$ the plain logits, used afterwards, minimise the error averaged over classes and
    not over examples. Other methods take the same as their setting `adjust`.

    References:
        Menon et al., Long-tail learning via logit adjustment, ICLR 2021, arXiv:2007.07314
    """
    at_least("tau", 0, tau)
    method = Plain("cross_entropy", classes)
    method.adjust = tau
    return method


def balanced_softmax(classes: int) -> Plain:
    """Cross entropy as if every class were equally frequent: logit adjustment with tau = 1.

    References:
        Ren et al., Balanced Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS 2020,
            arXiv:2007.10740
    """
    return logit_adjustment(classes)
