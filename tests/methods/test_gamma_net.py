"""A gamma for each example, learnt on held-out data: what moves, what must not, what it does."""

import math
from copy import deepcopy
from dataclasses import replace
from inspect import signature

import pytest
import torch
from torch import nn

from calibrant import Predictions, data, losses, methods, models
from calibrant.data import Batch
from calibrant.losses import focal
from calibrant.methods.gamma_history import WINDOW, GammaHistory
from calibrant.methods.gamma_inputs import fed
from calibrant.methods.gamma_networks import POSITIVITY, GammaNetwork
from calibrant.methods.heads import look
from calibrant.training import Recipe, train

K, D = 3, 6


def batch_of(n: int, seed: int, width: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, width, generator=generator, dtype=torch.float64)
    labels = (inputs[:, :K] + torch.randn(n, K, generator=generator)).argmax(1)
    return Batch(inputs, labels, torch.arange(n))


class Small(nn.Module):
    """Batch norm, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.body = nn.Sequential(nn.Linear(8, D), nn.BatchNorm1d(D), nn.ReLU())
        self.head = nn.Linear(D, K)
        self.double()
        with torch.no_grad():
            for each in self.parameters():
                each.normal_(generator=generator)

    def forward(self, x):
        return self.head(self.body(x))


def made(**settings) -> methods.GammaNet:
    settings = {"bandwidth": 0.1, "hidden": 7, **settings}
    return methods.build("gamma_net", classes=K, **settings)


def predictions(accuracy: float = 0.5, n: int = 100) -> Predictions:
    labels = torch.arange(n) >= accuracy * n
    return Predictions(torch.tensor([[1.0, 0.0, -1.0]]).repeat(n, 1), labels.long())


def settings_of_maps():
    return [{"positivity": name, "tau": tau} for name in POSITIVITY for tau in (5.0, 0.7)]


@pytest.mark.parametrize("settings", settings_of_maps(), ids=str)
def test_gamma_is_positive_bounded_starts_at_one_and_does_not_mind_the_order(settings):
    for attention in (False, True):
        network = GammaNetwork(D, hidden=16, attention=attention, most=20.0, seed=0, **settings)
        torch.manual_seed(1)
        fed = torch.randn(30, D)
        gamma = network(fed)
        order = torch.randperm(30)
        torch.testing.assert_close(network(fed[order]), gamma[order], rtol=1e-4, atol=1e-5)
        assert (gamma > 0).all()
        bounded = settings["positivity"] in ("sigmoid", "tanh")
        wanted = min(1.0, settings["tau"] / 2) if bounded else 1.0
        assert network(torch.zeros(1, D)).item() == pytest.approx(wanted, rel=0.3)
        assert network(1e4 * fed).max() <= network.top
        assert network.top == (settings["tau"] if bounded else 20.0)


@pytest.mark.parametrize("settings", settings_of_maps(), ids=str)
def test_gamma_stays_above_zero_and_comes_back_from_either_end(settings):
    for away in (-200.0, 0.0, 200.0):
        network = GammaNetwork(D, hidden=16, attention=False, most=6.0, seed=0, **settings)
        torch.nn.init.zeros_(network.last.weight)
        torch.nn.init.constant_(network.last.bias, away)
        gamma = network(torch.ones(4, D))
        assert (gamma > 0).all()
        assert (gamma <= network.top).all()
        (slope,) = torch.autograd.grad(gamma.sum(), network.last.bias)
        # In the middle of "tanh" neither side is the way up.
        assert slope.abs().item() > 1e-7 or (settings["positivity"], away) == ("tanh", 0.0)


def learnt_by(derivative: str, settings: dict) -> list[torch.Tensor]:
    """The gradient that the gamma network was moved with."""
    method, model = made(derivative=derivative, **settings), Small()
    method.counts = torch.tensor([70, 25, 5])
    method.before_step(model, batch_of(12, 0), batch_of(40, 1), 0.5)
    method.loss(model, batch_of(12, 0))
    return [each.grad for each in method.learner[0].parameters()]


@pytest.mark.parametrize(
    "settings", [*settings_of_maps(), {"attention": True}, {"adjust": 1.0}], ids=str
)
def test_both_derivatives_move_the_gamma_network_alike(settings):
    both = [learnt_by(name, settings) for name in ("closed_form", "double_backward")]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)
    assert max(each.abs().max() for each in both[0]) > 1e-6


@pytest.mark.parametrize("objective", ["sece", "dece", "sece+ce", "dece+ce"])
def test_the_gradient_is_that_of_finite_differences_through_a_real_step(objective):
    method, model = made(objective=objective), Small()
    batch, meta, lr = batch_of(12, 0), batch_of(40, 1), 0.5
    method.before_step(model, batch, meta, lr)
    method.loss(model, batch)
    network = method.learner[0]
    gradients = [each.grad.clone() for each in network.parameters()]
    # Back to the weights before the update, at which the gradient was taken.
    network.load_state_dict(method._make(D).state_dict())
    twin = Small()
    features = twin.body(batch.inputs).detach()
    held_out = twin.eval().body(meta.inputs).detach()

    def outcome() -> float:
        head = nn.Linear(D, K, dtype=torch.float64)
        head.load_state_dict(model.head.state_dict())
        each = focal(head(features), batch.labels, gamma=network(features))
        slopes = torch.autograd.grad(each.mean(), list(head.parameters()))
        with torch.no_grad():
            for weight, slope in zip(head.parameters(), slopes, strict=True):
                weight -= lr * slope
            return method.outer(head(held_out), meta.labels).item()

    # What is reported of the first step is its value and the norm of its gradient.
    assert method.tally["objective"] == pytest.approx(outcome(), abs=1e-9)
    norm = torch.cat([each.flatten() for each in gradients]).norm()
    assert method.tally["gradient"] == pytest.approx(norm.item())
    for weight, gradient in zip(network.parameters(), gradients, strict=True):
        at = gradient.abs().flatten().argmax()
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight.view(-1)[at] += sign * 1e-4
            values.append(outcome())
            with torch.no_grad():
                weight.view(-1)[at] -= sign * 1e-4
        slope = (values[0] - values[1]) / 2e-4
        assert gradient.flatten()[at].item() == pytest.approx(slope, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("name", ["sece", "dece"])
def test_beside_cross_entropy_the_calibration_error_has_its_weight(name):
    logits, labels = batch_of(40, 1).inputs[:, :K], batch_of(40, 1).labels
    error = made(objective=name).outer(logits, labels)
    both = made(objective=f"{name}+ce", weight=3.0).outer(logits, labels)
    expected = nn.functional.cross_entropy(logits, labels) + 3 * error
    torch.testing.assert_close(both, expected)


def test_the_real_step_gives_the_gamma_network_no_gradient_and_is_focal():
    method, model, batch = made(), Small(), batch_of(12, 0)
    loss = method.loss(model, batch)
    loss.mean().backward()
    assert all(each.grad is None for each in method.learner[0].parameters())
    twin = Small()
    features = twin.body(batch.inputs)
    gamma = method.gamma(features.detach())
    by_hand = focal(twin.head(features), batch.labels, gamma=gamma)
    torch.testing.assert_close(loss, by_hand)
    by_hand.mean().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_learning_leaves_the_network_its_gradients_and_its_statistics_alone():
    batch, meta = batch_of(12, 0), batch_of(40, 1)
    plain, learning = Small(), Small()
    learning.body[1].eval()
    plain.body[1].eval()
    made().loss(plain, batch)
    method = made()
    method.before_step(learning, batch, meta, 0.5)
    before = [each.clone() for each in learning.state_dict().values()]
    method.loss(learning, batch)
    assert all(map(torch.equal, learning.state_dict().values(), before))
    assert all(each.grad is None for each in learning.parameters())
    assert learning.training
    assert not learning.body[1].training
    # In training mode the statistics move by the training batch alone.
    for each in (plain, learning):
        each.train()
    method.before_step(learning, batch, meta, 0.5)
    method.loss(learning, batch)
    made().loss(plain, batch)
    for one, other in zip(plain.buffers(), learning.buffers(), strict=True):
        assert torch.equal(one, other)


def test_held_out_data_do_not_reach_the_weights():
    splits = data.load("blobs", 0, limit=300).with_meta(0.3, seed=0)
    wrong = replace(splits.meta, labels=(splits.meta.labels + 1) % splits.classes)
    weights = []
    for each in (splits, replace(splits, meta=wrong)):
        model = models.build("mlp", classes=splits.classes, shape=splits.shape, hidden=[8])
        method = methods.build("gamma_net", classes=splits.classes, every=1, meta_lr=0.0)
        train(model, method, each, Recipe(epochs=2, batch=50, lr=0.1))
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    # With a rate above zero they do change gamma, and through it the weights.
    model = models.build("mlp", classes=splits.classes, shape=splits.shape, hidden=[8])
    method = methods.build("gamma_net", classes=splits.classes, every=1, meta_lr=0.1)
    train(model, method, splits, Recipe(epochs=2, batch=50, lr=0.1))
    assert not torch.equal(weights[0]["head.weight"], model.head.weight)


def test_before_its_start_nothing_is_learnt_and_from_then_on_it_is():
    splits = data.load("blobs", 0, limit=300).with_meta(0.3, seed=0)
    steps = {}
    for start in (0, 2):
        model = models.build("mlp", classes=splits.classes, shape=splits.shape, hidden=[8])
        method = methods.build("gamma_net", classes=splits.classes, every=1, start=start)
        rows = train(model, method, splits, Recipe(epochs=3, batch=50, lr=0.1)).history
        steps[start] = ["meta_objective" in row for row in rows]
        assert rows[-1]["gamma_weights"] == 8 * 128 + 128 + 128 + 1
    assert steps == {0: [True] * 3, 2: [False, False, True]}
    late = methods.build("gamma_net", classes=splits.classes, start=3)
    with pytest.raises(ValueError, match="start to learn after 3 epochs, the training has 3"):
        train(model, late, splits, Recipe(epochs=3, batch=50, lr=0.1))


def test_the_gamma_network_moves_first_and_a_second_loss_of_the_step_learns_nothing():
    method, model, batch = made(meta_lr=0.1), Small(), batch_of(12, 0)
    before = method.loss(model, batch).detach()
    method.before_step(model, batch, batch_of(40, 1), 0.5)
    first, second = method.loss(model, batch).detach(), method.loss(model, batch).detach()
    assert not torch.allclose(before, first)
    torch.testing.assert_close(first, second, rtol=1e-12, atol=0)
    assert method.tally["steps"] == 1


def test_learning_makes_an_overconfident_model_better_calibrated_on_held_out_data():
    # Two classes whose features say little and whose head is far too sure.
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0], [-2.0]]))

    def drawn(n: int) -> Batch:
        x = torch.randn(n, 1, generator=generator)
        right = torch.rand(n, generator=generator) < 0.7
        return Batch(x, ((x[:, 0] < 0) == right).long(), torch.arange(n))

    batch, meta = drawn(64), drawn(120)
    method = methods.build("gamma_net", classes=2, bandwidth=0.1, meta_lr=0.01)
    seen = []
    for _ in range(120):
        method.before_step(head, batch, meta, 5.0)
        method.loss(head, batch)
        seen.append(method.tally["objective"])
    steps = torch.tensor([0.0, *seen]).diff()
    assert steps[-1] < 0.9 * steps[0]
    assert head.weight[0].item() == 2.0


def test_what_is_not_finite_does_not_spoil_the_gamma_network():
    method, model, batch, meta = made(), Small(), batch_of(12, 0), batch_of(40, 1)
    method.loss(model, batch)
    before = method.learner[0].first.weight.clone()
    meta.inputs[0] = torch.inf
    method.before_step(model, batch, meta, 0.5)
    assert method.loss(model, batch).isfinite().all()
    assert torch.equal(method.learner[0].first.weight, before)
    # Logits that are not finite give such a loss, and no other error.
    batch.inputs[0] = torch.nan
    assert method.loss(model, batch).isnan().any()


def test_pixels_are_examples_also_while_learning():
    torch.manual_seed(0)
    convolution = nn.Conv2d(4, K, 1, dtype=torch.float64)
    linear = nn.Linear(4, K, dtype=torch.float64)
    linear.weight.data, linear.bias.data = (
        convolution.weight.data[:, :, 0, 0],
        convolution.bias.data,
    )
    inputs, labels = torch.randn(4, 4, 6, 5).double(), torch.randint(K, (4, 6, 5))
    labels[0, :3] = 9

    def learnt(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        method = made(meta_lr=0.1)
        method.ignore_index = 9
        index = torch.arange(2)
        dense = [Batch(inputs[i : i + 2], labels[i : i + 2], index) for i in (0, 2)]
        method.before_step(convolution, dense[0], dense[1], 0.5)
        return method.loss(convolution, dense[0]).detach(), method.learner[0].first.weight.detach()

    flat = []
    for i in (0, 2):
        rows, kept = inputs[i : i + 2].movedim(1, -1).reshape(-1, 4), labels[i : i + 2].flatten()
        flat.append(Batch(rows[kept != 9], kept[kept != 9], torch.arange(int((kept != 9).sum()))))
    method = made(meta_lr=0.1)
    method.before_step(linear, flat[0], flat[1], 0.5)
    expected = method.loss(linear, flat[0]).detach(), method.learner[0].first.weight.detach()
    other = inputs.clone()
    other[0, :, :3] = 100
    for found in (learnt(inputs), learnt(other)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("inputs", ["features", "noise", "random_features", "intermediate"])
def test_what_lies_in_pixels_that_do_not_count_changes_nothing(inputs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 5, 1), nn.Tanh(), nn.Conv2d(5, K, 1)).double()
    images, labels = torch.randn(2, 4, 6, 5).double(), torch.randint(K, (2, 6, 5))
    labels[0, :3] = 9
    found = []
    for fill in (0.0, 100.0):
        method = made(inputs=inputs, meta_lr=0.1)
        method.ignore_index = 9
        batch = Batch(images.clone(), labels, torch.arange(2))
        batch.inputs[0, :, :3] = fill
        method.before_step(model, batch, batch, 0.5)
        found.append((method.loss(model, batch).detach(), method.learner[0].first.weight.detach()))
    torch.testing.assert_close(*found)


def test_a_smaller_layer_is_fed_to_the_pixels_it_lies_under_and_one_without_places_refused():
    model = nn.Sequential(nn.Conv2d(4, 5, 2, stride=2), nn.Upsample(scale_factor=2))
    model.append(nn.Conv2d(5, K, 1))
    images = torch.randn(2, 4, 6, 4)
    seen = look(model, images, inner=model[0])
    expected = model[1](model[0](images)).detach()
    torch.testing.assert_close(fed("intermediate", seen, images, seed=0), expected)
    with pytest.raises(ValueError, match=r"must give \(n, c, ...\) with 4 axes, got \(2, 5\)"):
        fed("intermediate", replace(seen, inner=torch.zeros(2, 5)), images, seed=0)


def test_of_many_pixels_a_tried_step_sees_some_of_every_image(monkeypatch):
    monkeypatch.setattr("calibrant.methods.meta_learning.PIXELS", 10)
    method = made()
    labels = torch.zeros(3, 8, 8, dtype=torch.int64)
    kept = method.kept(Batch(torch.zeros(3, 1, 8, 8), labels, torch.tensor([4, 7, 9])))
    assert (kept.reshape(3, 64).sum(1) >= 3).all()
    assert kept.sum() <= 12
    assert len({tuple(each.nonzero()[:, 0].tolist()) for each in kept.reshape(3, 64)}) == 3


@pytest.mark.parametrize("inputs", ["features", "noise", "random_features", "intermediate"])
def test_what_is_fed_depends_on_the_example_alone(inputs):
    method, model, batch = made(inputs=inputs), Small().eval(), batch_of(12, 0)
    order = torch.randperm(12)
    shuffled = Batch(batch.inputs[order], batch.labels[order], batch.index[order])
    loss = method.loss(model, batch)
    torch.testing.assert_close(method.loss(model, shuffled), loss[order])
    width = {"features": D, "intermediate": D, "noise": 64, "random_features": 64}[inputs]
    assert method.learner[0].first.in_features == width
    method.before_step(model, batch, batch_of(40, 1), 0.5)
    method.loss(model, batch)
    assert method.tally["gradient"] > 0


def test_equal_inputs_have_equal_random_features_but_noise_of_their_own():
    same = Batch(torch.zeros(50, 8).double(), batch_of(50, 0).labels, torch.arange(50))
    for inputs, spread in (("noise", True), ("random_features", False)):
        method = made(inputs=inputs)
        method.loss(Small(), same)
        assert (method.after_epoch(predictions())["gamma_std"] > 1e-3) == spread


def test_a_state_is_taken_up_before_the_first_batch_and_goes_on_alike():
    model, batch, meta = Small(), batch_of(12, 0), batch_of(40, 1)
    one, other = made(attention=True, meta_lr=0.1), made(attention=True, meta_lr=0.1)

    def step(method) -> torch.Tensor:
        method.before_step(model, batch, meta, 0.5)
        return method.loss(model.eval(), batch).detach()

    other.load_state_dict(made(attention=True).state_dict())
    step(one)
    one.after_epoch(predictions())
    step(one)
    torch.rand(3)
    other.load_state_dict({**one.state_dict()})
    assert torch.equal(step(one), step(other))
    assert one.after_epoch(predictions()) == other.after_epoch(predictions())
    other.to(torch.device("cpu"))
    assert torch.equal(step(one), step(other))


def test_a_state_does_not_change_when_training_goes_on():
    method, model, batch = made(meta_lr=0.1), Small(), batch_of(12, 0)

    def step() -> None:
        method.before_step(model, batch, batch_of(40, 1), 0.5)
        method.loss(model, batch)

    step()
    state = method.state_dict()
    before = deepcopy(state)
    step()
    after = method.state_dict()
    for name in ("network", "optimizer", "history"):
        torch.testing.assert_close(state[name], before[name], rtol=0, atol=0)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(after[name], before[name], rtol=0, atol=0)


def test_examples_are_counted_once_a_step_and_only_in_training():
    method, model, batch = made(), Small(), batch_of(12, 0)

    def counted() -> float:
        row = method.after_epoch(predictions())
        return sum(row["count_right"] + row["count_wrong"])

    method.loss(model.eval(), batch)
    assert counted() == 0
    # Sharpness-aware descent asks twice in a step, for the same batch.
    for each in (batch, batch_of(12, 1)):
        method.loss(model.train(), each)
        method.loss(model, each)
    assert counted() == 24
    # The one batch of all the data comes again in the next step, or the next epoch.
    for _ in range(3):
        method.before_step(model, batch, batch, 0.5)
        method.loss(model, batch)
        method.loss(model, batch)
    assert counted() == 36
    method.loss(model, batch)
    assert counted() == 12


def test_the_first_weights_depend_on_the_seed_alone():
    def first(seed: int) -> torch.Tensor:
        method = made(seed=seed)
        method.loss(Small(), batch_of(12, 0))
        return method.learner[0].first.weight.detach()

    state = torch.get_rng_state()
    model = Small()
    torch.set_rng_state(state)
    made().loss(model, batch_of(12, 0))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(9)
    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))


def test_a_state_or_network_of_another_kind_is_refused(as_a_user_runs_it):
    method = made()
    method.loss(Small(), batch_of(12, 0))
    with pytest.raises(ValueError, match="not a state of GammaNet"):
        method.load_state_dict({})
    with pytest.raises(ValueError, match="other settings than these"):
        made(hidden=9).load_state_dict(method.state_dict())
    for other in (
        {"objective": "dece"},
        {"positivity": "tanh"},
        {"tau": 4.0},
        {"most": 3.0},
        {"inputs": "intermediate"},
    ):
        (name,) = other
        with pytest.raises(ValueError, match=f"other settings than these: {name} must be"):
            made(**other).load_state_dict(method.state_dict())
    with pytest.raises(ValueError, match="must be of 3 classes, as the method is; got 2"):
        method.after_epoch(Predictions(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(ValueError, match="made for inputs of width 6, got 8"):
        method.loss(nn.Linear(8, K).double(), batch_of(12, 0))
    bare = nn.Identity()
    logits = Batch(torch.randn(12, K), torch.randint(K, (12,)), torch.arange(12))
    method = made()
    assert method.loss(bare, logits).shape == (12,)
    method.before_step(bare, logits, logits, 0.5)
    with pytest.raises(ValueError, match=r"needs a last linear layer: end the network with nn.Lin"):
        method.loss(bare, logits)


def test_the_label_of_the_larger_part_is_what_a_tried_step_learns_from():
    plain, other = batch_of(12, 0), (batch_of(12, 0).labels + 1) % K
    grads = []
    for share, labels in ((0.3, None), (1.0, other)):
        method, model = made(), Small()
        mixed = replace(
            plain,
            labels=plain.labels if labels is None else labels,
            other_labels=other if labels is None else None,
            share=torch.full((12,), share) if labels is None else None,
        )
        method.before_step(model, mixed, batch_of(40, 1), 0.5)
        method.loss(model, mixed)
        grads.append(method.learner[0].first.weight.grad)
    torch.testing.assert_close(*grads)


def test_the_history_holds_means_spread_and_gamma_by_confidence():
    history = GammaHistory(top=5.0)
    gamma = torch.linspace(1, 3, 201).double()
    right = torch.arange(201) % 2
    history.add(gamma, torch.full((201,), 0.95), right)
    row = history.row(0.1, 0.5, 100)
    assert row["gamma_mean"] == pytest.approx(2)
    assert row["gamma_std"] == pytest.approx(gamma.std(correction=0).item())
    for name, part in (("gamma_q05", 0.05), ("gamma_q50", 0.5), ("gamma_q95", 0.95)):
        assert row[name] == pytest.approx(1 + 2 * part, abs=0.02)
    assert row["count_right"][14] == 100
    assert row["count_wrong"][14] == 101
    assert row["gamma_right"][14] == pytest.approx(gamma[right == 1].mean().item())
    assert sum(row["count_right"][:14]) == 0
    history.add(torch.tensor([2.5]), torch.tensor([0.5]), torch.tensor([1]))
    assert history.row(0.1, 0.5, 100)["gamma_right"][7] == pytest.approx(2.5)
    # The next epoch starts anew.
    assert history.row(0.1, 0.5, 100)["gamma_mean"] == 0


def rows_of(gammas, objectives, accuracies, *, examples=1000, history=None) -> list[dict]:
    history = history or GammaHistory(top=5.0)
    found = []
    for gamma, objective, accuracy in zip(gammas, objectives, accuracies, strict=True):
        history.add(gamma, torch.full((len(gamma),), 0.5), torch.ones(len(gamma)))
        found.append(history.row(objective, accuracy, examples))
    return found


LONG = 2 * WINDOW
SPREAD = [torch.linspace(1, 2, 50)] * LONG
STEADY, GOOD = [0.1] * LONG, [0.6] * LONG


@pytest.mark.parametrize(
    ("sign", "rows"),
    [
        ("gamma_collapsed", ([torch.full((50,), 2.0)] * LONG, STEADY, GOOD)),
        ("gamma_collapsed", ([torch.linspace(4.96, 5, 50)] * LONG, STEADY, GOOD)),
        ("gamma_collapsed", ([torch.zeros(50)] * LONG, STEADY, GOOD)),
        ("gamma_collapsed", ([torch.linspace(8e-5, 1.2e-4, 50)] * LONG, STEADY, GOOD)),
        ("meta_oscillates", (SPREAD, [0.1, 0.2] * WINDOW, GOOD)),
        ("accuracy_fell", (SPREAD, STEADY, [0.6] * WINDOW + [0.5] * WINDOW)),
    ],
)
def test_a_sign_of_failure_is_noted_and_told_once(sign, rows):
    with pytest.warns(UserWarning, match="on average") as caught:
        found = rows_of(*rows)
    assert len(caught) == 1
    assert found[-1][sign] == 1
    assert found[0][sign] == 0


def test_without_a_sign_of_failure_nothing_is_said():
    noisy = [0.6, 0.5] * (LONG // 2)
    found = rows_of(SPREAD, [0.1, 0.11] * WINDOW, noisy)
    assert not any(found[-1][sign] for sign in ("gamma_collapsed", "meta_oscillates"))
    assert found[-1]["accuracy_fell"] == 0
    # An epoch without examples has no gamma that could have collapsed.
    assert rows_of([torch.zeros(0)] * LONG, STEADY, GOOD)[-1]["gamma_collapsed"] == 0


def test_accuracy_has_not_fallen_as_long_as_it_may_be_chance():
    # Of 50 examples, 0.1 is one deviation of the difference; of 1000, more than four.
    fallen = [0.6] * WINDOW + [0.5] * WINDOW
    assert rows_of(SPREAD, STEADY, fallen, examples=50)[-1]["accuracy_fell"] == 0
    with pytest.warns(UserWarning, match="stays clearly below its best"):
        assert rows_of(SPREAD, STEADY, fallen)[-1]["accuracy_fell"] == 1


def test_a_warning_is_not_given_again_when_a_training_goes_on():
    one, other = GammaHistory(top=5.0), GammaHistory(top=5.0)
    with pytest.warns(UserWarning, match="nearly the same for all"):
        rows_of([torch.full((50,), 2.0)] * LONG, STEADY, GOOD, history=one)
    other.load_state_dict(one.state_dict())
    # Warnings are errors here.
    (row,) = rows_of([torch.full((50,), 2.0)], [0.1], [0.6], history=other)
    assert row["gamma_collapsed"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "ece"}, "objective must be one of"),
        ({"positivity": "relu"}, "positivity must be one of"),
        ({"inputs": "logits"}, "inputs must be one of"),
        ({"derivative": "none"}, "derivative must be one of"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"every": 0}, "every must be at least 1"),
        ({"start": -1}, "start must be at least 0"),
        ({"bandwidth": 0.0}, "bandwidth must be positive"),
        ({"meta_lr": -1.0}, "meta_lr must be at least 0"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused(settings, message, as_a_user_runs_it):
    with pytest.raises(ValueError, match=message):
        made(**settings)


# Values that no setting may have, but for a few.
NONSENSE = ("x", None, [1.0], math.nan, True, -1, 2.5)
GOOD_AFTER_ALL = [("layer", "x"), ("meta_batch", None), ("attention", True), ("least", -1)]
KINDS = {name: methods.METHODS[name] for name in ("gamma_net", "meta_smoothing", "adafocal")}


@pytest.mark.parametrize("method", KINDS)
def test_nonsense_is_refused_at_once_and_by_the_name_of_the_setting(method, as_a_user_runs_it):
    defaults = signature(KINDS[method].make).parameters
    for setting in set(KINDS[method].settings) - {"adjust"}:
        for value in NONSENSE:
            is_number = isinstance(defaults[setting].default, float) and value == 2.5
            if is_number or (setting, value) in GOOD_AFTER_ALL:
                continue
            with pytest.raises((TypeError, ValueError), match=f"^{setting} must be") as caught:
                methods.build(method, classes=K, **{setting: value})
            assert "\n" not in str(caught.value)


def test_attention_over_pixels_is_refused(as_a_user_runs_it):
    masks = Batch(torch.randn(2, 4, 3, 3), torch.zeros(2, 3, 3, dtype=torch.int64), torch.arange(2))
    with pytest.raises(ValueError, match="pixels are too many"):
        made(attention=True).loss(nn.Conv2d(4, K, 1), masks)


def test_a_bounded_gamma_near_zero_is_cross_entropy():
    model, batch = Small().eval(), batch_of(12, 0)
    found = made(tau=1e-15).loss(model, batch)
    torch.testing.assert_close(found, losses.cross_entropy(model(batch.inputs), batch.labels))


def test_every_second_step_takes_256_held_out_examples_or_of_masks_as_many_as_a_batch():
    splits = data.load("blobs", 0, limit=300)
    usual = methods.build("gamma_net", classes=splits.classes)
    assert (usual.meta_every, usual._make(D).top) == (2, 5.0)
    assert methods.build("gamma_net", classes=splits.classes, meta_batch=0).meta_batch == 0
    for kind, asked, expected in (("vectors", None, 256), ("masks", None, 0), ("masks", 7, 7)):
        method = methods.build("gamma_net", classes=splits.classes, meta_batch=asked)
        method.prepare(replace(splits, kind=kind), methods.Alone())
        assert method.meta_batch == expected
