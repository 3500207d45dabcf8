"""Loggers: every epoch is in the store once, also after an interruption."""

import json
import os
import re
import signal
import struct
import sys
import time
from pathlib import Path

import pytest

from calibrant.training import InterruptedTrainingError, Recipe, RunLogger, train
from calibrant.training.loggers import parse_logger

RECIPE = Recipe(epochs=4, batch=64, lr=0.05)
pytestmark = [pytest.mark.filterwarnings("ignore:.*noload.*")]


@pytest.fixture
def run(blobs, network, method):
    """Train with loggers, in a folder if one is given."""

    def call(*log, **options):
        return train(network(blobs), method(blobs, "cals_alm"), blobs, RECIPE, log=log, **options)

    return call


def events(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def history_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


class Remembers:
    """A logger of one's own."""

    def __init__(self, fails: int = 0) -> None:
        self.settings, self.steps, self.closed, self.fails = {}, [], 0, fails

    def log_settings(self, settings):
        self.settings = dict(settings)

    def log_metrics(self, metrics, step):
        if self.fails:
            self.fails -= 1
            raise OSError("no route to host")
        self.steps.append((step, metrics))

    def close(self):
        self.closed += 1


def test_an_object_with_three_methods_gets_settings_epochs_and_test_metrics(run):
    logger = Remembers()
    assert isinstance(logger, RunLogger)
    trained = run(logger)
    assert logger.settings["recipe.lr"] == 0.05
    assert [step for step, _ in logger.steps] == [0, 1, 2, 3, 4]
    for row, (_, found) in zip(trained.history, logger.steps[:4], strict=True):
        numbers = {name: each for name, each in row.items() if isinstance(each, float)}
        assert found == numbers
    _, last = logger.steps[-1]
    assert last["test_ece"] == trained.record["metrics"]["test"]["ece"]
    assert logger.closed == 1


def test_what_a_store_missed_is_sent_after_the_next_epoch(run):
    logger = Remembers(fails=2)
    said = r"cannot log to Remembers: OSError: no route to host; \d epochs are not there yet"
    with pytest.warns(UserWarning, match=said) as warned:
        run(logger)
    assert len(warned) == 2
    assert [step for step, _ in logger.steps] == [0, 1, 2, 3, 4]


def test_event_files_hold_every_epoch_and_the_settings(run, tmp_path):
    run(f"tensorboard:{tmp_path / 'events'}", folder=tmp_path / "mine", name="a/b, seed 0")
    (folder,) = (tmp_path / "events").iterdir()
    assert re.fullmatch(r"a-b-seed-0-[0-9a-f]{8}", folder.name)
    found = events(folder)
    for name in ("loss", "val_ece", "multiplier_mean"):
        read = [(each.step, each.value) for each in found.Scalars(name)]
        rows = history_of(tmp_path / "mine")
        assert read == [(row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in rows], name
    assert [each.step for each in found.Scalars("test_ece")] == [4]
    (text,) = found.Tensors("settings/text_summary")
    assert '"recipe.lr": 0.05' in text.tensor_proto.string_val[0].decode()


class KilledError(Exception):
    """Stands for a kill: nothing is saved when it passes."""


def die_after(epochs: int):
    def on_epoch(metrics):
        if metrics["epoch"] == epochs - 1:
            raise KilledError

    return on_epoch


@pytest.mark.filterwarnings("ignore:.*the logger")
def test_epochs_that_are_trained_again_are_in_the_event_files_once(run, tmp_path, monkeypatch):
    # No epoch is saved: after each kill training starts over.
    monkeypatch.setattr("calibrant.training.run.SAVE_LEAST", 1e9)
    log = f"tensorboard:{tmp_path / 'events'}"
    for epochs in (3, 2):
        with pytest.raises(KilledError):
            run(log, folder=tmp_path / "mine", on_epoch=die_after(epochs))
    run(log, folder=tmp_path / "mine")
    (folder,) = (tmp_path / "events").iterdir()
    assert len(list(folder.iterdir())) == 3
    assert [each.step for each in events(folder).Scalars("loss")] == [0, 1, 2, 3]
    assert len(events(folder).Scalars("test_ece")) == 1


def test_a_logger_added_later_gets_the_epochs_before(run, tmp_path):
    with pytest.raises(KilledError):
        run(folder=tmp_path / "mine", on_epoch=die_after(2))
    assert not (tmp_path / "mine" / "log.json").exists()
    logger = Remembers()
    run(logger, folder=tmp_path / "mine")
    assert [step for step, _ in logger.steps] == [0, 1, 2, 3, 4]


def test_a_logger_added_to_a_finished_run_gets_all_of_it_once(run, tmp_path):
    trained, logger = run(folder=tmp_path / "mine"), Remembers()
    run(logger, folder=tmp_path / "mine")
    assert [step for step, _ in logger.steps] == [0, 1, 2, 3, 4]
    assert logger.steps[-1][1]["test_ece"] == trained.record["metrics"]["test"]["ece"]
    assert logger.closed == 1
    for _ in range(2):
        run(f"tensorboard:{tmp_path / 'events'}", folder=tmp_path / "mine")
    (folder,) = (tmp_path / "events").iterdir()
    assert [each.step for each in events(folder).Scalars("loss")] == [0, 1, 2, 3]


def test_a_new_folder_is_a_new_run(run, tmp_path):
    for name in ("one/mine", "two/mine"):
        run(f"tensorboard:{tmp_path / 'events'}", folder=tmp_path / name)
    assert len(list((tmp_path / "events").iterdir())) == 2


def test_wrong_kinds_and_missing_packages_are_one_line(run, monkeypatch):
    for text, said in {
        "tensorbord:x": "no logger 'tensorbord'; did you mean tensorboard?",
        "mlflow": "a logger is KIND:WHERE, here mlflow:URI; got 'mlflow'",
    }.items():
        with pytest.raises(ValueError, match=re.escape(said)):
            run(text)
    for kind in ("tensorboard", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, kind, None)
        said = f"logging to {kind} needs {kind}: pip install 'calibrant[{kind}]'"
        with pytest.raises(ImportError, match=re.escape(said)):
            parse_logger(f"{kind}:x")


def stop_at(step: int):
    def on_step(loop):
        if loop.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step


@pytest.mark.slow
def test_an_mlflow_store_holds_every_epoch_of_an_interrupted_run_once(run, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    log, folder = f"mlflow:sqlite:///{tmp_path}/runs.db", tmp_path / "mine"
    client = MlflowClient(log.removeprefix("mlflow:"))

    def stored():
        experiment = client.get_experiment_by_name("calibrant")
        (only,) = client.search_runs([experiment.experiment_id])
        return only

    with pytest.raises(InterruptedTrainingError):
        run(log, folder=folder, on_step=stop_at(10))
    assert stored().info.status == "FAILED"
    monkeypatch.setattr("calibrant.training.run.SAVE_LEAST", 1e9)
    with pytest.raises(KilledError):
        run(log, folder=folder, on_epoch=die_after(3))
    run(log, folder=folder)
    found = stored()
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "mine"
    assert found.data.params["recipe.lr"] == "0.05"
    for name in ("loss", "val_ece"):
        read = client.get_metric_history(found.info.run_id, name)
        rows = {row["epoch"]: pytest.approx(row[name]) for row in history_of(folder)}
        assert {each.step: each.value for each in read} == rows
        assert len(read) == len(rows) == 4
    assert len(client.get_metric_history(found.info.run_id, "test_ece")) == 1


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_one_line_after_seconds(run, monkeypatch):
    for name in ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"):
        # Both are set by the logger, and are unset again after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    start = time.monotonic()
    said = r"^cannot log to mlflow: ConnectionRefusedError: \[Errno \d+\] Connection refused$"
    with pytest.raises(ConnectionError, match=said):
        run("mlflow:http://127.0.0.1:9")
    assert time.monotonic() - start < 20


def records(path: Path) -> list:
    """Records of an offline run of W&B: chunks in blocks of 32 kB, as in a log of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found, parts = path.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        # Whole, or the last part of one.
        if kind in (1, 4):
            found.append(Record.FromString(parts))
            parts = b""
    return found


@pytest.mark.slow
def test_weights_and_biases_keeps_every_epoch_offline(run, tmp_path, monkeypatch):
    import wandb

    # It keeps the folder and the mode of the first run in a process.
    wandb.teardown()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run("wandb:test", folder=tmp_path / "mine")
    (path,) = tmp_path.rglob("*.wandb")
    losses, names = {}, set()
    for record in records(path):
        names |= {record.run.display_name}
        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        if "loss" in items:
            losses[int(items["epoch"])] = float(items["loss"])
    assert losses == {row["epoch"]: pytest.approx(row["loss"]) for row in history_of(Path("mine"))}
    assert "mine" in names
