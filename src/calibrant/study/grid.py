"""A study and its cells: every dataset with every model, optimizer, method and seed."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from calibrant.study.cell_id import canonical, cell_id
from calibrant.study.spec_settings import PARTS, Part, filled, plain
from calibrant.training.probing import DEFAULTS as PROBE_DEFAULTS
from calibrant.training.recipe import Recipe, recipe_from

# Where the choices of a training stand in the file: dataset, model, optimizer, method.
Places = tuple[int, int, int, int]


@dataclass(frozen=True)
class Choice:
    """One dataset, model, optimizer or method of a study.

    Attributes:
        name: in the dict of its family; for a model, the path of a factory is possible.
        settings: those that the file gives, in their types.
        label: how tables show it.
        recipe: what it changes in the recipe of the study.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as a file holds them."""
        own: dict[str, Any] = {"name": self.name, "label": self.label, **self.settings}
        return {**own, "recipe": dict(self.recipe)} if self.recipe else own


@dataclass(frozen=True)
class Cell:
    """One training of a study."""

    dataset: Choice
    model: Choice
    optimizer: Choice
    method: Choice
    recipe: Recipe
    seed: int
    probe: dict[str, Any] | None = None

    @property
    def labels(self) -> dict[str, str]:
        """How tables show the four choices."""
        return {part: getattr(self, part).label for part in PARTS}

    @property
    def label(self) -> str:
        """The cell in one line."""
        return f"{', '.join(self.labels.values())}, seed {self.seed}"

    def config(self) -> dict[str, Any]:
        """All that decides about the training, and nothing else, as plain values for JSON.

        Settings that are not given stand there with their defaults, so that writing one out
        changes nothing. What an optimizer sets is part of the recipe.
        """
        probe = {} if self.probe is None else {"probe": plain({**PROBE_DEFAULTS, **self.probe})}
        return {
            "dataset": chosen_config("dataset", self.dataset),
            "model": chosen_config("model", self.model),
            "method": chosen_config("method", self.method),
            "recipe": plain(self.recipe.flat()),
            "seed": self.seed,
            **probe,
        }

    @property
    def identity(self) -> str:
        """SHA-256 of `config`: two cells with the same one are the same training."""
        return hashlib.sha256(canonical(self.config()).encode()).hexdigest()


@dataclass(frozen=True)
class Study:
    """What to train and what to measure; made by `read` or `parse`, which check it.

    Attributes:
        name: of the study, and of its folder.
        dataset: first axis of the grid.
        model: second.
        optimizer: third.
        method: fourth.
        seeds: the innermost axis.
        calibrators: names in `CALIBRATORS`; the predictions as they are come first in any case.
        metrics: names in `METRICS`.
        resamples: of the intervals.
        about: free text.
        recipe: settings of every training, before those of its choices.
        probe: settings of a probe of every training; None is no probe.
        shifts: changes of the test images, each measured as well; names in `data.SHIFTS`.
    """

    name: str
    dataset: tuple[Choice, ...]
    model: tuple[Choice, ...]
    optimizer: tuple[Choice, ...]
    method: tuple[Choice, ...]
    seeds: tuple[int, ...]
    calibrators: tuple[str, ...]
    metrics: tuple[str, ...]
    resamples: int
    about: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    probe: dict[str, Any] | None = None
    shifts: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many cells there are."""
        return math.prod(len(axis) for axis in (*self.axes(), self.seeds))

    def axes(self) -> list[tuple[Choice, ...]]:
        """Datasets, models, optimizers and methods, as the grid is ordered."""
        return [getattr(self, part) for part in PARTS]

    def cells(self) -> list[Cell]:
        """Every training; seeds vary fastest, then methods, optimizers, models and datasets."""
        found: list[Cell] = []
        for indices in combinations(self):
            choices = self.chosen(indices)
            recipe = recipe_from(self.settings_of(indices))
            found.extend(Cell(*choices, recipe, seed, self.probe) for seed in self.seeds)
        return found

    @cached_property
    def by_id(self) -> dict[str, Cell]:
        """Every cell by its id in the store, in the order of the grid; worked out once."""
        return {cell_id(cell.config()): cell for cell in self.cells()}

    def chosen(self, indices: Places) -> tuple[Choice, Choice, Choice, Choice]:
        """The four choices at their places in the file."""
        first, second, third, fourth = indices
        return self.dataset[first], self.model[second], self.optimizer[third], self.method[fourth]

    def settings_of(self, indices: Places) -> dict[str, Any]:
        """The settings of a recipe: the study's, then those of its choices, optimizer last."""
        dataset, model, optimizer, method = self.chosen(indices)
        own = {"optimizer": optimizer.name, **optimizer.settings}
        return {**self.recipe, **dataset.recipe, **model.recipe, **method.recipe, **own}

    def as_dict(self) -> dict[str, Any]:
        """Plain values in the shape of a file: `parse` makes the same study of them."""
        return {
            "name": self.name,
            "about": self.about,
            "seeds": list(self.seeds),
            "calibrators": list(self.calibrators),
            "metrics": list(self.metrics),
            "resamples": self.resamples,
            "recipe": dict(self.recipe),
            **({} if self.probe is None else {"probe": dict(self.probe)}),
            **({"shifts": list(self.shifts)} if self.shifts else {}),
            **{part: [each.as_dict() for each in getattr(self, part)] for part in PARTS},
        }


def combinations(study: Study) -> Iterator[Places]:
    """Places of the choices of each training, without its seed, in the order of the grid."""
    first, second, third, fourth = (range(len(axis)) for axis in study.axes())
    return product(first, second, third, fourth)


def chosen_config(part: Part, choice: Choice) -> dict[str, Any]:
    """What a choice means for the training, its recipe aside."""
    settings = filled(part, choice.name, choice.settings)
    return {"name": choice.name, **{key: plain(each) for key, each in settings.items()}}
