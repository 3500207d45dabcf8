"""Numbers that others published, or that were worked out once and rounded to four digits."""

import csv

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.metrics import BinSums, accuracy, brier, ece, nll, simplex_ece

# Files hold several splits: the others are left out.
TEST = {"logits": "logits_test", "labels": "labels_test", "ignore": ["*"]}
# Accuracy, ECE over 15 bins, negative log-likelihood, Brier score.
ROUNDED = {
    "kangsepp_densenet40_c10:val": (0.9382, 0.0436, 0.3313, 0.1036),
    "kangsepp_densenet40_c10:test": (0.9242, 0.0550, 0.4301, 0.1274),
    "netcal_lenet5cifar10:test": (0.5308, 0.1079, 1.3699, 0.6142),
    "netcal_lenet5cifar100:test": (0.1246, 0.0149, 3.8131, 0.9520),
    "netcal_wideresnet164cifar100:test": (0.7543, 0.0581, 0.9564, 0.3501),
    "pytorchcifar10_densenet121:test": (0.9272, 0.0410, 0.2911, 0.1187),
    "pytorchcifar10_googlenet:test": (0.9295, 0.0137, 0.2326, 0.1073),
    "pytorchcifar10_inception_v3:test": (0.9299, 0.0275, 0.2549, 0.1105),
    "pytorchcifar10_mobilenet_v2:test": (0.9016, 0.0513, 0.3723, 0.1533),
    "pytorchcifar10_resnet18:test": (0.9171, 0.0535, 0.3498, 0.1365),
    "pytorchcifar10_resnet_orig:test": (0.8849, 0.0659, 0.4667, 0.1805),
    "pytorchcifar10_vgg16_bn:test": (0.9273, 0.0554, 0.3706, 0.1237),
    "kerrigan_c10_resnet110:test": (0.9389, 0.0306, 0.2362, 0.0999),
    "kerrigan_c10_resnetlowacc:test": (0.8892, 0.0512, 0.3958, 0.1714),
    "cleanlab_cifar10:test": (0.9294, 0.0326, 0.2492, 0.1100),
    "cleanlab_imdb:test": (0.8958, 0.0404, 0.3006, 0.1590),
    "akamaster_c10_resnet20:test": (0.9173, 0.0532, 0.3727, 0.1344),
    "akamaster_c10_resnet20:noise0p04": (0.7201, 0.2011, 1.6034, 0.4688),
    "akamaster_c10_resnet20:noise0p08": (0.3414, 0.5390, 5.2882, 1.1522),
    "akamaster_c10_resnet20:contrast0p4": (0.7952, 0.1346, 0.9469, 0.3307),
    "akamaster_c10_resnet20:contrast0p2": (0.3926, 0.4438, 3.4010, 0.9952),
    "akamaster_c10_resnet20:blur0p7": (0.7259, 0.1942, 1.5519, 0.4530),
    "akamaster_c10_resnet20:blur1p2": (0.2907, 0.5724, 6.1356, 1.2288),
    "labelshift_c10_vgg:valid": (0.9054, 0.0297, 0.2960, 0.1402),
    "labelshift_c10_vgg:shiftedtest": (0.7070, 0.1232, 0.8400, 0.4223),
}


def test_four_metrics_have_the_expected_values(real):
    if real.name not in ROUNDED:
        pytest.skip(f"no reference values for {real.name}")
    found = [metric(real.predictions) for metric in (accuracy, ece, nll, brier)]
    assert found == pytest.approx(ROUNDED[real.name], abs=6e-5)


def test_simplex_ece_meets_the_published_errors(data):
    """Widmann et al., NeurIPS 2019: uniform bins, ten for each class, total variation."""
    with (data / "ref_devmotion_c10_errors.csv").open() as file:
        published = {row["model"]: float(row["ECE_uniform"]) for row in csv.DictReader(file)}
    found = {}
    for path in data.glob("logits_pytorchcifar10_*.npz"):
        predictions = Predictions.load(path, **TEST)
        found[path.stem.removeprefix("logits_pytorchcifar10_")] = simplex_ece(predictions, bins=10)
    assert len(found) >= 7
    assert found == pytest.approx({name: published[name] for name in found}, abs=1e-5)


def test_confidences_published_apart_give_the_ece_of_the_logits(data):
    with np.load(data / "top1conf_A.npz") as arrays:
        name = "markus93__probs_densenet40_c10_logits"
        confidence = arrays[f"{name}__conf"].astype(np.float64)
        correct = (arrays[f"{name}__pred"] == arrays[f"{name}__true"]).astype(np.float64)
    predictions = Predictions.load(data / "logits_kangsepp_densenet40_c10.npz", **TEST)
    ours = BinSums.of_confidence(confidence, correct).ece
    assert ours == pytest.approx(ece(predictions), abs=1e-6)
