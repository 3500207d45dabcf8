"""What two processes compute together; run by torchrun, or imported for what one computes.

Argument: a folder, into which the first process writes one file for each case.
"""

import gc
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from calibrant import data, losses, methods, models
from calibrant.methods import Method
from calibrant.training import DivergedError, Recipe, Runtime, start, train

# A plain loss, a statistic of the whole batch, a term that pairs examples, and multipliers.
CASES = {
    "cross_entropy": {},
    "sece": {"bandwidth": 0.1, "weight": 1.0},
    "mmce": {},
    "cals_alm": {"margin": 1.0, "rho_step": 1},
    "cals_hr": {"margin": 0.5, "adjust": 1.0},
    "margin_smoothing": {"margin": 0.5, "schedule": "add", "change": 0.1},
    "weighted_mmce": {},
    "dece": {"weight": 1.0},
    "meta_smoothing": {"every": 1, "meta_lr": 0.01},
    "adafocal": {},
    "gamma_net": {"every": 1, "bandwidth": 0.1, "attention": True, "meta_lr": 0.01},
    "calmo": {"tail": 0.1, "part": 0.5, "smooth": 0.1, "epsilon": 0.1, "step_size": 0.05},
}
# On masks, where the processes hold unequal numbers of pixels.
DENSE = {
    "mmce": {},
    "cals_alm": {"margin": 0.2},
    "cals_hr": {"margin": 0.2},
    "adafocal": {},
    "gamma_net": {"every": 1, "bandwidth": 0.1, "meta_lr": 0.01},
    "logit_adjustment": {},
    "calmo": {"tail": 0.1, "part": 0.75, "smooth_part": 0.5, "smooth": 0.1, "epsilon": 0.1},
}
RECIPE = Recipe(epochs=3, batch=50, lr=0.05, precision="float64", clip=1.0)
# Two gradients in a step, gradients summed over parts of the data, and weights that are averaged.
RECIPES = {
    "sam": replace(RECIPE, sam=0.05),
    "gd": replace(RECIPE, optimizer="gd", lr=0.5),
    "average": replace(RECIPE, average=0.9),
}


def masks() -> data.Splits:
    """Images with unequal numbers of valid pixels, so that the processes hold unequal shares."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 255, (12, 3, 6, 6), generator=generator, dtype=torch.uint8)
    labels = (inputs[:, 0] > 127).long()
    labels[::2, :4] = 9
    scale = data.Scale((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    parts = [
        data.Split(inputs[a:b], labels[a:b], torch.arange(a, b), scale)
        for a, b in ((0, 6), (6, 9), (9, 12))
    ]
    return data.Splits("toy", "masks", *parts, class_names=("dark", "light"), ignore_index=9)


def computed(name: str, runtime: Runtime) -> dict:
    """Weights, history, state of the method and predictions after a training in float64."""
    recipe = RECIPES.get(name, RECIPE)
    splits = data.load("blobs", 0, limit=400)
    model = models.build("mlp", classes=splits.classes, shape=splits.shape, hidden=[16])
    chosen = name if name in CASES else "cross_entropy"
    method = methods.build(chosen, classes=splits.classes, **CASES[chosen])
    with mock.patch("calibrant.training.loop.PART", 64):
        trained = train(model, method, splits, recipe, runtime=runtime)
    return outcome(trained, method)


def dense(name: str, runtime: Runtime) -> dict:
    splits = masks()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Tanh(), torch.nn.Conv2d(4, 2, 1)
    )
    method = methods.build(name, classes=2, **DENSE[name])
    recipe = Recipe(epochs=2, batch=4, lr=0.05, precision="float64")
    return outcome(train(model, method, splits, recipe, runtime=runtime), method)


def outcome(trained, method: Method) -> dict:
    weights = torch.cat([each.flatten() for each in trained.model.state_dict().values()])
    rows = [
        torch.cat([torch.tensor(value, dtype=torch.float64).reshape(-1) for value in row.values()])
        for row in trained.history
    ]
    multipliers = method.state_dict().get("multipliers", torch.zeros(1))
    logits = trained.test.logits
    return {"weights": weights, "rows": rows, "multipliers": multipliers, "logits": logits}


class BadAtRankOne(Method):
    """A loss that is infinite in the second process alone."""

    def loss(self, model, batch):
        each = losses.cross_entropy(model(batch.inputs), batch.labels)
        return each + (torch.inf if getattr(self.ranks, "rank", 0) == 1 else 0.0)


def diverges(runtime: Runtime) -> bool:
    splits = data.load("blobs", 0, limit=400)
    model = models.build("mlp", classes=splits.classes, shape=splits.shape, hidden=[16])
    try:
        train(model, BadAtRankOne(), splits, RECIPE, runtime=runtime)
    except DivergedError:
        return True
    return False


class Branches(torch.nn.Module):
    """Has a parameter that only the second process uses, one that none does, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.sometimes, self.never, self.frozen = (
            torch.nn.Parameter(torch.ones(2)) for _ in range(4)
        )
        self.frozen.requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(2, affine=False)

    def forward(self, rank: int) -> torch.Tensor:
        self.norm(torch.tensor([[rank, 2.0], [rank, 4.0]]))
        used = self.shared * (rank + 1)
        return (used + self.sometimes if rank == 1 else used).sum()


def reduced(runtime: Runtime) -> dict:
    """Gradients and buffers of each process after they were reduced."""
    model = Branches()
    model(runtime.rank).backward()
    runtime.reduce(model)
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return {**gradients, **dict(model.named_buffers())}


def gloo_threads() -> list[str]:
    """Names of this process's threads that belong to gloo; Linux only."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").glob("*")]
    return [name for name in names if "gloo" in name]


def main() -> None:
    torch.set_num_threads(1)
    # Nothing may have to wait for the garbage collector.
    gc.disable()
    runtime = start("cpu")
    found = {name: computed(name, runtime) for name in (*CASES, *RECIPES)}
    found["dense"] = {name: dense(name, runtime) for name in DENSE}
    found["reduced"] = runtime.states(reduced(runtime))
    found["diverged"] = runtime.states(diverges(runtime))
    found["threads"] = [gloo_threads()]
    runtime.close()
    found["threads"].append(gloo_threads())
    if runtime.rank == 0:
        torch.save(found, Path(sys.argv[1]) / "two.pt")


if __name__ == "__main__":
    main()
