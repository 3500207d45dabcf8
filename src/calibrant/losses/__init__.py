"""Losses: `(logits, labels) -> loss per example`, or a scalar for a batch statistic.

`logits` are (n, k) and `labels` (n,) class indices; the caller takes the mean. A batch statistic
(`dca`, `dece`, `hard_l1_ace`, `mdca`, `mmce`, `sece`, `soft_l1_ace`, `weighted_mmce`) is a term to
add to a loss per example.
Half precision is computed in float32. A logit of -inf masks a class: loss and gradient of that
example are those of the other classes alone. A label on a masked class has an infinite loss.
"""

from calibrant.losses.average_error import hard_l1_ace, soft_l1_ace
from calibrant.losses.batch_statistics import dca, dece, mdca, mmce, weighted_mmce
from calibrant.losses.cpc import cpc
from calibrant.losses.cross_entropy import (
    brier,
    cross_entropy,
    entropy,
    label_smoothing,
    logit_norm,
)
from calibrant.losses.focal import balancing_gamma, dual_focal, flsd, focal, inverse_focal
from calibrant.losses.margin import acls, cals, margin_constraint, margin_smoothing
from calibrant.losses.neighbours import nacl, neighbour_shares
from calibrant.losses.penalties import PENALTIES, Penalty
from calibrant.losses.sece import sece

LOSSES = {
    "cross_entropy": cross_entropy,
    "label_smoothing": label_smoothing,
    "brier": brier,
    "focal": focal,
    "flsd": flsd,
    "dual_focal": dual_focal,
    "inverse_focal": inverse_focal,
    "entropy": entropy,
    "logit_norm": logit_norm,
    "margin_smoothing": margin_smoothing,
    "cals": cals,
    "acls": acls,
    "cpc": cpc,
    "nacl": nacl,
    "mmce": mmce,
    "weighted_mmce": weighted_mmce,
    "dca": dca,
    "mdca": mdca,
    "dece": dece,
    "sece": sece,
    "hard_l1_ace": hard_l1_ace,
    "soft_l1_ace": soft_l1_ace,
}

__all__ = [
    "LOSSES",
    "PENALTIES",
    "Penalty",
    "acls",
    "balancing_gamma",
    "brier",
    "cals",
    "cpc",
    "cross_entropy",
    "dca",
    "dece",
    "dual_focal",
    "entropy",
    "flsd",
    "focal",
    "hard_l1_ace",
    "inverse_focal",
    "label_smoothing",
    "logit_norm",
    "margin_constraint",
    "margin_smoothing",
    "mdca",
    "mmce",
    "nacl",
    "neighbour_shares",
    "sece",
    "soft_l1_ace",
    "weighted_mmce",
]
