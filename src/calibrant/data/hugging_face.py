"""Labelled images or texts in the format of Hugging Face's `datasets`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.data.folders import pixels, stacked
from calibrant.data.options import Size
from calibrant.data.source import Part, Source
from calibrant.data.splits import Kind
from calibrant.extras import need
from calibrant.files.checks import listed, one_line
from calibrant.shapes import Index

VAL_NAMES = ("validation", "valid", "val", "dev")
CHUNK = 256


def hugging_face(
    folders: list[Path],
    *,
    dataset: str = "",
    config: str | None = None,
    input_column: str | None = None,
    label_column: str | None = None,
    size: Size = None,
) -> Source:
    """Read a dataset by its name on the hub, or a folder that `datasets` can read or has saved.

    A split called validation (or valid, val, dev) is val; without a labelled test it becomes test.

    Args:
        folders: not searched: pass the path of a folder as the name.
        dataset: its name, or a path; `hf:NAME` sets it.
        config: name of a configuration.
        input_column: by default the only image column, otherwise the first text column.
        label_column: by default the only column of classes, otherwise `label` or `labels`.
        size: see `Options`.
    """
    if not dataset:
        raise ValueError("write the name of the dataset after hf:, such as hf:ag_news")
    library = need("datasets", extra="datasets", what="reading datasets of Hugging Face")
    splits = _opened(library, dataset, config)
    if "train" not in splits:
        raise ValueError(f"hf:{dataset} has no split 'train'; it has {listed(list(splits))}")
    features = splits["train"].features
    given = input_column or _input_column(library, dataset, features)
    target = label_column or _label_column(library, dataset, features)
    for column in (given, target):
        if column not in features:
            raise ValueError(
                f"hf:{dataset} has no column {column!r}; it has {listed(list(features))}"
            )
    is_image = isinstance(features[given], library.Image)
    if not is_image and getattr(features[given], "dtype", "") not in ("string", "large_string"):
        raise ValueError(f"hf:{dataset}: column {given!r} holds neither images nor text")
    numbers = _classes(dataset, splits["train"], target, features[target])

    def part(name: str) -> Part | None:
        table = splits.get(name)
        labels = None if table is None else _labels(dataset, table, target, numbers)
        if labels is None:
            return None
        if not is_image:
            return Part(labels, lambda index: _select(table, index)[given])
        return Part(labels, lambda index: stacked(_images(table, given, index), len(index), size))

    train, test = part("train"), part("test")
    val = next(filter(None, map(part, VAL_NAMES)), None)
    if train is None:
        raise ValueError(f"hf:{dataset}: the labels of 'train' must be at least 0")
    kind: Kind = "images" if is_image else "text"
    return Source(train, test, val, class_names=tuple(numbers), kind=kind)


def _opened(library: Any, dataset: str, config: str | None) -> Any:
    try:
        if (Path(dataset) / "dataset_dict.json").is_file():
            return library.load_from_disk(dataset)
        return library.load_dataset(dataset, config)
    except FileNotFoundError as error:
        raise FileNotFoundError(one_line(error)) from None
    except Exception as error:
        # The library passes on errors of the network and of many parsers.
        raise ValueError(f"hf:{dataset} cannot be read: {one_line(error)}") from None


def _input_column(library: Any, dataset: str, features: Any) -> str:
    images = [name for name, kind in features.items() if isinstance(kind, library.Image)]
    texts = [name for name, kind in features.items() if getattr(kind, "dtype", "") == "string"]
    if len(images) > 1 or not images + texts:
        raise ValueError(f"hf:{dataset}: pass input_column=..., one of {listed(list(features))}")
    return str((images or texts)[0])


def _label_column(library: Any, dataset: str, features: Any) -> str:
    classes = [name for name, kind in features.items() if isinstance(kind, library.ClassLabel)]
    usual = [name for name in ("label", "labels") if name in features]
    if len(classes) != 1 and not usual:
        raise ValueError(f"hf:{dataset}: pass label_column=..., one of {listed(list(features))}")
    return str(classes[0] if len(classes) == 1 else usual[0])


def _classes(dataset: str, train: Any, column: str, feature: Any) -> dict[str, int]:
    """Class name to class number; unnamed classes are named by their sorted values."""
    names = getattr(feature, "names", None)
    if names is None:
        values = train.unique(column)
        if not all(isinstance(value, int | str) for value in values):
            raise ValueError(f"hf:{dataset}: column {column!r} must have integers or strings")
        names = [str(value) for value in sorted(values)]
    return {name: number for number, name in enumerate(names)}


def _labels(dataset: str, table: Any, column: str, numbers: dict[str, int]) -> Tensor | None:
    """Class numbers, or None for a split with hidden labels."""
    values = table[column][:]
    if table.features[column].dtype == "int64" and hasattr(table.features[column], "names"):
        labels = np.asarray(values, dtype=np.int64)
    else:
        unknown = [value for value in values if str(value) not in numbers]
        if unknown and unknown != [-1] * len(values):
            raise ValueError(f"hf:{dataset}: train has no class {one_line(unknown[0], 40)!r}")
        labels = np.array([numbers.get(str(value), -1) for value in values], dtype=np.int64)
    return None if not len(labels) or labels.min() < 0 else torch.from_numpy(labels)


def _select(table: Any, index: Index) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = table.select(index.tolist())[:]
    return columns


def _images(table: Any, column: str, index: Index) -> Iterator[tuple[object, Tensor]]:
    for start in range(0, len(index), CHUNK):
        part = index[start : start + CHUNK]
        for row, image in zip(part.tolist(), _select(table, part)[column], strict=True):
            yield f"row {row}", pixels(image, "RGB")
