"""Learning rates: against torch's schedulers, and at their ends."""

from itertools import product

import pytest
import torch
from torch.optim import lr_scheduler

from calibrant.training.schedules import SCHEDULES, rate


def by_torch(make, steps):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < steps - 1:
            scheduler.step()
    return rates


def ours(name, steps, **settings):
    return [rate(name, step, steps=steps, **settings) for step in range(steps)]


def one_cycle(steps, **settings):
    return lambda each: lr_scheduler.OneCycleLR(
        each, max_lr=1.0, total_steps=steps, cycle_momentum=False, **settings
    )


def test_schedules_are_those_of_torch():
    for steps in (1, 7, 50):
        expected = by_torch(lambda each, n=steps: lr_scheduler.CosineAnnealingLR(each, n), steps)
        assert ours("cosine", steps) == pytest.approx(expected, abs=1e-12)
    for steps in (8, 20, 100):
        places = [steps // 4, steps // 2, 3 * steps // 4]
        expected = by_torch(
            lambda each, at=places: lr_scheduler.MultiStepLR(each, at, gamma=0.2), steps
        )
        found = ours("multi_step", steps, milestones=(0.25, 0.5, 0.75), decay=0.2)
        assert found == pytest.approx(expected, abs=1e-12)
    for steps in (5, 10, 33, 100):
        expected = by_torch(one_cycle(steps), steps)
        assert ours("one_cycle", steps) == pytest.approx(expected, abs=1e-12)
    # A warm-up is the rise of one_cycle.
    expected = by_torch(one_cycle(40, pct_start=0.25), 40)
    assert ours("one_cycle", 40, warmup=10) == pytest.approx(expected, abs=1e-12)
    expected = by_torch(lambda each: lr_scheduler.LinearLR(each, 1.0, 0.0, total_iters=30), 30)
    assert ours("linear", 30) == pytest.approx(expected, abs=1e-12)


def test_a_warm_up_rises_in_equal_parts_and_the_schedule_has_the_steps_that_are_left():
    found = ours("cosine", 14, warmup=4)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[4:] == ours("cosine", 10)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_lies_between_zero_and_one_and_falls_unless_it_is_constant(name):
    for steps, warmup in product((1, 2, 3, 4, 17), (0, 1, 3)):
        found = [rate(name, s, steps=steps, warmup=min(warmup, steps)) for s in range(steps + 1)]
        assert all(0 <= each <= 1 for each in found)
        assert max(found[:-1]) > 0
    found = ours(name, 100)
    assert max(found) == 1.0
    assert (found[-1] < 0.05) == (name != "constant")
