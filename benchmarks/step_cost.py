"""What a training step costs by each method, as a multiple of one by cross entropy."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks.inputs import SEED
from benchmarks.measure import Section, extra_memory, in_fresh_process, in_pairs
from calibrant import data, methods, models
from calibrant.losses import LOSSES
from calibrant.methods import METHODS
from calibrant.methods.plain import TERMS
from calibrant.training import Loop, Recipe, Runtime

BATCH, META = 128, 1024
# Goal for methods that do nothing but another loss; it takes many pairs of runs to see.
NARROW = 1.05
ABOUT = f"""Complete steps of our loop: batch, loss, gradient, SGD with momentum and checks, with
batches of {BATCH} random images. Each method alternates with cross entropy; the ratio is the
median over neighbouring runs. A run has enough steps to include every periodic
update. Memory, in brackets, is the growth of a fresh process in its first steps. Cross
entropy against itself shows the accuracy of the ratios: they vary by 2 % between runs, those of
few pairs by 10 %. The update of the multipliers of CALS after each epoch is not included; it uses
the validation predictions that every training run makes."""


@dataclass(frozen=True)
class Kind:
    """A method that is timed, and the most that it may cost."""

    what: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    most: float | None = None
    steps: int = 1


PLAIN = Kind("cross entropy, twice", "cross_entropy")
STATELESS = [name for name in METHODS if name in LOSSES and name != PLAIN.name]
KINDS = [
    PLAIN,
    *(Kind(name, name, most=NARROW) for name in STATELESS if name not in TERMS),
    *(Kind(f"{name} added", name, most=NARROW) for name in TERMS),
    Kind("adafocal", "adafocal", most=NARROW),
    Kind("CALS-ALM", "cals_alm", most=NARROW),
    Kind("CALS-HR", "cals_hr", most=NARROW),
    Kind("logit adjustment", "logit_adjustment", most=NARROW),
    Kind("gamma-net, closed form", "gamma_net", most=1.6, steps=2),
    Kind("gamma-net, double backward", "gamma_net", {"derivative": "double_backward"}, steps=2),
    Kind("meta label smoothing", "meta_smoothing", steps=4),
    Kind("SAM", "cross_entropy", recipe={"sam": 0.05}),
    Kind("CalMO, gradient of a quarter of the batch", "calmo", most=6.5),
    Kind("CalMO, gradient of the whole batch", "calmo", {"smooth_part": 1.0}),
    Kind(
        "CalMO, finite difference of the whole batch",
        "calmo",
        {"smooth_by": "finite_difference", "smooth_part": 1.0},
    ),
    Kind("CalMO, smoothness alone", "calmo", {"robust": 0.0}),
    Kind("CalMO, robustness alone", "calmo", {"smooth": 0.0}),
    Kind("CalMO, one attack step of 6/255", "calmo", {"steps": 1, "step_size": 6 / 255}),
    Kind(
        "CalMO, robustness alone, one step",
        "calmo",
        {"smooth": 0.0, "steps": 1, "step_size": 6 / 255},
    ),
    Kind("CalMO, both terms on a quarter of the batch", "calmo", {"part": 0.25}),
    Kind("CalMO, every fourth step", "calmo", {"every": 4}, steps=4),
]


def splits(size: int) -> data.Splits:
    """Noise in the shape of small photographs."""
    generator = torch.Generator().manual_seed(SEED)

    def drawn(n: int) -> data.Split:
        images = torch.randint(256, (n, 3, size, size), generator=generator, dtype=torch.uint8)
        labels = torch.randint(10, (n,), generator=generator)
        return data.Split(images, labels, torch.arange(n), data.Scale((0.5,) * 3, (0.25,) * 3))

    names = tuple("abcdefghij")
    made = data.Splits("noise", "images", drawn(8 * BATCH), drawn(8), drawn(8), class_names=names)
    return replace(made, meta=drawn(META))


def stepping(kind: Kind, model: str, source: data.Splits) -> Callable[[], None]:
    """As many steps of a method as its kind says."""
    network = models.build(model, classes=source.classes, shape=source.shape, seed=SEED)
    method = methods.build(kind.name, classes=source.classes, **kind.settings)
    recipe = Recipe(epochs=10_000, batch=BATCH, lr=0.01, clip=1.0, **kind.recipe)
    loop = Loop(network, method, source, recipe, seed=SEED, runtime=Runtime("cpu"))
    loop.model.train()

    def run() -> None:
        for step in range(kind.steps):
            loop.progress.at = step
            loop.take_step(torch.arange(step * BATCH, (step + 1) * BATCH))

    return run


def run_for(model: str, size: int, repeats: int) -> Section:
    """Time all methods on one network; a sixth of the repeats does where the goal is wide."""
    about = f"{ABOUT} Pairs of runs: {repeats} where the goal is {NARROW:g}, else {repeats // 6}."
    section = Section(f"Cost of a step: {model} at {size}x{size}", about)
    source = splits(size)
    for kind in KINDS:
        plain = replace(PLAIN, steps=kind.steps)
        own = stepping(kind, model, source)
        pairs = repeats if kind is PLAIN or kind.most == NARROW else repeats // 6
        mine, theirs = in_pairs(own, stepping(plain, model, source), repeats=pairs)
        (memory,) = in_fresh_process("benchmarks.step_cost", model, str(size), kind.what)
        what = f"{kind.what} ({memory:.0f} MB)"
        section.times(what, mine / kind.steps, theirs / kind.steps, most=kind.most)
    return section


def memory(model: str, size: int, what: str) -> float:
    """Megabytes that the first steps of a method take."""
    kind = next(each for each in KINDS if each.what == what)
    return extra_memory(stepping(kind, model, splits(size)))


def run_small() -> Section:
    """ResNet-8 at the size of the studies for two cores."""
    return run_for("resnet8", 16, repeats=400)


def run_large() -> Section:
    """ResNet-20 at the size of CIFAR-10."""
    return run_for("resnet20", 32, repeats=48)


if __name__ == "__main__":
    print(memory(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
