"""A probe in a custom loop: its columns, side effects and errors."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from calibrant import curvature, metrics
from calibrant.losses import cross_entropy, focal
from calibrant.predictions import Predictions
from calibrant.training.probing import Probing


def data(n: int = 60, k: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 8), torch.randint(k, (n,))


def network(k: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, k))


def test_every_column_equals_the_result_of_its_function():
    model, train, test = network().double(), data(), data(40)
    train, test = (train[0].double(), train[1]), (test[0].double(), test[1])
    settings = {"tolerance": 1e-6, "products": 4, "batch": 16, "batches": 3, "seed": 5}
    row = curvature.Probe(model, train, test, loss=focal, **settings).read()
    logits = {"train": model(train[0]).detach(), "test": model(test[0]).detach()}
    for name, (_, labels) in (("train", train), ("test", test)):
        held = Predictions(logits[name], labels)
        for metric in ("accuracy", "nll", "ece"):
            assert row[f"{name}_{metric}"] == pytest.approx(metrics.METRICS[metric](held))
        found = curvature.margins(logits[name], labels)
        assert row[f"{name}_log_tail"] == pytest.approx(np.log(np.exp(-found.numpy()).mean()))
    margins = curvature.margins(logits["train"], train[1]).numpy()
    for level in (0, 5, 25, 50, 75, 95):
        assert row[f"margin_{level}"] == pytest.approx(np.quantile(margins, level / 100))
    assert row["logit_norm"] == pytest.approx(float(logits["train"].norm(dim=1).mean()))
    focal(model(train[0]), train[1]).mean().backward()
    gradients = torch.cat([each.grad.flatten() for each in model.parameters()])
    assert row["gradient_norm"] == pytest.approx(float(gradients.norm()))
    for matrix in ("hessian", "gauss_newton"):
        dense = curvature.operator(model, focal, train, matrix=matrix).dense()
        assert row[matrix] == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-5)
    sharp = curvature.batch_sharpness(model, focal, train, batch=16, batches=3, seed=5)
    assert row["batch_sharpness"] == pytest.approx(sharp.value)
    assert row["batch_sharpness_error"] == pytest.approx(sharp.error)
    held = curvature.trace(model, focal, train, matrix="gauss_newton", products=4, seed=5)
    assert (row["trace"], row["trace_error"]) == pytest.approx((held.value, held.error))


def test_every_third_step_is_measured_and_a_loop_may_be_resumed():
    probe = curvature.Probe(network(), data(), every=3, measures=["calibration"])
    for _ in range(7):
        probe.step(lr=0.0)
    assert [record["step"] for record in probe.records] == [0, 3, 6]
    assert "edge" not in probe.records[0]
    probe.step(lr=0.5, number=9)
    assert (probe.records[-1]["step"], probe.records[-1]["edge"]) == (9, 4)


def test_examples_are_drawn_once_by_the_seed():
    given = data(500)
    first, again, other = (
        curvature.Probe(network(), given, examples=50, seed=seed).train[0] for seed in (0, 0, 1)
    )
    assert len(first) == 50
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class AlwaysDrops(nn.Module):
    """Dropout also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(functional.dropout(torch.tanh(self.first(x)), 0.5))


class Counts(nn.Module):
    """Writes to a buffer that its output depends on, in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (1 + 0.01 * self.calls)


def norms() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 3)
    )


@pytest.mark.parametrize("make", [AlwaysDrops, Counts, norms])
def test_runs_with_and_without_a_probe_end_with_the_same_bits(make):
    ends = []
    for probed in (False, True):
        torch.manual_seed(3)
        model, (x, y) = make(), data()
        optimizer = torch.optim.Adam(model.parameters())
        small = {"every": 4, "products": 2, "batch": 8, "batches": 2}
        probe = curvature.Probe(model, (x, y), (x, y), **small) if probed else None
        for _ in range(9):
            if probe is not None:
                probe.step(lr=0.1)
            optimizer.zero_grad()
            cross_entropy(model(x), y).mean().backward()
            optimizer.step()
        ends.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_values_that_cannot_be_measured_are_left_out():
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(1e4 * torch.eye(2))
    data = torch.eye(2).repeat(20, 1), torch.tensor([0, 1] * 20)
    row = curvature.Probe(model, data).read()
    # The gradient is zero, so there is no curvature along it.
    assert "batch_sharpness" not in row
    assert row["train_accuracy"] == 1
    model[0].weight.data.fill_(torch.inf)
    assert curvature.Probe(model, data).read() == {}


def test_ignored_labels_change_nothing():
    model, (x, y) = network(), data()
    marked, far = torch.cat([y, torch.full((5,), -100)]), torch.cat([x, 1e3 * torch.ones(5, 8)])
    options = {"measures": ["calibration", "margins", "norms", "gauss_newton"], "tolerance": 1e-6}
    plain = curvature.Probe(model, (x, y), **options).read()
    found = curvature.Probe(model, (far, marked), ignore_index=-100, **options).read()
    assert found == pytest.approx(plain, rel=1e-4)


def test_loaders_and_compiled_networks_are_supported():
    model, (x, y) = network(), data()
    measures = ["calibration", "gauss_newton"]
    plain = curvature.Probe(model, (x, y), measures=measures).read()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    assert curvature.Probe(model, loader, measures=measures).read() == pytest.approx(plain)
    compiled = torch.compile(model, backend="eager")
    assert curvature.Probe(compiled, (x, y), measures=measures).read() == pytest.approx(plain)


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every": 2.5}, "every must be an integer, got 2.5"),
        ({"every": "abc"}, "every must be an integer, got 'abc'"),
        ({"products": 1}, "products must be at least 2"),
        ({"batches": 1}, "batches must be at least 2"),
        ({"measures": "hessian"}, "measures must be a list of calibration, .*; got 'hessian'"),
        ({"measures": []}, "measures must be a list"),
        ({"measures": ["ece"]}, "measures must be one of"),
        ({"tolerance": "small"}, "tolerance must be a number"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_invalid_settings_raise_in_one_line_in_both_loops(settings, words):
    for make in (lambda: curvature.Probe(network(), data(), **settings), lambda: Probing(settings)):
        with pytest.raises(ValueError, match=words) as error:
            make()
        assert "\n" not in str(error.value)


def test_invalid_data_and_networks_raise(as_a_user_runs_it):
    with pytest.raises(TypeError, match="data must be a pair"):
        curvature.Probe(network(), torch.zeros(3, 8))
    with pytest.raises(ValueError, match="no weight of the model requires a gradient"):
        curvature.Probe(nn.Flatten(), data())


class Once(torch.autograd.Function):
    """A square whose gradient cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


@pytest.mark.parametrize("matrix", ["hessian", "gauss_newton"])
def test_an_operation_that_is_differentiable_only_once_raises(matrix):
    with pytest.raises(ValueError, match="differentiable only once"):
        curvature.top_eigenvalues(
            network(), lambda z, y: cross_entropy(Once.apply(z), y), data(), matrix=matrix
        )


def test_the_curvature_of_confident_predictions_is_accurate_in_float32():
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[8.3], [-8.3]])
    pair = torch.ones(1, 1), torch.tensor([0])
    found = float(curvature.top_eigenvalues(model, cross_entropy, pair, matrix="gauss_newton")[0])
    p = 1 / (1 + np.exp(-16.6))
    assert found == pytest.approx(2 * p * (1 - p), rel=1e-5)
    norms = curvature.jacobian_norms(model, pair[0])
    held = Predictions(model(pair[0]).detach(), pair[1])
    bounds = curvature.population_bounds(held, jacobian=norms, sharpness=found)
    assert all(bound.holds for bound in bounds)


def test_a_loss_that_needs_float32_is_supported():
    weight = torch.tensor([1.0, 2.0, 3.0])
    model, given = network(), data()
    found, doubled = (
        curvature.top_eigenvalues(
            model, lambda z, t, w=w: functional.cross_entropy(z, t, weight=w), given
        )
        for w in (weight, weight.double())
    )
    assert float(found[0]) == pytest.approx(float(doubled[0]), rel=1e-3)
