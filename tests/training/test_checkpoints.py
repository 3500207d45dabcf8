"""Checkpoints: damaged ones are never used, others are refused, a full disk loses nothing."""

import json
import os
import re
import resource
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import data, losses, methods
from calibrant.methods import Method
from calibrant.training import (
    DiskFullError,
    DivergedError,
    InterruptedTrainingError,
    Recipe,
    checkpoint,
    folder,
    train,
)
from calibrant.training.interrupts import Interrupts

RECIPE = Recipe(epochs=3, batch=64, lr=0.05)


class StopError(Exception):
    """Ends a training from outside."""


def stopping_at(step: int):
    def stop(loop) -> None:
        if loop.step == step:
            raise StopError

    return stop


@pytest.fixture
def again(blobs, network, method):
    """Make the same call again, with changes."""

    def call(where: Path, *, splits=None, **changes):
        splits = splits or blobs
        recipe = replace(RECIPE, **changes.pop("recipe", {}))
        chosen = changes.pop("method", None) or method(blobs)
        model = changes.pop("model", None) or network(blobs)
        return train(model, chosen, splits, recipe, folder=where, **changes)

    return call


@pytest.fixture
def unfinished(blobs, again, tmp_path) -> Path:
    """A folder with two checkpoints of a training that was left in its third epoch."""
    with pytest.raises(StopError):
        again(tmp_path, on_step=stopping_at(2 * (len(blobs.train) // 64) + 2))
    assert len(checkpoint.found(tmp_path)) == 2
    return tmp_path


def weights(trained) -> torch.Tensor:
    return torch.cat([each.flatten() for each in trained.model.state_dict().values()])


SLOWER = {"epochs": 2, "batch": 128, "lr": 0.01, "clip": 1.0}
LEFT = [
    *((name, SLOWER) for name in sorted(methods.METHODS)),
    ("cross_entropy", {"optimizer": "adamw", "lr": 0.01}),
    ("cross_entropy", {"optimizer": "muon", "lr": 0.01}),
    ("cross_entropy", {"optimizer": "gd"}),
    ("cross_entropy", {"sam": 0.05}),
    ("cross_entropy", {"average": 0.9, "stop_on": "ece", "clip": 1.0}),
    ("cals_alm", {"average": (0.0, 0.9, 1.0), "average_from": 0.3, "stop_on": "refined_nll"}),
    ("cross_entropy", {"precision": "bfloat16"}),
    ("cross_entropy", {"augmentation": data.Augmentation(mixup=0.4)}),
]


@pytest.mark.parametrize(("name", "recipe"), LEFT, ids=str)
def test_every_method_and_recipe_left_after_any_step_ends_with_the_same_bytes(
    name, recipe, blobs, method, again, tmp_path
):
    def call(where: str, on_step, **extras) -> None:
        chosen = method(blobs, name)
        again(tmp_path / where, method=chosen, recipe=recipe, on_step=on_step, **extras)

    steps = []
    call("whole", lambda loop: steps.append(loop.step))
    for step in steps:
        with pytest.raises(StopError):
            call("parts", stopping_at(step), save_every=0.0)
    call("parts", stopping_at(0))
    for file in ("weights.pt", "history.jsonl", "val.npz", "test.npz", "result.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()


@pytest.mark.parametrize("damage", ["flip", "cut", "zero", "header"])
def test_a_damaged_checkpoint_is_never_used_and_never_a_crash(unfinished, damage):
    path, older = checkpoint.found(unfinished)
    whole, before = path.read_bytes(), checkpoint.load(older)
    draw = np.random.default_rng(0)
    for _ in range(100):
        at, broken = int(draw.integers(len(whole))), bytearray(whole)
        if damage == "flip":
            broken[at] ^= 1 << int(draw.integers(8))
        elif damage == "cut":
            del broken[at:]
        elif damage == "zero":
            broken[at : at + 64] = bytes(len(broken[at : at + 64]))
        else:
            broken[int(draw.integers(80))] ^= 0xFF
        if broken == whole:
            continue
        path.write_bytes(broken)
        with pytest.warns(UserWarning, match="is damaged: its checksum does not match"):
            state, damaged = checkpoint.latest(unfinished)
        assert damaged == [path.name]
        assert state["loop"]["progress"]["epoch"] == before["loop"]["progress"]["epoch"]


def test_after_damage_the_older_checkpoint_leads_to_the_same_weights(unfinished, again, tmp_path):
    whole = again(tmp_path / "whole")
    kept = [path.name for path in checkpoint.found(tmp_path / "whole")]
    assert kept == ["checkpoint-000000015.pt", "checkpoint-000000010.pt"]
    checkpoint.found(unfinished)[0].write_bytes(b"")
    with pytest.warns(UserWarning, match="it is not used"):
        found = again(unfinished)
    assert torch.equal(weights(found), weights(whole))
    assert found.record["damaged_checkpoints"] == ["checkpoint-000000010.pt"]


def test_a_checkpoint_that_carries_code_is_refused(unfinished):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    checkpoint.save(unfinished, 99, {"loop": Evil()})
    with pytest.raises(ValueError, match="holds more than tensors and plain values"):
        checkpoint.load(checkpoint.found(unfinished)[0])
    with pytest.warns(UserWarning, match="not used"):
        assert checkpoint.latest(unfinished)[0] is not None


def test_with_both_damaged_it_starts_over_and_the_new_checkpoints_count(
    unfinished, again, tmp_path
):
    for path in checkpoint.found(unfinished):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="damaged") as said, pytest.raises(StopError):
        again(unfinished, on_step=stopping_at(8))
    assert "from the start" in str(said[-1].message)
    assert [path.name for path in checkpoint.found(unfinished)] == ["checkpoint-000000005.pt"]
    assert len(list(unfinished.glob("damaged-*"))) == 2
    steps = []
    found = again(unfinished, on_step=lambda loop: steps.append(loop.step))
    assert steps[0] == 6
    assert len(found.record["damaged_checkpoints"]) == 2
    assert torch.equal(weights(found), weights(again(tmp_path / "whole")))


def test_a_run_that_diverged_resumes_with_another_rate_and_survives_a_kill(again, tmp_path):
    with pytest.raises(DivergedError):
        again(tmp_path, recipe={"lr": 1e30})
    calmer = {"recipe": {"lr": 0.05}, "allow_drift": ["recipe.lr"]}
    with pytest.raises(StopError):
        again(tmp_path, on_step=stopping_at(7), **calmer)
    assert len(again(tmp_path, **calmer).history) == 3
    assert not (tmp_path / "diverged.json").exists()


def test_drift_that_is_allowed_is_in_the_result_also_after_a_kill(unfinished, again):
    changes = {"lr": 0.1, "average": 0.9}
    other = {"recipe": changes, "allow_drift": ["recipe.lr", "recipe.average"]}
    with pytest.raises(StopError):
        again(unfinished, on_step=stopping_at(11), **other)
    with pytest.raises(ValueError, match=r"was made with recipe\.lr = 0\.05, now 0\.1"):
        again(unfinished, recipe=changes)
    expected = {"recipe.lr": [0.05, 0.1], "recipe.average": [0.0, 0.9]}
    assert again(unfinished, **other).record["drift"] == expected
    assert json.loads((unfinished / "result.json").read_text())["drift"] == expected


class Scaled(Method):
    def __init__(self, factor: float, state: object = 0) -> None:
        self.factor, self.state = factor, [state]

    def loss(self, model, batch):
        return self.factor * losses.cross_entropy(model(batch.inputs), batch.labels)

    def state_dict(self):
        return {"what": self.state}


def test_methods_of_ones_own_and_networks_are_told_apart_by_their_settings(
    again, tmp_path, network, blobs
):
    again(tmp_path, method=Scaled(1.0))
    with pytest.raises(ValueError, match=r"'factor': 1\.0.*'factor': 2\.0"):
        again(tmp_path, method=Scaled(2.0))
    other = torch.nn.Sequential(network(blobs), torch.nn.ReLU())
    with pytest.raises(ValueError, match="was made with network = "):
        again(tmp_path, method=Scaled(1.0), model=other)


def test_a_state_that_could_never_be_read_again_is_refused_at_the_first_save(again, tmp_path):
    with pytest.raises(TypeError, match="the state of a method must be tensors and plain values"):
        again(tmp_path, method=Scaled(1.0, state=Scaled))


def test_a_finished_run_whose_files_were_changed_is_refused_in_one_line(again, tmp_path):
    again(tmp_path)
    result, history = tmp_path / "result.json", tmp_path / "history.jsonl"
    whole = result.read_text()
    edited = json.loads(whole)
    edited["metrics"]["test"]["accuracy"] = 1.0
    for content in ("{}", '{"metrics": {}}', "[]", "{", json.dumps(edited)):
        result.write_text(content)
        with pytest.raises(ValueError, match=r"result\.json is damaged: remove it"):
            again(tmp_path)
    result.write_text(whole)
    history.write_text(history.read_text().replace("0", "1", 1))
    with pytest.raises(ValueError, match=r"history\.jsonl has changed or gone since"):
        again(tmp_path)


def test_a_finished_run_is_read_and_trained_only_for_more_epochs(again, tmp_path, monkeypatch):
    first = again(tmp_path)
    with monkeypatch.context() as patch:
        # Also by another version.
        patch.setattr(folder, "code_digest", lambda names: "another")
        second = again(tmp_path, on_step=lambda loop: pytest.fail("trained"))
    assert torch.equal(weights(first), weights(second))
    assert second.history == first.history
    assert torch.equal(second.test.logits, first.test.logits)
    longer = again(tmp_path, recipe={"epochs": 5}, allow_drift=["recipe.epochs"])
    assert len(longer.history) == 5


CHANGES = {
    "recipe.lr": {"recipe": {"lr": 0.1}},
    "recipe.epochs": {"recipe": {"epochs": 4}},
    "recipe.augmentation.crop": {"recipe": {"augmentation": data.Augmentation(crop=1)}},
    "seed": {"seed": 1},
    "model": {"config": {"model": "another"}},
}


def test_another_run_in_the_folder_is_refused_with_what_differs(
    unfinished, again, method, blobs, network, monkeypatch
):
    for field, change in CHANGES.items():
        with pytest.raises(folder.DriftError, match=f"--allow-drift {field}$") as refused:
            again(unfinished, **change)
        assert list(refused.value.changes) == [field]
    with pytest.raises(ValueError, match=r"nothing of a run is called 'recipe\.rl'"):
        again(unfinished, allow_drift=["recipe.rl"])
    with pytest.raises(ValueError, match="was made with data ="):
        again(unfinished, splits=data.load("blobs", 1, limit=400))
    with pytest.raises(ValueError, match=r"was made with network = .*; first_weights = "):
        again(unfinished, model=network(blobs, hidden=[10]))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    with pytest.raises(ValueError, match=f"was made with threads = {threads}, now {threads + 1}"):
        again(unfinished)
    torch.set_num_threads(threads)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "9.9")
        with pytest.raises(ValueError, match=r"was made with torch = .*now 9\.9"):
            again(unfinished)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "code_digest", lambda names: "9.9")
        with pytest.raises(ValueError, match=r"was made with calibrant = .*now .*9\.9"):
            again(unfinished)
    # A checkpoint says itself what it was made with.
    (unfinished / "config.json").unlink()
    with pytest.raises(ValueError, match="was made with method = cross_entropy, now focal"):
        again(unfinished, method=method(blobs, "focal"))
    state = checkpoint.load(checkpoint.found(unfinished)[0])
    checkpoint.save(unfinished, 10, {**state, "identity": {**state["identity"], "processes": 2}})
    with pytest.raises(ValueError, match="was made with processes = 2, now 1"):
        again(unfinished)


def test_one_process_owns_a_folder_and_sweeps_the_drafts_of_killed_writers_alone(unfinished, again):
    (unfinished / ".0123456789abcdef.tmp.1").write_bytes(b"half")
    (unfinished / ".notes.tmp.bak").write_text("mine")
    with folder.owned(unfinished), pytest.raises(ValueError, match="another process is training"):
        again(unfinished)
    again(unfinished)
    assert [path.name for path in unfinished.glob(".*.tmp.*")] == [".notes.tmp.bak"]


def test_a_full_disk_is_said_with_numbers_and_the_last_checkpoint_is_good(
    unfinished, again, tmp_path
):
    before = checkpoint.load(checkpoint.found(unfinished)[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(DiskFullError, match=r"checkpoint-.*: [\d,]+ bytes needed, [\d,]+ free"):
            again(unfinished, save_every=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    after = checkpoint.load(checkpoint.found(unfinished)[0])
    assert after["loop"]["progress"]["epoch"] == before["loop"]["progress"]["epoch"]
    assert not list(unfinished.glob(".*.tmp.*"))
    assert torch.equal(weights(again(unfinished)), weights(again(tmp_path / "whole")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_saves_it_and_the_same_call_resumes(again, tmp_path, number):
    def send(loop) -> None:
        if loop.step == 7:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(
        InterruptedTrainingError, match="re-run the same command to resume"
    ) as caught:
        again(tmp_path / "parts", on_step=send)
    assert caught.value.number == number
    assert signal.getsignal(number) is before
    assert checkpoint.found(tmp_path / "parts")[0].name == "checkpoint-000000007.pt"
    steps = []
    found = again(tmp_path / "parts", on_step=lambda loop: steps.append(loop.step))
    assert steps[0] == 8
    assert torch.equal(weights(found), weights(again(tmp_path / "whole")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_break_into_a_save(again, tmp_path, monkeypatch, number):
    save = torch.save

    class Told(dict):
        """Whoever writes it is sent a signal in the middle of the archive."""

        def __reduce__(self):
            os.kill(os.getpid(), number)
            return dict, (dict(self),)

    def told(state, file):
        save({**state, "told": Told()}, file)

    def send(loop) -> None:
        if loop.step == 7:
            monkeypatch.setattr(torch, "save", told)
            os.kill(os.getpid(), number)

    with pytest.raises(InterruptedTrainingError) as caught:
        again(tmp_path / "parts", on_step=send)
    assert caught.value.number == number
    monkeypatch.undo()
    assert checkpoint.found(tmp_path / "parts")[0].name == "checkpoint-000000007.pt"
    assert not list((tmp_path / "parts").glob(".*.tmp.*"))


def test_a_second_signal_outside_of_a_save_is_obeyed_and_a_third_is_not():
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.number == signal.SIGTERM
        with pytest.raises(SystemExit, match="143"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    with Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


class SignalsWhenAsked(torch.nn.Module):
    """A network during one of whose evaluations a signal comes."""

    def __init__(self, network: torch.nn.Module, call: int) -> None:
        super().__init__()
        self.network, self.call, self.calls = network, call, 0

    def forward(self, x):
        self.calls += not self.training
        if not self.training and self.calls == self.call:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.network(x)


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5])
def test_a_signal_during_an_evaluation_saves_the_weights_and_not_their_average(
    again, tmp_path, blobs, network, call
):
    # Three evaluations on the way, two at the end, when the weights are those of the best epoch.
    recipe = {"average": 0.9, "stop_on": "nll"}
    whole = again(tmp_path / "whole", recipe=recipe, model=SignalsWhenAsked(network(blobs), 0))
    with pytest.raises(InterruptedTrainingError):
        again(tmp_path / "parts", recipe=recipe, model=SignalsWhenAsked(network(blobs), call))
    parts = again(tmp_path / "parts", recipe=recipe, model=SignalsWhenAsked(network(blobs), 0))
    assert torch.equal(weights(parts), weights(whole))
    assert torch.equal(parts.test.logits, whole.test.logits)


def test_training_outside_the_main_thread_works(again, tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(again(tmp_path)))
    thread.start()
    thread.join()
    assert len(found[0].history) == 3


def test_only_code_that_decides_about_numbers_is_part_of_the_identity(tmp_path):
    root = shutil.copytree(
        folder.ROOT, tmp_path / "calibrant", ignore=shutil.ignore_patterns("*.pyc")
    )
    before = folder.code_digest(folder.DECISIVE, root)
    for name, same in (
        ("report/study_page.py", True),
        ("cli/train.py", True),
        ("study/runner.py", True),
        ("losses/focal.py", False),
        ("predictions.py", False),
    ):
        text = (root / name).read_text()
        (root / name).write_text(text + "# changed")
        folder.code_digest.cache_clear()
        assert (folder.code_digest(folder.DECISIVE, root) == before) == same, name
        (root / name).write_text(text)


def test_whatever_training_imports_is_part_of_the_identity():
    # Reading, writing, hints and warnings do not change a number.
    harmless = {"files", "extras", "scoped_warnings", "setting_errors", "array_names"}
    harmless |= {
        "deprecated",
        "data_folder",
        "advice",
        "prediction_files",
        "progress",
        "table_values",
    }
    # Other kinds of predictions, which no training makes.
    harmless |= {"binary_labels", "choices", "label_matrix", "multi_label", "multi_label_files"}
    # Columns beside predictions.
    harmless |= {"example_columns"}
    names, seen = {"training"}, set()
    while names - seen:
        seen |= (new := names - seen)
        for path in folder.ROOT.rglob("*.py"):
            if path.relative_to(folder.ROOT).parts[0].removesuffix(".py") in new:
                names |= set(re.findall(r"^from calibrant\.(\w+)", path.read_text(), re.MULTILINE))
    assert names - harmless <= set(folder.DECISIVE)
