"""The loop: equal to one written by hand, repeatable, and true to its recipe."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from two_ranks import masks

from calibrant import losses, metrics
from calibrant.data import Augmentation
from calibrant.methods import METHODS, Method
from calibrant.training import DivergedError, Loop, Recipe, Runtime, predict, train
from calibrant.training.randomness import epoch_order

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.state_dict().values()])


class Recording(Method):
    """Cross entropy that keeps the examples of its batches, and what `before_step` is given."""

    def __init__(self, **attributes) -> None:
        vars(self).update(attributes, batches=[], seen=[])

    def loss(self, model, batch):
        self.batches.append(batch.index)
        return losses.cross_entropy(model(batch.inputs), batch.labels)

    def before_step(self, model, batch, meta, lr):
        self.seen.append((len(self.batches), meta.index.tolist(), lr))

    def after_epoch(self, val):
        return {"taken": float(len(self.batches))}


def test_the_loop_takes_the_steps_of_a_loop_written_by_hand(digits, network, method, quick):
    recipe = replace(quick, schedule="constant", weight_decay=0.0, nesterov=False)
    trained = train(network(digits, "small_cnn"), method(digits), digits, recipe, seed=5)
    model = network(digits, "small_cnn").to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
        order = epoch_order(len(digits.train), seed=5, epoch=epoch)
        for start in range(0, len(order) - 63, 64):
            batch = digits.train.batch(order[start : start + 64])
            inputs = batch.inputs.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            losses.cross_entropy(model(inputs), batch.labels).mean().backward()
            optimizer.step()
    torch.testing.assert_close(weights_of(trained.model), weights_of(model), rtol=0, atol=1e-6)


def test_training_learns(blobs, network, method):
    trained = train(network(blobs), method(blobs), blobs, Recipe(epochs=15, lr=0.05))
    # Most of what the true posterior knows, and far from the accuracy of a guess.
    best = (blobs.test.posterior.argmax(1) == blobs.test.labels).double().mean()
    assert metrics.accuracy(trained.test) > best - 0.05
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
    assert trained.record["metrics"]["test"]["accuracy"] == metrics.accuracy(trained.test)
    probs, last = trained.val.probs.double(), trained.history[-1]
    assert last["val_confidence"] == pytest.approx(probs.max(1).values.mean().item(), rel=1e-6)
    by_hand = torch.special.entr(probs).sum(1).mean().item()
    assert last["val_entropy"] == pytest.approx(by_hand, rel=1e-6)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(blobs, network, method, quick):
    def weights(seed: int) -> torch.Tensor:
        return weights_of(train(network(blobs), method(blobs), blobs, quick, seed=seed).model)

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    # The random state of the caller is left alone.
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_with_every_kind_of_step(blobs, network, method, name):
    for by in ({}, {"sam": 0.05}, {"optimizer": "muon"}):
        recipe = Recipe(epochs=2, batch=64, lr=0.01, clip=2.0, **by)
        trained = train(network(blobs), method(blobs, name), blobs, recipe)
        values = [torch.tensor(value) for epoch in trained.history for value in epoch.values()]
        assert all(value.isfinite().all() for value in values), by


def test_a_constraint_that_never_binds_trains_like_cross_entropy(blobs, network, method, quick):
    slack = train(network(blobs), method(blobs, "cals_alm", margin=1e6), blobs, quick)
    plain = train(network(blobs), method(blobs), blobs, quick)
    torch.testing.assert_close(weights_of(slack.model), weights_of(plain.model), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adamw", "lr": 0.01},
        {"optimizer": "muon", "lr": 0.01},
        {"optimizer": "gd", "lr": 0.3},
        {"sam": 0.05},
        {"average": 0.9},
        {"clip": 0.5},
        {"schedule": "one_cycle"},
        {"schedule": "multi_step", "warmup": 1.0},
        {"precision": "bfloat16"},
        {"precision": "float64"},
        {"stop_on": "ece"},
    ],
    ids=str,
)
def test_every_recipe_trains_and_changes_the_weights(digits, network, method, quick, changes):
    plain = train(network(digits), method(digits), digits, quick)
    recipe = replace(quick, epochs=8 if changes.get("optimizer") == "gd" else 4, **changes)
    untrained = metrics.nll(predict(network(digits), digits.val))
    other = train(network(digits), method(digits), digits, recipe)
    assert other.record["metrics"]["val"]["nll"] < 0.9 * untrained
    assert not torch.equal(weights_of(plain.model).double(), weights_of(other.model).double())


def test_the_gradient_is_clipped_to_the_bound(blobs, network, method, quick):
    # With momentum the optimizer adds to the gradients in their place.
    recipe = replace(quick, clip=1e-3, momentum=0.0, weight_decay=0.0)
    loop = Loop(network(blobs), method(blobs), blobs, recipe, seed=0, runtime=Runtime())
    loop.model.train()
    loop.take_step(torch.arange(64))
    gradient = torch.cat([each.grad.flatten() for each in loop.parameters])
    assert gradient.norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_a_sharpness_aware_step_uses_the_gradient_at_the_worse_place(blobs, network, method, quick):
    recipe = replace(quick, sam=0.3, schedule="constant", momentum=0.0, weight_decay=0.0)
    loop = Loop(network(blobs), method(blobs), blobs, recipe, seed=0, runtime=Runtime())
    batch = blobs.train.batch(torch.arange(64))
    model = network(blobs)

    def gradient() -> list[torch.Tensor]:
        model.zero_grad()
        losses.cross_entropy(model(batch.inputs), batch.labels).mean().backward()
        return [each.grad.clone() for each in model.parameters()]

    first = gradient()
    norm = torch.cat([each.flatten() for each in first]).norm()
    before = [each.detach().clone() for each in model.parameters()]
    with torch.no_grad():
        for each, own in zip(model.parameters(), first, strict=True):
            each.add_(own * 0.3 / norm)
    second = gradient()
    loop.take_step(torch.arange(64))
    for each, old, own in zip(loop.model.parameters(), before, second, strict=True):
        torch.testing.assert_close(each.detach(), old - 0.05 * own, rtol=0, atol=1e-6)


def test_early_stopping_keeps_the_weights_of_the_best_epoch(blobs, network, method):
    # A learning rate that rises for ever: the first epochs are better than the last.
    recipe = Recipe(epochs=12, batch=32, lr=2.0, schedule="constant", stop_on="nll", patience=2)
    trained = train(network(blobs), method(blobs), blobs, recipe)
    values = [row["val_nll"] for row in trained.history]
    best = trained.record["best_epoch"]
    assert best == min(range(len(values)), key=values.__getitem__)
    assert metrics.nll(trained.val) == pytest.approx(values[best], rel=1e-6)
    assert len(values) == min(12, best + 3)


def test_the_averaged_weights_are_those_that_predict(blobs, network, method, quick):
    recipe = replace(quick, average=0.99)
    trained = train(network(blobs), method(blobs), blobs, recipe)
    assert trained.history[-1]["val_nll"] == pytest.approx(metrics.nll(trained.val), rel=1e-6)
    plain = train(network(blobs), method(blobs), blobs, quick)
    start = weights_of(network(blobs))
    # An average over a hundred steps has moved less from the start than the weights themselves.
    assert (weights_of(trained.model) - start).norm() < (weights_of(plain.model) - start).norm()


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_ends_training_at_once(
    blobs, network, quick, bad, tmp_path
):
    class Breaking(Method):
        """Turns bad at its fourth batch."""

        calls = 0

        def loss(self, model, batch):
            self.calls += 1
            each = losses.cross_entropy(model(batch.inputs), batch.labels)
            if self.calls < 4:
                return each
            if bad == "loss":
                return each * float("inf")
            # The root has an infinite slope at zero, and a value that is finite.
            return each + (each - each).sqrt()

    model = network(blobs)
    seen = []
    with pytest.raises(DivergedError, match="at step 3") as caught:
        train(
            model,
            Breaking(),
            blobs,
            quick,
            folder=tmp_path,
            on_step=lambda loop: seen.append(weights_of(loop.model)),
        )
    assert torch.equal(weights_of(model), seen[-1])
    order = epoch_order(len(blobs.train), seed=0, epoch=0)
    assert caught.value.record["examples"] == order[192:256].tolist()
    assert caught.value.record["lr"] > 0
    assert (tmp_path / "diverged.json").exists()
    # The same call says so again instead of training into the same wall.
    with pytest.raises(DivergedError, match="it diverged before"):
        train(network(blobs), Breaking(), blobs, quick, folder=tmp_path)


def test_a_network_whose_logits_are_not_finite_has_diverged(blobs, method, quick):
    class Blind(nn.Linear):
        """Fails only when it is evaluated."""

        def forward(self, x):
            return super().forward(x) * (1 if self.training else torch.inf)

    with pytest.raises(DivergedError):
        train(Blind(blobs.shape[0], blobs.classes), method(blobs), blobs, quick)


def test_a_method_that_needs_held_out_training_data_gets_it_and_val_and_test_stay(
    blobs, network, quick
):
    method = Recording(needs_meta=True)
    trained = train(network(blobs), method, blobs, quick)
    sizes = trained.record["examples"]
    assert sizes["meta"] == pytest.approx(0.1 * len(blobs.train), abs=1)
    assert sizes["meta"] + sizes["train"] == len(blobs.train)
    assert (sizes["val"], sizes["test"]) == (len(blobs.val), len(blobs.test))
    assert len(method.seen) == 3 * (sizes["train"] // 64)
    assert method.seen[0][2] == pytest.approx(0.05)
    # Each pass over the held-out data sees it all, as far as whole batches go.
    assert len(set().union(*(index for _, index, _ in method.seen))) == sizes["meta"]


def test_held_out_batches_come_in_turn_at_the_steps_and_rates_of_the_training(
    blobs, network, quick
):
    recipe = replace(quick, epochs=12, schedule="linear")
    given = blobs.with_meta(0.1, seed=0)
    method = Recording(needs_meta=True, meta_every=3, meta_start=1, meta_batch=9)
    trained = train(network(blobs), method, given, recipe)
    epoch, turn = len(given.train) // 64, len(given.meta) // 9
    assert turn > 1
    assert [row["taken"] for row in trained.history] == [epoch * (1 + each) for each in range(12)]
    steps = [step for step, _, _ in method.seen]
    assert steps == [each for each in range(12 * epoch) if each >= epoch and each % 3 == 0]
    rates = {row["epoch"]: row["lr"] for row in trained.history}
    for step, _, lr in method.seen:
        if step % epoch == epoch - 1:
            assert lr == pytest.approx(rates[step // epoch])
    # No example twice in a turn, and no turn like another.
    batches = {step // 3: index for step, index, _ in method.seen}
    turns = [range(at, at + turn) for at in range(0, max(batches), turn)]
    full = [[batches[each] for each in one] for one in turns if set(one) <= set(batches)]
    whole = [[example for batch in one for example in batch] for one in full]
    assert len(whole) > 2
    assert all(len(set(each)) == len(each) == 9 * turn for each in whole)
    assert len({tuple(each) for each in whole}) == len(whole)


def test_mixed_and_shifted_images_train_and_crops_are_smaller_than_images(
    digits, network, method, quick
):
    recipe = replace(quick, epochs=10, augmentation=Augmentation(crop=1, flip=True, mixup=0.3))
    trained = train(network(digits, "small_cnn"), method(digits), digits, recipe)
    assert trained.record["metrics"]["val"]["accuracy"] > 0.3
    recipe = replace(quick, augmentation=Augmentation(crop=8))
    with pytest.raises(ValueError, match=r"crop must be less than the size of .* \(8, 8\)"):
        train(network(digits, "small_cnn"), method(digits), digits, recipe)


def test_masks_train_and_ignored_pixels_are_not_predicted(network, method):
    splits = masks()
    recipe = Recipe(epochs=3, batch=3, lr=0.05)
    trained = train(network(splits, "unet", width=4), method(splits), splits, recipe)
    # Of the second test image, four of six rows are ignored.
    assert trained.test.groups.bincount().tolist() == [36, 12, 36]


def test_predictions_do_not_depend_on_the_batches_and_leave_the_mode_alone(digits, network):
    model = network(digits, "small_cnn").train()
    model.head.eval()
    found = predict(model, digits.test)
    assert model.training
    assert not model.head.training
    model.eval()
    whole = model(digits.test.batch(torch.arange(len(digits.test))).inputs)
    torch.testing.assert_close(found.logits, whole.detach(), rtol=0, atol=1e-5)
    assert torch.equal(found.labels, digits.test.labels)


def test_every_step_has_a_full_batch_and_another_part_is_left_out_each_epoch(blobs, network):
    method = Recording()
    train(network(blobs), method, blobs, Recipe(epochs=2, batch=100))
    assert [len(index) for index in method.batches] == [100] * 6
    epochs = [set(torch.cat(method.batches[a : a + 3]).tolist()) for a in (0, 3)]
    assert [len(epoch) for epoch in epochs] == [300, 300]
    assert epochs[0] != epochs[1]


def test_the_gradient_of_full_batch_descent_is_that_of_all_data_at_once(
    blobs, network, method, monkeypatch
):
    recipe = Recipe(epochs=2, optimizer="gd", lr=0.1, precision="float64")
    steps = []
    whole = train(
        network(blobs), method(blobs), blobs, recipe, on_step=lambda loop: steps.append(loop.step)
    )
    assert steps == [1, 2]
    monkeypatch.setattr("calibrant.training.loop.PART", 77)

    def trained_sizes(name):
        model, sizes = network(blobs), []

        def watch(module, inputs):
            return sizes.append(len(inputs[0])) if module.training else None

        model.register_forward_pre_hook(watch)
        return train(model, method(blobs, name), blobs, recipe), set(sizes)

    parts, sizes = trained_sizes("cross_entropy")
    assert max(sizes) == 77
    torch.testing.assert_close(weights_of(parts.model), weights_of(whole.model), rtol=0, atol=1e-12)
    # A statistic of the batch needs all of it at once, and gets it.
    term, sizes = trained_sizes("mmce")
    assert sizes == {len(blobs.train)}
    assert not torch.equal(weights_of(term.model), weights_of(whole.model))


def test_the_learning_rate_of_a_loop_is_that_of_the_next_step(blobs, network, method):
    rates = []
    recipe = Recipe(epochs=4, batch=len(blobs.train), lr=0.1, schedule="cosine", warmup=0)

    def watch(loop):
        return rates.append(loop.lr)

    history = train(network(blobs), method(blobs), blobs, recipe, on_step=watch).history
    used = [row["lr"] for row in history]
    assert len(set(used)) == 4
    assert rates == pytest.approx([*used[1:], used[-1]])


def test_stopping_on_a_metric_with_a_sign_looks_for_zero(blobs, network, method):
    recipe = Recipe(epochs=6, batch=64, lr=0.05, stop_on="overconfidence")
    trained = train(network(blobs), method(blobs), blobs, recipe)
    values = [abs(row["val_overconfidence"]) for row in trained.history]
    assert trained.record["best_epoch"] == values.index(min(values))


def test_a_network_that_does_not_return_one_logit_for_each_class_is_refused(
    blobs, method, quick, as_a_user_runs_it
):
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    inputs = blobs.shape[0]
    with pytest.raises(ValueError, match="the network gives 7 logits, the data have 4 classes"):
        train(nn.Linear(inputs, 7), method(blobs), blobs, quick)
    with pytest.raises(TypeError, match="a network must return logits, a tensor; got tuple"):
        train(Pair(inputs, 4), method(blobs), blobs, quick)


def test_the_order_of_an_epoch_depends_on_seed_and_epoch_alone():
    first = epoch_order(10, seed=0, epoch=0)
    assert sorted(first.tolist()) == list(range(10))
    assert torch.equal(first, epoch_order(10, seed=0, epoch=0))
    assert not torch.equal(first, epoch_order(10, seed=0, epoch=1))
    assert not torch.equal(first, epoch_order(10, seed=1, epoch=0))


def test_without_a_learning_rate_the_usual_one_of_the_optimizer_is_taken():
    assert Recipe().lr == 0.1
    assert Recipe(optimizer="muon").lr == 0.003
    assert Recipe(optimizer="adamw", lr=0.5).lr == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "sgdd"}, r"optimizer must be one of \['sgd', .*\], got 'sgdd'"),
        ({"schedule": "x"}, "schedule must be one of"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be at least 0, got -1"),
        ({"lr": float("nan")}, "lr must be at least 0, got nan"),
        ({"average": 1.5}, r"average must lie in \[0, 1\], got 1.5"),
        ({"stop_on": "acc"}, "stop_on must be one of"),
        ({"warmup": 4.0}, "warmup must be at most the 3 epochs"),
        ({"precision": "half"}, "precision must be one of"),
        ({"epochs": 2.5}, r"epochs must be an integer, got 2\.5"),
        ({"batch": "128"}, "batch must be an integer, got '128'"),
        ({"nesterov": "no"}, "nesterov must be true or false, got 'no'"),
        ({"clip": True}, "clip must be a number, got True"),
        ({"decay": float("nan")}, "decay must be at least 0, got nan"),
        ({"milestones": (3,)}, r"milestones must lie in \[0, 1\], got 3"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0, got -1"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1"),
        ({"sam": float("inf")}, "sam must be finite, got inf"),
        ({"epochs": 10**10}, "epochs must be at most 1000000000, got 10000000000$"),
        ({"batch": 10**5000}, "batch must be at most 1000000000, got an integer of 16610 bits$"),
        ({"lr": 10**5000}, r"lr must be at most 1\.797693135e\+308, got an integer of 16610 bits$"),
        ({"patience": "9" * 5000}, r"patience must be an integer, got '9{76}\.\.\.$"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, str) else "-".join(value),
)
def test_a_wrong_recipe_is_refused(quick, changes, message, as_a_user_runs_it):
    with pytest.raises(ValueError, match=message):
        replace(quick, **changes)


def test_the_examples_of_the_page_write_a_run_and_train_a_method(
    blobs, network, quick, tmp_path, monkeypatch, capsys, as_a_user_runs_it
):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in EXAMPLES:
        exec(example, names)  # noqa: S102, our own page
    assert len(names["trained"].history) == 5
    assert (tmp_path / "runs" / "mine" / "result.json").is_file()
    # The logger of the page prints the rate, two epochs and the test data.
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[-4:]] == [
        *("0.05", "0", "1", "2")
    ]
    trained = train(network(blobs), names["Halfway"](), blobs, quick)
    assert trained.history[-1]["loss"] < trained.history[0]["loss"]
