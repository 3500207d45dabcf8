"""Split a source into train, val and test: disjoint, and determined by the seed."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from calibrant.data.images import resized, resized_masks, scale_of
from calibrant.data.options import Options, height_and_width
from calibrant.data.source import Part, Source
from calibrant.data.splits import Kind, Scale, Split, Splits
from calibrant.data.strata import Purpose, generator, long_tailed, stratified_order
from calibrant.data.text_sets import encoded, vocabulary_of, words_of
from calibrant.shapes import Index

VAL = 0.1
# Fraction for a source without a test split.
TEST = 0.2
# Seed of the test split: all seeds use the same test examples.
FIXED = 0


@dataclass(frozen=True, eq=False)
class Selection:
    """The examples of a part that a split uses, and the row number of the part's first example."""

    part: Part
    index: Index
    first_row: int

    @property
    def labels(self) -> Tensor:
        """Their clean labels."""
        return self.part.labels[torch.from_numpy(self.index)]


def cut(name: str, kind: Kind, source: Source, seed: int, options: Options) -> Splits:
    """Select the examples of each split, then read them."""
    chosen = _choose(name, source, seed, options)
    train, classes = chosen["train"], len(source.class_names)
    if options.long_tail > 1:
        keep = long_tailed(train.labels.numpy(), classes, options.long_tail, seed)
        chosen["train"] = train = replace(train, index=train.index[keep])
    labels = train.labels
    if source.noisy is not None:
        labels = source.noisy[torch.from_numpy(train.index)]
    elif isinstance(options.label_noise, str):
        raise ValueError(
            f"{name} has no label_noise {options.label_noise!r}; pass a fraction in [0, 1)"
        )
    elif options.label_noise:
        labels = noisy_labels(labels, classes, options.label_noise, seed)
    numbers = None
    if kind == "text":
        inputs, numbers = _tokens(chosen, options.vocabulary, options.length or source.length)
    else:
        inputs = {role: each.part.inputs(each.index) for role, each in chosen.items()}
    scale = None
    if kind in ("images", "masks"):
        size = height_and_width(options.size)
        inputs = {role: resized(images, size) for role, images in inputs.items()}
        scale = scale_of(inputs["train"])
    splits = {role: _split(each, inputs[role], options, scale) for role, each in chosen.items()}
    if kind != "masks":
        splits["train"] = replace(splits["train"], labels=labels)
    return Splits(
        name,
        kind,
        **splits,
        class_names=source.class_names,
        vocabulary=numbers,
        ignore_index=source.ignore_index,
    )


def _choose(name: str, source: Source, seed: int, options: Options) -> dict[str, Selection]:
    """Positions of train, val and test, each sorted; test is the same for every seed."""
    pool = np.arange(len(source.train))
    own_val, own_test = source.val, source.test
    if own_test is None:
        own_val, own_test = None, own_val
    if own_test is not None:
        first_row = len(pool) + (0 if own_val is None else len(own_val))
        test = Selection(own_test, np.arange(len(own_test)), first_row)
    else:
        order = stratified_order(source.train.labels.numpy(), FIXED, Purpose.TEST)
        cut_at = round(TEST * len(pool))
        test, pool = Selection(source.train, order[:cut_at], 0), np.sort(order[cut_at:])
    if own_val is not None:
        if options.val is not None:
            raise ValueError(f"{name} has its own val split; remove val={options.val}")
        train = _limited(Selection(source.train, pool, 0), options.limit, seed)
        val = Selection(own_val, np.arange(len(own_val)), len(source.train))
        val = _limited(val, options.limit, seed)
    else:
        fraction = VAL if options.val is None else options.val
        order = pool[stratified_order(source.train.labels.numpy()[pool], seed, Purpose.VAL)]
        cut_at = round(fraction * len(pool))
        total = min(options.limit or len(pool), len(pool))
        # Prefixes of two fixed orders: a smaller limit gives subsets of both.
        kept = round(fraction * total)
        val = Selection(source.train, order[:kept], 0)
        train = _limited(Selection(source.train, order[cut_at:], 0), total - kept, seed)
    test = _limited(test, options.limit, FIXED)
    chosen = {"train": train, "val": val, "test": test}
    for role, each in chosen.items():
        if not len(each.index):
            raise ValueError(f"{name}: {role} has no examples; raise limit or change val")
    return {role: replace(each, index=np.sort(each.index)) for role, each in chosen.items()}


def noisy_labels(labels: Tensor, classes: int, fraction: float, seed: int) -> Tensor:
    """Replace a fraction of the labels by a uniformly random other class."""
    if classes < 2:
        raise ValueError("label_noise needs at least 2 classes, got 1")
    random = generator(seed, Purpose.NOISE)
    hit = torch.from_numpy(random.permutation(len(labels))[: round(fraction * len(labels))])
    noisy = labels.clone()
    noisy[hit] = (labels[hit] + torch.from_numpy(random.integers(1, classes, len(hit)))) % classes
    return noisy


def _limited(chosen: Selection, limit: int | None, seed: int) -> Selection:
    if limit is None or limit >= len(chosen.index):
        return chosen
    order = stratified_order(chosen.labels.numpy(), seed, Purpose.LIMIT)
    return replace(chosen, index=chosen.index[order[:limit]])


def _tokens(chosen: dict[str, Selection], size: int, length: int) -> tuple[dict[str, Tensor], int]:
    """Tokens of each split and the size of the vocabulary, which is built from train alone."""
    words = {
        role: [words_of(text, length) for text in each.part.inputs(each.index)]
        for role, each in chosen.items()
    }
    numbers = vocabulary_of(words["train"], size)
    tokens = {role: encoded(documents, numbers, length) for role, documents in words.items()}
    return tokens, len(numbers) + 2


def _split(chosen: Selection, inputs: Tensor, options: Options, scale: Scale | None) -> Split:
    part, index = chosen.part, torch.from_numpy(chosen.index)
    labels = chosen.labels
    if part.masks is not None:
        labels = resized_masks(part.masks(chosen.index), height_and_width(options.size))
    posterior = None if part.posterior is None else part.posterior[index]
    return Split(inputs, labels, index + chosen.first_row, scale, posterior)
