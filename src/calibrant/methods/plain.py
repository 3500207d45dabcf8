"""Methods that minimise a fixed loss, without method state."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import Batch
from calibrant.losses import LOSSES, neighbour_shares
from calibrant.losses.neighbours import Distance
from calibrant.losses.settings import Source, at_least, boolean, integer, number, one_of
from calibrant.methods.base import Method, PerExampleMethod, dominant_labels, mixup_loss

# Batch statistics, each with the weight that its authors use.
TERMS = {"mmce": 4.0, "weighted_mmce": 2.0, "dca": 1.0, "mdca": 1.0, "dece": 0.5, "sece": 0.5}
TERMS |= {"hard_l1_ace": 1.0, "soft_l1_ace": 1.0}
# Those that are a mean over images, for masks.
BY_IMAGE = ("hard_l1_ace", "soft_l1_ace")
# Cross entropy plus a penalty on distances between logits, which are those of inference.
MARGINS = ("margin_smoothing", "cals", "acls")
Loss = Callable[..., Tensor]


class Plain(PerExampleMethod):
    """Minimise one loss of each example, a function in `LOSSES` with its settings."""

    def __init__(self, name: str, classes: int, **settings: Any) -> None:
        self.name, self.loss_function = name, _checked_loss(name, classes, settings)

    def example_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss, of adjusted logits."""
        return _adjusted_loss(self, self.name, self.loss_function, logits, labels)


class WithTerm(Method):
    """Minimise a loss of each example plus a weighted batch statistic.

    The statistic is computed on the batch of all processes: a mean of statistics of each process
    would be another number with another gradient.
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
        self.base, self.term = base, _checked_loss(name, classes, settings)
        self.by_image = name in BY_IMAGE

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each example, with the weighted statistic added to each."""
        given = model(batch.inputs)
        logits, labels = self.flatten(given, batch.labels, adjusted=False)
        base = partial(_adjusted_loss, self, self.base, LOSSES[self.base])
        losses = mixup_loss(base, batch, logits, labels)
        if batch.other_labels is not None:
            # A statistic needs one label per image.
            labels = dominant_labels(batch)
        logits, labels = self.ranks.gather(self.adjust_logits(logits)), self.ranks.gather(labels)
        if not len(labels):
            # All pixels are ignored: there is no statistic.
            return losses
        more = (self._images(batch.labels),) if self.by_image and given.ndim > 2 else ()
        return losses + self.weight * self.term(logits, labels, *more)

    def _images(self, labels: Tensor) -> Tensor:
        """The image of each valid pixel of all processes."""
        valid = torch.ones_like(labels, dtype=torch.bool)
        if self.ignore_index is not None:
            valid = labels != self.ignore_index
        own = torch.arange(len(labels), device=labels.device) + self.ranks.rank * (1 << 32)
        return self.ranks.gather(own.repeat_interleave(valid.flatten(1).sum(1)))


class Nacl(PerExampleMethod):
    """Cross entropy plus the distance of logits to the class shares of neighbouring pixels.

    Without pixels, the label itself is the only neighbour. See `losses.nacl`.
    """

    def __init__(
        self,
        classes: int,
        *,
        alpha: float = 0.1,
        distance: Distance = "l1",
        size: int = 3,
        form: Source = "paper",
    ) -> None:
        settings = {"alpha": alpha, "distance": distance}
        self.loss_function = _checked_loss("nacl", classes, settings)
        self.shares = partial(neighbour_shares, classes=classes, size=size, form=form)
        self.shares(torch.zeros(1, 1, dtype=torch.int64))

    def example_loss(self, logits: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
        """The loss; its cross entropy is that of adjusted logits."""
        loss = self.loss_function(logits, labels, shares)
        return self.with_adjusted_cross_entropy(loss, logits, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Loss of each image, or of each valid pixel with the shares of its neighbours."""
        given = model(batch.inputs)
        logits, labels = self.flatten(given, batch.labels, adjusted=False)
        if given.ndim == 2:
            return mixup_loss(self.example_loss, batch, logits, labels)
        shares = self.shares(batch.labels, ignore_index=self.ignore_index)
        flat, _ = self.flatten(shares, batch.labels, adjusted=False)
        return self.example_loss(logits, labels, flat.to(logits))


def _adjusted_loss(method: Method, name: str, loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """Loss with the method's logit adjustment; margins stay those of inference."""
    if name in MARGINS:
        return method.with_adjusted_cross_entropy(loss(logits, labels), logits, labels)
    return loss(method.adjust_logits(logits), labels)


def _checked_loss(name: str, classes: int, settings: Mapping[str, Any]) -> Loss:
    """A loss with its settings; a wrong value raises here, not in the middle of a run."""
    integer("classes", 2, classes)
    parameters = signature(LOSSES[name]).parameters
    for key, value in settings.items():
        # Losses themselves accept any truthy value for a boolean, and floats for an integer.
        default = parameters[key].default
        if isinstance(default, bool):
            boolean(key, value)
        elif isinstance(default, int):
            integer(key, 0, value)
        elif isinstance(default, tuple):
            if not isinstance(value, list | tuple):
                raise TypeError(f"{key} must be a list of numbers, got {value!r}")
            for each in value:
                number(key, each)
    loss: Loss = partial(LOSSES[name], **settings)
    loss(torch.zeros(2, classes), torch.zeros(2, dtype=torch.int64))
    return loss


def logit_adjustment(classes: int, *, tau: float = 1.0) -> Plain:
    r"""Cross entropy of logits plus the log class frequencies, in training only.

    $$\ell = -\log \operatorname{softmax}(z + \tau \log \pi)_y$$

    With $\tau = 1$ the plain logits, used for inference, minimise the balanced error: averaged over
    classes, not over examples. Other methods have the same as their setting `adjust`.

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
