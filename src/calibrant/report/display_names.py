"""Names of datasets, models, methods and calibrators in sentences, tables and charts."""

import re
from collections.abc import Iterable

# Those whose name is more than its words.
NAMES = {
    "acls": "ACLS",
    "adafocal": "AdaFocal",
    "adam": "Adam",
    "adamw": "AdamW",
    "brier": "Brier score",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "calmo": "CalMO",
    "cals": "CALS",
    "cals_alm": "CALS-ALM",
    "cals_hr": "CALS-HR",
    "cpc": "CPC",
    "dca": "DCA",
    "dece": "DECE",
    "entropy": "entropy penalty",
    "fashion_mnist": "Fashion-MNIST",
    "flsd": "FLSD",
    "focal": "focal loss",
    "mdca": "MDCA",
    "mlp": "MLP",
    "mmce": "MMCE",
    "mnist": "MNIST",
    "sam": "SAM",
    "sece": "SECE",
    "sgd": "SGD",
    "weighted_mmce": "weighted MMCE",
}
CALIBRATORS = {
    "auto": "the selected calibrator",
    "beta": "beta calibration",
    "blend": "blend",
    "centered_isotonic": "centered isotonic regression",
    "dirichlet": "Dirichlet calibration",
    "histogram": "histogram binning",
    "identity": "identity",
    "irm": "order-preserving isotonic regression",
    "isotonic": "isotonic regression",
    "kernel": "kernel calibration",
    "none": "none",
    "platt": "Platt scaling",
    "spline": "spline calibration",
    "top_label_spline": "top-label spline calibration",
    "scaling_binning": "scaling-binning",
    "venn_abers": "Venn-Abers calibration",
}
# A label that a study makes of a name and settings: "cals_alm margin=4".
MADE = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?P<settings>( [a-z][a-z0-9_]*=\S+)*)")


def display_name(label: str) -> str:
    """A part of a study in plain words; labels that people wrote stay as they are.

    Examples:
        >>> display_name("cals_alm margin=4"), display_name("cross_entropy"), display_name("my run")
        ('CALS-ALM (margin 4)', 'cross entropy', 'my run')
    """
    found = MADE.fullmatch(label)
    if found is None:
        return label
    name = NAMES.get(found["name"], found["name"].replace("_", " "))
    settings = [each.replace("=", " ").replace("_", " ") for each in found["settings"].split()]
    return f"{name} ({', '.join(settings)})" if settings else name


def display_names(labels: Iterable[str]) -> dict[str, str]:
    """The plain name of each label; the label itself where two would have the same."""
    found = {label: display_name(label) for label in labels}
    names = list(found.values())
    return {label: name if names.count(name) == 1 else label for label, name in found.items()}


def calibrator_name(name: str) -> str:
    """A calibrator in a sentence or a table; names that people wrote stay as they are.

    Examples:
        >>> calibrator_name("focal_temperature"), calibrator_name("isotonic")
        ('focal temperature scaling', 'isotonic regression')
    """
    plain = f"{name.replace('_', ' ')} scaling" if name.isidentifier() else name
    return CALIBRATORS.get(name, plain)
