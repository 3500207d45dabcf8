"""One measure of curvature for each layer, or for each class."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from calibrant.curvature.batches import Data, Pair, pairs, same_randomness, taken
from calibrant.curvature.problem import Loss
from calibrant.curvature.weights import copied
from calibrant.model_modes import bare

Measured = TypeVar("Measured")


def per_layer(
    measure: Callable[..., Measured],
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    parameters: Sequence[str] | None = None,
    **options: Any,
) -> dict[str, Measured]:
    """A measure for the weights of each layer alone: of the blocks on the matrix's diagonal.

    Traces of layers add up to that of the whole; the largest eigenvalue of the whole is at least
    that of any layer.

    Args:
        measure: `top_eigenvalues`, `trace` or another with the same arguments.
        model: a layer is a module that holds weights itself; its name is "" if it is the model.
        loss: as of the measure.
        data: as of the measure.
        parameters: only these weights.
        options: of the measure.
    """
    network = bare(model)
    layers: dict[str, list[str]] = {}
    for name in copied(network, parameters).chosen:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return {
        layer: measure(network, loss, data, parameters=names, **options)
        for layer, names in layers.items()
    }


def per_class(
    measure: Callable[..., Measured],
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    ignore_index: int | None = None,
    **options: Any,
) -> dict[int, Measured]:
    """A measure over the examples, or pixels, of each label alone.

    Args:
        measure: `top_eigenvalues`, `trace` or another with the same arguments.
        model: as of the measure.
        loss: as of the measure.
        data: as of the measure; classes that do not occur are left out.
        ignore_index: label that does not count.
        options: of the measure.
    """
    with same_randomness():
        found = sorted(
            {label for _, labels in pairs(data) for label in set(labels.flatten().tolist())}
        )
    return {
        label: measure(model, loss, OneClass(data, label), ignore_index=NO_CLASS, **options)
        for label in found
        if label != ignore_index
    }


# Stands for the labels of other classes.
NO_CLASS = -1


@dataclass(frozen=True)
class OneClass:
    """The batches of a dataset with one label alone: other examples left out, pixels marked."""

    data: Data
    label: int

    def __iter__(self) -> Iterator[Pair]:
        for inputs, labels in pairs(self.data):
            its = labels == self.label
            has = its.flatten(1).any(1) if its.ndim > 1 else its
            if has.any():
                marked = labels[has].where(its[has], NO_CLASS)
                yield taken(inputs, has), marked
