"""Golden values of one batch of four examples, computed independently of this code."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from calibrant import losses
from calibrant.losses import PENALTIES, cals, cross_entropy, margin_constraint, margin_smoothing

LOGITS = torch.tensor([[4, 1, -2], [0.5, 2.5, 1], [-6, 3, 8], [0.2, 0.1, 0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 2, 1])
GOLDEN = {
    "cross_entropy": (losses.cross_entropy, 0.7414901246),
    "focal 0": (partial(losses.focal, gamma=0), 0.7414901246),
    "focal 1": (partial(losses.focal, gamma=1), 0.5620210400),
    "focal 2": (partial(losses.focal, gamma=2), 0.4383007698),
    "focal 3": (losses.focal, 0.3456496134),
    "focal 5": (partial(losses.focal, gamma=5), 0.2207090106),
    "flsd": (losses.flsd, 0.2661632299),
    "flsd as focal": (
        partial(losses.focal, gamma=torch.tensor([3.0, 5.0, 3.0, 3.0])),
        0.2661632299,
    ),
    "dual focal": (losses.dual_focal, 0.5579500278),
    "label smoothing": (losses.label_smoothing, 0.8539901246),
    "label smoothing .1": (partial(losses.label_smoothing, alpha=0.1), 0.9664901246),
    "entropy": (losses.entropy, 0.6891280818),
    "entropy, code": (partial(losses.entropy, form="public_code"), 0.7240361103),
    "brier": (losses.brier, 0.4815451786),
    "mmce": (losses.mmce, 0.2287470833),
    "mmce, code": (partial(losses.mmce, form="public_code"), 0.0523252281),
    "weighted mmce": (losses.weighted_mmce, 0.4574941667),
    "weighted mmce, code": (partial(losses.weighted_mmce, form="public_code"), 0.2287467976),
    "cpc, code": (partial(losses.cpc, form="public_code"), 2.1175617041),
    # The diagonal is log(2) / (2 (k - 2)) = 0.3465735903.
    "cpc": (losses.cpc, 2.1175617041 - 0.3465735903),
    "mdca": (losses.mdca, 0.0899128009),
    "dca": (losses.dca, 0.2617316664),
    "dece, code": (partial(losses.dece, form="public_code"), 0.2899107436),
    "sece": (losses.sece, 0.2899133963),
    "sece .1": (partial(losses.sece, bandwidth=0.1), 0.2487733271),
    "sece wide": (partial(losses.sece, bandwidth=1e6), 0.3281489659),
}
TERMS = {
    "bdc": (partial(losses.cpc, discrimination=1, exclusion=0, form="public_code"), 0.4527578499),
    "bec": (partial(losses.cpc, discrimination=0, exclusion=1, form="public_code"), 1.3307957946),
    "margin 0": (partial(margin_smoothing, margin=0, alpha=1), 2.65),
    "margin 2": (partial(margin_smoothing, margin=2, alpha=1), 1.6666666667),
    "margin 6": (partial(margin_smoothing, margin=6, alpha=1), 0.6666666667),
    "margin 10": (partial(margin_smoothing, margin=10, alpha=1), 0.3333333333),
    "margin, weight per class": (
        partial(margin_smoothing, margin=2, alpha=torch.full((3,), 0.1, dtype=torch.float64)),
        0.1666666667,
    ),
    "acls": (partial(losses.acls, margin=2, alpha=1), 12.1875),
    "phr": (partial(cals, margin=2), 1.7708341667),
    "p2": (partial(cals, margin=2, penalty="p2"), 3.1597263338),
    "p3": (partial(cals, margin=2, penalty="p3"), 4.1116e-6),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_mean_over_the_batch(name):
    loss, value = GOLDEN[name]
    assert_close(loss(LOGITS, LABELS).mean().item(), value, rtol=0, atol=3e-10)


@pytest.mark.parametrize("name", TERMS)
def test_the_term_added_to_cross_entropy(name):
    loss, value = TERMS[name]
    term = loss(LOGITS, LABELS) - cross_entropy(LOGITS, LABELS)
    # The third penalty is tiny because the multipliers are.
    tolerance = {"rtol": 1e-4, "atol": 0} if name == "p3" else {"rtol": 0, "atol": 2e-9}
    assert_close(term.mean().item(), value, **tolerance)


def test_the_constraint_has_the_golden_means():
    h = margin_constraint(LOGITS, margin=2)
    assert_close(h.mean(0), torch.tensor([1, 0.0125, -0.0375], dtype=torch.float64))
    assert_close(h[0], torch.tensor([-1, 0.5, 2], dtype=torch.float64))
    excess = margin_constraint(LOGITS, margin=2, normalize=False).relu()
    assert_close(0.1 * excess.mean(0), torch.tensor([0.3, 0.1, 0.1], dtype=torch.float64))


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        ("phr", [1.500001, 0.500001, 0.500001]),
        ("p2", [4.500004, 0.312502, 0.500002]),
        ("p3", [4e-6, 2e-6, 2e-6]),
    ],
)
def test_the_mean_derivative_is_the_next_multiplier(penalty, expected):
    derivative = PENALTIES[penalty].derivative(margin_constraint(LOGITS, margin=2), 1e-6, 1.0)
    # Clamped to 1e-6 for each example, before the mean.
    assert_close(derivative.clamp_min(1e-6).mean(0).tolist(), expected, rtol=0, atol=6e-7)
