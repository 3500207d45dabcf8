"""Callbacks of Lightning: the same as calibrant's own loop, resumed and in several processes."""

import re
import subprocess
import sys
from pathlib import Path

import lightning
import lightning_runs as runs
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning_runs import CASES, SPLITS
from torch import nn

from calibrant import Predictions, calibrators, methods, metrics
from calibrant.data import Batch
from calibrant.integrations.lightning import CalibrationCallback, MethodCallback, load_calibrator
from calibrant.integrations.lightning.validation import _bases, are_repeated, read_outputs
from calibrant.training import Loop, Recipe, Runtime
from calibrant.training.refinement import refined

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*GPU available but not used"),
    pytest.mark.usefixtures("as_a_user_runs_it"),
]


def plain() -> methods.Method:
    return methods.build("cross_entropy", classes=SPLITS.classes)


def fit(module, callbacks, *, train=None, val=None, ckpt_path=None, **options):
    trainer = runs.trainer_of(lightning, callbacks, **options)
    train, val = train or runs.train_loader(), runs.val_loader() if val is None else val
    trainer.fit(module, train, val, ckpt_path=ckpt_path)
    return trainer


def loader_of_test_data():
    return torch.utils.data.DataLoader(runs.dataset(SPLITS.test), 64)


def predictions_of(module, split=SPLITS.val) -> Predictions:
    with torch.no_grad():
        return Predictions(module.eval()(split.inputs), split.labels)


class TestCalibrationCallback:
    def test_its_metrics_are_those_of_the_validation_data(self):
        module, callback = runs.module_of(lightning, plain()), CalibrationCallback()
        trainer = fit(module, [callback])
        found = predictions_of(module)
        assert len(callback.predictions) == len(SPLITS.val)
        for name in ("accuracy", "nll", "brier", "ece", "adaptive_ece", "debiased_ece"):
            logged = float(trainer.callback_metrics[f"val_{name}"])
            assert logged == pytest.approx(metrics.METRICS[name](found), abs=1e-6), name
        fitted = calibrators.TemperatureScaling.fit(found).temperature
        assert callback.calibrator.temperature == pytest.approx(fitted, rel=1e-4)

    def test_scores_after_a_cross_fitted_temperature_can_be_monitored(self, tmp_path):
        module = runs.module_of(lightning, plain())
        callback = CalibrationCallback(["nll", "refined_nll"])
        best = ModelCheckpoint(tmp_path, monitor="val_refined_nll")
        trainer = fit(module, [callback, best], enable_checkpointing=True)
        expected = refined(predictions_of(module), "refined_nll")
        logged = float(trainer.callback_metrics["val_refined_nll"])
        assert logged == pytest.approx(expected, abs=1e-6)
        assert float(best.best_model_score) <= logged
        with pytest.raises(ValueError, match="did you mean refined_nll"):
            CalibrationCallback(["refind_nll"])

    def test_the_best_checkpoint_has_the_temperature_of_its_own_weights(self, tmp_path):
        module, callback = runs.module_of(lightning, plain()), CalibrationCallback(["nll"])
        # Gradient ascent: the best epoch is the first.
        module.configure_optimizers = lambda: torch.optim.SGD(
            module.parameters(), lr=0.001, maximize=True
        )
        best = ModelCheckpoint(tmp_path, monitor="val_nll")
        trainer = fit(module, [callback, best], enable_checkpointing=True)
        state = torch.load(best.best_model_path, weights_only=True)
        assert state["global_step"] < trainer.global_step
        module.load_state_dict(state["state_dict"])
        own = calibrators.TemperatureScaling.fit(predictions_of(module))
        loaded = load_calibrator(best.best_model_path)
        assert loaded.temperature == pytest.approx(own.temperature, rel=1e-4)
        assert loaded.origin.examples == len(SPLITS.val)
        assert loaded.temperature != pytest.approx(callback.calibrator.temperature, rel=1e-3)
        calibrators.save(loaded, tmp_path / "cal.json")
        trainer.validate(module, runs.val_loader(), ckpt_path=best.best_model_path, verbose=False)
        assert callback.calibrator.temperature == pytest.approx(own.temperature, rel=1e-4)

    def test_validating_outside_of_training_measures_but_changes_no_temperature(self):
        module, callback = runs.module_of(lightning, plain()), CalibrationCallback(["nll"])
        trainer = fit(module, [callback])
        before, predictions = callback.state_dict(), callback.predictions
        (logged,) = trainer.validate(module, loader_of_test_data(), verbose=False)
        assert logged == {
            "val_nll": pytest.approx(metrics.nll(predictions_of(module, SPLITS.test)), abs=1e-6)
        }
        assert callback.state_dict() == before
        assert callback.predictions is predictions

    def test_test_data_are_measured_before_and_after_the_temperature(self):
        module, callback = runs.module_of(lightning, plain()), CalibrationCallback(["nll"])
        trainer = fit(module, [callback])
        module.test_step = module.validation_step
        before = callback.state_dict()
        (logged,) = trainer.test(module, loader_of_test_data(), verbose=False)
        found = predictions_of(module, SPLITS.test)
        after = found.map(callback.calibrator)
        assert logged == {
            "test_nll": pytest.approx(metrics.nll(found), abs=1e-6),
            "test_calibrated_nll": pytest.approx(metrics.nll(after), abs=1e-6),
        }
        assert callback.state_dict() == before
        module.test_step = lambda batch, batch_idx: None
        with pytest.warns(UserWarning, match="test_step returns no logits and labels"):
            assert trainer.test(module, loader_of_test_data(), verbose=False) == [{}]

    def test_data_of_a_single_class_have_no_temperature_and_end_no_training(self, tmp_path):
        module, callback = runs.module_of(lightning, plain()), CalibrationCallback(["nll"])
        fit(module, [callback], max_epochs=1)
        assert callback.calibrator is not None
        saved = ModelCheckpoint(tmp_path)
        inputs = SPLITS.val.inputs[SPLITS.val.labels == 0]
        zeros = torch.zeros(len(inputs), dtype=torch.long)
        val = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, zeros), 64)
        said = "no temperature of the validation data: cannot fit: labels hold a single class, 0"
        with pytest.warns(UserWarning, match=said) as warned:
            trainer = fit(module, [callback, saved], val=val, enable_checkpointing=True)
        assert sum("no temperature" in str(each.message) for each in warned) == 1
        assert trainer.current_epoch == 3
        assert callback.calibrator is None
        assert "val_nll" in trainer.callback_metrics
        assert "val_temperature" not in trainer.callback_metrics
        with pytest.raises(ValueError, match="has no temperature"):
            load_calibrator(saved.best_model_path)

    def test_several_callbacks_measure_several_loaders_also_those_of_a_subclass(self, tmp_path):
        class Own(CalibrationCallback):
            pass

        module, saved = runs.module_of(lightning, plain()), ModelCheckpoint(tmp_path)
        step = module.validation_step
        module.validation_step = lambda batch, batch_idx, dataloader_idx=0: step(batch, batch_idx)
        one, two = CalibrationCallback(["nll"]), Own(["nll"], prefix="ood_", loader=1)
        val = [runs.val_loader(), loader_of_test_data()]
        trainer = fit(module, [one, two, saved], val=val, enable_checkpointing=True)
        assert [len(one.predictions), len(two.predictions)] == [len(SPLITS.val), len(SPLITS.test)]
        assert {"val_nll", "ood_nll"} <= set(trainer.callback_metrics)
        path = saved.best_model_path
        for each, prefix in ((one, "val_"), (two, "ood_")):
            loaded = load_calibrator(path, prefix=prefix)
            assert loaded.temperature == pytest.approx(each.calibrator.temperature)
        with pytest.raises(ValueError, match=re.escape("pass prefix=..., one of ['val_', 'ood_']")):
            load_calibrator(path)
        with pytest.raises(ValueError, match="has no prefix 'odd_'; did you mean ood_"):
            load_calibrator(path, prefix="odd_")
        alone = ModelCheckpoint(tmp_path / "alone")
        fit(module, [two, alone], val=val, max_epochs=1, enable_checkpointing=True)
        loaded = load_calibrator(alone.best_model_path)
        assert loaded.temperature == pytest.approx(two.calibrator.temperature)
        with pytest.raises(ValueError, match="loader must be below 1, the number of validation"):
            fit(module, [two])

    def test_probabilities_in_place_of_logits_are_said_once(self):
        module = runs.module_of(lightning, plain())
        step = module.validation_step
        module.validation_step = lambda batch, batch_idx: step(batch, batch_idx)["logits"].softmax(
            1
        )
        with pytest.warns(UserWarning, match="logits look like probabilities: each row") as warned:
            fit(module, [CalibrationCallback()])
        assert sum("look like" in str(each.message) for each in warned) == 1

    def test_logits_of_a_wrong_shape_are_refused_with_their_shape(self):
        labels = torch.zeros(4, dtype=torch.long)
        for logits in (torch.zeros(4), torch.zeros(4, 1)):
            said = f"got logits {tuple(logits.shape)} and labels (4,); for log-odds z of class 1"
            with pytest.raises(TypeError, match=re.escape(said)):
                read_outputs({"logits": logits, "labels": labels}, None)

    def test_examples_that_all_processes_have_are_noticed(self):
        logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
        twice = torch.cat([logits, logits]), torch.cat([labels, labels])
        assert are_repeated(*twice, 2)
        assert not are_repeated(*twice, 1)
        assert not are_repeated(*twice, 5)
        assert not are_repeated(logits, labels, 2)

    def test_objects_in_a_checkpoint_are_another_error_than_a_file_of_another_kind(self, tmp_path):
        path = tmp_path / "file.ckpt"
        torch.save({"hyper_parameters": {"method": plain()}}, path)
        with pytest.raises(ValueError, match=re.escape('save_hyperparameters(ignore=["method"])')):
            load_calibrator(path)

    def test_a_checkpoint_between_validations_says_that_its_temperature_is_older(self, tmp_path):
        often = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1)
        module = runs.module_of(lightning, plain())
        fit(module, [CalibrationCallback(), often], enable_checkpointing=True)
        first, *_, last = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        with pytest.raises(ValueError, match=r"has no temperature: give the Trainer"):
            load_calibrator(first)
        with pytest.warns(UserWarning, match=r"is of step \d+, its temperature was fitted after"):
            load_calibrator(last)

    def test_the_sanity_check_does_not_count_but_finds_a_step_that_returns_nothing_usable(self):
        class Looks(lightning.Callback):
            seen = None

            def on_train_start(self, trainer, pl_module):
                self.seen = callback.calibrator, dict(trainer.callback_metrics)

        callback, looks = CalibrationCallback(), Looks()
        fit(runs.module_of(lightning, plain()), [callback, looks], num_sanity_val_steps=2)
        assert looks.seen == (None, {})
        module = runs.module_of(lightning, plain())
        for returned, came in ((None, "NoneType"), ({"loss": 1.0}, "dict with the keys ['loss']")):
            module.validation_step = lambda batch, batch_idx, returned=returned: returned
            expected = f'must return {{"logits": (n, k), "labels": (n,)}}, got {came}; or pass'
            with pytest.raises(TypeError, match=re.escape(expected)):
                fit(module, [CalibrationCallback()], num_sanity_val_steps=1)
        assert module.trainer.global_step == 0

    def test_a_step_may_return_logits_alone_or_what_a_function_reads(self):
        found = []
        for read, step in (
            (None, lambda self, batch: self(batch[0])),
            (lambda out, batch: (out[1], batch[1]), lambda self, batch: (0, self(batch[0]))),
        ):
            module = runs.module_of(lightning, plain())
            module.validation_step = lambda batch, i, step=step, own=module: step(own, batch)
            callback = CalibrationCallback(**({} if read is None else {"read": read}))
            fit(module, [callback], max_epochs=1)
            found.append(callback.predictions.logits)
        torch.testing.assert_close(*found)

    def test_ignored_pixels_do_not_count(self):
        module = runs.module_of(lightning, plain())

        def step(batch, batch_idx):
            logits = module(batch[0])
            labels = torch.stack([batch[1], torch.full_like(batch[1], 255)], 1)
            return {"logits": logits[..., None].expand(-1, -1, 2), "labels": labels}

        module.validation_step = step
        callback = CalibrationCallback(ignore_index=255)
        fit(module, [callback], max_epochs=1)
        torch.testing.assert_close(callback.predictions.logits, predictions_of(module).logits)

    def test_unknown_metrics_and_other_files_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match="no metric 'eec'; did you mean ece"):
            CalibrationCallback(["eec"])
        path = tmp_path / "file.ckpt"
        path.write_bytes(b"no checkpoint")
        with pytest.raises(ValueError, match="is no checkpoint of Lightning"):
            load_calibrator(path)
        fitted = {"classes": 3, "temperature": -1.0, "origin": {"examples": 1, "sha256": ""}}
        damaged = {"own": {"calibrant.prefix": "val_", "calibrator": fitted, "step": 1}}
        for callbacks in ({}, {"own": 1}, damaged):
            torch.save({"callbacks": callbacks, "global_step": 1}, path)
            with pytest.raises(ValueError, match="has no temperature"):
                load_calibrator(path)

    def test_tensorboard_gets_a_diagram_of_every_validation(self, tmp_path):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        logger = TensorBoardLogger(tmp_path)
        fit(runs.module_of(lightning, plain()), [CalibrationCallback()], logger=logger)
        logger.finalize("success")
        found = EventAccumulator(logger.log_dir)
        found.Reload()
        assert len(found.Images("val_reliability")) == 3
        assert len(found.Scalars("val_ece")) == 3


class TestMethodCallback:
    @pytest.mark.parametrize("name", ["cals_alm", "gamma_net"])
    def test_it_trains_as_calibrants_own_loop(self, name):
        found = runs.trained(lightning, name, precision="32-true")
        method = methods.build(name, classes=SPLITS.classes, **CASES[name])
        recipe = Recipe(epochs=3, batch=50, lr=0.05, schedule="constant", weight_decay=0)
        loop = Loop(runs.network(), method, SPLITS, recipe, seed=0, runtime=Runtime("cpu"))
        loop.run()
        torch.testing.assert_close(found["weights"], runs.weights(loop.model), rtol=0, atol=1e-5)
        history = loop.progress.history[-1]
        assert found["logged"]["val_nll"] == pytest.approx(history["val_nll"], rel=1e-4)
        own = "multiplier_mean" if name == "cals_alm" else "meta_objective"
        assert found["logged"][own] == pytest.approx(history[own], rel=1e-3)

    @pytest.mark.filterwarnings("ignore:The dirpath has changed")
    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize(
        ("step", "saving"), [(10, {"every_n_epochs": 1}), (13, {"every_n_train_steps": 13})]
    )
    def test_a_resumed_training_ends_with_the_same_bits(self, name, step, saving, tmp_path):
        """Step 10 ends an epoch, step 13 is in the middle of one."""
        ends = []
        for part in ("whole", "resumed"):
            method = methods.build(name, classes=SPLITS.classes, **CASES[name])
            module = runs.module_of(lightning, method)
            saved = ModelCheckpoint(tmp_path / part, filename="{step}", save_top_k=-1, **saving)
            fit(
                module,
                [runs.callback_of(method), saved],
                enable_checkpointing=True,
                ckpt_path=tmp_path / "whole" / f"step={step}.ckpt" if part == "resumed" else None,
            )
            ends.append({"weights": runs.weights(module), "method": method.state_dict()})
        assert same(*ends), ends

    @pytest.mark.filterwarnings("ignore:Be aware that when using")
    def test_a_checkpoint_without_its_state_is_said(self, tmp_path):
        method = methods.build("cals_alm", classes=SPLITS.classes)
        module, saved = runs.module_of(lightning, method), ModelCheckpoint(tmp_path)
        fit(module, [saved], max_epochs=1, enable_checkpointing=True)
        with pytest.warns(UserWarning, match="has no state of this MethodCallback: the method sta"):
            fit(module, [MethodCallback(method)], max_epochs=2, ckpt_path=saved.best_model_path)

    def test_accumulated_gradients_equal_those_of_a_large_batch(self):
        found = []
        for batch, parts in ((50, 1), (25, 2)):
            method = methods.build("cals_alm", classes=SPLITS.classes, margin=1.0)
            module = runs.module_of(lightning, method)
            fit(
                module,
                [runs.callback_of(method)],
                train=runs.train_loader(batch),
                accumulate_grad_batches=parts,
                precision="64-true",
                limit_train_batches=5 * parts,
                max_epochs=2,
            )
            found.append(runs.weights(module))
        torch.testing.assert_close(*found, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("name", CASES)
    def test_mixed_precision_computes_losses_and_state_in_full_precision(self, name):
        method = methods.build(name, classes=SPLITS.classes, **CASES[name])
        module, seen = runs.module_of(lightning, method), []
        step = module.training_step

        def watched(batch, batch_idx):
            seen.append((module(batch[0]).dtype, step(batch, batch_idx)))
            return seen[-1][1]

        module.training_step = watched
        fit(module, [runs.callback_of(method)], precision="bf16-mixed", max_epochs=1)
        assert {kind for kind, _ in seen} == {torch.bfloat16}
        assert {loss.dtype for _, loss in seen} == {torch.float32}
        full = methods.build(name, classes=SPLITS.classes, **CASES[name])
        exact = runs.module_of(lightning, full)
        fit(exact, [runs.callback_of(full)], max_epochs=1)
        torch.testing.assert_close(runs.weights(module), runs.weights(exact), rtol=0, atol=0.02)

    def test_the_learning_rate_is_that_of_the_last_layer(self):
        from calibrant.integrations.lightning.method import learning_rate

        model = runs.network()
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
        assert learning_rate([torch.optim.SGD(groups, lr=0.3)], model) == 0.3
        assert learning_rate([torch.optim.SGD(model[0].parameters(), lr=0.2)], nn.ReLU()) == 0.2

    def test_what_is_missing_is_said_before_training(self):
        gamma, alm = (methods.build(name, classes=3) for name in ("gamma_net", "cals_alm"))
        with pytest.raises(ValueError, match="learns on held-out data: pass held_out="):
            MethodCallback(gamma)
        with pytest.raises(ValueError, match="learns nothing on held-out data: leave out held_out"):
            MethodCallback(alm, held_out=runs.dataset(SPLITS.meta))
        with pytest.raises(ValueError, match="a dataset with a length, of at least 1 example"):
            MethodCallback(gamma, held_out=iter([]))
        module = runs.module_of(lightning, alm)
        with pytest.raises(ValueError, match="learns from validation predictions: pass a valid"):
            fit(module, [MethodCallback(alm)], limit_val_batches=0)
        late = methods.build("gamma_net", classes=SPLITS.classes, start=3)
        with pytest.raises(ValueError, match="would start to learn after 3 epochs, the run has 3"):
            fit(runs.module_of(lightning, late), [runs.callback_of(late)])

    def test_validating_outside_of_training_changes_no_state(self):
        method = methods.build("cals_alm", classes=SPLITS.classes)
        module = runs.module_of(lightning, method)
        trainer = fit(module, [runs.callback_of(method)], max_epochs=1)
        epoch = method.epoch
        trainer.validate(module, runs.val_loader(), verbose=False)
        assert epoch == method.epoch == 1

    def test_batches_that_are_no_pairs_need_a_function(self):
        method = methods.build("gamma_net", classes=SPLITS.classes, **CASES["gamma_net"])
        module = runs.module_of(lightning, method)
        pairs = runs.dataset(SPLITS.train)
        rows = [{"inputs": inputs, "labels": labels} for inputs, labels in pairs]
        train = torch.utils.data.DataLoader(rows, 50)
        module.training_step = lambda batch, batch_idx: method.loss(module, of_rows(batch)).mean()

        def of_rows(batch):
            return Batch.of(batch["inputs"], batch["labels"])

        held_out = torch.utils.data.DataLoader(rows[:90], 30)
        with pytest.raises(TypeError, match="must be a pair of inputs and labels, got dict; or"):
            fit(module, [MethodCallback(method, held_out=held_out)], train=train)
        fit(module, [MethodCallback(method, held_out=held_out, read_batch=of_rows)], train=train)
        assert method.means["meta_objective"] > 0


def same(one, other) -> bool:
    """Whether nested values are equal, tensors bit by bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_without_either_package_the_error_says_what_to_install(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    said = "calibrant.integrations.lightning needs lightning: pip install 'calibrant[lightning]'"
    with pytest.raises(ImportError, match=re.escape(said)):
        _bases()


@pytest.mark.slow
class TestSlowly:
    def test_two_processes_train_as_one_and_count_no_example_twice(self, tmp_path):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", runs.__file__, "lightning", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        two = torch.load(tmp_path / "two.pt", weights_only=True)
        assert len(SPLITS.val) % 2 == 1
        for name, found in two.items():
            one = runs.trained(lightning, name, precision="64-true")
            torch.testing.assert_close(found["weights"], one["weights"], rtol=0, atol=1e-9)
            assert found["examples"] == one["examples"] == len(SPLITS.val)
            assert found["logged"] == pytest.approx(one["logged"], rel=1e-5), name
            if name == "cals_alm":
                torch.testing.assert_close(found["state"], one["state"], rtol=0, atol=1e-9)

    def test_either_package_will_do(self, tmp_path):
        code = (
            "import sys, warnings; warnings.simplefilter('ignore')\n"
            "sys.modules['lightning'] = None\n"
            "import lightning_runs as runs, pytorch_lightning as package\n"
            "found = runs.trained(package, 'cals_alm', precision='32-true')\n"
            "print(found['logged']['val_nll'])\n"
            "assert runs.CalibrationCallback.__mro__[2] is package.Callback\n"
        )
        folder = Path(runs.__file__).parent
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=120
        )
        assert done.returncode == 0, done.stderr[-3000:]
        own = runs.trained(lightning, "cals_alm", precision="32-true")["logged"]["val_nll"]
        assert float(done.stdout.split()[-1]) == pytest.approx(own, rel=1e-6)

    def test_one_class_serves_both_packages_in_one_program(self):
        import pytorch_lightning

        class Both(*_bases()):
            pass

        assert issubclass(Both, lightning.Callback)
        assert issubclass(Both, pytorch_lightning.Callback)
        assert Both().state_dict() == {}

    @pytest.mark.filterwarnings("ignore:.*noload.*")
    def test_mlflow_gets_metrics_and_diagrams(self, tmp_path, monkeypatch):
        from mlflow import MlflowClient

        monkeypatch.chdir(tmp_path)
        uri = f"sqlite:///{tmp_path}/runs.db"
        logger = MLFlowLogger("test", tracking_uri=uri)
        fit(runs.module_of(lightning, plain()), [CalibrationCallback()], logger=logger)
        client = MlflowClient(uri)
        assert len(client.get_metric_history(logger.run_id, "val_ece")) == 3
        assert len(client.list_artifacts(logger.run_id, "val_reliability")) == 3

    def test_weights_and_biases_gets_diagrams(self, tmp_path, monkeypatch):
        import wandb

        # It keeps the folder and the mode of the first run in a process.
        wandb.teardown()
        monkeypatch.setenv("WANDB_MODE", "offline")
        logger = WandbLogger("test", save_dir=tmp_path)
        fit(runs.module_of(lightning, plain()), [CalibrationCallback()], logger=logger)
        logger.experiment.finish()
        assert len(list(tmp_path.rglob("val_reliability*.png"))) == 3
