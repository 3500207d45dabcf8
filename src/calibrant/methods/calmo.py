"""Cross entropy with answers that stay the same nearby and margins that are smooth."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant.checks import promote_dtype
from calibrant.curvature.attacks import Norm, dual_norm, pgd
from calibrant.data import Batch
from calibrant.losses import cross_entropy
from calibrant.losses.log_probs import allowed, log_probs, of_label, without_label
from calibrant.losses.margin import margin
from calibrant.losses.settings import at_least, flag, number, one_of, positive, whole
from calibrant.methods.base import Method, larger_part, mixed, same_answers
from calibrant.methods.neighbourhood import (
    Around,
    Space,
    Surroundings,
    first_images,
    random_draws,
    shares,
    warn_of_images,
)
from calibrant.model_modes import bare, evaluating
from calibrant.predictions import Predictions
from calibrant.setting_errors import SettingError
from calibrant.shapes import Labels, Logits, PerExample


class Calmo(Method):
    r"""Cross entropy, plus answers that stay the same nearby and margins that are smooth (CalMO).

    $$\ell = -\log p_y + \lambda_r\, \mathrm{KL}(p(x) \,\|\, p(x')) + \lambda_s \|\nabla_x m\|_2^2$$

    with the margin $m = z_y - \max_{j \ne y} z_j$ and $x'$ found by `curvature.pgd` from x on the
    cross entropy. `robust = 0` and `smooth = 0` leave their term and its cost out; both are the
    ablations of the paper, "Flat" and "Rob". Optional, and not in the paper, is the tail of the
    margins that a linear network could lose nearby, over the whole batch of B examples:

    $$\lambda_t\, t \bigl[\operatorname{logsumexp}_i(-\tilde m_i / t) - \log B\bigr], \qquad
      \tilde m = m - \epsilon \|\nabla_x m\|_*$$

    What the paper leaves open: the attack is in evaluation mode; the pass of $x'$ is, like that of
    x, in training mode, with the statistics of its own batch and the same dropout, but running
    statistics see x alone. The gradient of $m$ is that of the sum over the batch in training mode,
    so with batch norm it holds what an image does to the others. Mixed images: all but the cross
    entropy take the label of the larger part. Masks: KL for each pixel that counts; m is the mean
    margin of the pixels of an image that count, and its term belongs to each of them. Token
    numbers: what is shifted is the output of the one embedding.

    The gradient $g = \nabla_x m$ enters by a function f; with $v = \partial f / \partial g$ held
    fixed, f has the slope of $v^\top g$ in the weights. "double_backward" is exact, but batch norm
    makes it slow; "finite_difference" takes $v^\top g \approx (m(x + \eta v) - m(x)) / \eta$, one
    more pass, where m is the margin to the class that is next at x. The value of the loss is exact
    in both, the gradient of the second to first order for smooth networks. With ReLU it also sees
    the kinks between the two places, which the exact one does not: the two gradients of a step
    differ, more so the shorter the difference.

    Args:
        classes: k.
        robust: $\lambda_r$.
        smooth: $\lambda_s$.
        epsilon: radius of the ball that x' lies in.
        steps: of the attack.
        step_size: of the attack.
        attack_norm: "linf" or "l2".
        space: units of epsilon and of the gradient: "pixel", values in [0, 1], or "normalized",
            the inputs. Vectors and embeddings are taken as they are.
        batch_norm: mode of the network in the attack, "eval" or "train".
        detach_clean: no gradient through p(x) in KL.
        smooth_by: how to differentiate the gradient.
        difference: length of $\eta v$, root mean square over the images.
        tail: $\lambda_t$.
        tail_temperature: t.
        part: part of each batch, its first images, that KL is computed on, with passes of their
            own; its mean is over them (of masks, over their pixels that count). Every process
            takes at least one image, with batch norm two.
        smooth_part: the same for the terms with the gradient.
        every: steps from one with the terms to the next; their weights are multiplied by it. The
            same `Batch` object twice in a row is one step with two gradients.

    References:
        arXiv:2604.20614, 2026.
        Zhang et al., Theoretically Principled Trade-off between Robustness and Accuracy (TRADES),
        ICML 2019, arXiv:1901.08573.
    """

    def __init__(
        self,
        classes: int,
        *,
        robust: float = 0.5,
        smooth: float = 0.01,
        epsilon: float = 8 / 255,
        steps: int = 3,
        step_size: float = 2 / 255,
        attack_norm: Norm = "linf",
        space: Space = "pixel",
        batch_norm: Literal["eval", "train"] = "eval",
        detach_clean: bool = False,
        smooth_by: Literal["double_backward", "finite_difference"] = "double_backward",
        difference: float = 0.1,
        tail: float = 0.0,
        tail_temperature: float = 1.0,
        part: float = 1.0,
        smooth_part: float = 0.25,
        every: int = 1,
    ) -> None:
        whole("classes", 2, classes)
        weights = {"robust": robust, "smooth": smooth, "tail": tail, "epsilon": epsilon}
        for name, value in weights.items():
            at_least(name, 0, value)
        for name, count in {"steps": steps, "every": every}.items():
            whole(name, 1, count)
        for name, value in {"step_size": step_size, "tail_temperature": tail_temperature}.items():
            positive(name, value)
        positive("difference", difference)
        for name, value in {"part": part, "smooth_part": smooth_part}.items():
            number(name, value)
            if not 0 < value <= 1:
                raise SettingError(name, f"must lie in (0, 1], got {value:g}")
        flag("detach_clean", detach_clean)
        one_of("attack_norm", attack_norm, ("linf", "l2"))
        one_of("space", space, ("pixel", "normalized"))
        one_of("batch_norm", batch_norm, ("eval", "train"))
        one_of("smooth_by", smooth_by, ("finite_difference", "double_backward"))
        self.robust, self.smooth, self.tail = robust, smooth, tail
        self.epsilon, self.steps, self.step_size = epsilon, steps, step_size
        self.norm, self.space, self.batch_norm = attack_norm, space, batch_norm
        self.detach_clean, self.smooth_by, self.difference = detach_clean, smooth_by, difference
        self.tail_temperature, self.every = tail_temperature, every
        self.part, self.smooth_part = part, smooth_part
        self.classes, self.step = classes, 0
        # Of this epoch: how often the terms were added, and the sums of their means.
        self.seen = torch.zeros(3, dtype=torch.float64)
        self._last: Batch | None = None
        self._processes = 0

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross entropy of each example, with the terms added, (n,)."""
        again = batch is self._last
        self.step += not again
        # The same batch once more is the same step: sharpness-aware descent takes two gradients.
        self._last = None if again else batch
        due = (self.step - 1) % self.every == 0
        if not due or not (self.robust or self.smooth or self.tail):
            return mixed(cross_entropy, batch, *self.rows(model(batch.inputs), batch.labels))
        if not torch.is_grad_enabled():
            raise ValueError(
                "CalMO's terms need gradients, which are switched off: call loss outside of "
                "torch.no_grad(), or measure with losses.cross_entropy"
            )
        if self.step == 1 and self.scale is None and self.space == "pixel":
            warn_of_images(batch)
        network, draws = bare(model), random_draws(batch.inputs.device)
        slopes = bool(self.smooth or self.tail)
        first = self._around(network, batch, self.part, draws)
        second = first
        if self.smooth_part != self.part:
            second = self._around(network, batch, self.smooth_part, draws)
        worst = self._worst(first) if self.robust else None
        zero = second.near.zero.detach().requires_grad_(slopes)
        # The one pass of the network as it was given: its backward averages over the processes.
        shared = second.count == len(batch)
        answer = second.near.logits(model, zero) if shared else model(batch.inputs)
        rows = self.rows(answer, batch.labels)
        same_answers(rows[0], self.classes)
        each = mixed(cross_entropy, batch, *rows)

        def clean(around: Around) -> tuple[Tensor, Tensor]:
            # Batch norm sees the part only, here as nearby, or the two would differ everywhere.
            if around.count == len(batch):
                return self.rows(answer, around.labels, adjusted=False)
            return around.nearby(zero if around is second else around.near.zero)

        kl = slope = each.new_zeros((), dtype=torch.float64)
        if worst is not None:
            terms = self.robust * self._divergence(clean(first)[0], first.nearby(worst)[0])
            each, kl = self._added(each, terms)
        if slopes:
            terms = self._of_slopes(*clean(second), zero, second)
            each, slope = self._added(each, terms)
        # A tensor until the end of the epoch: a number would have to wait for the device.
        self.seen = self.seen.to(each.device) + torch.stack([torch.ones_like(kl), kl, slope])
        return each

    def _around(
        self, network: nn.Module, batch: Batch, part: float, draws: tuple[Tensor, ...]
    ) -> Around:
        if not self._processes:
            ones = torch.ones((), device=batch.inputs.device)
            self._processes = round(float(self.ranks.total(ones)))
        count = first_images(
            network, len(batch), part, rank=self.ranks.rank, processes=self._processes
        )
        some = batch if count >= len(batch) else batch.take(slice(0, count))
        near = Surroundings.of(network, some.inputs, scale=self.scale, space=self.space)
        rows = partial(self.rows, adjusted=False)
        return Around(network, near, larger_part(some), draws, rows)

    def _added(self, each: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
        """Losses of all rows with terms added to the first, and the mean of the terms.

        Weights make the mean of the losses hold the mean of the terms, over all processes.
        """
        sums = terms.detach().sum(dtype=torch.float64)
        counts = [sums.new_full((), len(rows)) for rows in (each, terms)]
        total, rows, some = self.ranks.total(torch.stack([sums, *counts])).unbind()
        some = some.clamp(min=1)
        weighted = (self.every * rows / some).to(terms.dtype) * terms
        first = each[: len(terms)] + weighted
        return torch.cat([first, each[len(terms) :]]), total / some

    def _worst(self, around: Around) -> Tensor:
        """Shift of the inputs that makes the cross entropy large."""
        near = around.near
        with evaluating(around.network) if self.batch_norm == "eval" else nullcontext():
            return pgd(
                lambda shift: cross_entropy(*around.nearby(shift, learns=False)).sum(),
                near.zero,
                epsilon=self.epsilon,
                steps=self.steps,
                step_size=self.step_size,
                norm=self.norm,
                low=near.low,
                high=near.high,
            )

    def _divergence(self, clean: Logits, shifted: Logits) -> PerExample:
        """KL from what is said about the inputs to what is said nearby."""
        log_p = log_probs(clean.detach() if self.detach_clean else clean)
        gap = log_p - log_probs(shifted)
        # Of masked classes the gap is that of two infinities.
        return (log_p.exp() * gap.where(allowed(log_p), 0)).sum(1)

    def _of_slopes(
        self, logits: Logits, labels: Labels, zero: Tensor, around: Around
    ) -> PerExample:
        """Terms that hold the gradient of the margin in the inputs, one for each row."""
        margins = margin(logits, labels)
        exact = self.smooth_by == "double_backward"
        kind = zero.device.type
        if not exact and torch.is_autocast_enabled(kind):
            raise ValueError(
                f"{str(torch.get_autocast_dtype(kind))[6:]} has too few digits for finite "
                'differences: take smooth_by="double_backward" or another precision'
            )
        image, share = shares(around.labels, margins, self.ignore_index)
        total = (share * margins).sum()
        (slopes,) = torch.autograd.grad(total, zero, retain_graph=True, create_graph=exact)
        if exact:
            return self._priced(slopes, margins, image, share)
        slopes = slopes.detach().requires_grad_()
        priced = self._priced(slopes, margins, image, share)
        (way,) = torch.autograd.grad(priced.sum(), slopes, retain_graph=True)
        squares = self.ranks.total(way.pow(2).sum())
        count = self.ranks.total(torch.ones_like(squares) * len(way))
        # No way to go, no difference: any finite length will do.
        tiny = torch.finfo(way.dtype).eps
        length = self.difference / (squares / count).sqrt().clamp(min=tiny)
        # The margin to the class that is next here: that to another one would not be its change.
        rival = without_label(logits, labels).argmax(1)
        shifted = promote_dtype(around.nearby(length * way)[0])
        moved = of_label(shifted, labels) - of_label(shifted, rival)
        change: Tensor = share * (moved - margins) / length
        return priced + (change - change.detach())

    def _priced(
        self, slopes: Tensor, margins: PerExample, image: Tensor, share: PerExample
    ) -> PerExample:
        """Smoothness of the image that each row belongs to, and the tail of the whole batch."""
        priced = self.smooth * slopes.flatten(1).pow(2).sum(1).to(margins.dtype)[image]
        if not self.tail:
            return priced
        mean = margins.new_zeros(len(slopes)).index_add(0, image, share * margins)
        robust = mean - self.epsilon * dual_norm(slopes, self.norm)
        # Images without a pixel that counts have no margin.
        counts = torch.bincount(image, minlength=len(slopes)) > 0
        held = self.ranks.gather(robust[counts]) / -self.tail_temperature
        together = held.logsumexp(0) - math.log(max(1, len(held)))
        return priced + self.tail * self.tail_temperature * together

    def after_epoch(self, val: Predictions) -> Mapping[str, float | list[float]]:
        """Report the mean of each term over the steps that had it, with its weight."""
        times, robust, slopes = self.seen.tolist()
        self.seen, self._last = torch.zeros_like(self.seen), None
        row: dict[str, float | list[float]] = {}
        if self.robust and times:
            row["robust_term"] = robust / times
        if (self.smooth or self.tail) and times:
            row["slope_term"] = slopes / times
        return row

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, which says when the terms are due, and the sums of the epoch."""
        return {"step": self.step, "seen": self.seen.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        if set(state) != set(self.state_dict()):
            raise ValueError(f"not a state of Calmo: it holds {sorted(state)}")
        if state["seen"].shape != self.seen.shape:
            raise ValueError(f"seen must be 3 numbers, got shape {tuple(state['seen'].shape)}")
        self.step, self.seen, self._last = int(state["step"]), state["seen"].cpu(), None
