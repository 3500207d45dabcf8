"""Each formula written out as loops over examples and classes."""

import math
import sys
from functools import partial

import loss_batches
import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from calibrant import losses
from calibrant.losses import cross_entropy
from calibrant.shapes import flatten_dense

N, K = 7, 4


batch = partial(loss_batches.batch, N, K, scale=3.0)


def softmax(z):
    total = sum(math.exp(v) for v in z)
    return [math.exp(v) / total for v in z]


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def by_loop(formula, seed=0):
    logits, labels = batch(seed=seed)
    examples = zip(logits.tolist(), labels.tolist(), strict=True)
    return torch.tensor([formula(z, softmax(z), y) for z, y in examples], dtype=torch.float64)


def smoothed_over_others(z, p, y):
    others = sum(-math.log(p[j]) for j in range(K) if j != y)
    return -0.7 * math.log(p[y]) + 0.3 * others / (K - 1)


def norm(order):
    def formula(z, p, y):
        size = max(map(abs, z)) if math.isinf(order) else sum(abs(v) ** order for v in z)
        return -math.log(p[y]) + 0.2 * (size if math.isinf(order) else size ** (1 / order))

    return formula


def acls(z, p, y):
    top = max(range(K), key=z.__getitem__)
    low = sum(max(0, z[top] - z[j] - 1) ** 2 for j in range(K) if j != top)
    return -math.log(p[y]) + 0.5 * (2 * max(0, z[top] - 1) ** 2 + 0.3 * low / (K - 1))


def cpc(diagonal):
    def formula(z, p, y):
        wrong = [j for j in range(K) if j != y]
        against = -sum(log_sigmoid(z[y] - z[j]) for j in wrong) / (K - 1)
        pairs = [(i, j) for i in wrong for j in wrong if diagonal or i != j]
        level = -sum(log_sigmoid(z[i] - z[j]) for i, j in pairs) / (2 * (K - 1) * (K - 2))
        return -math.log(p[y]) + 0.5 * against + 2 * level

    return formula


LOOPS = {
    "cross_entropy": ({}, lambda z, p, y: -math.log(p[y])),
    "label_smoothing": (
        {"alpha": 0.3},
        lambda z, p, y: -0.7 * math.log(p[y]) - 0.3 * sum(map(math.log, p)) / K,
    ),
    "label_smoothing_code": ({"alpha": 0.3, "form": "public_code"}, smoothed_over_others),
    "brier": ({}, lambda z, p, y: sum((p[j] - (j == y)) ** 2 for j in range(K))),
    "focal": ({"gamma": 1.7}, lambda z, p, y: -((1 - p[y]) ** 1.7) * math.log(p[y])),
    "inverse_focal": ({"gamma": 1.7}, lambda z, p, y: -((1 + p[y]) ** 1.7) * math.log(p[y])),
    "entropy": (
        {"alpha": 0.3},
        lambda z, p, y: -math.log(p[y]) + 0.3 * sum(q * math.log(q) for q in p),
    ),
    "logit_norm_1": ({"alpha": 0.2}, norm(1)),
    "logit_norm_2": ({"alpha": 0.2, "norm": 2}, norm(2)),
    "logit_norm_3": ({"alpha": 0.2, "norm": 3.5}, norm(3.5)),
    "logit_norm_inf": ({"alpha": 0.2, "norm": math.inf}, norm(math.inf)),
    "margin_smoothing": (
        {"margin": 1.5, "alpha": 0.4},
        lambda z, p, y: -math.log(p[y]) + 0.4 * sum(max(0, max(z) - v - 1.5) for v in z) / K,
    ),
    "acls": ({"margin": 1, "alpha": 0.5, "top": 2.0, "rest": 0.3}, acls),
    "cpc": ({"discrimination": 0.5, "exclusion": 2.0}, cpc(diagonal=False)),
    "cpc_code": (
        {"discrimination": 0.5, "exclusion": 2.0, "form": "public_code"},
        cpc(diagonal=True),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_equals_a_loop(name):
    settings, formula = LOOPS[name]
    known = sorted(losses.LOSSES, key=len, reverse=True)
    loss = next(losses.LOSSES[title] for title in known if name.startswith(title))
    for seed in (0, 1):
        assert_close(loss(*batch(seed=seed), **settings), by_loop(formula, seed))


def test_cross_entropy_and_label_smoothing_are_those_of_torch():
    for dtype in (torch.float32, torch.float64):
        logits, labels = batch()
        logits = logits.to(dtype)
        plain = functional.cross_entropy(logits, labels, reduction="none")
        assert_close(cross_entropy(logits, labels), plain)
        for alpha in (0.0, 0.05, 0.7, 1.0):
            smooth = functional.cross_entropy(
                logits, labels, reduction="none", label_smoothing=alpha
            )
            assert_close(losses.label_smoothing(logits, labels, alpha=alpha), smooth)


def test_cross_entropy_of_pixels_is_that_of_torch_and_stays_on_its_device():
    logits, labels = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randint(3, (2, 4, 5))
    labels[0, :2] = 255
    flat, flat_labels, _ = flatten_dense(logits, labels, ignore_index=255)
    expected = functional.cross_entropy(logits, labels, ignore_index=255)
    assert_close(cross_entropy(flat, flat_labels).mean(), expected)
    for part in flatten_dense(logits.to("meta"), labels.to("meta"), ignore_index=None):
        assert part.device.type == "meta"


def test_the_gradient_of_acls_treats_the_largest_logit_as_constant():
    logits, labels = batch()
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(
        (losses.acls(logits, labels, margin=1, alpha=0.5, top=2.0, rest=0.3)).sum(), logits
    )
    expected = torch.autograd.grad(cross_entropy(logits, labels).sum(), logits)[0]
    for i, z in enumerate(logits.tolist()):
        top = max(range(K), key=z.__getitem__)
        for j in range(K):
            above, below = max(0, z[top] - 1), max(0, z[top] - z[j] - 1)
            expected[i, j] += 0.5 * (4 * above if j == top else -2 * 0.3 / (K - 1) * below)
    assert_close(gradient, expected)
    # Tied logits all count as top: two of 3 beyond a margin of 1 give 2 * 2^2, and the third lies
    # 3 - 0 - 1 too low: 2^2 / 2.
    logits, labels = torch.tensor([[3.0, 3.0, 0.0]]), torch.tensor([0])
    term = losses.acls(logits, labels, margin=1, alpha=1, rest=1) - cross_entropy(logits, labels)
    assert_close(term.item(), 8.0 + 2.0)


def test_pairs_in_chunks_give_the_same_loss_and_gradient(monkeypatch):
    logits, labels = batch()
    results = []
    for pairs in (1 << 22, 2 * N * (K - 1), 1):
        # The package's attribute of that name is the function.
        monkeypatch.setattr(sys.modules["calibrant.losses.cpc"], "PAIRS", pairs)
        z = logits.clone().requires_grad_()
        value = losses.cpc(z, labels)
        value.sum().backward()
        results.append((value.detach(), z.grad))
    for value, gradient in results[1:]:
        assert_close(value, results[0][0])
        assert_close(gradient, results[0][1])


def test_equal_wrong_classes_minimise_the_exclusion_term():
    # Half of log 2 for each example, for any number of classes.
    for k in (3, 5, 9):
        logits, labels = torch.zeros(1, k, dtype=torch.float64), torch.tensor([0])
        logits[0, 0] = 2.0
        term = losses.cpc(logits, labels, discrimination=0) - cross_entropy(logits, labels)
        assert_close(term.item(), math.log(2) / 2)
        other = logits + torch.tensor([0, 0.5, *[0] * (k - 2)])
        more = losses.cpc(other, labels, discrimination=0) - cross_entropy(other, labels)
        assert more.item() > term.item()
