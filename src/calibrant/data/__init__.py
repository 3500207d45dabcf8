"""Datasets: real ones in splits, and synthetic predictions with known calibration error."""

from calibrant.data.augment import Augmentation
from calibrant.data.registry import DATASETS, Dataset, load
from calibrant.data.shifts import SHIFTS, shifted
from calibrant.data.soft_labels import with_soft_labels
from calibrant.data.splits import Batch, Scale, Split, Splits
from calibrant.data.strata import frequency_groups, tail_groups
from calibrant.data.synthetic import SYNTHETIC, Sample, Synthetic
from calibrant.deprecated import renamed_in

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
    "load",
    "shifted",
    "tail_groups",
    "with_soft_labels",
]
__getattr__ = renamed_in(__name__)
