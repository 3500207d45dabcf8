"""What is proved in docs/losses.md, tried on numbers."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax, softmax
from torch.testing import assert_close

from calibrant.losses import entropy, focal, label_smoothing, logit_norm

GAMMAS = [0, 0.01, 0.3, 0.9, 1, 1.5, 3, 10, 50]


def draws(n=2000, k=5, seed=0, spread=3.0):
    """Logits of every sharpness, as numpy float64."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n, k)) * random.exponential(spread, size=(n, 1))


def soft_labels(n, k, seed=1):
    """Half of them one-hot, half drawn from the simplex."""
    random = np.random.default_rng(seed)
    soft = random.dirichlet(np.full(k, 0.3), n)
    soft[::2] = np.eye(k)[random.integers(k, size=len(soft[::2]))]
    return soft


def parts(z, q, gamma):
    """Cross entropy, focal loss and entropy for soft labels q."""
    log_p = log_softmax(z, 1)
    p = np.exp(log_p)
    others = np.where(np.eye(z.shape[1], dtype=bool), -np.inf, log_p[:, None, :])
    log_miss = np.logaddexp.reduce(others, axis=2)
    cross = -(q * log_p).sum(1)
    focused = -(q * np.exp(gamma * log_miss) * log_p).sum(1)
    return cross, focused, -(p * log_p).sum(1)


@pytest.mark.parametrize("k", [2, 3, 10, 100])
class TestScalingTheLogits:
    """Theorem 1."""

    def test_by_more_than_one_increases_the_confidence(self, k):
        z = draws(k=k, spread=1.0)
        for t in (1.001, 1.5, 4):
            gain = log_softmax(t * z, 1).max(1) - log_softmax(z, 1).max(1)
            assert (gain >= 0).all()
            unequal = (np.ptp(z, axis=1) > 1e-3) & (softmax(z, 1).max(1) < 0.999)
            assert unequal.sum() > 500
            assert (gain > 0)[unequal].all()

    def test_by_less_than_one_decreases_it(self, k):
        z = draws(k=k, spread=1.0)
        for t in (0.999, 0.5, 0.01):
            gain = log_softmax(t * z, 1).max(1) - log_softmax(z, 1).max(1)
            assert (gain <= 0).all()

    def test_changes_nothing_where_all_logits_are_equal(self, k):
        for t in (0.1, 1, 7):
            assert_close(softmax(np.full(k, t * 1.3)).max(), 1 / k, check_dtype=False)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("k", [2, 3, 10])
class TestFocalAndEntropy:
    """Theorem 2, as corrected."""

    def test_focal_is_at_least_cross_entropy_less_gamma_entropies(self, gamma, k):
        z = draws(k=k)
        cross, focused, uncertainty = parts(z, soft_labels(len(z), k), gamma)
        assert (focused >= cross - gamma * uncertainty - 1e-9 * (1 + cross)).all()

    def test_each_step_of_the_proof_holds(self, gamma, k):
        z = draws(k=k)
        # -log p and -log(1 - p) from the gap: both keep their digits at either end.
        gap = z[:, 0] - np.logaddexp.reduce(z[:, 1:], axis=1)
        a, b = np.logaddexp(0, -gap), np.logaddexp(0, gap)
        assert (-np.expm1(-gamma * b) <= gamma * b).all()
        binary = np.exp(-a) * a + np.exp(-b) * b
        assert (a * b <= binary).all()
        cross, _, uncertainty = parts(z, np.eye(k)[np.zeros(len(z), int)], gamma)
        assert (binary <= uncertainty * (1 + 1e-9) + 1e-13).all()
        assert_close(cross, a, rtol=1e-9, atol=1e-13)

    def test_from_gamma_one_the_entropy_counts_only_as_the_label_does(self, gamma, k):
        if gamma < 1:
            return
        z, q = draws(k=k), soft_labels(2000, k)
        cross, focused, uncertainty = parts(z, q, gamma)
        log_p = log_softmax(z, 1)
        bernoulli = cross + gamma * (q * np.exp(log_p) * log_p).sum(1)
        slack = 1e-9 * (1 + cross)
        assert (focused >= bernoulli - slack).all()
        assert (bernoulli >= cross - gamma * q.max(1) * uncertainty - slack).all()


def test_the_loss_of_the_package_obeys_theorem_2():
    logits = torch.from_numpy(draws(k=4))
    labels = torch.arange(2000) % 4
    for gamma in GAMMAS:
        bound = entropy(logits, labels, alpha=gamma)
        assert (focal(logits, labels, gamma=gamma) >= bound - 1e-9 * (1 + bound.abs())).all()


class TestThePrintedProof:
    """Why the usual proof of theorem 2 does not do."""

    def test_bernoulli_fails_below_gamma_one(self):
        # (1 - x)^gamma >= 1 - gamma x at x = gamma = 1/2: 0.7071 against 0.75.
        assert 0.5**0.5 < 1 - 0.5 * 0.5
        x = np.linspace(0.01, 0.99, 99)
        assert ((1 - x) ** 0.5 < 1 - 0.5 * x).all()
        assert ((1 - x) ** 1.5 >= 1 - 1.5 * x).all()

    def test_and_so_does_the_bound_it_gives(self):
        # One-hot, p_y = 1/2, gamma = 1/2: focal 0.4901, CE + gamma p log p 0.5199.
        focused, cross = 0.5**0.5 * math.log(2), math.log(2)
        assert focused < cross + 0.5 * 0.5 * math.log(0.5)
        assert focused >= cross - 0.5 * math.log(2)

    def test_one_less_gamma_times_cross_entropy_is_no_bound(self):
        # p_y = 0.99, gamma = 1/2: focal is a tenth of CE, not half.
        logits = torch.tensor([[math.log(99), 0.0]], dtype=torch.float64)
        loss = focal(logits, torch.tensor([0]), gamma=0.5).item()
        assert loss < 0.5 * -math.log(0.99)
        z = draws(k=3)
        cross, focused, _ = parts(z, soft_labels(len(z), 3), 0.5)
        assert (focused < 0.5 * cross).any()

    def test_focal_is_an_upper_bound_not_bounded_above(self):
        z = draws(k=3)
        cross, focused, uncertainty = parts(z, soft_labels(len(z), 3), 2.0)
        assert (focused > cross - 2 * uncertainty + 1e-6).any()


def minimised(loss, k, start):
    """Free logits of one example with label 0 that minimise a loss."""

    def value_and_slope(z):
        logits = torch.tensor(z[None], requires_grad=True)
        value = loss(logits, torch.tensor([0])).sum()
        value.backward()
        return value.item(), logits.grad[0].numpy()

    found = minimize(value_and_slope, start, jac=True, method="BFGS", options={"gtol": 1e-9})
    return softmax(found.x), found.fun


@pytest.mark.parametrize("k", [3, 10])
@pytest.mark.parametrize("alpha", [0.05, 0.3])
class TestTheBestLogits:
    def test_under_an_l1_norm_give_the_label_one_less_alpha(self, k, alpha):
        # The norm has corners, so optimise in z = u - v with u, v >= 0, where it is linear.
        def value_and_slope(uv):
            logits = torch.tensor((uv[:k] - uv[k:])[None], requires_grad=True)
            value = logit_norm(logits, torch.tensor([0]), alpha=0).sum()
            value.backward()
            gradient = logits.grad[0].numpy()
            both = np.concatenate([gradient, -gradient]) + alpha
            return value.item() + alpha * uv.sum(), both

        found = minimize(
            value_and_slope,
            np.full(2 * k, 0.1),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None)] * (2 * k),
            options={"ftol": 1e-15, "gtol": 1e-10},
        )
        z = found.x[:k] - found.x[k:]
        assert softmax(z)[0] == pytest.approx(1 - alpha, abs=1e-6)
        closed = torch.zeros(1, k, dtype=torch.float64)
        closed[0, 0] = math.log((k - 1) * (1 - alpha) / alpha)
        assert closed.softmax(1)[0, 0].item() == pytest.approx(1 - alpha, abs=1e-12)
        best = logit_norm(closed, torch.tensor([0]), alpha=alpha).item()
        assert found.fun == pytest.approx(best, abs=1e-9)
        near = closed + 0.1 * torch.randn(500, k, dtype=torch.float64)
        assert (logit_norm(near, torch.zeros(500, dtype=torch.long), alpha=alpha) >= best).all()

    def test_under_label_smoothing_are_the_smoothed_label(self, k, alpha):
        for form, expected in (("paper", 1 - alpha * (k - 1) / k), ("public_code", 1 - alpha)):
            p, _ = minimised(
                lambda z, y, form=form: label_smoothing(z, y, alpha=alpha, form=form),
                k,
                np.zeros(k),
            )
            assert p[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("k", "alpha", "expected"),
    [(10, 0.1, 0.99959), (10, 0.5, 0.6789), (10, 1.0, 0.4760), (100, 0.1, 0.9957)],
)
def test_the_best_logits_under_the_entropy_reward_solve_a_fixed_point(k, alpha, expected):
    def gap(p):
        return p - 1 / (1 + (k - 1) * math.exp(-1 / (alpha * p)))

    # At small alpha there are several solutions; the largest is the best.
    grid = np.linspace(0.999999, 1 / k, 2000)
    low = next(p for p in grid if gap(p) < 0) if gap(grid[0]) > 0 else grid[0]
    root = brentq(gap, low, grid[0])
    assert root == pytest.approx(expected, abs=6e-5)
    start = np.zeros(k)
    start[0] = 3.0
    p, _ = minimised(lambda z, y: entropy(z, y, alpha=alpha), k, start)
    assert p[0] == pytest.approx(root, abs=1e-4)


@pytest.mark.parametrize("k", [2, 5, 50])
@pytest.mark.parametrize("order", [1, 1.5, 2, 4, math.inf])
def test_a_norm_caps_the_confidence(k, order):
    z = draws(k=k, spread=1.0)
    size = np.linalg.norm(z, order, axis=1)
    if order == 1:
        reach = size
    else:
        # The conjugate exponent q; its ratio to the order is 0 at infinity.
        conjugate = 1.0 if math.isinf(order) else order / (order - 1)
        ratio = 0.0 if math.isinf(order) else conjugate / order
        reach = size * (1 + (k - 1) ** -ratio) ** (1 / conjugate)
    cap = 1 / (1 + (k - 1) * np.exp(-reach))
    assert (softmax(z, 1).max(1) <= cap + 1e-12).all()
    if order in (2, math.inf):
        named = {2: math.sqrt(k / (k - 1)), math.inf: 2.0}[order]
        assert_close(reach, named * size)


@pytest.mark.parametrize("gamma", [0, 0.3, 1, 2, 7.5])
def test_the_gradient_of_focal_is_that_of_cross_entropy_times_a_factor(gamma):
    logits = torch.from_numpy(draws(300, 4, spread=1.0)).requires_grad_()
    labels = torch.arange(300) % 4
    (gradient,) = torch.autograd.grad(focal(logits, labels, gamma=gamma).sum(), logits)
    p = logits.detach().softmax(1)
    own = p.gather(1, labels[:, None])
    factor = (1 - own) ** gamma - gamma * own * (1 - own) ** (gamma - 1) * own.log()
    pull = p - torch.nn.functional.one_hot(labels, 4)
    assert_close(gradient, factor * pull, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_negative_entropy():
    logits = torch.from_numpy(draws(300, 4)).requires_grad_()
    labels = torch.zeros(300, dtype=torch.long)
    reward = entropy(logits, labels, alpha=1) - entropy(logits, labels, alpha=0)
    (gradient,) = torch.autograd.grad(reward.sum(), logits)
    log_p = logits.detach().log_softmax(1)
    h = -(log_p.exp() * log_p).sum(1, keepdim=True)
    assert_close(gradient, log_p.exp() * (log_p + h), rtol=1e-6, atol=1e-10)
