"""What must hold for the grid of a study as a whole, before anything is trained."""

from calibrant.data import DATASETS
from calibrant.models import MODELS
from calibrant.setting_errors import SettingError
from calibrant.study.grid import Cell, Choice, Choices, Study
from calibrant.study.spec_settings import PARTS, family_name
from calibrant.training.recipe import Recipe, recipe_from

MOST_RUNS = 10_000
# Kinds of data that a model can take, by what it is made for.
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
        for model in study.model:
            made_for = MODELS[model.name].kind if model.name in MODELS else None
            if made_for is not None and _kind(dataset) not in TAKES[made_for]:
                raise ValueError(
                    f"{model.place}.name: {model.name} is for {made_for}, {has}; put them in two "
                    "studies"
                )
        if study.shifts and _kind(dataset) not in ("images", "masks", "images or text"):
            raise ValueError(f"shifts: they change images, {has}")


def _check_runs(study: Study) -> None:
    """Make every recipe, and refuse two trainings that are one."""
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
            raise ValueError(f"{same} mean the same training: {label}")


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
