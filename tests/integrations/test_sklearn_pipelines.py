"""The classifier among other parts of scikit-learn: pipelines, searches, routing, frames, files."""

import warnings
from typing import ClassVar

import numpy as np
import pandas
import polars
import pytest
import sklearn
from sklearn.datasets import make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, ShuffleSplit, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from calibrant import Predictions, metrics
from calibrant.calibrators import PriorShift, SlicedCalibrator, TemperatureScaling, save
from calibrant.integrations.sklearn import CalibratedClassifier, PosthocCalibrator

X, CODES = make_classification(400, 8, n_informative=5, n_classes=3, random_state=0)
Y = np.array(["c", "a", "b"])[CODES]


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def classifier(estimator=None, calibrator="temperature", **options):
    return CalibratedClassifier(estimator, calibrator=calibrator, **options)


class Recorder(GaussianNB):
    """A classifier that notes what its fit gets."""

    seen: ClassVar = []

    def fit(self, X, y, sample_weight=None, note=None):  # noqa: N803
        self.seen.append((len(X), sample_weight, note))
        return super().fit(X, y, sample_weight)


@pytest.fixture
def recorder():
    Recorder.seen.clear()
    return Recorder()


def test_is_the_last_step_of_a_pipeline_and_holds_one():
    inside = classifier(make_pipeline(StandardScaler(), LogisticRegression()))
    outside = make_pipeline(StandardScaler(), classifier())
    for model in (inside, outside):
        model.fit(X[:300], Y[:300])
        assert model.score(X[300:], Y[300:]) > 0.6
    weights = np.arange(300) % 3
    outside.fit(X[:300], Y[:300], calibratedclassifier__sample_weight=weights)
    plain = classifier().fit(outside[0].transform(X[:300]), Y[:300], sample_weight=weights)
    assert outside[-1].calibrator_.temperature == pytest.approx(plain.calibrator_.temperature)


def test_weights_reach_the_last_step_of_a_pipeline(recorder):
    model = classifier(make_pipeline(StandardScaler(), recorder), cv=2)
    model.fit(X, Y, sample_weight=np.arange(400.0))
    assert [(n, len(weights)) for n, weights, _ in recorder.seen] == [(200, 200)] * 2 + [(400, 400)]
    with pytest.warns(UserWarning, match="LinearDiscriminantAnalysis takes no sample_weight"):
        classifier(LinearDiscriminantAnalysis(), cv=2).fit(X, Y, sample_weight=np.arange(400.0))


def test_the_name_of_the_calibrator_can_be_searched():
    search = GridSearchCV(
        classifier(GaussianNB()),
        {"calibrator": ["identity", "temperature"], "estimator__var_smoothing": [1e-9, 1e-2]},
        scoring="neg_log_loss",
        cv=3,
    )
    search.fit(X, Y)
    assert set(search.best_params_) == {"calibrator", "estimator__var_smoothing"}
    means = search.cv_results_["mean_test_score"]
    assert means[search.best_index_] == means.max()


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame])
def test_data_frames_work_and_keep_their_feature_names(frame):
    columns = [f"x{at}" for at in range(8)]
    inputs = frame({name: X[:, at] for at, name in enumerate(columns)})
    # The classifier needs names to find its columns.
    model = classifier(make_pipeline(StandardScaler(), LinearDiscriminantAnalysis()))
    found = model.fit(inputs, Y).predict_proba(inputs)
    expected = classifier(make_pipeline(StandardScaler(), LinearDiscriminantAnalysis()))
    np.testing.assert_allclose(found, expected.fit(X, Y).predict_proba(X))
    assert model.feature_names_in_.tolist() == columns


@pytest.mark.usefixtures("routing")
class TestRouting:
    def test_weights_go_where_they_are_requested(self, recorder):
        weights = np.arange(400.0)
        model = classifier(recorder.set_fit_request(sample_weight=True, note=True), cv=2)
        model.fit(X, Y, sample_weight=weights, note="a")
        assert [(n, len(w), note) for n, w, note in recorder.seen] == [
            (200, 200, "a"),
            (200, 200, "a"),
            (400, 400, "a"),
        ]
        recorder.seen.clear()
        refused = classifier(recorder.set_fit_request(sample_weight=False, note=True), cv=2)
        refused.fit(X, Y, sample_weight=weights)
        assert [w for _, w, _ in recorder.seen] == [None] * 3
        # The calibrator is weighted all the same.
        alone = classifier(Recorder(), cv=2).fit(X, Y)
        assert refused.calibrator_.temperature != pytest.approx(alone.calibrator_.temperature)

    def test_a_request_that_was_not_set_is_an_error(self, recorder):
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError, match="sample_weight"):
            classifier(recorder, cv=2).fit(X, Y, sample_weight=np.ones(400))

    def test_groups_go_to_the_splitter(self, recorder):
        groups = np.repeat(np.arange(8), 50)
        splits = []

        class Noted(GroupKFold):
            def split(self, X, y=None, groups=None):  # noqa: N803
                for train, test in super().split(X, y, groups):
                    splits.append((train, test))
                    yield train, test

        model = classifier(GaussianNB(), cv=Noted(4)).fit(X, Y, groups=groups)
        assert len(splits) == 4
        for train, test in splits:
            assert not set(groups[train]) & set(groups[test])
        assert model.calibrator_.origin.examples == 400

    def test_an_outer_search_passes_weights_through(self, recorder):
        model = classifier(recorder.set_fit_request(sample_weight=True), cv=2)
        outer = cross_val_score(
            model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True),
            X,
            Y,
            cv=2,
            params={"sample_weight": np.ones(400)},
        )
        assert len(outer) == 2
        assert all(weights is not None for _, weights, _ in recorder.seen)


def test_without_routing_groups_go_to_the_splitter_and_the_rest_to_the_classifier(recorder):
    groups = np.repeat(np.arange(8), 50).astype(str)
    model = classifier(recorder, cv=GroupKFold(4)).fit(X, Y, groups=groups, note="b")
    assert [note for _, _, note in recorder.seen] == ["b"] * 5
    assert model.calibrator_.origin.examples == 400


def test_folds_that_cannot_give_out_of_fold_scores_are_refused():
    with pytest.raises(ValueError, match="cv must test each example exactly once"):
        classifier(cv=ShuffleSplit(3)).fit(X, Y)
    by_class = np.argsort(CODES)
    with pytest.raises(ValueError, match="a fold holds 2 of 3 classes"):
        classifier(cv=KFold(3)).fit(X[by_class], np.repeat(np.arange(3), [134, 133, 133]))


class TestFiles:
    def test_a_calibrator_is_deployed_with_a_fitted_classifier(self, tmp_path):
        model = classifier(GaussianNB(), "vector").fit(X[:300], Y[:300])
        model.save_calibrator(tmp_path / "cal.json")
        fitted = GaussianNB().fit(X[:300], Y[:300])
        loaded = classifier(FrozenEstimator(fitted)).load_calibrator(tmp_path / "cal.json")
        probs = loaded.predict_proba(X[300:])
        np.testing.assert_allclose(probs, model.predict_proba(X[300:]))
        assert loaded.predict(X[300:]).tolist() == model.predict(X[300:]).tolist()
        # Into an estimator that is fitted.
        other = classifier(GaussianNB()).fit(X[:300], Y[:300])
        other.load_calibrator(tmp_path / "cal.json")
        np.testing.assert_allclose(other.predict_proba(X[300:]), probs)

    def test_scores_alone_are_calibrated_from_a_file(self, tmp_path):
        model = classifier(LogisticRegression()).fit(X, Y)
        model.save_calibrator(tmp_path / "cal.json")
        scores = model.estimator_.decision_function(X)
        loaded = PosthocCalibrator(classes=["a", "b", "c"]).load_calibrator(tmp_path / "cal.json")
        np.testing.assert_allclose(loaded.predict_proba(scores), model.predict_proba(X))
        assert loaded.predict(scores).tolist() == model.predict(X).tolist()
        with pytest.raises(ValueError, match="fitted to a, b, c, but the classes here are 0, 1, 2"):
            PosthocCalibrator().load_calibrator(tmp_path / "cal.json")

    def test_other_classes_and_classifiers_without_a_fit_are_refused(self, tmp_path):
        path = tmp_path / "cal.json"
        classifier(GaussianNB()).fit(X, Y).save_calibrator(path)
        renamed = FrozenEstimator(GaussianNB().fit(X, CODES))
        with pytest.raises(ValueError, match="fitted to a, b, c, but the classes here are 0, 1, 2"):
            classifier(renamed).load_calibrator(path)
        assert not hasattr(classifier(renamed), "calibrator_")
        with pytest.raises(ValueError, match="pass a fitted classifier in FrozenEstimator"):
            classifier(GaussianNB()).load_calibrator(path)
        with pytest.raises(ValueError, match="fits a logistic regression, too: call fit first"):
            PosthocCalibrator(kind="features").load_calibrator(path)
        with pytest.raises(sklearn.exceptions.NotFittedError):
            classifier().save_calibrator(path)
        save(TemperatureScaling(classes=2, temperature=2.0), path)
        with pytest.raises(ValueError, match="fitted to 2 classes, but the classes here are a, b"):
            PosthocCalibrator(classes=["a", "b", "c"]).load_calibrator(path)
        p = Predictions(np.log([[0.6, 0.4]] * 60), np.arange(60) % 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save(SlicedCalibrator.fit(p, np.arange(60) % 2), path)
        with pytest.raises(
            ValueError, match="a sliced calibrator needs more than the scores of a row"
        ):
            PosthocCalibrator().load_calibrator(path)

    def test_a_change_of_priors_is_loaded_like_any_calibrator(self, tmp_path):
        model = classifier(GaussianNB()).fit(X, Y)
        source = model.calibrator_.origin.class_frequencies
        target = {"a": 0.8, "b": 0.1, "c": 0.1}
        shift = PriorShift.of_priors(
            source, target, calibrator=model.calibrator_, class_names=["a", "b", "c"]
        )
        before = model.predict_proba(X)
        save(shift, tmp_path / "cal.json")
        after = model.load_calibrator(tmp_path / "cal.json").predict_proba(X)
        odds = before * np.array([0.8, 0.1, 0.1]) / source
        np.testing.assert_allclose(after, odds / odds.sum(1, keepdims=True))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_default_calibrates_an_overconfident_classifier():
    x, y = make_classification(900, 20, n_informative=3, n_redundant=15, random_state=0)
    raw = GaussianNB().fit(x[:450], y[:450])
    model = CalibratedClassifier(GaussianNB()).fit(x[:450], y[:450])
    before, after = (
        Predictions.from_probs(each.predict_proba(x[450:]), y[450:]) for each in (raw, model)
    )
    assert metrics.nll(after) < 0.7 * metrics.nll(before)
