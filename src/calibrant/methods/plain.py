"""Methods that minimise a fixed loss: nothing is learnt beside the weights."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.losses import LOSSES
from calibrant.losses.settings import at_least, flag, number, one_of, whole
from calibrant.methods.base import Method, larger_part, mixed

# Statistics of a batch, each with the weight its authors add it to a loss with.
TERMS = {
    "mmce": 4.0,
    "weighted_mmce": 2.0,
    "dca": 1.0,
    "mdca": 1.0,
    "dece": 0.5,
    "sece": 0.5,
}
# Cross entropy plus a price of distances between logits, which are those of inference.
MARGINS = ("margin_smoothing", "cals", "acls")
Loss = Callable[..., Tensor]


class Plain(Method):
    """Minimise one loss of each example, a function in `LOSSES` with its settings."""

    per_example = True

    def __init__(self, name: str, classes: int, **settings: Any) -> None:
        self.name, self.each = name, _tried(name, classes, settings)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each example, mixed as the images are."""
        rows = self.rows(model(batch.inputs), batch.labels, adjusted=False)
        return mixed(partial(_of_each, self, self.name, self.each), batch, *rows)


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
        one_of("base", base, [each for each in LOSSES if each not in TERMS])
        self.weight = TERMS[name] if weight is None else weight
        at_least("weight", 0, self.weight)
        self.base, self.term = base, _tried(name, classes, settings)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each example, with the weighted statistic added to each."""
        logits, labels = self.rows(model(batch.inputs), batch.labels, adjusted=False)
        each = mixed(partial(_of_each, self, self.base, LOSSES[self.base]), batch, logits, labels)
        if batch.other_labels is not None:
            # A statistic needs one answer for each image.
            labels = larger_part(batch)
        logits, labels = self.ranks.gather(self.adjusted(logits)), self.ranks.gather(labels)
        if not len(labels):
            # Masks without a pixel that counts have no statistic.
            return each
        return each + self.weight * self.term(logits, labels)


def _of_each(method: Method, name: str, loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of logits of inference, (n, k), that are adjusted where the method is."""
    if name in MARGINS:
        return method.readjusted(loss(logits, labels), logits, labels)
    return loss(method.adjusted(logits), labels)


def _tried(name: str, classes: int, settings: Mapping[str, Any]) -> Loss:
    """A loss with its settings; a wrong value is refused now, and not in the middle of a run."""
    whole("classes", 2, classes)
    usual = signature(LOSSES[name]).parameters
    for key, value in settings.items():
        # A loss takes what counts as true, or as a number, without a word.
        if isinstance(usual[key].default, bool):
            flag(key, value)
        elif isinstance(usual[key].default, int):
            whole(key, 0, value)
        elif isinstance(usual[key].default, tuple):
            if not isinstance(value, list | tuple):
                raise TypeError(f"{key} must be a list of numbers, got {value!r}")
            for each in value:
                number(key, each)
    loss: Loss = partial(LOSSES[name], **settings)
    loss(torch.zeros(2, classes), torch.zeros(2, dtype=torch.int64))
    return loss


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
