"""Learning rates: against torch's schedulers, and at their ends."""

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


@pytest.mark.parametrize("steps", [1, 7, 50])
@pytest.mark.parametrize("floor", [0.0, 0.01])
def test_cosine_is_that_of_torch(steps, floor):
    expected = by_torch(
        lambda each: lr_scheduler.CosineAnnealingLR(each, T_max=steps, eta_min=floor), steps
    )
    assert ours("cosine", steps, floor=floor) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("steps", [8, 20, 100])
def test_multi_step_is_that_of_torch(steps):
    milestones = [steps // 4, steps // 2, 3 * steps // 4]
    expected = by_torch(
        lambda each: lr_scheduler.MultiStepLR(each, milestones=milestones, gamma=0.2), steps
    )
    found = ours("multi_step", steps, milestones=(0.25, 0.5, 0.75), decay=0.2)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("steps", [5, 10, 33, 100])
def test_one_cycle_is_that_of_torch_with_its_defaults(steps):
    expected = by_torch(
        lambda each: lr_scheduler.OneCycleLR(
            each, max_lr=1.0, total_steps=steps, cycle_momentum=False
        ),
        steps,
    )
    assert ours("one_cycle", steps) == pytest.approx(expected, abs=1e-12)


def test_a_warm_up_is_the_rise_of_one_cycle():
    expected = by_torch(
        lambda each: lr_scheduler.OneCycleLR(
            each, max_lr=1.0, total_steps=40, pct_start=0.25, cycle_momentum=False
        ),
        40,
    )
    assert ours("one_cycle", 40, warmup=10) == pytest.approx(expected, abs=1e-12)


def test_linear_is_that_of_torch():
    expected = by_torch(
        lambda each: lr_scheduler.LinearLR(each, start_factor=1.0, end_factor=0.1, total_iters=30),
        30,
    )
    assert ours("linear", 30, floor=0.1) == pytest.approx(expected, abs=1e-12)


def test_a_warm_up_rises_in_equal_parts_and_the_schedule_has_the_steps_that_are_left():
    found = ours("cosine", 14, warmup=4)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[4:] == ours("cosine", 10)


@pytest.mark.parametrize("name", SCHEDULES)
class TestEverySchedule:
    @pytest.mark.parametrize("steps", [1, 2, 3, 4, 17])
    @pytest.mark.parametrize("warmup", [0, 1, 3])
    def test_lies_between_zero_and_one_at_every_step(self, name, steps, warmup):
        found = [
            rate(name, step, steps=steps, warmup=min(warmup, steps)) for step in range(steps + 1)
        ]
        assert all(0 <= each <= 1 for each in found)
        assert max(found[:-1]) > 0

    def test_does_not_depend_on_what_was_asked_before(self, name):
        forwards = ours(name, 20, warmup=3)
        backwards = [rate(name, step, steps=20, warmup=3) for step in reversed(range(20))]
        assert forwards == backwards[::-1]

    def test_ends_lower_than_its_peak_unless_it_is_constant(self, name):
        found = ours(name, 100)
        assert max(found) == 1.0
        assert (found[-1] < 0.05) == (name != "constant")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedule": "cosin"}, "schedule must be one of .*'cosine'.*, got 'cosin'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"step": -1}, r"step must lie in \[0, 10\], got -1"),
        ({"step": 11}, r"step must lie in \[0, 10\], got 11"),
        ({"warmup": 11}, r"warmup must lie in \[0, 10\], got 11"),
        ({"milestones": (0.5, 80)}, r"milestones must lie in \[0, 1\], got 80"),
        ({"decay": -0.1}, "decay must be at least 0, got -0.1"),
        ({"floor": 2.0}, r"floor must lie in \[0, 1\], got 2"),
    ],
)
def test_what_makes_no_schedule_is_refused(given, message):
    settings = {"schedule": "cosine", "step": 0, "steps": 10, **given}
    with pytest.raises(ValueError, match=message):
        rate(**settings)
