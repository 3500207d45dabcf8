"""Losses and metrics of a Trainer: the same numbers as ours, also over accumulated batches."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_transformers import VAL, bert, labels_of, logits_of, run, trainer
from torch import nn
from transformers.modeling_outputs import CausalLMOutput, SequenceClassifierOutput

from calibrant import Predictions, metrics
from calibrant.data import Batch
from calibrant.integrations.transformers import compute_loss, compute_metrics
from calibrant.losses import LOSSES
from calibrant.methods import METHODS, build
from calibrant.training.refinement import refined

LEARNS = ("adafocal", "cals_alm", "cals_hr", "gamma_net", "meta_smoothing")
STATELESS = [name for name in METHODS if name not in (*LEARNS, "calmo")]
# Compare tokens with their neighbours, or average over documents.
BY_PLACE = ("nacl", "hard_l1_ace", "soft_l1_ace")
COUNTS = {"logit_adjustment": [9, 3, 1], "balanced_softmax": [9, 3, 1]}


def dense():
    """Logits (n, tokens, k), and labels of which some are to be ignored."""
    logits = 2 * torch.randn(6, 5, 3)
    labels = torch.randint(3, (6, 5))
    labels[0, 2:] = labels[4, 4] = -100
    return logits, labels


@pytest.mark.parametrize("name", STATELESS)
def test_a_loss_is_the_mean_of_our_own_over_valid_tokens(name):
    counts = COUNTS.get(name)
    loss = compute_loss(name, counts=counts)
    logits, labels = dense()
    logits.requires_grad_()
    valid = labels != -100
    method = build(name, classes=3)
    method.counts = None if counts is None else torch.tensor(counts)
    rows, own = logits[valid], labels[valid]
    of_rows = method.loss(nn.Identity(), Batch(rows, own, torch.arange(len(own)))).mean()
    torch.testing.assert_close(loss((rows,), own), of_rows)
    if name in BY_PLACE:
        # Not that of the tokens without their places: that of images of one column.
        method.ignore_index = -100
        image = Batch(logits.movedim(-1, 1)[..., None], labels[..., None], torch.arange(6))
        expected = method.loss(nn.Identity(), image).mean()
        assert (expected - of_rows).abs() > 1e-4
    else:
        expected = of_rows
    for outputs in (SequenceClassifierOutput(logits=logits), {"logits": logits}, (logits,)):
        torch.testing.assert_close(loss(outputs, labels), expected)
    (gradient,) = torch.autograd.grad(loss((logits,), labels), logits)
    assert gradient[~valid].abs().max() == 0
    assert gradient[valid].abs().max() > 0


def test_every_loss_is_offered():
    assert set(LOSSES) <= set(STATELESS)


def test_the_sum_is_divided_by_the_items_of_all_accumulated_batches():
    logits, labels = torch.randn(8, 3), torch.randint(3, (8,))
    total = LOSSES["focal"](logits, labels, gamma=2.0).sum()
    loss = compute_loss("focal", gamma=2.0)
    for items in (32, torch.tensor(32)):
        torch.testing.assert_close(loss((logits,), labels, items), total / 32)
    statistic = compute_loss("mmce")
    parts = [statistic((logits[at],), labels[at]) for at in (slice(2), slice(2, 8))]
    summed = [statistic((logits[at],), labels[at], 8) for at in (slice(2), slice(2, 8))]
    torch.testing.assert_close(sum(summed), parts[0] / 4 + 3 * parts[1] / 4)
    nothing = torch.full((8,), -100)
    for items in (None, torch.tensor(0)):
        assert float(loss((logits,), nothing, items)) == 0


@pytest.mark.parametrize("name", ["focal", "brier", "margin_smoothing"])
def test_two_accumulated_batches_of_eight_train_like_one_of_sixteen(name, tmp_path):
    weights = []
    for size, accumulated in ((16, 1), (8, 2)):
        model = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        # With plain SGD, another scale of the gradient is another step.
        settings |= {"optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0.0}
        run(trainer(tmp_path, model, compute_loss_func=compute_loss(name), **settings))
        weights.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    start = nn.utils.parameters_to_vector(bert().parameters()).detach()
    torch.testing.assert_close(*weights, rtol=0, atol=1e-5)
    assert (weights[0] - start).abs().max() > 1e-2


def test_the_trainer_logs_our_metrics_and_keeps_the_checkpoint_with_the_lowest_nll(tmp_path):
    names = ["accuracy", "nll", "brier", "ece", "debiased_ece", "classwise_ece"]
    trained = trainer(
        tmp_path,
        bert(),
        compute_loss_func=compute_loss("label_smoothing", alpha=0.1),
        compute_metrics=compute_metrics(names),
        metric_for_best_model="nll",
        greater_is_better=False,
        load_best_model_at_end=True,
        save_strategy="epoch",
        num_train_epochs=4,
        learning_rate=0.05,
    )
    run(trained)
    logged = [each["eval_nll"] for each in trained.state.log_history if "eval_nll" in each]
    assert trained.state.best_metric == min(logged) < max(logged)
    found = trained.evaluate()
    predictions = Predictions(logits_of(trained.model, VAL), labels_of(VAL))
    for name in names:
        expected = metrics.METRICS[name](predictions)
        assert found[f"eval_{name}"] == pytest.approx(expected, abs=1e-5), name


def test_metrics_of_tokens_leave_out_padding():
    logits, labels = dense()
    expected = Predictions(logits[labels != -100], labels[labels != -100])
    logits[labels == -100] = -100
    padded = SimpleNamespace(predictions=logits.numpy(), label_ids=labels.numpy())
    assert compute_metrics(["nll"])(padded)["nll"] == pytest.approx(metrics.nll(expected))
    found = compute_metrics(["refined_brier"])(padded)["refined_brier"]
    assert found == pytest.approx(refined(expected, "refined_brier"))
    with_others = SimpleNamespace(predictions=(logits.numpy(), 0), label_ids=labels.numpy())
    assert compute_metrics(["ece"])(with_others)["ece"] == pytest.approx(metrics.ece(expected))


def test_other_problems_are_refused_in_one_line():
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    loss = compute_loss("brier")
    cases = {
        "regression": (torch.randn(4, 1), torch.randn(4)),
        "several labels": (logits, torch.ones(4, 3)),
        "no labels": (logits, None),
        "labels of tokens": (logits, torch.zeros(4, 5, dtype=torch.int64)),
        "one class": (torch.randn(4, 1), labels),
        "masks": (torch.randn(4, 3, 8, 8), torch.zeros(4, 8, 8, dtype=torch.int64)),
    }
    for name, (given, wrong) in cases.items():
        with pytest.raises(ValueError, match="labels") as caught:
            loss((given,), wrong)
        assert "\n" not in str(caught.value), name
    with pytest.raises(ValueError, match="next token"):
        loss(CausalLMOutput(logits=torch.randn(2, 4, 3)), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="must return logits, got dict with start_logits"):
        loss({"start_logits": logits}, labels)
    floats = SimpleNamespace(predictions=np.zeros((4, 1)), label_ids=np.zeros(4))
    with pytest.raises(ValueError, match="regression"):
        compute_metrics()(floats)


def test_wrong_names_and_settings_are_refused_before_training():
    for name, settings, message in (
        ("focl", {}, "did you mean focal"),
        ("focal", {"gama": 1}, "did you mean gamma"),
        ("balanced_softmax", {}, "counts"),
        ("focal", {"adjust": 1.0}, "counts"),
        ("calmo", {}, "runs the network"),
        ("margin_smoothing", {"schedule": "add", "change": 0.1}, "MethodCallback"),
        *((each, {}, f"use MethodCallback\\('{each}'\\)") for each in LEARNS),
    ):
        with pytest.raises(ValueError, match=message):
            compute_loss(name, **settings)
    with pytest.raises(ValueError, match="did you mean ece"):
        compute_metrics(["ecee"])
