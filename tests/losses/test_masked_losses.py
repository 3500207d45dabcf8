"""Classes masked by a logit of -inf: every loss is that of the allowed classes alone."""

import numpy as np
import pytest
import torch

from calibrant.losses import LOSSES, cals, cpc, entropy, focal, label_smoothing, margin_constraint

K = 6
# Losses per example in all their forms, with margins that are exceeded.
EXAMPLES = {
    "cross_entropy": [{}],
    "label_smoothing": [{}, {"form": "public_code"}],
    "brier": [{}],
    "focal": [{}, {"gamma": 0.5}, {"gamma": 0.0}],
    "flsd": [{}],
    "dual_focal": [{}, {"gamma": 0.0}],
    "inverse_focal": [{}],
    "entropy": [{}, {"form": "public_code"}],
    "logit_norm": [{}, {"norm": 2.0}, {"norm": np.inf}],
    "margin_smoothing": [{"margin": 0.5}],
    "cals": [
        {"margin": 0.5, "multipliers": 0.3, "penalty": penalty} for penalty in ("phr", "p2", "p3")
    ],
    "acls": [{"margin": 0.5}],
    "cpc": [{}, {"form": "public_code"}],
    "nacl": [{}, {"distance": "l2"}],
}
STATISTICS = sorted(LOSSES.keys() - EXAMPLES)
CASES = [(name, settings) for name, forms in EXAMPLES.items() for settings in forms]


def batch(n: int = 24, *, least: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of examples with `least` to six allowed classes, and labels that are allowed."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, K)) * 3
    options = generator.integers(least, K + 1, n)[:, None]
    logits[generator.permuted(np.tile(np.arange(K), (n, 1)), axis=1) >= options] = -np.inf
    labels = (logits + generator.gumbel(size=(n, K))).argmax(1)
    return torch.from_numpy(logits), torch.from_numpy(labels)


def without_masked(row: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One example with its allowed classes only."""
    valid = row > -torch.inf
    return row[valid][None], valid[:label].sum()[None]


def gradient(name: str, logits: torch.Tensor, labels: torch.Tensor, **settings) -> torch.Tensor:
    given = logits.clone().requires_grad_()
    LOSSES[name](given, labels, **settings).sum().backward()
    return given.grad


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_loss_and_its_gradient_are_those_without_the_masked_classes(name, settings):
    logits, labels = batch()
    found = LOSSES[name](logits, labels, **settings)
    gradients = gradient(name, logits, labels, **settings)
    for row, label, value, own in zip(logits, labels, found, gradients, strict=True):
        alone = without_masked(row, label)
        torch.testing.assert_close(value, LOSSES[name](*alone, **settings)[0])
        valid = row > -torch.inf
        torch.testing.assert_close(own[valid], gradient(name, *alone, **settings)[0])
        assert own[~valid].tolist() == [0.0] * int((~valid).sum())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_finite_where_one_class_is_left(name, dtype):
    logits, labels = batch(least=1, seed=1)
    logits[0] = torch.full((K,), -torch.inf)
    logits[0, 2], labels[0] = 1.5, 2
    logits = logits.to(dtype)
    assert bool(LOSSES[name](logits, labels).isfinite().all())
    gradients = gradient(name, logits, labels)
    assert bool(gradients.isfinite().all())
    assert bool((gradients[logits.isneginf()] == 0).all())


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_ignores_a_class_that_is_masked_everywhere(name):
    logits, labels = batch()
    more = torch.cat([logits, torch.full((len(logits), 1), -torch.inf).double()], 1)
    torch.testing.assert_close(LOSSES[name](more, labels), LOSSES[name](logits, labels))
    gradients = gradient(name, more, labels)
    torch.testing.assert_close(gradients[:, :K], gradient(name, logits, labels))
    assert bool((gradients[:, K] == 0).all())
    # With masks it is the limit of low logits, but DECE ranks classes of probability 0.
    if name == "dece":
        settings = {"rank_scale": 1e4}
        low = LOSSES[name](logits.clamp_min(-1e4), labels, **settings)
        torch.testing.assert_close(LOSSES[name](logits, labels, **settings), low, atol=1e-3, rtol=0)
    else:
        low = LOSSES[name](logits.clamp_min(-1e4), labels)
        torch.testing.assert_close(LOSSES[name](logits, labels), low)


def test_dece_does_not_rank_masked_classes():
    logits, labels = batch(8)
    valid = logits > -torch.inf
    probs = logits.softmax(1)
    own = probs.gather(1, labels[:, None])
    correct = []
    for row in range(8):
        others = [at for at in range(K) if valid[row, at] and at != labels[row]]
        above = torch.sigmoid(100 * (probs[row, others] - own[row])).sum()
        correct.append((1 - above).relu())
    gap = (torch.stack(correct) - probs.amax(1)).mean().abs()
    torch.testing.assert_close(LOSSES["dece"](logits, labels, bins=1), gap)


def test_a_label_on_a_masked_class_has_an_infinite_loss():
    # Alone, and beside another masked class.
    for row in ([1.0, -torch.inf, 0.0], [1.0, -torch.inf, -torch.inf, 2.0]):
        for name in EXAMPLES.keys() - {"brier"}:
            assert LOSSES[name](torch.tensor([row]), torch.tensor([1])).item() == torch.inf, name


def test_smoothing_entropy_and_pairs_by_hand():
    z, y = torch.tensor([[0.0, 0.0, -torch.inf, 0.0]]).double(), torch.tensor([0])
    third = np.log(3.0)
    assert label_smoothing(z, y, alpha=0.3).item() == pytest.approx(third)
    assert entropy(z, y, alpha=0.5).item() == pytest.approx(0.5 * third)
    half = np.log(2.0)
    assert cpc(z, y, discrimination=1.0, exclusion=1.0).item() == pytest.approx(
        third + half + half / 2
    )
    assert focal(z, y, gamma=1.0).item() == pytest.approx(2 / 3 * third)
    assert margin_constraint(z, margin=2.0).tolist() == [[-1.0] * 4]
    # PHR at h = -1 with multiplier 0.3 and rho 1 is -0.3^2 / 2.
    assert cals(z, y, margin=2.0, multipliers=0.3).item() == pytest.approx(third - 0.045)
