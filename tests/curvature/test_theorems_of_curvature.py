"""Lemmas and theorems on calibration and curvature, checked on random values and networks."""

import math
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev, vmap
from torch.nn.functional import one_hot

from calibrant.curvature.bounds import interpolation_bounds, population_bounds
from calibrant.curvature.jacobians import jacobian_norms
from calibrant.curvature.margins import margin_tail, margins, predicted_margins, robust_margins
from calibrant.losses.log_probs import log_one_minus_p
from calibrant.metrics import ece
from calibrant.predictions import Predictions

SIZES = pytest.mark.parametrize("k", [2, 3, 10, 100])


def draws(k, n=3000):
    """Logits of every sharpness, some of them tied, and labels."""
    logits = torch.randn(n, k, dtype=torch.float64)
    logits *= torch.empty(n, 1, dtype=torch.float64).exponential_(0.2)
    logits[: n // 10] = logits[: n // 10].round()
    return logits, torch.randint(k, (n,))


def curvature_of(logits):
    """Hessian of cross entropy in the logits, diag(p) - p p^T, without one minus p, (n, k, k)."""
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    k = logits.shape[-1]
    log_miss = [log_one_minus_p(log_p, torch.full((len(p),), each)) for each in range(k)]
    variances = (log_p + torch.stack(log_miss, 1)).exp()
    outer = p[:, :, None] * p[:, None]
    return torch.where(torch.eye(k, dtype=torch.bool), variances[:, :, None], -outer)


@SIZES
class TestLemmas:
    def test_1_the_error_is_at_most_the_mean_of_one_minus_p(self, k):
        for seed in range(5):
            torch.manual_seed(seed)
            logits, labels = draws(k)
            # Half of the labels are the predicted ones; otherwise none is correct at k = 100.
            labels = torch.where(torch.rand(3000) < 0.5, logits.argmax(1), labels)
            held = Predictions(logits, labels)
            each = (held.correct - held.confidence).abs().mean().item()
            miss = log_one_minus_p(logits.log_softmax(1), labels).exp().mean().item()
            for bins in (1, 15, 200):
                assert ece(held, bins=bins) <= each + 1e-12
            assert each <= miss + 1e-12

    def test_3_margins_bound_one_minus_p_from_both_sides(self, k):
        logits, labels = draws(k)
        m = margins(logits, labels)
        log_miss = log_one_minus_p(logits.log_softmax(1), labels)
        # In logs, without underflow: e^-m / (1 + (K-1) e^-m) <= 1 - p_y <= (K-1) e^-m.
        below = -m - torch.log1p(torch.exp(math.log(k - 1) - m))
        slack = 1e-12 * (1 + m.abs())
        assert (below <= log_miss + slack).all()
        assert (log_miss <= math.log(k - 1) - m + slack).all()
        # Both are attained: the lower one by two classes, the upper one by tied runners-up.
        if k == 2:
            assert torch.allclose(below, log_miss, rtol=1e-9, atol=1e-9)
        # Half of e^-m is a lower bound where predictions are correct.
        m = predicted_margins(logits)
        log_miss = log_one_minus_p(logits.log_softmax(1), logits.argmax(1))
        slack = 1e-12 * (1 + m)
        assert (log_miss >= nn.functional.logsigmoid(-m) - slack).all()
        assert (log_miss >= -m - math.log(2) - slack).all()

    def test_4_curvature_in_the_logits_vanishes_with_confidence(self, k):
        logits, _ = draws(k, 3000 if k < 100 else 300)
        spectrum = torch.linalg.eigvalsh(curvature_of(logits))
        top, slack = spectrum[:, -1], 1e-12 * spectrum[:, -1] + 1e-300
        log_p = logits.log_softmax(1)
        doubt = log_one_minus_p(log_p, logits.argmax(1)).exp()
        variances = curvature_of(logits).diagonal(dim1=1, dim2=2)
        assert (top <= 2 * variances.amax(1) + slack).all()
        assert (2 * variances.amax(1) <= 2 * doubt + slack).all()
        assert (top <= 0.5 + 1e-12).all()
        # The trace is one minus the sum of squares, at most one minus the largest square.
        assert (variances.sum(1) <= doubt * (2 - doubt) + 1e-12 * doubt).all()
        square = 1 - log_p.exp().pow(2).sum(1)
        assert torch.allclose(variances.sum(1), square, rtol=0, atol=1e-12)
        # The bound of one half is attained.
        logits = torch.full((1, k), -math.inf, dtype=torch.float64)
        logits[:, :2] = 0
        p = logits.softmax(1)[0]
        top = torch.linalg.eigvalsh(torch.diag(p) - torch.outer(p, p))[-1]
        assert top.item() == pytest.approx(0.5)


def tanh_network(k):
    return nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, k)).double()


@cache
def learnt(k, seed, steps):
    """Weights after some steps on random labels, and the data."""
    torch.manual_seed(seed)
    network = tanh_network(k)
    inputs, labels = torch.randn(20, 4, dtype=torch.float64), torch.randint(k, (20,))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    return network.state_dict(), inputs, labels


class Case:
    """A small tanh network on data, its exact Jacobians and its dense Gauss-Newton matrix."""

    def __init__(self, k, *, seed, scale=1.0, trained=False):
        weights, self.inputs, self.labels = learnt(k, seed, 400 if trained else 0)
        self.network = tanh_network(k)
        self.network.load_state_dict(weights)
        with torch.no_grad():
            for each in self.network[2].parameters():
                each *= scale
            self.logits = self.network(self.inputs)
        self.predictions = Predictions(self.logits, self.labels)

    def measured(self):
        """Curvature by brute force, and the norms of the Jacobians."""
        weights = {name: each.detach() for name, each in self.network.named_parameters()}

        def logits(weights, one):
            return functional_call(self.network, weights, (one,))

        parts = vmap(jacrev(logits), (None, 0))(weights, self.inputs)
        jacobian = torch.cat([each.flatten(2) for each in parts.values()], 2)
        matrix = jacobian.mT @ curvature_of(self.logits) @ jacobian
        spectrum = torch.linalg.eigvalsh(matrix.mean(0))
        norms = jacobian_norms(self.network, self.inputs)
        assert torch.allclose(norms, torch.linalg.matrix_norm(jacobian, 2), rtol=1e-9)
        trace = matrix.mean(0).trace().item()
        return {"jacobian": norms, "sharpness": spectrum[-1].item(), "trace": trace}


def assert_all_hold(bounds):
    assert [str(each) for each in bounds if not each.holds] == []


@pytest.mark.parametrize("k", [2, 3, 7])
@pytest.mark.parametrize("scale", [0.1, 1, 10, 100])
def test_theorem_4_1_on_random_networks(k, scale):
    for seed in range(3):
        case = Case(k, seed=seed, scale=scale)
        measured = case.measured()
        for by in ("first_order", "attack"):
            settings = {"epsilon": 0.1, "by": by, "steps": 5}
            lower = robust_margins(case.network, case.inputs, case.labels, **settings)
            assert_all_hold(population_bounds(case.predictions, margins=lower, **measured))
        for bins in (1, 5, 100):
            assert_all_hold(population_bounds(case.predictions, bins=bins, **measured))


@pytest.mark.parametrize("k", [2, 3, 7])
@pytest.mark.parametrize("scale", [0.1, 1, 3, 10])
def test_theorem_4_2_on_interpolating_networks(k, scale):
    case = Case(k, seed=k, scale=scale, trained=True)
    assert (margins(case.logits, case.labels) > 0).all()
    measured = case.measured()
    found = interpolation_bounds(case.predictions, **measured)
    assert len(found) == 10
    assert_all_hold(found)
    assert_all_hold(population_bounds(case.predictions, **measured))
    # The bounds are not loose by orders of magnitude.
    sides = named(found)
    if scale >= 1:
        assert sides["Q_D / 2 <= ECE"].right < 5 * sides["Q_D / 2 <= ECE"].left
        assert sides["ECE <= (K-1) Q_D"].right < 8 * sides["ECE <= (K-1) Q_D"].left
    assert sides["lambda_max <= 2 C_J^2 ECE"].right < 1000 * measured["sharpness"]


def test_curvature_and_error_vanish_together_as_margins_grow():
    found = []
    for scale in (1, 2, 4, 8):
        case = Case(3, seed=3, scale=scale, trained=True)
        (error, *_) = interpolation_bounds(case.predictions)
        found.append((error.left, case.measured()["sharpness"] / scale**2))
    for before, after in pairwise(found):
        assert all(late < early for early, late in zip(before, after, strict=True))
    assert found[-1][0] < 1e-6 * found[0][0]
    assert found[-1][1] < 1e-6 * found[0][1]


def named(bounds):
    return {each.name: each for each in bounds}


def test_the_bounds_of_the_tail_are_tight():
    # A hundred classes, of which two compete: 1 - p_y is e^-m / (1 + e^-m), nearly e^-m / 2.
    logits = torch.full((50, 100), -200.0, dtype=torch.float64)
    logits[:, 0], logits[:, 1] = 1e-6, 0
    found = named(interpolation_bounds(Predictions(logits, [0] * 50)))
    half, paper = found["Q_D / 2 <= ECE"], found["Q_D / K <= ECE"]
    assert half.right == pytest.approx(half.left, rel=1e-5)
    assert paper.right == pytest.approx(50 * paper.left, rel=1e-5)
    # The upper bound is tight where all other classes tie.
    logits = torch.zeros(50, 100, dtype=torch.float64)
    logits[:, 0] = 30
    upper = named(interpolation_bounds(Predictions(logits, [0] * 50)))["ECE <= (K-1) Q_D"]
    assert upper.right == pytest.approx(upper.left, rel=1e-9)


def test_the_curvature_bound_is_tight_for_one_confident_prediction_of_two_classes():
    # Of a linear network without bias at the input 1, so that C_J is 1.
    held = Predictions(torch.tensor([[20.0, 0.0]], dtype=torch.float64), [0])
    top = torch.linalg.eigvalsh(curvature_of(held.logits))[0, -1].item()
    found = interpolation_bounds(held, jacobian=1.0, sharpness=top)
    ours = named(found)["lambda_max <= 2 C_J^2 ECE"]
    assert ours.holds
    assert ours.right == pytest.approx(top, rel=1e-6)


class TestNoConverse:
    @pytest.mark.parametrize("confidence", [0.75, 0.9, 0.999])
    def test_calibrated_predictions_of_two_classes_have_a_tail_of_one(self, confidence):
        # p (1-p)/p + (1-p) p/(1-p) = 1, at no calibration error at all.
        logits = [[math.log(confidence / (1 - confidence)), 0.0]] * 1000
        labels = [0] * round(1000 * confidence) + [1] * round(1000 * (1 - confidence))
        held = Predictions(logits, labels)
        assert margin_tail(margins(held.logits, held.labels)) == pytest.approx(1)
        error, tail = population_bounds(held)
        assert error.left == pytest.approx(0, abs=1e-12)
        assert tail.right == pytest.approx(1)

    def test_one_confident_wrong_prediction_makes_the_bound_trivial(self):
        logits, labels = [[12.0, 0.0]] * 2000, [0] * 1999 + [1]
        miss, tail = population_bounds(Predictions(logits, labels))
        assert miss.left < 6e-4
        assert miss.right < 6e-4
        assert tail.right == 1
        assert margin_tail(margins(logits, labels)) > 80

    def test_margins_without_labels_do_not_bound_the_error(self):
        held = Predictions([[30.0, 0.0]] * 100, [1] * 100)
        assert margin_tail(predicted_margins(held.logits)) < 1e-12
        assert ece(held, bins=1) > 0.99
        names = [each.name for each in population_bounds(held, jacobian=1.0, sharpness=0.0)]
        assert not any(name.startswith("ECE") and "predicted" in name for name in names)


class TestSquaredErrorOnLogits:
    """Its curvature does not depend on confidence, and its optimum is under-confident."""

    @pytest.mark.parametrize("k", [2, 5, 10])
    def test_curvature_is_the_same_everywhere(self, k):
        target = one_hot(torch.tensor(0), k).double()
        for scale in (0, 1, 50):
            found = hessian(lambda z: (z - target).pow(2).mean())(scale * target)
            assert torch.allclose(found, 2 / k * torch.eye(k, dtype=torch.float64))
            curvature = curvature_of(scale * target[None])[0]
            dense = hessian(lambda z: nn.functional.cross_entropy(z, torch.tensor(0)))
            assert torch.allclose(curvature, dense(scale * target), rtol=1e-9, atol=1e-15)
        assert torch.linalg.eigvalsh(curvature)[-1] < 1e-20

    @pytest.mark.parametrize(("k", "confidence"), [(2, 0.7311), (10, 0.2320), (100, 0.0267)])
    def test_its_optimum_is_underconfident(self, k, confidence):
        best = torch.eye(k, dtype=torch.float64)
        held = Predictions(best.repeat(50, 1), list(range(k)) * 50)
        exact = math.e / (math.e + k - 1)
        assert held.confidence.min().item() == pytest.approx(exact)
        assert exact == pytest.approx(confidence, abs=5e-5)
        assert ece(held) == pytest.approx(1 - exact)
