"""A probe within a training run: it changes nothing, survives a kill, measures the right data."""

import os
import signal

import pytest
import torch

from calibrant import curvature, data, methods, models
from calibrant.training import (
    DivergedError,
    InterruptedTrainingError,
    Loop,
    Recipe,
    Runtime,
    train,
)
from calibrant.training.folder import RESULT, read_result, write_json

PROBE = {"every": 9, "examples": 40, "products": 3, "batch": 16, "batches": 2}
QUICK = {**PROBE, "measures": ["calibration"]}


@pytest.fixture
def splits():
    return data.load("blobs", 0, n=200)


def trained(splits, folder=None, *, network="mlp", method="cross_entropy", **given):
    torch.manual_seed(0)
    sizes = {"hidden": [8]} if network == "mlp" else {}
    model = models.build(network, classes=splits.classes, shape=splits.shape, seed=0, **sizes)
    learner = methods.build(method, classes=splits.classes)
    extras = {key: given.pop(key) for key in ("probe", "on_step") if key in given}
    recipe = Recipe(**{"epochs": 2, "batch": 16, **given})
    return train(model, learner, splits, recipe, seed=3, folder=folder, **extras)


@pytest.mark.parametrize(
    "given",
    [
        {"average": 0.9},
        {"method": "gamma_net", "optimizer": "muon"},
        {"method": "calmo", "sam": 0.05},
        {"method": "cals_alm", "optimizer": "gd"},
        # With BatchNorm and dropout.
        {"network": "small_cnn"},
    ],
    ids=str,
)
def test_weights_and_history_are_bit_equal_with_a_probe_and_without(splits, given):
    if "network" in given:
        splits = data.load("digits", 0, limit=200)
    plain, probed = (trained(splits, probe=each, **given) for each in (None, PROBE))
    assert plain.history == probed.history
    for name, each in plain.model.state_dict().items():
        assert torch.equal(each, probed.model.state_dict()[name]), name
    assert plain.records == []
    assert len(probed.records) >= 2


def test_records_are_made_before_every_so_many_steps_and_after_the_last(splits):
    found = trained(splits, probe=PROBE)
    steps = 2 * (len(splits.train) // 16)
    expected = [*range(0, steps, 9), steps]
    assert [row["step"] for row in found.records] == sorted(set(expected))
    last = found.records[-1]
    assert {"train_ece", "val_ece", "gauss_newton", "hessian", "trace", "edge"} <= last.keys()
    assert last["epoch"] == 2


def test_test_data_are_read_only_if_asked_for_and_the_record_says_so(splits):
    plain, told = (trained(splits, probe={**QUICK, **each}) for each in ({}, {"split": "test"}))
    assert not any(key.startswith("test_") for key in plain.records[0])
    assert plain.record["roles"]["test"] == "measured once, at the end; nothing is chosen by it"
    assert {"test_ece", "test_accuracy"} <= told.records[0].keys()
    assert "val_ece" not in told.records[0]
    assert told.record["roles"]["test"].startswith("read by the probe during training")


def test_the_last_reading_is_that_of_the_trained_network(splits):
    found = trained(splits, probe={**PROBE, "examples": 10_000})
    last = found.records[-1]
    assert last["val_ece"] == pytest.approx(found.record["metrics"]["val"]["ece"], abs=1e-6)
    pair = (splits.train.inputs, splits.train.labels)
    loss = torch.nn.functional.cross_entropy
    top = curvature.top_eigenvalues(found.model, loss, pair, matrix="gauss_newton", tolerance=1e-2)
    assert last["gauss_newton"] == pytest.approx(float(top[0]), rel=2e-2)


def test_the_edge_is_that_of_the_rate_of_the_step_and_of_momentum(splits):
    found = trained(splits, probe=QUICK, lr=0.1, momentum=0.0, schedule="constant")
    assert [row["edge"] for row in found.records] == pytest.approx([20.0] * len(found.records))
    found = trained(splits, probe=QUICK, lr=0.1, momentum=0.9, nesterov=False)
    assert found.records[0]["edge"] == pytest.approx(38.0)
    assert found.records[0]["edge"] < found.records[-1]["edge"]
    for recipe in ({"optimizer": "adamw"}, {"sam": 0.05}):
        assert "edge" not in trained(splits, probe=QUICK, **recipe).records[0]


def test_an_interrupted_run_resumes_with_its_records(splits, tmp_path):
    whole = trained(splits, tmp_path / "whole", probe=PROBE)

    def leave(loop):
        if loop.step == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedTrainingError):
        trained(splits, tmp_path / "left", probe=PROBE, on_step=leave)
    again = trained(splits, tmp_path / "left", probe=PROBE)
    assert again.records == whole.records
    for name in ("probe.jsonl", "history.jsonl", "weights.pt"):
        left, right = ((tmp_path / each / name).read_bytes() for each in ("left", "whole"))
        assert left == right, name
    # A finished run is read, with its readings.
    assert trained(splits, tmp_path / "left", probe=PROBE).records == whole.records


def test_divergence_and_another_probe_in_the_same_folder_are_refused(splits, tmp_path):
    with pytest.raises(DivergedError):
        trained(splits, probe={**PROBE, "every": 1}, lr=1e30)
    trained(splits, tmp_path, probe=QUICK, epochs=1)
    with pytest.raises(ValueError, match="probe"):
        trained(splits, tmp_path, probe={**QUICK, "every": 5}, epochs=1)


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ({"evry": 3}, "no setting 'evry' of a probe; did you mean every"),
        ({"every": 0}, "every must be at least 1"),
        ({"measures": ["ece"]}, "measures must be one of .'calibration'"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"split": "train"}, "split must be one of .'val', 'test'"),
    ],
)
def test_wrong_settings_are_refused_before_the_first_step(splits, probe, message):
    with pytest.raises(ValueError, match=message):
        trained(splits, probe=probe)


def test_records_and_roles_of_older_versions_are_read(splits, tmp_path):
    write_json(tmp_path / RESULT, {"jobs": {"test": "measured"}})
    assert read_result(tmp_path)["roles"] == {"test": "measured"}

    model = models.build("mlp", classes=splits.classes, shape=splits.shape)
    learner = methods.build("cross_entropy", classes=splits.classes)
    loop = Loop(model, learner, splits, Recipe(), seed=0, runtime=Runtime())
    state = loop.state_dict()
    del state["progress"]["records"]
    state["progress"]["probed"] = [{"step": 0.0}]
    loop.load_state_dict(state)
    assert loop.progress.records == [{"step": 0.0}]
