"""A probe within the training loop: when it measures, and on which data."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from torch import Tensor

from calibrant.curvature import Probe
from calibrant.curvature.probe import check, draw_examples, edge
from calibrant.data import Split
from calibrant.losses.settings import one_of
from calibrant.setting_errors import did_you_mean
from calibrant.training.loop import Loop
from calibrant.training.predict import placed_batch

# Data that are measured in addition to the training data.
SPLITS = ("val", "test")
# Settings that a file can give; the others are for own loops.
DEFAULTS = {
    name: each.default
    for name, each in signature(Probe).parameters.items()
    if each.kind is Parameter.KEYWORD_ONLY and name not in ("loss", "ignore_index")
}
DEFAULTS["split"] = SPLITS[0]
# Optimizers whose steps follow the gradient, so that the edge of stability is known.
DESCENT = ("gd", "sgd")


class Probing:
    """Measures the network before every so many steps and after the last, into the progress.

    A run that is resumed from a checkpoint keeps the records in it.

    Args:
        settings: settings of a `Probe`; `split` are the held-out data, "val" or "test".
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        for name in settings:
            if name not in DEFAULTS:
                raise ValueError(f"no setting {name!r} of a probe; {did_you_mean(name, DEFAULTS)}")
        self.settings = {key: value for key, value in settings.items() if key != "split"}
        self.split = settings.get("split", DEFAULTS["split"])
        one_of("split", self.split, SPLITS)
        check(**self.settings)
        self.probe: Probe | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The settings, as part of what a run is."""
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in self.settings.items()}
        return {"probe": {**plain, "split": self.split}}

    @property
    def roles(self) -> dict[str, str]:
        """What the splits were used for, where that is another use than without a probe."""
        said = "read by the probe during training and measured at the end; nothing is chosen by it"
        return {"test": said} if self.split == "test" else {}

    def __call__(self, loop: Loop) -> None:
        """Measure if it is time; one process of several is enough."""
        records = loop.progress.records
        if loop.runtime.rank != 0 or (records and records[-1]["step"] == loop.step):
            return
        if self.probe is None:
            self.probe = self._made(loop)
        if loop.step % self.probe.every == 0 or loop.finished:
            recipe = loop.recipe
            found: dict[str, float] = {"step": loop.step, "epoch": loop.step / loop.steps}
            found["lr"] = loop.lr
            # Sharpness-aware descent has an edge of its own, below this one.
            if recipe.optimizer in DESCENT and not recipe.sam and loop.lr > 0:
                momentum = recipe.momentum if recipe.optimizer == "sgd" else 0.0
                found["edge"] = edge(loop.lr, momentum, nesterov=recipe.nesterov)
            records.append({**found, **self.probe.read()})

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
            pair(getattr(splits, self.split)),
            split=self.split,
            ignore_index=splits.ignore_index,
            **self.settings,
        )
