"""Invalid settings raise with a one-line message."""

import inspect
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from loss_batches import OnGpu

from calibrant import losses
from calibrant.losses.settings import at_least, positive

LOGITS, LABELS = torch.zeros(3, 4), torch.tensor([0, 1, 2])
DEFAULTS = [
    (name, setting, parameter.default)
    for name, loss in losses.LOSSES.items()
    for setting, parameter in inspect.signature(loss).parameters.items()
]
REFUSED = [
    *(
        (name, {setting: -1}, f"{setting} must ")
        for name, setting, default in DEFAULTS
        if type(default) in (int, float)
    ),
    *(
        (name, {setting: "repo"}, f"{setting} must be one of [")
        for name, setting, default in DEFAULTS
        if isinstance(default, str)
    ),
    ("focal", {"gamma": math.nan}, "gamma must be at least 0, got nan"),
    ("focal", {"gamma": math.inf}, "gamma must be finite, got inf"),
    ("focal", {"gamma": torch.tensor([1, -0.5, 2])}, "gamma must be at least 0, got -0.5"),
    ("flsd", {"thresholds": (0.3, 0.2)}, "thresholds must increase"),
    ("flsd", {"thresholds": ()}, "thresholds must increase and be at least one, got []"),
    ("flsd", {"thresholds": (0.6,)}, "thresholds must lie in (0, 0.5], got 0.6"),
    ("label_smoothing", {"alpha": 1.5}, "alpha must lie in [0, 1], got 1.5"),
    ("logit_norm", {"norm": 0.5}, "norm must be at least 1, got 0.5"),
    ("cals", {"margin": 0}, "margin must be positive, got 0"),
    ("cals", {"margin": math.inf}, "margin must be finite, got inf"),
    ("cals", {"rho": 0}, "rho must be positive, got 0"),
    ("mmce", {"width": 0}, "width must be positive, got 0"),
    ("dece", {"bins": 0}, "bins must be at least 1, got 0"),
    ("dece", {"bin_temperature": 0}, "bin_temperature must be positive, got 0"),
    ("sece", {"bandwidth": 0}, "bandwidth must be positive, got 0"),
    ("sece", {"power": 0.5}, "power must be at least 1, got 0.5"),
    ("cals", {"penalty": "p4"}, "penalty must be one of ['phr', 'p2', 'p3'], got 'p4'"),
    ("focal", {"gamma": torch.ones(3, 1)}, "gamma must be a number or one for each of 3 examples"),
    ("focal", {"gamma": torch.ones(2)}, "one for each of 3 examples, got shape (2,)"),
    ("cals", {"rho": torch.ones(3)}, "rho must be a number or one for each of 4 classes"),
    ("margin_smoothing", {"alpha": torch.ones(3)}, "one for each of 4 classes, got shape (3,)"),
    *(
        (name, {setting: torch.ones(3)}, f"{setting} must be one number, got shape (3,)")
        for name, setting in (
            ("sece", "bandwidth"),
            ("sece", "power"),
            ("mmce", "width"),
            ("cals", "margin"),
            ("margin_smoothing", "margin"),
            ("label_smoothing", "alpha"),
            ("entropy", "alpha"),
        )
    ),
]


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_an_invalid_setting_raises_in_one_line(name, settings, message):
    # Called as in a user's process, where nothing checks the types first.
    loss = partial(losses.LOSSES[name], **settings)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        loss(LOGITS, LABELS)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("name", "setting"), [("focal", "gamma"), ("label_smoothing", "alpha"), ("mmce", "width")]
)
def test_settings_of_another_type_raise(name, setting):
    for given in (torch.tensor(True), torch.tensor(1j), True, "1", None, [1]):
        with pytest.raises(TypeError, match=f"{setting} must be a number, got"):
            losses.LOSSES[name](LOGITS, LABELS, **{setting: given})
    with pytest.raises(TypeError, match=r"bins must be an integer, got 2\.5"):
        losses.dece(LOGITS, LABELS, bins=2.5)
    with pytest.raises(TypeError, match=r"normalize must be true or false, got 'no'"):
        losses.margin_constraint(LOGITS, margin=1, normalize="no")


def test_the_constraint_checks_its_margin_as_cals_does():
    with pytest.raises(ValueError, match="margin must be positive, got 0"):
        losses.margin_constraint(LOGITS, margin=0)
    assert losses.margin_constraint(LOGITS, margin=0, normalize=False).shape == (3, 4)


@pytest.mark.parametrize("bad", [-1, -0.5, np.float64(-2), math.nan, -math.inf])
@pytest.mark.parametrize("tensor", [False, True])
def test_numbers_and_tensors_are_checked_alike(bad, tensor):
    value = torch.tensor([1.0, float(bad), -3.0]) if tensor else bad
    with pytest.raises(ValueError, match=f"gamma must be at least 0, got {float(bad):g}$"):
        at_least("gamma", 0, value, many=True)
    with pytest.raises(ValueError, match=f"gamma must be positive, got {float(bad):g}$"):
        positive("gamma", value, many=True)


@pytest.mark.parametrize(
    "check", [partial(at_least, "gamma", 0, many=True), partial(positive, "gamma", many=True)]
)
def test_values_are_not_read_from_a_gpu(check):
    with pytest.raises(ValueError, match="gamma must be"):
        check(torch.tensor([-1.0]))
    check(torch.tensor([-1.0]).as_subclass(OnGpu))
