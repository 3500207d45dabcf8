"""How a training loop reports its progress."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.training.loop import Loop


class Observer:
    """What a loop tells while it trains; nothing happens unless a method is overridden.

    What a method raises ends the run.
    """

    def before_step(self, loop: "Loop") -> None:
        """Before each step and after the last: look at the network, but change nothing."""

    def after_step(self, loop: "Loop") -> None:
        """After each step, when the state can be saved."""

    def after_part(self, loop: "Loop") -> None:
        """After each batch of an evaluation, or part of a full batch: nothing can be saved here.

        The weights may be averaged ones.
        """

    def after_epoch(self, loop: "Loop", metrics: Mapping[str, Any]) -> None:
        """After each epoch, when the state can be saved; with the metrics of the epoch."""
