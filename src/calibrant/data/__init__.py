"""Datasets. So far: synthetic predictions whose true calibration error is known."""

from calibrant.data.synthetic import SYNTHETIC, Sample, Synthetic

__all__ = ["SYNTHETIC", "Sample", "Synthetic"]
