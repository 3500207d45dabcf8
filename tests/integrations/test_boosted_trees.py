"""LightGBM and XGBoost: margins of their estimators and boosters."""

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from calibrant import Predictions, metrics
from calibrant.calibrators import PriorShift, TemperatureScaling, load, save
from calibrant.integrations.sklearn import CalibratedClassifier, PosthocCalibrator

LIGHT = {
    "n_estimators": 50,
    "learning_rate": 0.3,
    "num_leaves": 15,
    "verbose": -1,
    "n_jobs": 1,
    "random_state": 0,
}
EXTREME = {"n_estimators": 50, "learning_rate": 0.5, "max_depth": 4, "n_jobs": 1, "random_state": 0}
MODELS = {
    "lightgbm": lambda **given: lightgbm.LGBMClassifier(**LIGHT | given),
    "xgboost": lambda **given: xgboost.XGBClassifier(**EXTREME | given),
}
NAMES = np.array(["no", "yes", "maybe"])
# LightGBM names the columns of arrays, and scikit-learn misses these names in later arrays.
pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid feature names")


def examples(classes, n=900, seed=0):
    x, y = make_classification(
        n, 10, n_informative=6, n_classes=classes, flip_y=0.2, random_state=seed
    )
    return x, y


def raw_scores(library, model, x):
    if library == "lightgbm":
        return model.predict_proba(x, raw_score=True)
    return model.predict(x, output_margin=True)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("library", MODELS)
class TestEveryLibrary:
    def test_labels_may_be_text_and_margins_are_calibrated(self, library, classes):
        x, y = examples(classes)
        found = CalibratedClassifier(MODELS[library](), calibrator="temperature", cv=3)
        found.fit(x[:600], NAMES[y[:600]])
        assert found.response_ == "margin"
        assert found.classes_.tolist() == sorted(NAMES[:classes])
        assert found.calibrator_.temperature > 1.1
        assert found.calibrator_.zero_floor is None
        margins = raw_scores(library, found.estimator_, x[600:]).astype(np.float64)
        if classes == 2:
            margins = np.column_stack([0 * margins, margins])
        expected = found.calibrator_(margins).exp().numpy()
        np.testing.assert_allclose(found.predict_proba(x[600:]), expected, atol=1e-9)
        codes = np.searchsorted(found.classes_, NAMES[y[600:]])
        raw = Predictions.from_probs(found.estimator_.predict_proba(x[600:]), codes)
        calibrated = Predictions.from_probs(found.predict_proba(x[600:]), codes)
        assert metrics.nll(calibrated) < metrics.nll(raw)

    def test_margins_come_from_pipelines_and_frozen_estimators(self, library, classes):
        x, y = examples(classes, 400)
        fitted = make_pipeline(StandardScaler(), MODELS[library]()).fit(x, y)
        for wrapped in (FrozenEstimator(fitted), FrozenEstimator(fitted[-1:])):
            inputs = x if wrapped.estimator is fitted else fitted[0].transform(x)
            found = CalibratedClassifier(wrapped, calibrator="identity").fit(inputs, y)
            assert found.response_ == "margin"
            expected = fitted.predict_proba(x)
            np.testing.assert_allclose(found.predict_proba(inputs), expected, atol=1e-6)

    def test_a_booster_and_a_file_of_its_calibrator_are_enough(self, library, classes, tmp_path):
        x, y = examples(classes)
        objective = {"num_class": classes} if classes > 2 else {}
        if library == "lightgbm":
            names = {2: "binary", 3: "multiclass"}
            booster = lightgbm.train(
                {"objective": names[classes], "verbose": -1, "num_threads": 1} | objective,
                lightgbm.Dataset(x[:400], y[:400]),
                30,
            )
            margins, probs = booster.predict(x, raw_score=True), booster.predict(x)
        else:
            names = {2: "binary:logistic", 3: "multi:softprob"}
            booster = xgboost.train(
                {"objective": names[classes], "nthread": 1} | objective,
                xgboost.DMatrix(x[:400], y[:400]),
                30,
            )
            data = xgboost.DMatrix(x)
            margins, probs = booster.predict(data, output_margin=True), booster.predict(data)
        if classes == 2:
            given = Predictions.from_binary(margins, y, kind="logits")
            probs = np.column_stack([1 - probs, probs])
        else:
            given = Predictions(margins, y)
        np.testing.assert_allclose(given.probs, probs, atol=1e-6)
        val, test = given.take(np.arange(400, 650)), given.take(np.arange(650, 900))
        save(TemperatureScaling.fit(val), tmp_path / "cal.json")
        assert metrics.nll(test.map(load(tmp_path / "cal.json"))) < metrics.nll(test)
        deployed = PosthocCalibrator().load_calibrator(tmp_path / "cal.json")
        np.testing.assert_allclose(
            deployed.predict_proba(margins), given.map(load(tmp_path / "cal.json")).probs, atol=1e-6
        )


def test_early_stopping_gets_its_validation_data():
    x, y = examples(2)
    many = {"n_estimators": 400, "learning_rate": 0.3}
    light = CalibratedClassifier(MODELS["lightgbm"](**many), calibrator="temperature", cv=2)
    stop = [lightgbm.early_stopping(5, verbose=False)]
    light.fit(x[:600], y[:600], eval_X=x[600:], eval_y=y[600:], callbacks=stop)
    assert 0 < light.estimator_.best_iteration_ < 200
    extreme = MODELS["xgboost"](early_stopping_rounds=5, **many)
    extreme = CalibratedClassifier(extreme, calibrator="temperature", cv=2)
    with pytest.raises(ValueError, match="labels in eval_set are strings: give class indices"):
        extreme.fit(x[:600], y[:600], eval_set=[(x[600:], y[600:].astype(str))], verbose=False)
    extreme.fit(x[:600], y[:600], eval_set=[(x[600:], y[600:])], verbose=False)
    assert 0 < extreme.estimator_.best_iteration < 200


def test_one_versus_rest_margins_become_probabilities_that_sum_to_one():
    x, y = examples(3, 600)
    model = MODELS["lightgbm"](objective="multiclassova")
    found = CalibratedClassifier(model, calibrator="temperature", cv=2).fit(x[:300], y[:300])
    assert found.response_ == "margin"
    probs, raw = found.predict_proba(x[300:]), found.estimator_.predict_proba(x[300:])
    assert abs(raw.sum(1) - 1).max() > 0.01
    np.testing.assert_allclose(probs.sum(1), 1)
    normalized = Predictions.from_probs(raw, y[300:], normalize=True)
    assert metrics.nll(Predictions.from_probs(probs, y[300:])) < metrics.nll(normalized)


def test_probabilities_are_used_if_asked_for():
    x, y = examples(3, 300)
    with pytest.raises(ValueError, match="LogisticRegression has no margin"):
        CalibratedClassifier(response="margin").fit(x, y)
    found = CalibratedClassifier(
        MODELS["xgboost"](), calibrator="temperature", cv=2, response="predict_proba"
    )
    assert found.fit(x, y).response_ == "predict_proba"


@pytest.mark.parametrize("library", MODELS)
def test_both_remedies_undo_scale_pos_weight(library):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(12_000, 5))
    y = (x[:, 0] + x[:, 1] - 4.2 + generator.logistic(size=12_000) > 0).astype(int)
    train, val, test = slice(4000), slice(4000, 8000), slice(8000, None)
    weight = float((1 - y[train]).sum() / y[train].sum())
    model = MODELS[library](scale_pos_weight=weight, learning_rate=0.05, min_child_weight=1.0)
    margins = raw_scores(library, model.fit(x[train], y[train]), x)
    given = Predictions.from_binary(margins, y, kind="logits")
    rate = float(y[train].mean())
    odds = weight * rate / (1 - rate)
    shift = PriorShift.of_priors(odds / (1 + odds), rate)
    fitted = TemperatureScaling.fit(given.take(np.arange(12_000)[val]).map(shift))
    raw = given.take(np.arange(12_000)[test])
    error = metrics.binary_ece(raw)
    assert float(raw.positive_probs.mean()) > 3 * rate
    assert metrics.binary_ece(raw.map(shift)) < 0.4 * error
    assert metrics.binary_ece(raw.map(shift).map(fitted)) < 0.4 * error
