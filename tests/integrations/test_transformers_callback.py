"""Methods with state in a Trainer: updated at each evaluation, saved and resumed bit by bit."""

import shutil

import pytest
import torch
from tiny_transformers import (
    TOKENIZER,
    TRAIN,
    VAL,
    bert,
    encoded,
    labels_of,
    logits_of,
    run,
    texts,
    trainer,
)
from torch import nn
from transformers import GPT2Config, GPT2ForSequenceClassification, TrainerCallback, set_seed

from calibrant import Predictions, metrics
from calibrant.data import Batch
from calibrant.integrations.transformers import MethodCallback
from calibrant.methods import CalsAlm, GammaNet, MetaSmoothing

HELD_OUT = encoded(texts(24, 2))
CALS = {"margin": 0.02, "rho_step": 1, "rho_growth": 1.5}
METHODS = {
    "cals_alm": CALS,
    "cals_hr": {"margin": 0.1, "tolerance": 1.001},
    "margin_smoothing": {"schedule": "add", "change": 0.1},
    "adafocal": {},
    "gamma_net": {"held_out": HELD_OUT, "meta_batch": 16, "every": 1, "meta_lr": 0.05},
    "meta_smoothing": {"held_out": HELD_OUT, "every": 1, "meta_lr": 0.05},
}


def make(name, **settings):
    return MethodCallback(name, classes=3, **METHODS[name] | settings)


def given(callback, **changes):
    """What a user passes to the Trainer."""
    return {
        "compute_loss_func": callback.compute_loss,
        "compute_metrics": callback.compute_metrics,
        "callbacks": [callback],
    } | changes


def same(one, other):
    """Whether two states have equal bits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_training_is_the_uninterrupted_one_bit_by_bit(name, tmp_path):
    settings = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 4}
    whole = make(name)
    first = run(trainer(tmp_path / "a", bert(), **given(whole), **settings))
    fresh = make(name).method.state_dict()
    # Elsewhere than it was written, and in the middle of the second epoch.
    shutil.move(tmp_path / "a" / "checkpoint-4", tmp_path / "moved")
    resumed = make(name)
    second = trainer(tmp_path / "b", bert(seed=5), **given(resumed), **settings)
    run(second, resume_from_checkpoint=str(tmp_path / "moved"))
    assert second.state.global_step == 9
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert same(whole.method.state_dict(), resumed.method.state_dict())
    assert not same(whole.method.state_dict(), fresh)


def test_an_evaluation_updates_the_multipliers_on_its_predictions_and_logs_them(tmp_path):
    callback = make("cals_alm")
    trained = run(trainer(tmp_path, bert(), num_train_epochs=1, **given(callback)))
    expected = CalsAlm(3, **CALS)
    learnt = expected.after_epoch(Predictions(logits_of(trained.model, VAL), labels_of(VAL)))
    torch.testing.assert_close(callback.method.multipliers, expected.multipliers)
    assert callback.method.multipliers.max() > 1e-3
    (logged,) = [each for each in trained.state.log_history if "eval_nll" in each]
    assert logged["eval_multiplier_max"] == pytest.approx(learnt["multiplier_max"], rel=1e-5)
    assert logged["eval_constraint_mean"] == pytest.approx(learnt["constraint_mean"], rel=1e-5)
    assert "eval_multipliers" not in logged


def test_only_evaluations_that_the_trainer_plans_update_the_method(tmp_path):
    class Curious(TrainerCallback):
        def on_step_begin(self, args, state, control, **given):
            if state.global_step == 1:
                trained.evaluate()
                trained.predict(VAL)

    callback = make("cals_alm")
    changes = given(callback, callbacks=[callback, Curious()])
    settings = {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}
    # The Trainer evaluates each of several datasets; the first one counts.
    several = {"one": VAL, "other": VAL[:30]}
    trained = trainer(tmp_path, bert(), val=several, **changes, **settings)
    trained.evaluate()
    run(trained)
    trained.evaluate()
    assert trained.state.global_step == 6
    assert callback.method.epoch == 3
    found = metrics.nll(Predictions(logits_of(trained.model, VAL[:30]), labels_of(VAL[:30])))
    assert trained.evaluate()["eval_other_nll"] == pytest.approx(found, abs=1e-5)


def test_another_call_of_train_starts_the_method_anew(tmp_path):
    callback = make("adafocal")
    # The Trainer itself keeps its optimizer, so that one needs no state.
    trained = trainer(tmp_path, bert(), **given(callback), optim="sgd", learning_rate=0.1)
    states = []
    for _ in range(2):
        trained.model.load_state_dict(bert().state_dict())
        set_seed(42)
        run(trained)
        states.append(callback.method.state_dict())
    assert same(*states)


def test_your_own_metrics_are_logged_beside_those_of_the_method(tmp_path):
    callback = make("adafocal", metrics=lambda evaluated: {"rows": float(len(evaluated.label_ids))})
    trained = run(trainer(tmp_path, bert(), **given(callback)))
    logged = [each for each in trained.state.log_history if "eval_rows" in each]
    assert [each["eval_rows"] for each in logged] == [60, 60]
    assert all("eval_gamma_mean" in each and "eval_nll" not in each for each in logged)


class Logits(nn.Module):
    """A Trainer's model as a network of token ids, padded with zeros."""

    def __init__(self, model):
        super().__init__()
        self.model, self.head = model, model.classifier

    def forward(self, ids):
        return self.model(input_ids=ids, attention_mask=(ids != 0).long()).logits


def padded(rows):
    batch = TOKENIZER.pad([{"input_ids": row["input_ids"]} for row in rows], return_tensors="pt")
    return Batch(batch["input_ids"], labels_of(rows), torch.arange(len(rows)))


@pytest.mark.parametrize("kind", [GammaNet, MetaSmoothing])
def test_a_step_with_held_out_data_is_that_of_our_own_loop(kind, tmp_path):
    settings = {"every": 1, "meta_batch": 24, "meta_lr": 0.05}
    name = {GammaNet: "gamma_net", MetaSmoothing: "meta_smoothing"}[kind]
    callback = MethodCallback(name, classes=3, held_out=HELD_OUT, **settings)
    no_noise = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    same_step = {"optim": "sgd", "learning_rate": 0.3, "max_grad_norm": 0.0}
    same_step |= {"lr_scheduler_type": "constant", "max_steps": 1, "eval_strategy": "steps"}
    rows = TRAIN[:16]
    trained = trainer(tmp_path, bert(**no_noise), train=rows, **given(callback), **same_step)
    run(trained)

    method, network = kind(3, **settings), Logits(bert(**no_noise))
    network.train()
    batch = padded(rows)
    method.before_step(network, batch, padded(HELD_OUT), 0.3)
    loss = method.loss(network, batch).mean()
    loss.backward()
    with torch.no_grad():
        for each in network.model.parameters():
            if each.grad is not None:
                each -= 0.3 * each.grad
    models = (trained.model, network.model, bert())
    one, other, start = (nn.utils.parameters_to_vector(m.parameters()) for m in models)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert (one - start).abs().max() > 1e-3
    learnt = [m.optimizer.param_groups[0]["params"] for m in (callback.method, method)]
    for mine, theirs in zip(*learnt, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    assert trained.state.log_history[-1]["train_loss"] == pytest.approx(loss.item(), abs=1e-5)
    found = trained.evaluate()
    assert found["eval_loss"] == pytest.approx(found["eval_nll"], rel=1e-5)


def test_held_out_batches_come_every_few_steps_and_cover_the_data(tmp_path):
    seen = []

    class Watched(list):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    callback = MethodCallback(
        "gamma_net", classes=3, held_out=Watched(HELD_OUT), meta_batch=12, every=2, start=1
    )
    run(trainer(tmp_path, bert(), num_train_epochs=3, **given(callback)))
    # Steps 3 to 8 of nine are after the first epoch; three of them are even.
    assert len(seen) == 3 * 12
    # Two batches are all held-out data.
    assert sorted(seen[:24]) == list(range(24))
    assert not trainer(tmp_path, bert()).model.classifier._forward_hooks


def test_a_training_that_could_not_use_the_method_is_refused(tmp_path):
    def refused(message, callback=None, *, model=None, **changes):
        callback = callback or make("cals_alm")
        trained = trainer(tmp_path, model or bert(), **given(callback) | changes)
        with pytest.raises(ValueError, match=message) as caught:
            run(trained)
        assert "\n" not in str(caught.value)

    refused("compute_loss_func=callback.compute_loss", compute_loss_func=None)
    refused("compute_metrics=callback.compute_metrics", compute_metrics=None)
    refused("to the Trainer: callbacks=.callback.", callbacks=[])
    refused("must be the model's num_labels, 4, got 3", model=bert(num_labels=4))
    refused('set eval_strategy="epoch"', eval_strategy="no")
    refused("leave it False", restore_callback_states_from_checkpoint=True)
    sizes = {"vocab_size": 41, "n_embd": 16, "n_layer": 1, "n_head": 2, "num_labels": 3}
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    gpt = GPT2ForSequenceClassification(GPT2Config(**sizes, **tokens))
    refused("choose another method", make("gamma_net"), model=gpt)


def test_a_callback_of_one_trainer_is_also_passed_to_the_next(tmp_path):
    callback = make("cals_alm")
    run(trainer(tmp_path, bert(), **given(callback), num_train_epochs=1))
    with pytest.raises(ValueError, match="to the Trainer: callbacks="):
        run(trainer(tmp_path, bert(), **given(callback, callbacks=[])))
    assert "eval_nll" in trainer(tmp_path, bert(), **given(callback, callbacks=[])).evaluate()


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    plain = {"save_strategy": "epoch", "num_train_epochs": 1}
    run(trainer(tmp_path / "plain", bert(), **plain))
    run(trainer(tmp_path / "cals", bert(), **given(make("cals_alm")), **plain))
    for folder in ("plain", "cals"):
        resumed = trainer(tmp_path / "new", bert(), **given(make("adafocal")))
        with pytest.raises(ValueError, match="not saved with adafocal"):
            run(resumed, resume_from_checkpoint=str(tmp_path / folder / "checkpoint-3"))


def test_wrong_methods_and_data_are_refused_at_once():
    for name, settings, message in (
        ("calmo", {}, "runs the network"),
        ("gamma_net", {}, "needs held_out"),
        ("cals_alm", {"held_out": HELD_OUT}, "does not use held_out"),
        ("gamma_net", {"held_out": []}, "got none"),
        ("gamma_net", {"held_out": HELD_OUT, "inputs": "noise"}, "only be features"),
        ("cals_alm", {"margn": 1}, "did you mean margin"),
    ):
        with pytest.raises(ValueError, match=message):
            MethodCallback(name, classes=3, **settings)


def test_an_interrupted_training_leaves_nothing_to_the_next_one(tmp_path):
    class Stop(TrainerCallback):
        stop = True

        def on_step_end(self, args, state, control, **given):
            if self.stop and control.should_evaluate:
                raise KeyboardInterrupt

    callback, stop = make("gamma_net"), Stop()
    settings = given(callback, callbacks=[callback, stop])
    trained = trainer(tmp_path, bert(), eval_strategy="steps", eval_steps=3, **settings)
    with pytest.raises(KeyboardInterrupt):
        run(trained)
    stop.stop = False
    run(trained)
    assert len(callback.method.history.objectives) == 2
    assert not trained.model.classifier._forward_hooks
