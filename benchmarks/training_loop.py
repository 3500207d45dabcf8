"""How fast our loop trains, compared with a bare loop and one with a DataLoader."""

from dataclasses import replace

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from benchmarks.inputs import SEED
from benchmarks.measure import Section, in_pairs
from calibrant import data, methods, models
from calibrant.data import Augmentation
from calibrant.training import Loop, Recipe, Runtime
from calibrant.training.recipe import named_settings, recipe_from

BATCH, STEPS, SIZE, PAD = 128, 10, 16, 2
EPOCH = 42 * BATCH
ABOUT = f"""ResNet-8 on CIFAR-10 at {SIZE}x{SIZE} (random images if the data is absent), batch size
{BATCH}, {STEPS} steps of SGD with momentum. The bare loop is hand-written: float32 tensors in
memory, channels last, no checks, no logging. The DataLoader reads PIL images and applies pad,
crop, flip, conversion and scaling to each, as torchvision does. It runs in the training process,
because workers would compete for the cores. Our loop checks after each step that loss and gradient
are finite; next to the DataLoader it also crops and flips. The ratio is the median over
neighbouring runs. The recipe `refined` is compared with `plain` over an epoch of {EPOCH:,} images,
each with a prediction of the validation data, a tenth as many; `refined` makes one for each of
three averages, and fits temperatures."""


def splits(n: int = BATCH * STEPS) -> data.Splits:
    """CIFAR-10 made small, or noise of the same shape; a tenth as many validation images."""
    try:
        whole = data.load("cifar10", SEED, limit=4 * n, size=SIZE)
        few = whole.val.take(torch.arange(n // 10))
        return replace(whole, train=whole.train.take(torch.arange(n)), val=few)
    except FileNotFoundError:
        generator = torch.Generator().manual_seed(SEED)
        images = torch.randint(0, 256, (n, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, 10, (n,), generator=generator)
        part = data.Split(images, labels, torch.arange(n), data.Scale((0.5,) * 3, (0.25,) * 3))
        few = part.take(torch.arange(n // 10))
        return data.Splits("noise", "images", part, few, few, class_names=tuple("abcdefghij"))


def network(source: data.Splits) -> torch.nn.Module:
    """The same network each time."""
    return models.build("resnet8", classes=source.classes, shape=source.shape, seed=SEED)


class Images(Dataset):
    """One picture at a time through its own transforms, as torchvision's datasets do it."""

    def __init__(self, split: data.Split) -> None:
        self.images = split.inputs.permute(0, 2, 3, 1).numpy()
        self.labels = split.labels.tolist()
        self.mean = torch.tensor(split.scale.mean)[:, None, None]
        self.std = torch.tensor(split.scale.std)[:, None, None]

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int):
        image = ImageOps.expand(Image.fromarray(self.images[index]), PAD)
        top, left = torch.randint(0, 2 * PAD + 1, (2,)).tolist()
        image = image.crop((left, top, left + SIZE, top + SIZE))
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return (pixels.float() / 255 - self.mean) / self.std, self.labels[index]


def ours(source: data.Splits, augmentation: Augmentation):
    """Our loop over the same number of steps."""
    recipe = Recipe(epochs=10_000, batch=BATCH, lr=0.05, augmentation=augmentation)
    method = methods.build("cross_entropy", classes=source.classes)
    loop = Loop(network(source), method, source, recipe, seed=SEED, runtime=Runtime("cpu"))

    def run() -> None:
        loop.progress.at = 0
        loop.take_steps()

    return run


def epoch(source: data.Splits, recipe: str):
    """An epoch of our loop, with its measurements of the validation data."""

    def run() -> None:
        method = methods.build("cross_entropy", classes=source.classes)
        chosen = recipe_from(named_settings({"name": recipe, "epochs": 1, "batch": BATCH}))
        runtime = Runtime("cpu")
        Loop(network(source), method, source, chosen, seed=SEED, runtime=runtime).run()

    return run


def bare(source: data.Splits):
    """A loop written by hand, on floats that were scaled before."""
    model = network(source).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    inputs = source.train.ready(source.train.inputs)
    labels = source.train.labels

    def run() -> None:
        order = torch.randperm(len(inputs))
        for at in range(STEPS):
            index = order[at * BATCH : (at + 1) * BATCH]
            batch = inputs.index_select(0, index).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            cross_entropy(model(batch), labels[index]).backward()
            optimizer.step()

    return run


def loader(source: data.Splits):
    """The loop of most tutorials."""
    model = network(source)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    batches = DataLoader(Images(source.train), batch_size=BATCH, shuffle=True)

    def run() -> None:
        for inputs, labels in batches:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()

    return run


def run() -> Section:
    """Measure both comparisons."""
    section = Section("The training loop", ABOUT)
    source = splits()
    mine, theirs = in_pairs(ours(source, Augmentation()), bare(source), repeats=40)
    section.faster("against a bare loop", mine, theirs, at_least=0.97)
    changed = Augmentation(crop=PAD, flip=True)
    mine, theirs = in_pairs(ours(source, changed), loader(source), repeats=20)
    section.faster("against a DataLoader with transforms", mine, theirs, at_least=1.3)
    whole = splits(EPOCH)
    refined, plain = in_pairs(epoch(whole, "refined"), epoch(whole, "plain"), repeats=7)
    section.faster("recipe refined against plain", refined, plain, at_least=0.95)
    section.note("images a second", BATCH * STEPS / mine, "")
    return section
