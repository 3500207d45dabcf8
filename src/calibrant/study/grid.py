"""A study and its grid: every dataset with every model, optimizer, method and seed.

A cell of the grid is one run of training with its own folder.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from calibrant.study.spec_settings import PARTS, Part, filled, plain
from calibrant.training.probing import DEFAULTS as PROBE_DEFAULTS
from calibrant.training.recipe import Recipe, recipe_from


@dataclass(frozen=True)
class Choice:
    """One dataset, model, optimizer or method of a study.

    Attributes:
        name: in the dict of its family; for a model, the path of a factory is possible.
        settings: those that the file gives, in their types.
        label: how tables show it.
        recipe: what it changes in the recipe of the study.
        place: in the file, such as `method[1]`.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    place: str = field(default="", compare=False)

    def config(self, part: Part) -> dict[str, Any]:
        """What it means for a run, its recipe aside."""
        settings = filled(part, self.name, self.settings)
        return {"name": self.name, **{key: plain(each) for key, each in settings.items()}}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as a file holds them."""
        own: dict[str, Any] = {"name": self.name, "label": self.label, **self.settings}
        return {**own, "recipe": dict(self.recipe)} if self.recipe else own


# Dataset, model, optimizer and method.
Choices = tuple[Choice, Choice, Choice, Choice]


@dataclass(frozen=True)
class Cell:
    """One run of a study: what is trained, and what is measured."""

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
        """The run in one line."""
        return f"{', '.join(self.labels.values())}, seed {self.seed}"

    def parts(self) -> dict[str, Any]:
        """Arguments of `built`."""
        names: tuple[Part, ...] = ("dataset", "model", "method")
        return {part: getattr(self, part).config(part) for part in names}

    def config(self) -> dict[str, Any]:
        """All that decides about the run, and nothing else, as plain values for JSON.

        Settings that are not given stand there with their defaults, so that writing one out
        changes nothing. What an optimizer sets is part of the recipe.
        """
        probe = {} if self.probe is None else {"probe": plain({**PROBE_DEFAULTS, **self.probe})}
        return {
            **self.parts(),
            "recipe": plain(self.recipe.flat()),
            "seed": self.seed,
            **probe,
        }

    @cached_property
    def id(self) -> str:
        """16 hex digits, the start of the SHA-256 of `config`: the same run has the same id.

        It is the name of the run's folder, so that no text of a user becomes a path.
        """
        try:
            text = json.dumps(self.config(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.label}: settings must be plain JSON: {error}") from error
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Study:
    """What to train and what to measure; made by `read` or `parse`, which check it.

    The axes of the grid are `dataset`, `model`, `optimizer`, `method` and, innermost, `seeds`.

    Attributes:
        name: name of the study, and of its folder.
        calibrators: names in `CALIBRATORS`, "auto" or "blend"; the predictions as they are come
            first in any case.
        metrics: names in `METRICS`.
        resamples: resamples of the intervals.
        about: free text.
        recipe: settings of every run, before those of its choices.
        probe: settings of a probe of every run; None is no probe.
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
        """How many runs there are."""
        return len(self.seeds) * math.prod(len(getattr(self, part)) for part in PARTS)

    def combinations(self) -> Iterator[Choices]:
        """The choices of each run, without its seed, in the order of the grid."""
        return product(self.dataset, self.model, self.optimizer, self.method)

    def settings_of(self, choices: Choices) -> dict[str, Any]:
        """The settings of a recipe: the study's, then those of its choices, optimizer last."""
        dataset, model, optimizer, method = choices
        own = {"optimizer": optimizer.name, **optimizer.settings}
        return {**self.recipe, **dataset.recipe, **model.recipe, **method.recipe, **own}

    def cells(self) -> list[Cell]:
        """Every run, in the order of the grid."""
        return [
            Cell(*choices, recipe, seed, self.probe)
            for choices in self.combinations()
            for recipe in [recipe_from(self.settings_of(choices))]
            for seed in self.seeds
        ]

    @cached_property
    def by_id(self) -> dict[str, Cell]:
        """Every run by its id, in the order of the grid."""
        return {cell.id: cell for cell in self.cells()}

    def as_dict(self) -> dict[str, Any]:
        """Plain values in the shape of a file: `parse` makes the same study of them."""
        found = {key: list(v) if isinstance(v, tuple) else v for key, v in vars(self).items()}
        for part in PARTS:
            found[part] = [each.as_dict() for each in getattr(self, part)]
        optional = [key for key in ("probe", "shifts") if not found[key] and found[key] != {}]
        return {key: v for key, v in found.items() if key not in (*optional, "by_id")}
