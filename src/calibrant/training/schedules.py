"""Learning rates over a training run: pure functions of the step, without state."""

import math
from collections.abc import Callable, Sequence
from typing import Any

# Of the steps that one_cycle rises, if no warm-up is given; how far below its peak it starts, and
# how far below its start it ends.
RISE, START, END = 0.3, 25.0, 1e4


def constant(step: int, steps: int, **others: Any) -> float:
    """Return 1 for every step."""
    return 1.0


def linear(step: int, steps: int, **others: Any) -> float:
    """Return a straight line from 1 down to 0, which would be reached after the last step."""
    return 1 - step / steps


def cosine(step: int, steps: int, **others: Any) -> float:
    r"""Half a cosine from 1 down to 0: $(1 + \cos(\pi\, step / steps)) / 2$.

    References:
        Loshchilov and Hutter, SGDR, ICLR 2017, arXiv:1608.03983.
    """
    return (1 + math.cos(math.pi * step / steps)) / 2


def multi_step(
    step: int, steps: int, *, milestones: Sequence[float], decay: float, **others: Any
) -> float:
    """Multiplied by `decay` at each milestone, a fraction of the steps."""
    return decay ** sum(step >= round(milestone * steps) for milestone in milestones)


def one_cycle(step: int, steps: int, *, warmup: int, **others: Any) -> float:
    """Half a cosine from 1/25 up to 1, then one down to nearly nothing at the last step.

    The numbers are the defaults of `torch.optim.lr_scheduler.OneCycleLR`: the rise takes 30 % of
    the steps, or `warmup` steps if they are given.

    References:
        Smith and Topin, Super-Convergence, 2018, arXiv:1708.07120.
    """
    last = steps - 1
    peak = min(max((warmup or RISE * steps) - 1, 0), last)
    if step <= peak:
        return _between(1 / START, 1.0, step / peak if peak else 1.0)
    fall = last - peak
    return _between(1.0, 1 / START / END, (step - peak) / fall if fall else 1.0)


def _between(start: float, end: float, progress: float) -> float:
    """From start to end along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "cosine": cosine,
    "one_cycle": one_cycle,
    "multi_step": multi_step,
    "linear": linear,
}


def rate(
    schedule: str,
    step: int,
    *,
    steps: int,
    warmup: int = 0,
    milestones: Sequence[float] = (0.5, 0.75),
    decay: float = 0.1,
) -> float:
    """The factor of the learning rate at a step, from 0 to `steps - 1`.

    With a warm-up the factor first rises in equal parts, (step + 1) / (warmup + 1), and the
    schedule runs over the steps that are left; `one_cycle` has its own rise, of that many steps.
    The settings are those of a `Recipe`, which has checked them; milestones are fractions of the
    steps after the warm-up.

    Examples:
        >>> [round(rate("cosine", step, steps=4), 2) for step in range(4)]
        [1.0, 0.85, 0.5, 0.15]
        >>> [rate("constant", step, steps=5, warmup=3) for step in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    if schedule == "one_cycle":
        return one_cycle(step, steps, warmup=warmup)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    left = max(steps - warmup, 1)
    return SCHEDULES[schedule](step - warmup, left, milestones=milestones, decay=decay)
