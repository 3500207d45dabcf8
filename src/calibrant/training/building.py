"""Data, network and method of a training from plain values: a name each, and settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from calibrant import data, methods, models
from calibrant.data import Splits
from calibrant.methods import Method

Named = Mapping[str, Any]


class Built(NamedTuple):
    """What `train` needs."""

    splits: Splits
    model: nn.Module
    method: Method


def built(
    dataset: Named, model: Named, method: Named, *, seed: int, root: str | Path | None = None
) -> Built:
    """Load the data and make network and method; each is a `name` with its settings beside it.

    A model's name with a colon in it is a user's own factory, whose code this runs: whoever calls
    has to know that the user wants that. A `root` in the settings of the dataset precedes `root`.
    """
    settings = {"root": root, **_but_name(dataset)}
    splits = data.load(dataset["name"], seed, **settings)
    make = models.from_path if ":" in model["name"] else models.build
    _check_masks(model["name"], splits)
    network = make(
        model["name"],
        classes=splits.classes,
        shape=splits.shape,
        vocabulary=splits.vocabulary,
        seed=seed,
        **_but_name(model),
    )
    learner = methods.build(method["name"], classes=splits.classes, **_but_name(method))
    return Built(splits, network, learner)


def _but_name(given: Named) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != "name"}


def _check_masks(name: str, splits: Splits) -> None:
    """Refuse a network for masks on labels of whole images, and the other way round."""
    known = models.MODELS.get(name)
    masks = splits.kind == "masks"
    if known is not None and (known.kind == "masks") != masks:
        fitting = [key for key, each in models.MODELS.items() if (each.kind == "masks") == masks]
        raise ValueError(
            f"model {name} is for {known.kind}, dataset {splits.name} has {splits.kind}; "
            f"choose one of {', '.join(fitting)}"
        )
