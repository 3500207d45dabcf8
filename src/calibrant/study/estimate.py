"""How long a study will take, from a few steps of each kind of run."""

import time
from dataclasses import dataclass

import torch

from calibrant.study.grid import Cell, Study
from calibrant.training import Loop, Runtime
from calibrant.training.building import built

# Steps that are timed, after one that is not.
STEPS = 2


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run, and how many runs there are like it, which differ in the seed."""

    label: str
    seconds: float
    cells: int


def estimates(study: Study) -> list[Estimate]:
    """Time a few steps of every combination; evaluation and start are not counted."""
    seeds = len(study.seeds)
    first = study.cells()[::seeds]
    return [Estimate(", ".join(cell.labels.values()), _seconds(cell), seeds) for cell in first]


def _seconds(cell: Cell) -> float:
    splits, model, method = built(**cell.parts(), seed=cell.seed)
    if method.needs_meta:
        splits = splits.with_meta(cell.recipe.meta, seed=cell.seed)
    loop = Loop(model, method, splits, cell.recipe, seed=cell.seed, runtime=Runtime())
    loop.model.train()
    index = torch.arange(loop.batch)
    loop.take_step(index)
    start = time.perf_counter()
    for _ in range(STEPS):
        loop.take_step(index)
    each = (time.perf_counter() - start) / STEPS
    return each * loop.steps * cell.recipe.epochs
