"""How long a study will take, from a few steps of each kind of run."""

import time
from dataclasses import dataclass

import torch

from calibrant.study.grid import Cell, Study
from calibrant.study.runner import threads_of
from calibrant.training import Loop, Runtime
from calibrant.training.building import built

# Steps that are not timed: the first ones allocate memory and start threads.
WARM_UP = 5
# Steps are timed for this many seconds, and at least so many of them.
SECONDS, STEPS = 1.0, 2


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run, and how many runs there are like it, which differ in the seed."""

    label: str
    seconds: float
    cells: int


def estimates(study: Study, *, workers: int = 1) -> list[Estimate]:
    """Time a few steps of every combination, with the threads that one of the workers has.

    Evaluation and start are not counted.
    """
    seeds = len(study.seeds)
    first = study.cells()[::seeds]
    before = torch.get_num_threads()
    torch.set_num_threads(threads_of(workers))
    try:
        return [Estimate(", ".join(cell.labels.values()), _seconds(cell), seeds) for cell in first]
    finally:
        torch.set_num_threads(before)


def _seconds(cell: Cell) -> float:
    splits, model, method = built(**cell.parts(), seed=cell.seed)
    if method.needs_meta:
        splits = splits.with_meta(cell.recipe.meta, seed=cell.seed)
    loop = Loop(model, method, splits, cell.recipe, seed=cell.seed, runtime=Runtime())
    loop.model.train()
    index = torch.arange(loop.batch)
    for _ in range(WARM_UP):
        loop.take_step(index)
    start, taken, passed = time.perf_counter(), 0, 0.0
    while taken < STEPS or passed < SECONDS:
        loop.take_step(index)
        taken, passed = taken + 1, time.perf_counter() - start
    return passed / taken * loop.steps * cell.recipe.epochs
