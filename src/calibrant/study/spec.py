"""Read a study from a TOML file; whatever can be checked before training is checked here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.data import DATASETS
from calibrant.extras import need
from calibrant.files.checks import one_line
from calibrant.models import MODELS, models_for
from calibrant.setting_errors import SettingError
from calibrant.study.grid import Cell, Choice, Choices, Study
from calibrant.study.spec_settings import LONGEST_LABEL, PARTS, family_name, is_code, plain
from calibrant.study.spec_text import load, overridden
from calibrant.training.recipe import Recipe, recipe_from

# Of a study that names none.
OPTIMIZER = [{"name": "sgd"}]
MOST_RUNS = 10_000
# Changes of the training inputs, and the inputs for which they mean nothing.
NOT_FOR = {
    "crop": ("text", "vectors"),
    "flip": ("text", "vectors"),
    "mixup": ("text",),
    "word_dropout": ("images", "masks", "vectors"),
}


def read(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    allow_code: Sequence[str] = (),
    many: bool = False,
) -> Study:
    """Read a study and check all of it; no data are loaded and no network is built.

    Args:
        path: a TOML file of at most 1 MB.
        overrides: `place=value` with a value as TOML writes it, such as `recipe.epochs=5`,
            `seeds=[0]` or `dataset[0].limit=500`; they replace what the file says.
        allow_code: paths `package.module:factory` of models that the file may name. A file alone
            cannot make code run.
        many: allow more than 10,000 runs.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: one line with the place in the file, what must hold, and what came.
    """
    whole = overridden({"optimizer": OPTIMIZER, **load(path)}, overrides)
    try:
        return parse(whole, allow_code=allow_code, many=many)
    except ValueError as error:
        # With overrides it may be one of them that is wrong.
        raise ValueError(f"{error}" if overrides else f"{path}: {error}") from None


def parse(given: Mapping[str, Any], *, allow_code: Sequence[str] = (), many: bool = False) -> Study:
    """Make a study of plain values in the shape of a file; options as in `read`.

    >>> one = {"name": "blobs"}, {"name": "mlp"}, {"name": "focal", "gamma": 2}
    >>> tables = dict(zip(("dataset", "model", "method"), ([each] for each in one)))
    >>> study = parse({"name": "small", "seeds": [0, 1], **tables})
    >>> [cell.label for cell in study.cells()]
    ['blobs, mlp, sgd, focal gamma=2, seed 0', 'blobs, mlp, sgd, focal gamma=2, seed 1']
    """
    need("pydantic", extra="study", what="reading a study")
    from calibrant.study.spec_tables import validated

    values: dict[str, Any] = validated({"optimizer": OPTIMIZER, **given})
    for index, each in enumerate(values["model"]):
        if is_code(each["name"]) and each["name"] not in allow_code:
            raise ValueError(
                f"model[{index}].name: {each['name']!r} is code, and a file alone may not run any; "
                f"name it outside of the file as well (--allow-code {each['name']})"
            )
    for part in PARTS:
        values[part] = [
            _choice(f"{part}[{index}]", **each) for index, each in enumerate(values[part])
        ]
    for key, value in values.items():
        values[key] = tuple(value) if isinstance(value, list) else value
    study = Study(**values)
    _check_grid(study, many=many)
    return study


def _choice(
    place: str, /, name: str, label: str = "", recipe: dict[str, Any] | None = None, **settings: Any
) -> Choice:
    """One table of the grid; its label is name and settings, in the order of the file."""
    said = " ".join([name, *(f"{key}={_text(plain(each))}" for key, each in settings.items())])
    return Choice(name, settings, label or one_line(said, LONGEST_LABEL), recipe or {}, place)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_grid(study: Study, *, many: bool) -> None:
    """Refuse a grid that is empty, too large, says a thing twice, or holds what cannot run."""
    for part in PARTS:
        if not getattr(study, part):
            raise ValueError(f"{part}: the grid is empty; write at least one [[{part}]]")
    if not study.seeds:
        raise ValueError("seeds: the grid is empty; write at least one seed")
    if study.count > MOST_RUNS and not many:
        raise ValueError(
            f"the grid has {study.count:,} runs, more than {MOST_RUNS:,}; reduce it, or confirm "
            "with --yes"
        )
    _check_optimizers(study)
    _check_kinds(study)
    _check_runs(study)
    _check_labels(study)


def _check_optimizers(study: Study) -> None:
    """A setting of an optimizer has one place: in a recipe it would be without effect."""
    others = [each for part in PARTS for each in getattr(study, part)]
    tables = {"recipe": study.recipe, **{f"{each.place}.recipe": each.recipe for each in others}}
    for place, table in tables.items():
        for optimizer in study.optimizer:
            if both := [key for key in table if key in optimizer.settings]:
                raise ValueError(
                    f"{place}.{both[0]}: {optimizer.place} sets it, too; keep one of the two"
                )


def _kind(dataset: Choice) -> str:
    return DATASETS[family_name("dataset", dataset.name)].kind


def _check_kinds(study: Study) -> None:
    """Every model must be able to take the inputs of every dataset, and every shift as well."""
    for dataset in study.dataset:
        has = f"and {dataset.place} {dataset.name} has {_kind(dataset)}"
        fitting = models_for(_kind(dataset))
        for model in study.model:
            if model.name in MODELS and model.name not in fitting:
                raise ValueError(
                    f"{model.place}.name: {model.name} is for {MODELS[model.name].kind}, {has}; "
                    "put them in two studies"
                )
        if study.shifts and _kind(dataset) not in ("images", "masks", "images or text"):
            raise ValueError(f"shifts: they change images, {has}")


def _check_runs(study: Study) -> None:
    """Make every recipe, and refuse duplicate runs."""
    first: dict[str, Cell] = {}
    for choices in study.combinations():
        recipe = _recipe(study, choices)
        _check_augmentation(choices[0], recipe)
        cell = Cell(*choices, recipe, study.seeds[0])
        before = first.setdefault(cell.id, cell)
        if before is not cell:
            pairs = [(getattr(before, part).place, getattr(cell, part).place) for part in PARTS]
            same = " and ".join(f"{one} and {two}" for one, two in pairs if one != two)
            label = ", ".join(before.labels.values())
            raise ValueError(f"{same} mean the same run: {label}")


def _recipe(study: Study, choices: Choices) -> Recipe:
    """The recipe of some runs; an error says which table of the file it comes from."""
    try:
        return recipe_from(study.settings_of(choices))
    except SettingError as error:
        places: dict[str, str] = {}
        # Later tables win, as they do in the recipe.
        for choice in choices:
            places |= dict.fromkeys(choice.recipe, f"{choice.place}.recipe")
        places |= dict.fromkeys(choices[2].settings, choices[2].place)
        place = places.get(error.name, "recipe")
        raise ValueError(f"{place}.{error.name}: {error.problem}") from None


def _check_augmentation(dataset: Choice, recipe: Recipe) -> None:
    for key, kinds in NOT_FOR.items():
        if getattr(recipe.augmentation, key) and _kind(dataset) in kinds:
            raise ValueError(
                f"{dataset.place}: {key} is not for {_kind(dataset)}; "
                f"set it in the recipes of other datasets, or to 0 in that of {dataset.name}"
            )


def _check_labels(study: Study) -> None:
    """Lines of a table must be told apart."""
    for part in PARTS:
        first: dict[str, Choice] = {}
        for each in getattr(study, part):
            before = first.setdefault(each.label, each)
            if before is not each:
                raise ValueError(
                    f"{each.place}.label: {each.label!r} again, as {before.place}; "
                    "give one of them another label"
                )
