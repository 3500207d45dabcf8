"""What two processes compute together; run by torchrun, or imported for what one computes.

Argument: a folder, into which the first process writes one file for each case.
"""

import sys
from pathlib import Path

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


def masks() -> data.Splits:
    """Images whose pixels count in unequal numbers, so that the processes hold unequal shares."""
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
    splits = data.load("blobs", 0, limit=400)
    model = models.build("mlp", classes=splits.classes, shape=splits.shape, hidden=[16])
    method = methods.build(name, classes=splits.classes, **CASES[name])
    trained = train(model, method, splits, RECIPE, runtime=runtime)
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


def main() -> None:
    torch.set_num_threads(1)
    runtime = start("cpu")
    found = {name: computed(name, runtime) for name in CASES}
    found["dense"] = {name: dense(name, runtime) for name in DENSE}
    agreed = runtime.states(diverges(runtime))
    if runtime.rank == 0:
        torch.save({**found, "diverged": agreed}, Path(sys.argv[1]) / "two.pt")
    runtime.close()


if __name__ == "__main__":
    main()
