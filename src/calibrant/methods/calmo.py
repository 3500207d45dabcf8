"""Cross entropy with a robustness term and a margin smoothness term (CalMO)."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.checks import promote_dtype
from calibrant.curvature.attacks import Norm, dual_norm, pgd
from calibrant.data import Batch
from calibrant.losses import cross_entropy
from calibrant.losses.log_probs import allowed, log_probs, mask_label, take_label
from calibrant.losses.margin import margin
from calibrant.losses.settings import at_least, boolean, integer, number, one_of, positive
from calibrant.methods.base import Method, check_classes, dominant_labels, mixup_loss
from calibrant.methods.neighbourhood import (
    Neighbourhood,
    PerturbedPart,
    Space,
    count_first_images,
    image_weights,
    rng_state,
    warn_unknown_scale,
)
from calibrant.model_modes import bare, evaluating
from calibrant.predictions import Predictions
from calibrant.setting_errors import SettingError
from calibrant.shapes import Labels, Logits, PerExample

CHOICES = {
    "attack_norm": ("linf", "l2"),
    "space": ("pixel", "normalized"),
    "batch_norm": ("eval", "train"),
    "smooth_by": ("finite_difference", "double_backward"),
}


@dataclass(eq=False, repr=False)
class Calmo(Method):
    r"""Cross entropy plus a robustness term and a margin smoothness term (CalMO).

    $$\ell = -\log p_y + \lambda_r\, \mathrm{KL}(p(x) \,\|\, p(x')) + \lambda_s \|\nabla_x m\|_2^2$$

    with the margin $m = z_y - \max_{j \ne y} z_j$ and the adversarial input $x'$ of
    `curvature.pgd` on the cross entropy. `robust = 0` and `smooth = 0`, the paper's ablations
    "Flat" and "Rob", skip their term and its cost. Optional, and not in the paper, is a tail
    penalty on first-order robust margins over the whole batch of B examples:

    $$\lambda_t\, t \bigl[\operatorname{logsumexp}_i(-\tilde m_i / t) - \log B\bigr], \qquad
      \tilde m = m - \epsilon \|\nabla_x m\|_*$$

    Choices that the paper leaves open: the attack runs in evaluation mode; the pass of $x'$ is,
    like that of x, in training mode, with its own batch statistics and the same dropout, but
    running statistics are updated by x alone. The gradient of $m$ is that of the sum over the batch
    in training mode, so with batch norm it includes the effect of an image on the others. Mixup:
    all terms but the cross entropy use the label of the larger weight. Masks: KL for each valid
    (non-ignored) pixel; m is the mean margin of the valid pixels of an image, and its term is added
    to each of them. Token ids: the output of the single embedding is perturbed.

    The gradient $g = \nabla_x m$ enters through a function f. With $v = \partial f / \partial g$
    constant, f and $v^\top g$ have the same gradient with respect to the weights.
    "double_backward" is exact, but slow with batch norm; "finite_difference" uses
    $v^\top g \approx (m(x + \eta v) - m(x)) / \eta$, one more forward pass, where m is the margin
    to the runner-up at x. The value of the loss is exact in both; the gradient of the second is
    exact to first order for smooth networks. With ReLU it also contains the kinks between the two
    inputs, which the exact one does not: the gradients differ, more so the shorter the difference.

    Args:
        robust: $\lambda_r$.
        smooth: $\lambda_s$.
        epsilon: radius of the attack.
        steps: number of steps of the attack.
        step_size: step size of the attack.
        attack_norm: "linf" or "l2".
        space: units of epsilon and of the gradient: "pixel", values in [0, 1], or "normalized",
            the network inputs. Vectors and embeddings have no other units.
        batch_norm: mode of the network in the attack, "eval" or "train".
        detach_clean: no gradient through p(x) in KL.
        smooth_by: how to differentiate the gradient.
        difference: length of $\eta v$, root mean square over the images.
        tail: $\lambda_t$.
        tail_temperature: t.
        part: fraction of each batch, its first images, that KL is computed on, in separate forward
            passes; its mean is over them (for masks, over their valid pixels). Every process uses
            at least one image, with batch norm two.
        smooth_part: the same for the terms with the gradient.
        every: steps between two steps with these terms, whose weights are multiplied by it. The
            same `Batch` object twice in a row is one step with two gradients.

    References:
        arXiv:2604.20614, 2026.
        Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy (TRADES),
        ICML 2019, arXiv:1901.08573.
    """

    state_names = ("step", "seen")

    classes: int
    _: KW_ONLY
    robust: float = 0.5
    smooth: float = 0.01
    epsilon: float = 8 / 255
    steps: int = 3
    step_size: float = 2 / 255
    attack_norm: Norm = "linf"
    space: Space = "pixel"
    batch_norm: Literal["eval", "train"] = "eval"
    detach_clean: bool = False
    smooth_by: Literal["double_backward", "finite_difference"] = "double_backward"
    difference: float = 0.1
    tail: float = 0.0
    tail_temperature: float = 1.0
    part: float = 1.0
    smooth_part: float = 0.25
    every: int = 1

    def __post_init__(self) -> None:
        integer("classes", 2, self.classes)
        for name in ("robust", "smooth", "tail", "epsilon"):
            at_least(name, 0, getattr(self, name))
        for name in ("steps", "every"):
            integer(name, 1, getattr(self, name))
        for name in ("step_size", "tail_temperature", "difference"):
            positive(name, getattr(self, name))
        for name in ("part", "smooth_part"):
            number(name, getattr(self, name))
            if not 0 < getattr(self, name) <= 1:
                raise SettingError(name, f"must lie in (0, 1], got {getattr(self, name):g}")
        boolean("detach_clean", self.detach_clean)
        for name, choices in CHOICES.items():
            one_of(name, getattr(self, name), choices)
        self.step = 0
        # Of this epoch: number of steps with the terms, and sums of their means.
        self.seen = torch.zeros(3, dtype=torch.float64)
        self._last: Batch | None = None
        self._processes = 0

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy of each example, with the terms added, (n,)."""
        repeated = batch is self._last
        self.step += not repeated
        # The same batch twice is one step: SAM computes two gradients.
        self._last = None if repeated else batch
        due = (self.step - 1) % self.every == 0
        if not due or not (self.robust or self.smooth or self.tail):
            flat = self.flatten(model(batch.inputs), batch.labels)
            return mixup_loss(cross_entropy, batch, *flat)
        if not torch.is_grad_enabled():
            raise ValueError(
                "CalMO's terms need gradients, which are disabled: call loss outside of "
                "torch.no_grad(), or evaluate with losses.cross_entropy"
            )
        if self.step == 1 and self.scale is None and self.space == "pixel":
            warn_unknown_scale(batch)
        network, rng = bare(model), rng_state(batch.inputs.device)
        with_gradient = bool(self.smooth or self.tail)
        first = self._part(network, batch, self.part, rng)
        second = first
        if self.smooth_part != self.part:
            second = self._part(network, batch, self.smooth_part, rng)
        attack = self._attack(first) if self.robust else None
        zero = second.neighbourhood.zero.detach().requires_grad_(with_gradient)
        # The only pass through the model itself, whose wrapper averages gradients over processes.
        whole_batch = second.count == len(batch)
        output = second.neighbourhood.logits(model, zero) if whole_batch else model(batch.inputs)
        logits, labels = self.flatten(output, batch.labels)
        check_classes("logits", logits.shape[1], self.classes)
        losses = mixup_loss(cross_entropy, batch, logits, labels)

        def clean(part: PerturbedPart) -> tuple[Tensor, Tensor]:
            # With batch norm, clean and perturbed logits must come from the same images.
            if part.count == len(batch):
                return self.flatten(output, part.labels, adjusted=False)
            return part.logits_at(zero if part is second else part.neighbourhood.zero)

        kl = smoothness = losses.new_zeros((), dtype=torch.float64)
        if attack is not None:
            terms = self.robust * self._divergence(clean(first)[0], first.logits_at(attack)[0])
            losses, kl = self._add(losses, terms)
        if with_gradient:
            terms = self._gradient_terms(*clean(second), zero, second)
            losses, smoothness = self._add(losses, terms)
        # A tensor until the end of the epoch: converting it would synchronise with the device.
        sums = torch.stack([torch.ones_like(kl), kl, smoothness])
        self.seen = self.seen.to(losses.device) + sums
        return losses

    def _part(
        self, network: nn.Module, batch: Batch, part: float, rng: tuple[Tensor, ...]
    ) -> PerturbedPart:
        if not self._processes:
            ones = torch.ones((), device=batch.inputs.device)
            self._processes = round(float(self.ranks.total(ones)))
        count = count_first_images(
            network, len(batch), part, rank=self.ranks.rank, processes=self._processes
        )
        some = batch if count >= len(batch) else batch.take(slice(0, count))
        near = Neighbourhood.of(network, some.inputs, scale=self.scale, space=self.space)
        flatten = partial(self.flatten, adjusted=False)
        return PerturbedPart(network, near, dominant_labels(some), rng, flatten)

    def _add(self, losses: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
        """Add terms to the first losses; return the losses and the mean of the terms.

        Terms are weighted so that, over all processes, the mean loss contains their mean.
        """
        sums = terms.detach().sum(dtype=torch.float64)
        counts = [sums.new_full((), len(each)) for each in (losses, terms)]
        total, size, some = self.ranks.total(torch.stack([sums, *counts])).unbind()
        some = some.clamp(min=1)
        weighted = (self.every * size / some).to(terms.dtype) * terms
        first = losses[: len(terms)] + weighted
        return torch.cat([first, losses[len(terms) :]]), total / some

    def _attack(self, part: PerturbedPart) -> Tensor:
        """Perturbation of the inputs that increases the cross entropy."""
        near = part.neighbourhood
        with evaluating(part.network) if self.batch_norm == "eval" else nullcontext():
            return pgd(
                lambda delta: cross_entropy(*part.logits_at(delta, train=False)).sum(),
                near.zero,
                epsilon=self.epsilon,
                steps=self.steps,
                step_size=self.step_size,
                norm=self.attack_norm,
                low=near.low,
                high=near.high,
            )

    def _divergence(self, clean: Logits, perturbed: Logits) -> PerExample:
        """KL divergence of the perturbed from the clean predictions."""
        log_p = log_probs(clean.detach() if self.detach_clean else clean)
        gap = log_p - log_probs(perturbed)
        # For masked classes the gap is a difference of infinities.
        return (log_p.exp() * gap.where(allowed(log_p), 0)).sum(1)

    def _gradient_terms(
        self, logits: Logits, labels: Labels, zero: Tensor, part: PerturbedPart
    ) -> PerExample:
        """Terms with the gradient of the margin in the inputs, one per image or pixel."""
        margins = margin(logits, labels)
        exact = self.smooth_by == "double_backward"
        kind = zero.device.type
        if not exact and torch.is_autocast_enabled(kind):
            raise ValueError(
                f"{str(torch.get_autocast_dtype(kind))[6:]} has too few digits for finite "
                'differences: take smooth_by="double_backward" or another precision'
            )
        image, weight = image_weights(part.labels, margins, self.ignore_index)
        total = (weight * margins).sum()
        (gradient,) = torch.autograd.grad(total, zero, retain_graph=True, create_graph=exact)
        if exact:
            return self._penalty(gradient, margins, image, weight)
        gradient = gradient.detach().requires_grad_()
        penalty = self._penalty(gradient, margins, image, weight)
        (direction,) = torch.autograd.grad(penalty.sum(), gradient, retain_graph=True)
        squares = self.ranks.total(direction.pow(2).sum())
        count = self.ranks.total(torch.ones_like(squares) * len(direction))
        # Where the direction is zero any finite length gives a difference of zero.
        tiny = torch.finfo(direction.dtype).eps
        length = self.difference / (squares / count).sqrt().clamp(min=tiny)
        # The margin to the runner-up of the clean input, also if it changes.
        runner_up = mask_label(logits, labels).argmax(1)
        perturbed = promote_dtype(part.logits_at(length * direction)[0])
        moved = take_label(perturbed, labels) - take_label(perturbed, runner_up)
        change: Tensor = weight * (moved - margins) / length
        return penalty + (change - change.detach())

    def _penalty(
        self, gradient: Tensor, margins: PerExample, image: Tensor, weight: PerExample
    ) -> PerExample:
        """Smoothness of the image that each margin belongs to, plus the tail of the batch."""
        smoothness = self.smooth * gradient.flatten(1).pow(2).sum(1).to(margins.dtype)[image]
        if not self.tail:
            return smoothness
        mean = margins.new_zeros(len(gradient)).index_add(0, image, weight * margins)
        robust = mean - self.epsilon * dual_norm(gradient, self.attack_norm)
        # Images without a valid pixel have no margin.
        valid = torch.bincount(image, minlength=len(gradient)) > 0
        exponents = self.ranks.gather(robust[valid]) / -self.tail_temperature
        tail = exponents.logsumexp(0) - math.log(max(1, len(exponents)))
        return smoothness + self.tail * self.tail_temperature * tail

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Mean of each weighted term over the steps that had it."""
        times, robust, smoothness = self.seen.tolist()
        self.seen, self._last = torch.zeros_like(self.seen), None
        record: dict[str, float | list[float]] = {}
        if self.robust and times:
            record["robust_term"] = robust / times
        if (self.smooth or self.tail) and times:
            record["slope_term"] = smoothness / times
        return record

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the number of steps and the sums of the epoch."""
        super().load_state_dict(state)
        self._last = None
