"""Gamma-net: its gradient, side effects, inputs, state, history and settings."""

from dataclasses import replace

import pytest
import torch
from meta_batches import K, batch_of
from torch import nn

from calibrant import Predictions, data, methods, models
from calibrant.data import Batch
from calibrant.losses import focal
from calibrant.methods.gamma_history import WINDOW, GammaHistory
from calibrant.methods.gamma_networks import POSITIVITY, GammaNetwork, gamma_inputs, noise
from calibrant.methods.heads import forward_with_features
from calibrant.training import Recipe, train

D = 6


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
def test_gamma_is_positive_bounded_starts_at_one_and_is_equivariant(settings):
    for attention in (False, True):
        network = GammaNetwork(D, hidden=16, attention=attention, most=20.0, seed=0, **settings)
        torch.manual_seed(1)
        inputs = torch.randn(30, D)
        gamma = network(inputs)
        order = torch.randperm(30)
        torch.testing.assert_close(network(inputs[order]), gamma[order], rtol=1e-4, atol=1e-5)
        assert (gamma > 0).all()
        bounded = settings["positivity"] in ("sigmoid", "tanh")
        start = min(1.0, settings["tau"] / 2) if bounded else 1.0
        assert network(torch.zeros(1, D)).item() == pytest.approx(start, rel=0.3)
        assert network(1e4 * inputs).max() <= network.top
        assert network.top == (settings["tau"] if bounded else 20.0)
    # At the ends of its range gamma is positive and has a gradient.
    for bias in (-200.0, 0.0, 200.0):
        network = GammaNetwork(D, hidden=16, attention=False, most=6.0, seed=0, **settings)
        torch.nn.init.zeros_(network.last.weight)
        torch.nn.init.constant_(network.last.bias, bias)
        gamma = network(torch.ones(4, D))
        assert (gamma > 0).all()
        assert (gamma <= network.top).all()
        (gradient,) = torch.autograd.grad(gamma.sum(), network.last.bias)
        # "tanh" has a minimum in the middle.
        assert gradient.abs().item() > 1e-7 or (settings["positivity"], bias) == ("tanh", 0.0)


def learnt_by(derivative: str, settings: dict) -> list[torch.Tensor]:
    """The gradient of the gamma network's update."""
    method, model = made(derivative=derivative, **settings), Small()
    method.counts = torch.tensor([70, 25, 5])
    method.before_step(model, batch_of(12, 0), batch_of(40, 1), 0.5)
    method.loss(model, batch_of(12, 0))
    return [each.grad for each in method.network.parameters()]


@pytest.mark.parametrize(
    "settings", [*settings_of_maps(), {"attention": True}, {"adjust": 1.0}], ids=str
)
def test_both_derivatives_give_the_gamma_network_the_same_gradient(settings):
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
    network = method.network
    gradients = [each.grad.clone() for each in network.parameters()]
    # Back to the weights before the update, where the gradient was computed.
    network.load_state_dict(method._make(D).state_dict())
    twin = Small()
    features = twin.body(batch.inputs).detach()
    held_out = twin.eval().body(meta.inputs).detach()

    def outcome() -> float:
        head = nn.Linear(D, K, dtype=torch.float64)
        head.load_state_dict(model.head.state_dict())
        each = focal(head(features), batch.labels, gamma=network(features))
        steps = torch.autograd.grad(each.mean(), list(head.parameters()))
        with torch.no_grad():
            for weight, step in zip(head.parameters(), steps, strict=True):
                weight -= lr * step
            return method.held_out_objective(head(held_out), meta.labels).item()

    # The record of the first step has its value and the norm of its gradient.
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
        difference = (values[0] - values[1]) / 2e-4
        assert gradient.flatten()[at].item() == pytest.approx(difference, rel=1e-3, abs=1e-9)
    # Added to cross entropy, the calibration error has its weight.
    logits, name = meta.inputs[:, :K], objective.removesuffix("+ce")
    error = made(objective=name).held_out_objective(logits, meta.labels)
    both = made(objective=f"{name}+ce", weight=3.0).held_out_objective(logits, meta.labels)
    expected = nn.functional.cross_entropy(logits, meta.labels) + 3 * error
    torch.testing.assert_close(both, expected)


def test_the_training_step_is_focal_loss_without_gradient_in_gamma():
    method, model, batch = made(), Small(), batch_of(12, 0)
    loss = method.loss(model, batch)
    loss.mean().backward()
    assert all(each.grad is None for each in method.network.parameters())
    twin = Small()
    features = twin.body(batch.inputs)
    gamma = method.gamma(features.detach())
    by_hand = focal(twin.head(features), batch.labels, gamma=gamma)
    torch.testing.assert_close(loss, by_hand)
    by_hand.mean().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_learning_gamma_does_not_change_the_network():
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
    # In training mode only the training batch updates batch norm.
    for each in (plain, learning):
        each.train()
    method.before_step(learning, batch, meta, 0.5)
    method.loss(learning, batch)
    made().loss(plain, batch)
    for one, other in zip(plain.buffers(), learning.buffers(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["gamma_net", "meta_smoothing"])
def test_held_out_data_update_weights_and_batch_norm_only_through_what_is_learnt(name):
    splits = data.load("digits", 0, limit=200).with_meta(0.3, seed=0)
    wrong = replace(splits.meta, labels=(splits.meta.labels + 1) % splits.classes)

    def trained(splits, meta_lr: float) -> dict:
        model = models.build("small_cnn", classes=10, shape=splits.shape, width=0.1)
        method = methods.build(name, classes=10, every=1, meta_lr=meta_lr)
        train(model, method, splits, Recipe(epochs=1, batch=50, lr=0.1))
        return model.state_dict()

    expected = trained(splits, 0.0)
    found = trained(replace(splits, meta=wrong), 0.0)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert not torch.equal(trained(splits, 0.1)["head.weight"], expected["head.weight"])


def test_gamma_is_learnt_from_its_start_epoch_on():
    splits = data.load("blobs", 0, limit=300).with_meta(0.3, seed=0)
    steps = {}
    for start in (0, 2):
        model = models.build("mlp", classes=splits.classes, shape=splits.shape, hidden=[8])
        method = methods.build("gamma_net", classes=splits.classes, every=1, start=start)
        history = train(model, method, splits, Recipe(epochs=3, batch=50, lr=0.1)).history
        steps[start] = ["meta_objective" in record for record in history]
        assert history[-1]["gamma_weights"] == 8 * 128 + 128 + 128 + 1
    assert steps == {0: [True] * 3, 2: [False, False, True]}
    late = methods.build("gamma_net", classes=splits.classes, start=3)
    with pytest.raises(ValueError, match="start to learn after 3 epochs, the run has 3"):
        train(model, late, splits, Recipe(epochs=3, batch=50, lr=0.1))


def test_the_gamma_network_is_updated_first_and_once_per_step():
    method, model, batch = made(meta_lr=0.1), Small(), batch_of(12, 0)
    before = method.loss(model, batch).detach()
    method.before_step(model, batch, batch_of(40, 1), 0.5)
    first, second = method.loss(model, batch).detach(), method.loss(model, batch).detach()
    assert not torch.allclose(before, first)
    torch.testing.assert_close(first, second, rtol=1e-12, atol=0)
    assert method.tally["steps"] == 1


def test_non_finite_values_do_not_update_the_gamma_network():
    method, model, batch, meta = made(), Small(), batch_of(12, 0), batch_of(40, 1)
    method.loss(model, batch)
    before = method.network.first.weight.clone()
    meta.inputs[0] = torch.inf
    method.before_step(model, batch, meta, 0.5)
    assert method.loss(model, batch).isfinite().all()
    assert torch.equal(method.network.first.weight, before)
    # Non-finite logits give a non-finite loss without an error.
    batch.inputs[0] = torch.nan
    assert method.loss(model, batch).isnan().any()


def test_pixels_are_examples_also_while_learning():
    torch.manual_seed(0)
    convolution = nn.Conv2d(4, K, 1, dtype=torch.float64)
    linear = nn.Linear(4, K, dtype=torch.float64)
    linear.load_state_dict({key: w.squeeze() for key, w in convolution.state_dict().items()})
    inputs, labels = torch.randn(4, 4, 6, 5).double(), torch.randint(K, (4, 6, 5))
    labels[0, :3] = 9

    dense, flat = [], []
    for i in (0, 2):
        images, masks = inputs[i : i + 2], labels[i : i + 2]
        dense.append(Batch(images, masks, torch.arange(2)))
        pixels, own = images.movedim(1, -1)[masks != 9], masks[masks != 9]
        flat.append(Batch(pixels, own, torch.arange(len(own))))

    def learnt(model: nn.Module, batch: Batch, meta: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        method = made(meta_lr=0.1)
        method.ignore_index = 9
        method.before_step(model, batch, meta, 0.5)
        return method.loss(model, batch).detach(), method.network.first.weight.detach()

    torch.testing.assert_close(learnt(convolution, *dense), learnt(linear, *flat))


@pytest.mark.parametrize("inputs", ["features", "noise", "random_features", "intermediate"])
def test_ignored_pixels_change_nothing(inputs):
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
        found.append((method.loss(model, batch).detach(), method.network.first.weight.detach()))
    torch.testing.assert_close(*found)


def test_a_smaller_intermediate_layer_is_interpolated_and_one_without_positions_raises():
    model = nn.Sequential(nn.Conv2d(4, 5, 2, stride=2), nn.Upsample(scale_factor=2))
    model.append(nn.Conv2d(5, K, 1))
    images = torch.randn(2, 4, 6, 4)
    forward = forward_with_features(model, images, inner=model[0])
    expected = model[1](model[0](images)).detach()
    torch.testing.assert_close(gamma_inputs("intermediate", forward, images, seed=0), expected)
    with pytest.raises(ValueError, match=r"must return \(n, c, ...\) with 4 axes .*, got \(2, 5\)"):
        gamma_inputs("intermediate", replace(forward, inner=torch.zeros(2, 5)), images, seed=0)


def test_a_lookahead_step_uses_some_pixels_of_every_image(monkeypatch):
    monkeypatch.setattr("calibrant.methods.meta_learning.PIXELS", 10)
    method = made()
    labels = torch.zeros(3, 8, 8, dtype=torch.int64)
    some = method.subsample(Batch(torch.zeros(3, 1, 8, 8), labels, torch.tensor([4, 7, 9])))
    assert (some.reshape(3, 64).sum(1) >= 3).all()
    assert some.sum() <= 12
    assert len({tuple(each.nonzero()[:, 0].tolist()) for each in some.reshape(3, 64)}) == 3


@pytest.mark.parametrize("inputs", ["features", "noise", "random_features", "intermediate"])
def test_inputs_of_the_gamma_network_depend_on_the_example_alone(inputs):
    method, model, batch = made(inputs=inputs), Small().eval(), batch_of(12, 0)
    order = torch.randperm(12)
    shuffled = Batch(batch.inputs[order], batch.labels[order], batch.index[order])
    loss = method.loss(model, batch)
    torch.testing.assert_close(method.loss(model, shuffled), loss[order])
    width = {"features": D, "intermediate": D, "noise": 64, "random_features": 64}[inputs]
    assert method.network.first.in_features == width
    method.before_step(model, batch, batch_of(40, 1), 0.5)
    method.loss(model, batch)
    assert method.tally["gradient"] > 0
    # Equal inputs have equal features, but different noise.
    same = Batch(torch.zeros(50, 8).double(), batch_of(50, 0).labels, torch.arange(50))
    method = made(inputs=inputs)
    method.loss(Small(), same)
    assert (method.after_epoch(predictions())["gamma_std"] > 1e-3) == (inputs == "noise")


def test_examples_are_counted_once_per_step_and_only_in_training_mode():
    method, model, batch = made(), Small(), batch_of(12, 0)

    def counted() -> float:
        record = method.after_epoch(predictions())
        return sum(record["count_right"] + record["count_wrong"])

    method.loss(model.eval(), batch)
    assert counted() == 0
    # SAM computes the loss twice per step, for the same batch.
    for each in (batch, batch_of(12, 1)):
        method.loss(model.train(), each)
        method.loss(model, each)
    assert counted() == 24
    # A batch of all data repeats in the next step, or the next epoch.
    for _ in range(3):
        method.before_step(model, batch, batch, 0.5)
        method.loss(model, batch)
        method.loss(model, batch)
    assert counted() == 36
    method.loss(model, batch)
    assert counted() == 12


def test_the_initial_weights_depend_on_the_seed_alone():
    def first(seed: int) -> torch.Tensor:
        method = made(seed=seed)
        method.loss(Small(), batch_of(12, 0))
        return method.network.first.weight.detach()

    state = torch.get_rng_state()
    model = Small()
    torch.set_rng_state(state)
    made().loss(model, batch_of(12, 0))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(9)
    assert torch.equal(first(0), first(0))
    assert not torch.equal(first(0), first(1))


def test_states_and_networks_of_another_kind_raise(as_a_user_runs_it):
    method = made()
    method.loss(Small(), batch_of(12, 0))
    with pytest.raises(ValueError, match="other settings than the method"):
        made(hidden=9).load_state_dict(method.state_dict())
    others = {"objective": "dece", "positivity": "tanh", "tau": 4.0, "most": 3.0}
    for name, value in {**others, "inputs": "intermediate"}.items():
        with pytest.raises(ValueError, match=f"other settings than the method: {name} must be"):
            made(**{name: value}).load_state_dict(method.state_dict())
    with pytest.raises(ValueError, match="made for inputs of width 6, got 8"):
        method.loss(nn.Linear(8, K).double(), batch_of(12, 0))
    bare = nn.Identity()
    logits = Batch(torch.randn(12, K), torch.randint(K, (12,)), torch.arange(12))
    method = made()
    assert method.loss(bare, logits).shape == (12,)
    method.before_step(bare, logits, logits, 0.5)
    with pytest.raises(ValueError, match=r"needs a last linear layer: end the network with nn.Lin"):
        method.loss(bare, logits)
    masks = Batch(torch.randn(2, 4, 3, 3), torch.zeros(2, 3, 3, dtype=torch.int64), torch.arange(2))
    with pytest.raises(ValueError, match="not over pixels"):
        made(attention=True).loss(nn.Conv2d(4, K, 1), masks)


def test_with_mixup_a_lookahead_step_uses_the_label_of_the_larger_weight():
    plain, other = batch_of(12, 0), (batch_of(12, 0).labels + 1) % K
    mixup = replace(plain, other_labels=other, share=torch.full((12,), 0.3))
    grads = []
    for batch in (mixup, replace(plain, labels=other)):
        method, model = made(), Small()
        method.before_step(model, batch, batch_of(40, 1), 0.5)
        method.loss(model, batch)
        grads.append(method.network.first.weight.grad)
    torch.testing.assert_close(*grads)


def test_the_history_has_quantiles_and_gamma_by_confidence():
    history = GammaHistory(top=5.0)
    gamma = torch.linspace(1, 3, 201).double()
    right = torch.arange(201) % 2
    history.add(gamma, torch.full((201,), 0.95), right)
    record = history.record(0.1, 0.5, 100)
    assert record["gamma_mean"] == pytest.approx(2)
    assert record["gamma_std"] == pytest.approx(gamma.std(correction=0).item())
    for name, level in (("gamma_q05", 0.05), ("gamma_q50", 0.5), ("gamma_q95", 0.95)):
        assert record[name] == pytest.approx(1 + 2 * level, abs=0.02)
    assert record["count_right"][14] == 100
    assert record["count_wrong"][14] == 101
    assert record["gamma_right"][14] == pytest.approx(gamma[right == 1].mean().item())
    assert sum(record["count_right"][:14]) == 0
    history.add(torch.tensor([2.5]), torch.tensor([0.5]), torch.tensor([1]))
    assert history.record(0.1, 0.5, 100)["gamma_right"][7] == pytest.approx(2.5)
    # The sums start again at zero.
    assert history.record(0.1, 0.5, 100)["gamma_mean"] == 0


def records(gammas, objectives, accuracies, *, examples=1000, history=None) -> list[dict]:
    history = history or GammaHistory(top=5.0)
    found = []
    for gamma, objective, accuracy in zip(gammas, objectives, accuracies, strict=True):
        history.add(gamma, torch.full((len(gamma),), 0.5), torch.ones(len(gamma)))
        found.append(history.record(objective, accuracy, examples))
    return found


LONG = 2 * WINDOW
SPREAD = [torch.linspace(1, 2, 50)] * LONG
STEADY, GOOD = [0.1] * LONG, [0.6] * LONG


@pytest.mark.parametrize(
    ("sign", "epochs"),
    [
        ("gamma_collapsed", ([torch.full((50,), 2.0)] * LONG, STEADY, GOOD)),
        ("gamma_collapsed", ([torch.linspace(4.96, 5, 50)] * LONG, STEADY, GOOD)),
        ("gamma_collapsed", ([torch.zeros(50)] * LONG, STEADY, GOOD)),
        ("gamma_collapsed", ([torch.linspace(8e-5, 1.2e-4, 50)] * LONG, STEADY, GOOD)),
        ("meta_oscillates", (SPREAD, [0.1, 0.2] * WINDOW, GOOD)),
        ("meta_oscillates", (SPREAD, [0.1, 0.135] * WINDOW, GOOD)),
        ("accuracy_fell", (SPREAD, STEADY, [0.6] * WINDOW + [0.5] * WINDOW)),
    ],
)
def test_a_warning_sign_is_recorded_and_warned_of_once_also_when_resumed(sign, epochs):
    history = GammaHistory(top=5.0)
    with pytest.warns(UserWarning, match="on average") as caught:
        found = records(*epochs, history=history)
    assert len(caught) == 1
    assert found[-1][sign] == 1
    assert found[0][sign] == 0
    resumed = GammaHistory(top=5.0)
    resumed.load_state_dict(history.state_dict())
    # Warnings are errors here.
    (record,) = records(*(each[-2:-1] for each in epochs), history=resumed)
    assert record[sign] == 1


def test_without_a_warning_sign_there_is_no_warning():
    noisy = [0.6, 0.5] * (LONG // 2)
    found = records(SPREAD, [0.1, 0.11] * WINDOW, noisy)
    assert not any(found[-1][sign] for sign in ("gamma_collapsed", "meta_oscillates"))
    assert found[-1]["accuracy_fell"] == 0
    # An epoch without examples has no collapsed gamma.
    assert records([torch.zeros(0)] * LONG, STEADY, GOOD)[-1]["gamma_collapsed"] == 0
    # For 50 examples, 0.1 is one standard error of the difference; for 1000, more than four.
    fallen = [0.6] * WINDOW + [0.5] * WINDOW
    assert records(SPREAD, STEADY, fallen, examples=50)[-1]["accuracy_fell"] == 0


def test_defaults_are_256_held_out_examples_every_second_step_or_the_batch_size_for_masks():
    splits = data.load("blobs", 0, limit=300)
    default = methods.build("gamma_net", classes=splits.classes)
    assert (default.meta_every, default._make(D).top) == (2, 5.0)
    assert methods.build("gamma_net", classes=splits.classes, meta_batch=0).meta_batch == 0
    for kind, asked, expected in (("vectors", None, 256), ("masks", None, 0), ("masks", 7, 7)):
        method = methods.build("gamma_net", classes=splits.classes, meta_batch=asked)
        method.prepare(replace(splits, kind=kind), methods.SingleProcess())
        assert method.meta_batch == expected


def test_learning_gamma_lowers_the_held_out_objective_of_an_overconfident_model():
    # Two classes whose features say little, and an over-confident head.
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
    sums = []
    for _ in range(120):
        method.before_step(head, batch, meta, 5.0)
        method.loss(head, batch)
        sums.append(method.tally["objective"])
    steps = torch.tensor([0.0, *sums]).diff()
    assert steps[-1] < 0.9 * steps[0]
    assert head.weight[0].item() == 2.0


def test_noise_has_mean_zero_and_variance_one():
    ids = torch.stack([torch.arange(500.0), torch.zeros(500)], 1).double()
    drawn = noise(ids, seed=0)
    assert abs(float(drawn.mean())) < 0.02
    assert float(drawn.var()) == pytest.approx(1, abs=0.02)
