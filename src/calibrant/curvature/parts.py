"""A measure of curvature per layer, or per class."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from calibrant.curvature.batches import Data, Pair, read_batches, same_randomness, take
from calibrant.curvature.problem import Loss
from calibrant.curvature.weights import copy_weights
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
    """A measure of the weights of each layer alone: of the diagonal blocks of the matrix.

    Traces of layers add up to the whole trace; the largest eigenvalue of the whole matrix is at
    least that of any layer.

    Args:
        measure: `top_eigenvalues`, `trace` or another with the same arguments.
        model: a layer is a module with weights of its own; its name is "" if it is the model.
        parameters: only these weights.
        options: options of the measure.
    """
    network = bare(model)
    layers: dict[str, list[str]] = {}
    for name in copy_weights(network, parameters).chosen:
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
    """A measure of the examples, or pixels, of each label alone.

    Args:
        measure: `top_eigenvalues`, `trace` or another with the same arguments.
        data: as for the measure; classes that do not occur are left out.
        ignore_index: label of ignored examples or pixels.
        options: options of the measure.
    """
    with same_randomness():
        found = sorted(
            {label for _, labels in read_batches(data) for label in set(labels.flatten().tolist())}
        )
    return {
        label: measure(model, loss, OneClass(data, label), ignore_index=NO_CLASS, **options)
        for label in found
        if label != ignore_index
    }


# Replaces the labels of other classes.
NO_CLASS = -1


@dataclass(frozen=True)
class OneClass:
    """The batches of a dataset with one label: other examples are dropped, other pixels ignored."""

    data: Data
    label: int

    def __iter__(self) -> Iterator[Pair]:
        for inputs, labels in read_batches(self.data):
            match = labels == self.label
            found = match.reshape(len(match), -1).any(1)
            if found.any():
                yield take(inputs, found), labels[found].where(match[found], NO_CLASS)
