"""Data, network and method of a training run from plain values: a name each, and settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from calibrant import data, methods, models
from calibrant.data import Splits
from calibrant.methods import Method

Named = Mapping[str, Any]


class Built(NamedTuple):
    """Data, network and method, the first arguments of `train`."""

    splits: Splits
    model: nn.Module
    method: Method


def built(
    dataset: Named, model: Named, method: Named, *, seed: int, root: str | Path | None = None
) -> Built:
    """Load the data, make network and method, and return them; each is a `name` with settings.

    A model's name with a colon in it is a user's own factory, whose code this runs: whoever calls
    has to know that the user wants that. A `root` in the settings of the dataset precedes `root`.
    """
    settings = {"root": root, **_but_name(dataset)}
    splits = data.load(dataset["name"], seed, **settings)
    make = models.from_path if ":" in model["name"] else models.build
    _check_kind(model["name"], splits)
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


def _check_kind(name: str, splits: Splits) -> None:
    """Refuse a network that is made for inputs or labels of another kind."""
    fitting = models.models_for(splits.kind)
    if name in models.MODELS and name not in fitting:
        raise ValueError(
            f"model {name} is for {models.MODELS[name].kind}, dataset {splits.name} has "
            f"{splits.kind}; choose one of {', '.join(fitting)}"
        )
