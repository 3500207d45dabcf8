"""Stopping by what calibration cannot improve, on averaged weights; the recipe of that name."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, TemperatureScaling
from calibrant.calibrators.selection import fold_of
from calibrant.data import SYNTHETIC
from calibrant.setting_errors import SettingError
from calibrant.study.spec import parse
from calibrant.study.spec_tables import schema
from calibrant.training import RECIPES, Recipe, train
from calibrant.training.recipe import named_settings, recipe_from
from calibrant.training.refinement import refined


@pytest.fixture(scope="module")
def predictions() -> Predictions:
    return SYNTHETIC["tempered"].sample(400, seed=1).predictions


@pytest.mark.parametrize("name", ["temperature", "vector"])
@pytest.mark.parametrize("score", ["nll", "brier"])
def test_the_refined_score_is_that_of_each_fold_after_a_fit_to_the_others(predictions, name, score):
    fold, total = fold_of(predictions, folds=5, seed=0), 0.0
    for number in range(5):
        out = predictions.take(fold == number)
        fitted = CALIBRATORS[name].fit(predictions.take(fold != number))
        total += len(out) * getattr(metrics, score)(out.map(fitted))
    expected = total / len(predictions)
    assert refined(predictions, f"refined_{score}", name) == pytest.approx(expected, rel=1e-9)


def test_the_refined_score_ignores_the_temperature_and_is_not_optimistic(predictions):
    value = refined(predictions, "refined_nll")
    hotter = predictions.map(lambda logits: logits * 7.0)
    assert refined(hotter, "refined_nll") == pytest.approx(value, rel=1e-6)
    in_sample = predictions.map(TemperatureScaling.fit(predictions))
    assert metrics.nll(in_sample) < value < metrics.nll(predictions)


def test_two_groups_are_two_folds():
    given = SYNTHETIC["tempered"].sample(60, seed=0).predictions
    groups = np.repeat([0, 1], 30)
    pixels = Predictions(given.logits, given.labels, groups=groups)
    parts = [given.take(groups == each) for each in (0, 1)]
    expected = np.mean(
        [metrics.nll(out.map(TemperatureScaling.fit(other))) for out, other in (parts, parts[::-1])]
    )
    assert refined(pixels, "refined_nll") == pytest.approx(expected, rel=1e-9)


def test_the_best_of_several_averages_is_that_of_trainings_with_each(digits, network, method):
    base = Recipe(
        epochs=6,
        batch=32,
        lr=0.3,
        schedule="constant",
        stop_on="refined_nll",
        patience=0,
        average_from=0.5,
    )
    decays = (0.0, 0.5, 0.95, 1.0)

    def trained(average):
        recipe = replace(base, average=average)
        return train(network(digits), method(digits), digits, recipe)

    each = {decay: trained(decay) for decay in decays}
    several = trained(decays)
    values = {
        (row["val_refined_nll"], decay): row["epoch"]
        for decay, one in each.items()
        for row in one.history
        # Before it begins, an average of decay 1 is not among several.
        if decay < 1 or row["epoch"] >= 3
    }
    value, decay = min(values)
    assert several.record["best_average"] == decay
    assert several.record["best_epoch"] == values[value, decay]
    assert min(row["val_refined_nll"] for row in several.history) == pytest.approx(value)
    for one, other in zip(
        several.model.state_dict().values(), each[decay].model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    for row in several.history:
        own = next(r for r in each[row["average"]].history if r["epoch"] == row["epoch"])
        assert row["val_nll"] == pytest.approx(own["val_nll"])
    # One of the averages is better than the newest weights here, or this shows nothing.
    assert decay > 0
    assert value < min(row["val_refined_nll"] for row in each[0.0].history)


def test_a_patience_of_0_trains_all_epochs(blobs, network, method):
    recipe = Recipe(epochs=8, batch=32, lr=2.0, schedule="constant", stop_on="nll", patience=1)
    stopped = train(network(blobs), method(blobs), blobs, recipe)
    whole = train(network(blobs), method(blobs), blobs, replace(recipe, patience=0))
    assert len(stopped.history) < len(whole.history) == 8
    assert whole.record["best_epoch"] <= stopped.record["best_epoch"] or (
        whole.history[whole.record["best_epoch"]]["val_nll"]
        < stopped.history[stopped.record["best_epoch"]]["val_nll"]
    )


@pytest.mark.parametrize("name", ["refined_nll", "refined_brier"])
def test_any_calibrator_can_be_the_one_that_refines(name, blobs, network, method, quick):
    recipe = replace(quick, stop_on=name, refine_by="vector")
    found = train(network(blobs), method(blobs), blobs, recipe)
    best = found.history[found.record["best_epoch"]][f"val_{name}"]
    assert best == pytest.approx(refined(found.val, name, "vector"))


def test_recipes_by_name():
    refined_one = recipe_from(named_settings({"name": "refined", "epochs": 3}))
    assert refined_one.averages == (0.9, 0.98, 0.995)
    assert (refined_one.stop_on, refined_one.epochs) == ("refined_nll", 3)
    assert recipe_from(named_settings("plain")) == Recipe()
    # Each sets what the other does, so that a later one replaces an earlier one.
    reset = {**RECIPES["refined"].settings, **RECIPES["plain"].settings}
    made = recipe_from(reset)
    assert (made.averages, made.stop_on) == ((0.0,), "")
    with pytest.raises(ValueError, match=r"no recipe 'refind'; did you mean refined\?"):
        named_settings("refind")


def test_recipes_by_name_in_a_study():
    both = [
        {"name": "cross_entropy", "label": "plain", "recipe": "plain"},
        {"name": "cross_entropy", "label": "average", "recipe": {"name": "plain", "average": 0.9}},
        {"name": "cross_entropy", "label": "inherits"},
    ]
    study = parse(
        {
            "name": "both",
            "recipe": {"name": "refined", "epochs": 2},
            "dataset": [{"name": "blobs"}],
            "model": [{"name": "mlp"}],
            "method": both,
        }
    )
    recipes = {cell.labels["method"]: cell.recipe for cell in study.cells()}
    assert recipes["plain"] == Recipe(epochs=2, patience=0)
    assert recipes["average"] == Recipe(epochs=2, patience=0, average=0.9)
    assert recipes["inherits"].stop_on == "refined_nll"
    # What a study is written as is read as the same study.
    assert parse(study.as_dict()) == study
    assert {"enum": ["plain", "refined"], "type": "string"} in schema()["properties"]["recipe"][
        "anyOf"
    ]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"average": (0.9, 0.5)}, "of several needs stop_on"),
        ({"average": (0.9, 1.5), "stop_on": "nll"}, r"must lie in \[0, 1\], got 1.5"),
        ({"average": (0.9, 0.9), "stop_on": "nll"}, "must be different"),
        ({"average": -0.1}, r"must lie in \[0, 1\], got -0.1"),
        ({"stop_on": "refined"}, "must be one of"),
        ({"refine_by": "temprature"}, "must be one of"),
        ({"patience": -1}, "must be at least 0"),
    ],
)
def test_settings_that_cannot_be(settings, problem):
    with pytest.raises(SettingError, match=problem):
        Recipe(**settings)
