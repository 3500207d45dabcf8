"""Published predictions, where their folder is there."""

from pathlib import Path

from calibrant import Predictions
from calibrant.data_folder import data_folder

ROOT = Path(__file__).parents[1].resolve()
DATA = data_folder()
# One network or more of every source; the name before the colon is that of the file.
CHOSEN = (
    "kangsepp_densenet40_c10:test",
    "akamaster_c10_resnet20:test",
    "akamaster_c10_resnet20:noise0p08",
    "netcal_lenet5cifar10:test",
    "netcal_lenet5cifar100:test",
    "netcal_wideresnet164cifar100:test",
    "pytorchcifar10_densenet121:test",
    "pytorchcifar10_googlenet:test",
    "pytorchcifar10_vgg16_bn:test",
    "kerrigan_c10_resnet110:test",
    "cleanlab_cifar10:test",
    "labelshift_c10_vgg:valid",
)


def load(name: str) -> Predictions:
    """Read one set of logits in float64, so that only definitions can differ."""
    stem, split = name.split(":")
    given = Predictions.load(
        DATA / f"logits_{stem}.npz",
        logits=f"logits_{split}",
        labels=f"labels_{split}",
        ignore=["*"],
    )
    return Predictions(given.logits.double(), given.labels)
