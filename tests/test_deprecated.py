"""Old public names and options work, and warn with the new one."""

from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn

from calibrant import Predictions, calibrators, curvature, methods, metrics
from calibrant.calibrators.selection import select
from calibrant.data import SYNTHETIC
from calibrant.deprecated import ARGUMENTS, OPTIONS, RENAMED, replace_options
from calibrant.scoped_warnings import without_warnings
from calibrant.training import Trained

LOGITS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0]])
EXAMPLES = Predictions(LOGITS, torch.tensor([0, 1, 1, 0]))


def objects() -> dict[str, object]:
    """One object of each class that has an old name."""
    # Four examples are few for bins.
    with without_warnings():
        found = select(EXAMPLES, candidates=["identity"], folds=2, resamples=2)
        summary = metrics.summary(EXAMPLES, resamples=0)
    return {
        "Predictions": EXAMPLES,
        "Calibrator": calibrators.Identity,
        "Candidate": found.candidates[0],
        "Selection": found,
        "Summary": summary,
        "Method": methods.Plain,
        "Probe": curvature.Probe(nn.Linear(2, 2), (LOGITS, EXAMPLES.labels)),
        "Trained": Trained(nn.Linear(2, 2), [], EXAMPLES, EXAMPLES, {}, [{"step": 0.0}]),
    }


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_the_new_one_and_warns(old):
    owner, _, name = old.rpartition(".")
    owned = import_module(owner) if owner.startswith("calibrant") else objects()[owner]
    new = RENAMED[old]
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated, use {new}"):
        value = getattr(owned, name)
    expected = getattr(owned, new.rpartition(".")[2])
    assert np.all(value == expected)


def test_an_old_argument_is_the_new_one_and_warns():
    data = LOGITS, EXAMPLES.labels
    with pytest.warns(DeprecationWarning, match=r"Probe.test is deprecated, use Probe.held_out"):
        probe = curvature.Probe(nn.Linear(2, 2), data, test=data)
    assert torch.equal(probe.held_out[0], LOGITS)


@pytest.mark.parametrize(
    ("name", "old", "value", "call"),
    [
        ("interval", "method", "bca", partial(metrics.interval, metrics.accuracy, resamples=9)),
        ("summary", "method", "bca", partial(metrics.summary, resamples=9)),
        (
            "select",
            "keep_argmax",
            True,
            partial(select, candidates=("vector", "temperature"), folds=2),
        ),
    ],
)
def test_an_old_argument_of_a_function_is_the_new_one_and_warns(name, old, value, call):
    new = ARGUMENTS[name, old]
    examples = SYNTHETIC["overconfident"].sample(300, seed=0).predictions
    with without_warnings():
        expected = call(examples, **{new: value})
    with pytest.warns(DeprecationWarning, match=f"{old} of {name} is deprecated, use {new}"):
        assert str(call(examples, **{old: value})) == str(expected)


def test_other_names_are_still_unknown():
    from calibrant import data

    with pytest.raises(AttributeError, match=r"module 'calibrant.data' has no attribute 'judge'"):
        data.judge  # noqa: B018


@pytest.mark.parametrize(("command", "old", "new"), [(*key, new) for key, new in OPTIONS.items()])
def test_an_old_option_becomes_the_new_one(command, old, new):
    with pytest.warns(UserWarning, match=f"{command} {old} is deprecated: use {new}"):
        assert replace_options([command, "f.npz", old, "x"]) == [command, "f.npz", new, "x"]
    with pytest.warns(UserWarning, match=new):
        assert replace_options(["--debug", command, f"{old}=x"]) == ["--debug", command, f"{new}=x"]


def test_the_option_of_another_command_stays():
    assert replace_options(["train", "--method", "focal"]) == ["train", "--method", "focal"]
