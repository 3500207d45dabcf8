"""Losses: `(logits, labels) -> loss per example`, or one number for a statistic of the batch."""

from calibrant.losses.sece import sece

LOSSES = {"sece": sece}

__all__ = ["LOSSES", "sece"]
