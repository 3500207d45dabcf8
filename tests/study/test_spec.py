"""A study is read, becomes the runs of its grid, and each run has an identity."""

import json
import sys
from dataclasses import replace

import pytest
from small_studies import write_toml

from calibrant.calibrators.registry import CALIBRATORS
from calibrant.data import DATASETS
from calibrant.methods import METHODS
from calibrant.metrics import METRICS
from calibrant.models import MODELS
from calibrant.study.spec import parse, read
from calibrant.study.spec_settings import OF_OPTIMIZER, OWN_FILES, fields_of
from calibrant.study.spec_tables import schema
from calibrant.training.optimizers import OPTIMIZERS
from calibrant.training.recipe import Recipe, recipe_from

FILE = """
name = "losses"
about = "three losses"
seeds = [2, 0]
calibrators = ["temperature", "focal_temperature"]
metrics = ["accuracy", "ece"]
resamples = 50

recipe = {epochs = 30, batch = 64}
model = [{name = "resnet8"}, {name = "small_cnn", width = 2, recipe = {epochs = 10, clip = 1}}]
optimizer = [{name = "sgd", lr = 0.05}, {name = "adamw", label = "Adam"}]

[[dataset]]
name = "cifar10"
limit = 10000
size = 16
recipe = {epochs = 20, flip = true, crop = 1}

[[dataset]]
name = "digits"

[[method]]
name = "cross_entropy"

[[method]]
name = "focal"
gamma = 3.5
label = "focal loss"
recipe = {clip = 2}
"""
SMALL = {
    "name": "small",
    "dataset": [{"name": "blobs"}],
    "model": [{"name": "mlp"}],
    "method": [{"name": "focal"}],
}


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "losses.toml"
    found.write_text(FILE)
    return found


def only(**changes):
    [cell] = parse({**SMALL, **changes}).cells()
    return cell


def identity_with(**changes):
    return only(**changes).id


def test_a_file_becomes_a_grid_with_the_seed_innermost(path):
    study = read(path)
    assert (study.name, study.about, study.resamples) == ("losses", "three losses", 50)
    assert study.calibrators == ("temperature", "focal_temperature")
    assert study.metrics == ("accuracy", "ece")
    assert study.dataset[0].settings == {"limit": 10000, "size": 16}
    cells = study.cells()
    assert [(*cell.labels.values(), cell.seed) for cell in cells] == [
        (dataset, model, optimizer, method, seed)
        for dataset in ("cifar10 limit=10000 size=16", "digits")
        for model in ("resnet8", "small_cnn width=2")
        for optimizer in ("sgd lr=0.05", "Adam")
        for method in ("cross_entropy", "focal loss")
        for seed in (2, 0)
    ]
    assert list(cells[0].labels) == ["dataset", "model", "optimizer", "method"]
    first = "cifar10 limit=10000 size=16, resnet8, sgd lr=0.05, cross_entropy, seed 2"
    assert cells[0].label == first
    assert study.count == len({cell.id for cell in cells}) == 32


def test_later_tables_override_the_recipe(path):
    recipes = {tuple(c.labels.values()): c.recipe for c in read(path).cells()}
    big, wide = "cifar10 limit=10000 size=16", "small_cnn width=2"
    plain = recipes["digits", "resnet8", "sgd lr=0.05", "cross_entropy"]
    assert plain == Recipe(epochs=30, batch=64, lr=0.05)
    assert recipes[big, "resnet8", "Adam", "cross_entropy"] == recipe_from(
        {"epochs": 20, "batch": 64, "flip": True, "crop": 1, "optimizer": "adamw"}
    )
    both = recipes[big, wide, "sgd lr=0.05", "cross_entropy"]
    assert (both.epochs, both.clip, both.augmentation.flip) == (10, 1, True)
    assert recipes["digits", wide, "sgd lr=0.05", "focal loss"].clip == 2


def test_overrides_replace_what_the_file_says(path):
    study = read(
        path,
        overrides=[
            "recipe.epochs=5",
            "recipe.schedule=linear",
            "seeds=[7]",
            "dataset[0].limit=500",
            "dataset[0].recipe={}",
            "method[1].recipe.clip = 0.5",
            "name=other",
        ],
    )
    assert (study.name, study.seeds) == ("other", (7,))
    assert study.dataset[0].settings == {"limit": 500, "size": 16}
    assert study.recipe == {"epochs": 5, "batch": 64, "schedule": "linear"}
    assert (study.dataset[0].recipe, study.method[1].recipe) == ({}, {"clip": 0.5})


def test_what_is_left_out_has_a_default_or_is_set_by_overrides(tmp_path):
    study = parse(SMALL)
    assert [choice.name for choice in study.optimizer] == ["sgd"]
    assert (study.seeds, study.resamples) == ((0,), 300)
    assert set(study.metrics) <= set(METRICS)
    assert study.cells()[0].recipe == Recipe()
    path = write_toml(tmp_path / "small.toml", SMALL)
    # A byte order mark is no error.
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    study = read(path, overrides=["optimizer[0].lr=1", "recipe.epochs=2"])
    assert study.cells()[0].recipe == Recipe(epochs=2, lr=1)


def test_a_study_comes_back_from_its_plain_values(path):
    study = read(path)
    written = json.loads(json.dumps(study.as_dict()))
    assert parse(written) == study
    assert parse(written).as_dict() == study.as_dict()
    assert [c.id for c in parse(written).cells()] == [c.id for c in study.cells()]


def test_code_is_named_by_file_and_caller():
    changed = {**SMALL, "model": [{"name": "mine.nets:make", "depth": 3, "sizes": [1, 2]}]}
    study = parse(changed, allow_code=["mine.nets:make"])
    assert study.cells()[0].config()["model"] == {
        "name": "mine.nets:make",
        "depth": 3,
        "sizes": [1, 2],
    }
    assert "mine" not in sys.modules
    for others in ([], ["mine.nets"], ["mine.nets:mak"], ["mine.nets:make2"]):
        with pytest.raises(ValueError, match="a file alone may not run any"):
            parse(changed, allow_code=others)


def test_a_grid_may_be_large_if_that_is_confirmed():
    assert len(parse({**SMALL, "seeds": list(range(10_001))}, many=True).cells()) == 10_001
    assert parse({**SMALL, "seeds": list(range(10_000))}).count == 10_000


FITTING = {"vectors": "mlp", "images": "resnet8", "text": "text_cnn", "masks": "unet"}
ON = {"images": "digits", "text": "agnews", "masks": "camvid", "numbers": "blobs"}


def defaults(part, name):
    """The settings of a member as a file can hold them."""
    found = {key: default for key, (_, default) in fields_of(part, name).items()}
    assert not {"name", "label", "recipe"} & set(found), name
    return {key: each for key, each in json.loads(json.dumps(found)).items() if each is not None}


def test_every_member_is_accepted_and_its_defaults_may_be_written_out():
    for name, dataset in DATASETS.items():
        model = FITTING.get(dataset.kind, "resnet8")
        given = "hf:ag_news" if name == "hf" else name
        cell = only(dataset=[{"name": given}], model=[{"name": model}])
        own = {"root"} if name in OWN_FILES else set()
        assert set(cell.config()["dataset"]) == {"name", *dataset.options, *own}, name
    for name, model in MODELS.items():
        data = {"dataset": [{"name": ON[model.kind]}]}
        written = identity_with(**data, model=[{"name": name, **defaults("model", name)}])
        assert identity_with(**data, model=[{"name": name}]) == written, name
    for name, method in METHODS.items():
        assert set(fields_of("method", name)) == set(method.settings), name
        written = {"name": name, **defaults("method", name)}
        assert identity_with(method=[{"name": name}]) == identity_with(method=[written]), name
    for name in OPTIMIZERS:
        recipe = only(optimizer=[{"name": name}]).recipe
        assert recipe.optimizer == name
        written = {key: getattr(recipe, key) for key in OF_OPTIMIZER}
        assert only(optimizer=[{"name": name, **written}]).recipe == recipe
    flat = {key.removeprefix("augmentation."): v for key, v in Recipe().flat().items()}
    flat.pop("optimizer")
    study = parse(
        {**SMALL, "calibrators": list(CALIBRATORS), "metrics": list(METRICS), "recipe": flat}
    )
    assert (study.calibrators, study.metrics) == (tuple(CALIBRATORS), tuple(METRICS))
    assert study.cells()[0].id == identity_with()


UNSEEN = [
    {"name": "other"},
    {"about": "something else"},
    {"calibrators": []},
    {"metrics": ["nll"]},
    {"resamples": 7},
    {"method": [{"name": "focal", "label": "another"}]},
    {"dataset": [{"name": "blobs", "label": "points"}]},
    {"method": [{"name": "focal", "gamma": 3}]},
    {"method": [{"name": "focal", "gamma": 3.0}]},
    {"recipe": {"lr": 0.1}},
    {"method": [{"name": "focal", "recipe": {"clip": 0}}]},
    {"optimizer": [{"name": "sgd", "lr": 0.1, "weight_decay": 5e-4}]},
]
SEEN = [
    {"seeds": [1]},
    {"recipe": {"epochs": 3}},
    {"recipe": {"mixup": 0.5}},
    {"method": [{"name": "focal", "gamma": 3.1}]},
    {"method": [{"name": "dual_focal"}]},
    {"method": [{"name": "focal", "recipe": {"clip": 1}}]},
    {"dataset": [{"name": "blobs", "limit": 100}]},
    {"dataset": [{"name": "teacher"}]},
    {"model": [{"name": "mlp", "hidden": [10]}]},
    {"optimizer": [{"name": "adamw"}]},
    {"optimizer": [{"name": "sgd", "momentum": 0.5}]},
]


def test_the_identity_is_that_of_the_training():
    for change in UNSEEN:
        assert identity_with(**change) == identity_with(), change
    for change in SEEN:
        assert identity_with(**change) != identity_with(), change
    orders = [{"depth": 3, "wide": True}, {"wide": True, "depth": 3.0}]
    named = [{**SMALL, "model": [{"name": "mine:make", **each}]} for each in orders]
    one, other = (parse(each, allow_code=["mine:make"]).cells()[0] for each in named)
    assert one.id == other.id
    # A recipe made in Python is the same with integers.
    whole, floats = (replace(only(), recipe=Recipe(clip=clip)) for clip in (2, 2.0))
    assert whole.id == floats.id != only().id


def test_the_configuration_of_a_cell_is_plain_and_complete():
    cell = only(method=[{"name": "mmce", "width": 2.0}], seeds=[3])
    config = cell.config()
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    assert config["method"] == {
        "name": "mmce",
        "width": 2,
        "form": "paper",
        "base": "cross_entropy",
        "weight": 4,
        "adjust": 0,
    }
    assert config["seed"] == 3
    assert config["recipe"]["optimizer"] == "sgd"
    assert set(config) == {"dataset", "model", "method", "recipe", "seed"}


def test_the_schema_names_every_key():
    found = schema()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    tables = {each["title"]: each["properties"] for each in found["$defs"].values()}
    assert {f"dataset {name}" for name in DATASETS} < set(tables)
    assert {"limit", "size", "human", "recipe", "label"} < set(tables["dataset cifar10"])
    assert (tables["recipe"]["lr"]["type"], tables["recipe"]["lr"]["default"]) == ("number", 0)
    assert {"every", "examples", "measures"} < set(tables["probe"])


def test_without_pydantic_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ImportError, match=r"^reading a study needs pydantic"):
        parse(SMALL)
