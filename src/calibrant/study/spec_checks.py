"""What must hold for the grid of a study as a whole, before anything is trained."""

from collections.abc import Mapping

from calibrant.data import DATASETS
from calibrant.models import MODELS
from calibrant.setting_errors import SettingError
from calibrant.study.cell_id import canonical
from calibrant.study.grid import Places, Study, chosen_config, combinations
from calibrant.study.spec_settings import PARTS, family_name, plain
from calibrant.training.recipe import Recipe, recipe_from

MOST_CELLS = 10_000
# What a network can take, by what it is made for.
TAKES = {
    "images": ("images", "images or text"),
    "masks": ("masks",),
    "text": ("text", "images or text"),
    "numbers": ("vectors", "images", "images or text"),
}
# Changes of the training inputs, and the inputs for which they mean nothing.
NOT_FOR = {
    "crop": ("text", "vectors"),
    "flip": ("text", "vectors"),
    "mixup": ("text",),
    "word_dropout": ("images", "masks", "vectors"),
}


def check_grid(study: Study, *, many: bool) -> None:
    """Refuse a grid that is empty, too large, says a thing twice, or holds what cannot run."""
    for part in PARTS:
        if not getattr(study, part):
            raise ValueError(f"{part}: the grid is empty; write at least one [[{part}]]")
    if not study.seeds:
        raise ValueError("seeds: the grid is empty; write at least one seed")
    if study.count > MOST_CELLS and not many:
        raise ValueError(
            f"the grid has {study.count:,} cells, more than {MOST_CELLS:,}; "
            "cut it down, or say that so many are meant (--yes)"
        )
    _check_optimizers(study)
    _check_fit(study)
    _check_shifts(study)
    _check_cells(study)
    _check_labels(study)


def refused(error: Exception, places: Mapping[str, str], otherwise: str) -> str:
    """An error in one line, after the place of its setting."""
    if isinstance(error, SettingError) and error.name in places:
        return f"{places[error.name]}: {error.problem}"
    return f"{otherwise}: {error}"


def _check_optimizers(study: Study) -> None:
    """A setting of an optimizer has one place: in a recipe it would be without effect."""
    tables = {"recipe": study.recipe}
    for part in PARTS:
        for index, each in enumerate(getattr(study, part)):
            tables[f"{part}[{index}].recipe"] = each.recipe
    for place, table in tables.items():
        for index, optimizer in enumerate(study.optimizer):
            for key in table:
                if key in optimizer.settings:
                    raise ValueError(
                        f"{place}.{key}: optimizer[{index}] sets it, too; keep one of the two"
                    )


def _check_fit(study: Study) -> None:
    """Every model meets every dataset: refuse one that cannot take its inputs."""
    for i, model in enumerate(study.model):
        if model.name not in MODELS:
            continue
        for j, dataset in enumerate(study.dataset):
            made_for = MODELS[model.name].kind
            kind = DATASETS[family_name("dataset", dataset.name)].kind
            if kind not in TAKES[made_for]:
                raise ValueError(
                    f"model[{i}].name: {model.name} is for {made_for}, "
                    f"and dataset[{j}] {dataset.name} has {kind}; put them in two studies"
                )


def _check_shifts(study: Study) -> None:
    """Only images can be shifted."""
    for index, dataset in enumerate(study.dataset if study.shifts else ()):
        kind = DATASETS[family_name("dataset", dataset.name)].kind
        if kind not in ("images", "masks", "images or text"):
            raise ValueError(
                f"shifts: they change images, and dataset[{index}] {dataset.name} has {kind}"
            )


def _check_cells(study: Study) -> None:
    """Make every recipe, and refuse two trainings that are one."""
    # A text for each part of `Cell.config`, made once: cells are many, their parts are few.
    texts = {
        part: [canonical(chosen_config(part, each)) for each in getattr(study, part)]
        for part in PARTS
        if part != "optimizer"
    }
    made: dict[str, tuple[Recipe, str]] = {}
    first: dict[tuple[str, ...], Places] = {}
    twice: list[tuple[Places, Places]] = []
    for indices in combinations(study):
        given = repr(study.settings_of(indices))
        if given not in made:
            recipe = _recipe(study, indices)
            made[given] = recipe, canonical(plain(recipe.flat()))
        recipe, text = made[given]
        _check_augmentation(study, indices, recipe)
        i, j, _, k = indices
        key = texts["dataset"][i], texts["model"][j], texts["method"][k], text
        if first.setdefault(key, indices) != indices:
            twice.append((first[key], indices))
    if twice:
        before, again = twice[0]
        pairs = [
            f"{part}[{b}] and {part}[{a}]"
            for part, b, a in zip(PARTS, before, again, strict=True)
            if a != b
        ]
        labels = ", ".join(each.label for each in study.chosen(before))
        count = len(twice) * len(study.seeds)
        cells = "cell is" if count == 1 else "cells are"
        raise ValueError(
            f"{' and '.join(pairs)} mean the same training: {count:,} {cells} given twice, "
            f"the first is {labels}, seed {study.seeds[0]}"
        )


def _recipe(study: Study, indices: Places) -> Recipe:
    """The recipe of some cells; an error says which table of the file it comes from."""
    dataset, model, optimizer, method = study.chosen(indices)
    places = {key: f"recipe.{key}" for key in study.recipe}
    # Later tables win, as they do in the recipe.
    tables = (("dataset", 0, dataset), ("model", 1, model), ("method", 3, method))
    for part, axis, choice in tables:
        at = f"{part}[{indices[axis]}].recipe"
        places |= {key: f"{at}.{key}" for key in choice.recipe}
    places |= {key: f"optimizer[{indices[2]}].{key}" for key in optimizer.settings}
    try:
        return recipe_from(study.settings_of(indices))
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(refused(error, places, "recipe")) from None


def _check_augmentation(study: Study, indices: Places, recipe: Recipe) -> None:
    dataset = study.dataset[indices[0]]
    kind = DATASETS[family_name("dataset", dataset.name)].kind
    for key, kinds in NOT_FOR.items():
        if getattr(recipe.augmentation, key) and kind in kinds:
            raise ValueError(
                f"dataset[{indices[0]}]: {key} is not for {kind}; "
                f"set it in the recipes of other datasets, or to 0 in that of {dataset.name}"
            )


def _check_labels(study: Study) -> None:
    """Rows of a table must be told apart."""
    for part in PARTS:
        seen: dict[str, int] = {}
        for index, each in enumerate(getattr(study, part)):
            if each.label in seen:
                raise ValueError(
                    f"{part}[{index}].label: {each.label!r} again, as {part}[{seen[each.label]}]; "
                    "give one of them another label"
                )
            seen[each.label] = index
