"""The studies of the repository: every file is read, every run builds and makes one step."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrant import methods, models
from calibrant.data import Scale, Split, Splits
from calibrant.study.grid import Cell
from calibrant.study.spec import parse, read
from calibrant.training.loop import Loop
from calibrant.training.runtime import Runtime

FILES = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))
FULL = [path for path in FILES if not path.stem.endswith("-cpu")]
# Kind, classes, and shape of an input (or length of a text) of the real data.
DATA = {
    "cifar10": ("images", 10, (3, 32, 32)),
    "cifar100": ("images", 100, (3, 32, 32)),
    "tiny_imagenet": ("images", 200, (3, 64, 64)),
    "camvid": ("masks", 11, (3, 120, 160)),
    "20news": ("text", 20, (1000,)),
}
TRAIN, BATCH, VOCABULARY = 3, 2, 50


def like(name: str) -> Splits:
    """Random data of the shape of real ones: a step needs no more, and no download."""
    kind, classes, shape = DATA[name]
    generator = torch.Generator().manual_seed(0)

    def drawn(n: int) -> Split:
        if kind == "text":
            inputs = torch.randint(2, VOCABULARY, (n, *shape), generator=generator)
            return Split(inputs, labels_of(n), torch.arange(n))
        inputs = torch.randint(256, (n, *shape), generator=generator, dtype=torch.uint8)
        return Split(inputs, labels_of(n), torch.arange(n), Scale((0.5,) * 3, (0.25,) * 3))

    def labels_of(n: int) -> torch.Tensor:
        where = (n, *shape[1:]) if kind == "masks" else (n,)
        return torch.randint(classes, where, generator=generator)

    return Splits(
        name,
        kind,
        drawn(TRAIN),
        drawn(2),
        drawn(2),
        meta=drawn(BATCH),
        class_names=tuple(map(str, range(classes))),
        vocabulary=VOCABULARY if kind == "text" else None,
        ignore_index=classes if kind == "masks" else None,
    )


def kinds(path: Path) -> list[Cell]:
    """One run of each kind: seeds step alike."""
    found = {
        (cell.dataset.label, cell.model.label, cell.optimizer.label, cell.method.label): cell
        for cell in read(path).cells()
    }
    return list(found.values())


def test_every_study_is_named_like_its_file_and_every_full_size_one_has_a_twin_for_two_cores():
    studies = {path.stem: read(path) for path in FILES}
    for stem, study in studies.items():
        assert (study.name, len(study.seeds)) == (stem, 3), stem
        assert any(each.name == "cross_entropy" for each in study.method), stem
        assert "temperature" in study.calibrators, stem
        twin = study if stem.endswith("-cpu") else studies[f"{stem}-cpu"]
        assert {each.name for each in twin.method} & {each.name for each in study.method}, stem


def test_the_example_of_the_page_is_a_study_of_four_runs():
    page = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    example, *_ = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert parse(tomllib.loads(example)).count == 4


@pytest.mark.parametrize("path", FULL, ids=lambda path: path.stem)
@pytest.mark.slow
def test_every_run_of_a_full_size_study_builds_and_makes_one_step(path, as_a_user_runs_it):
    made: dict[tuple[str, str], tuple[Splits, torch.nn.Module]] = {}
    for cell in kinds(path):
        key = cell.dataset.name, cell.model.label
        if key not in made:
            splits = like(cell.dataset.name)
            network = models.build(
                cell.model.name,
                classes=splits.classes,
                shape=splits.shape,
                vocabulary=splits.vocabulary,
                **cell.model.settings,
            )
            made[key] = splits, network
        splits, network = made[key]
        method = methods.build(cell.method.name, classes=splits.classes, **cell.method.settings)
        recipe = replace(cell.recipe, batch=BATCH)
        loop = Loop(network, method, splits, recipe, seed=0, runtime=Runtime("cpu"))
        loop.model.train()
        # Of the first layer: the gradient has come all the way.
        before = loop.parameters[0].detach().clone()
        loop.take_step(torch.arange(BATCH))
        assert not torch.equal(before, loop.parameters[0]), cell.label
