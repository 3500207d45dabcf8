"""What must hold for the grid of a study as a whole, before anything is trained."""

from calibrant.data import DATASETS
from calibrant.models import MODELS
from calibrant.setting_errors import SettingError
from calibrant.study.cell_id import canonical
from calibrant.study.grid import Choice, Places, Study, chosen_config, combinations
from calibrant.study.spec_settings import PARTS, family_name, plain
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
    tables = {"recipe": study.recipe}
    for part in PARTS:
        for index, each in enumerate(getattr(study, part)):
            tables[f"{part}[{index}].recipe"] = each.recipe
    for place, table in tables.items():
        for index, optimizer in enumerate(study.optimizer):
            if both := [key for key in table if key in optimizer.settings]:
                raise ValueError(
                    f"{place}.{both[0]}: optimizer[{index}] sets it, too; keep one of the two"
                )


def _kind(dataset: Choice) -> str:
    return DATASETS[family_name("dataset", dataset.name)].kind


def _check_kinds(study: Study) -> None:
    """Every model must be able to take the inputs of every dataset, and every shift as well."""
    for j, dataset in enumerate(study.dataset):
        kind = _kind(dataset)
        for i, model in enumerate(study.model):
            made_for = MODELS[model.name].kind if model.name in MODELS else None
            if made_for is not None and kind not in TAKES[made_for]:
                raise ValueError(
                    f"model[{i}].name: {model.name} is for {made_for}, "
                    f"and dataset[{j}] {dataset.name} has {kind}; put them in two studies"
                )
        if study.shifts and kind not in ("images", "masks", "images or text"):
            raise ValueError(
                f"shifts: they change images, and dataset[{j}] {dataset.name} has {kind}"
            )


def _check_runs(study: Study) -> None:
    """Make every recipe, and refuse two trainings that are one."""
    # A text for each part of `Cell.config`, made once: runs are many, their parts are few.
    texts = {
        part: [canonical(chosen_config(part, each)) for each in getattr(study, part)]
        for part in PARTS
        if part != "optimizer"
    }
    made: dict[str, tuple[Recipe, str]] = {}
    first: dict[tuple[str, ...], Places] = {}
    for indices in combinations(study):
        given = repr(study.settings_of(indices))
        if given not in made:
            recipe = _recipe(study, indices)
            made[given] = recipe, canonical(plain(recipe.flat()))
        recipe, text = made[given]
        _check_augmentation(study, indices, recipe)
        i, j, _, k = indices
        key = texts["dataset"][i], texts["model"][j], texts["method"][k], text
        if (before := first.setdefault(key, indices)) != indices:
            pairs = [
                f"{part}[{b}] and {part}[{a}]"
                for part, b, a in zip(PARTS, before, indices, strict=True)
                if a != b
            ]
            labels = ", ".join(each.label for each in study.chosen(before))
            raise ValueError(f"{' and '.join(pairs)} mean the same training: {labels}")


def _recipe(study: Study, indices: Places) -> Recipe:
    """The recipe of some runs; an error says which table of the file it comes from."""
    try:
        return recipe_from(study.settings_of(indices))
    except SettingError as error:
        places = {key: "recipe" for key in study.recipe}
        # Later tables win, as they do in the recipe.
        for part, index, choice in zip(PARTS, indices, study.chosen(indices), strict=True):
            places |= dict.fromkeys(choice.recipe, f"{part}[{index}].recipe")
        optimizer = study.optimizer[indices[2]]
        places |= dict.fromkeys(optimizer.settings, f"optimizer[{indices[2]}]")
        place = places.get(error.name, "recipe")
        raise ValueError(f"{place}.{error.name}: {error.problem}") from None


def _check_augmentation(study: Study, indices: Places, recipe: Recipe) -> None:
    dataset = study.dataset[indices[0]]
    for key, kinds in NOT_FOR.items():
        if getattr(recipe.augmentation, key) and _kind(dataset) in kinds:
            raise ValueError(
                f"dataset[{indices[0]}]: {key} is not for {_kind(dataset)}; "
                f"set it in the recipes of other datasets, or to 0 in that of {dataset.name}"
            )


def _check_labels(study: Study) -> None:
    """Lines of a table must be told apart."""
    for part in PARTS:
        labels = [each.label for each in getattr(study, part)]
        for index, label in enumerate(labels):
            if (before := labels.index(label)) < index:
                raise ValueError(
                    f"{part}[{index}].label: {label!r} again, as {part}[{before}]; "
                    "give one of them another label"
                )
