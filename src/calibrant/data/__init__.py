"""Datasets: real ones cut into splits, and synthetic predictions whose true error is known."""

from calibrant.data.augment import Augmentation
from calibrant.data.judged import judged_by
from calibrant.data.long_tail import frequency_groups, tail_groups
from calibrant.data.registry import DATASETS, Dataset, load
from calibrant.data.shifts import SHIFTS, shifted
from calibrant.data.splits import Batch, Scale, Split, Splits
from calibrant.data.synthetic import SYNTHETIC, Sample, Synthetic

__all__ = [
    "DATASETS",
    "SHIFTS",
    "SYNTHETIC",
    "Augmentation",
    "Batch",
    "Dataset",
    "Sample",
    "Scale",
    "Split",
    "Splits",
    "Synthetic",
    "frequency_groups",
    "judged_by",
    "load",
    "shifted",
    "tail_groups",
]
