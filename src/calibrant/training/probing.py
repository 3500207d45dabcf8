"""A probe within the training loop: when it reads, and of what."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from torch import Tensor

from calibrant.curvature import Probe
from calibrant.curvature.probe import check, draw_examples, edge
from calibrant.data import Split
from calibrant.methods.settings import meant
from calibrant.training.loop import Loop
from calibrant.training.predict import placed_batch

# Settings that a file can give; the others are for own loops.
DEFAULTS = {
    name: each.default
    for name, each in signature(Probe).parameters.items()
    if each.kind is Parameter.KEYWORD_ONLY and name not in ("loss", "ignore_index")
}
# Optimizers whose steps follow the gradient, so that the edge of stability is known.
DESCENT = ("gd", "sgd")


class Probing:
    """Reads the network before every so many steps and after the last, into the progress.

    A training that goes on from a checkpoint goes on with the readings in it.

    Args:
        settings: of a `Probe`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        for name in settings:
            if name not in DEFAULTS:
                raise ValueError(f"no setting {name!r} of a probe; {meant(name, DEFAULTS)}")
        check(**settings)
        self.settings = dict(settings)
        self.probe: Probe | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The settings, as part of what a run is."""
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in self.settings.items()}
        return {"probe": plain}

    def __call__(self, loop: Loop) -> None:
        """Read if it is time; one process of several is enough."""
        rows = loop.progress.probed
        if loop.runtime.rank != 0 or (rows and rows[-1]["step"] == loop.step):
            return
        if self.probe is None:
            self.probe = self._made(loop)
        if loop.step % self.probe.every == 0 or loop.finished:
            recipe = loop.recipe
            row: dict[str, float] = {"step": loop.step, "epoch": loop.step / loop.steps}
            row["lr"] = loop.lr
            # Sharpness-aware descent has an edge of its own, below this one.
            if recipe.optimizer in DESCENT and not recipe.sam and loop.lr > 0:
                momentum = recipe.momentum if recipe.optimizer == "sgd" else 0.0
                row["edge"] = edge(loop.lr, momentum, nesterov=recipe.nesterov)
            rows.append({**row, **self.probe.read()})

    def _made(self, loop: Loop) -> Probe:
        splits = loop.splits
        count, seed = (self.settings.get(k, DEFAULTS[k]) for k in ("examples", "seed"))

        def pair(split: Split) -> tuple[Tensor, Tensor]:
            # Drawn before they are scaled: all of them might not fit.
            batch = split.batch(draw_examples(len(split), count, seed))
            held = placed_batch(batch, loop.runtime.device, loop.dtype)
            return held.inputs, held.labels

        return Probe(
            loop.model,
            pair(splits.train),
            pair(splits.test),
            ignore_index=splits.ignore_index,
            **self.settings,
        )
