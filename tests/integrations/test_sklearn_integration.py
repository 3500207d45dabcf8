"""scikit-learn estimators: its own checks, and the numbers of our calibrators."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, TemperatureScaling, select
from calibrant.integrations.sklearn import CalibratedClassifier, PosthocCalibrator


def scores(classes=3, n=600, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, classes)) * 3
    labels = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)
    return logits, labels


# The checks of the classifier around it depend little on the calibrator: one of each kind.
KINDS = ("temperature", "vector", "platt", "isotonic")
CHECKED = {f"posthoc-{name}": PosthocCalibrator(name, kind="features") for name in CALIBRATORS}
CHECKED |= {f"classifier-{name}": CalibratedClassifier(calibrator=name, cv=3) for name in KINDS}
CHECKED["classifier-auto"] = CalibratedClassifier()
# Fifteen separable examples leave the best matrix to the penalty of 1e-6, so flat that weights
# and repeated rows agree to six digits, and seven are asked for.
EXPECTED = {"posthoc-matrix": {"check_sample_weight_equivalence_on_dense_data"}}


QUICK = {"posthoc-temperature", "posthoc-vector", "classifier-temperature"}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in CHECKED],
)
def test_passes_the_checks_of_scikit_learn(name):
    # Its data sets are tiny: most calibrators say so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(CHECKED[name], on_skip=None, on_fail=None)
    failed = {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"}
    assert set(failed) <= EXPECTED.get(name, set())
    assert sum(each["status"] == "passed" for each in found) > 50


def with_masks(logits):
    """Mask every third row's lower half of the classes."""
    lower = logits < np.median(logits, 1, keepdims=True)
    return np.where(lower & (np.arange(len(logits)) % 3 == 0)[:, None], -np.inf, logits)


@pytest.mark.parametrize(("classes", "masked"), [(2, False), (4, False), (4, True)])
@pytest.mark.parametrize("method", CALIBRATORS)
def test_probabilities_are_those_of_the_calibrator(method, classes, masked):
    logits, labels = scores(classes)
    new = scores(classes, seed=1)[0]
    if masked:
        logits, new = with_masks(logits), with_masks(new)
        labels = np.where(np.arange(len(labels)) % 3 == 0, logits.argmax(1), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = Predictions(logits, labels, class_names=[*map(str, range(classes))])
        expected = CALIBRATORS[method].fit(named)
        found = PosthocCalibrator(method).fit(logits, labels)
    assert (found.predict_proba(new)[new == -np.inf] == 0).all()
    np.testing.assert_allclose(found.predict_log_proba(new), expected(new), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.predict_proba(new).sum(1), 1)
    np.testing.assert_array_equal(found.predict(new), found.predict_proba(new).argmax(1))
    assert found.calibrator_.origin == expected.origin


def test_probabilities_of_the_usual_shapes_are_accepted():
    logits, labels = scores(2)
    probs = torch.from_numpy(logits).softmax(1).numpy()
    by_logits = PosthocCalibrator().fit(logits, labels)
    expected = by_logits.predict_proba(logits)
    by_probs = PosthocCalibrator(kind="probs").fit(probs, labels)
    np.testing.assert_allclose(by_probs.predict_proba(probs), expected, atol=1e-9)
    one = PosthocCalibrator(kind="probs").fit(probs[:, 1:], labels)
    np.testing.assert_allclose(one.predict_proba(probs[:, 1:]), expected, atol=1e-6)
    odds = logits[:, 1:] - logits[:, :1]
    by_odds = PosthocCalibrator().fit(odds, labels)
    np.testing.assert_allclose(by_odds.predict_proba(odds), expected, atol=1e-9)
    with pytest.raises(ValueError, match=r"probs outside \[0, 1\]"):
        PosthocCalibrator(kind="probs").fit(logits, labels)


def test_labels_may_be_text_and_classes_may_be_absent():
    logits, labels = scores(3)
    names = np.array(["bird", "cat", "dog"])
    found = PosthocCalibrator().fit(logits, names[labels])
    assert found.classes_.tolist() == names.tolist()
    assert set(found.predict(logits)) == set(names)
    copy = pickle.loads(pickle.dumps(found))  # noqa: S301, our own bytes
    np.testing.assert_allclose(copy.predict_proba(logits), found.predict_proba(logits), atol=1e-12)
    two = labels < 2
    with pytest.raises(ValueError, match="X has 3 columns of logits for 2 classes"):
        PosthocCalibrator().fit(logits[two], names[labels[two]])
    with pytest.warns(UserWarning, match="1 of 3 classes never occur"):
        found = PosthocCalibrator(classes=["dog", "cat", "bird"]).fit(
            logits[two][:, ::-1], names[labels[two]]
        )
    assert found.classes_.tolist() == ["dog", "cat", "bird"]
    with pytest.raises(ValueError, match=r"label 'dog' in y is not among the classes"):
        PosthocCalibrator(classes=["bird", "cat"]).fit(logits[:, :2], names[labels])


@pytest.mark.parametrize("make", [PosthocCalibrator, CalibratedClassifier])
def test_weights_count_as_repeated_rows(make):
    logits, labels = scores(3)
    weights = np.random.default_rng(0).integers(0, 3, len(labels))
    folds = [(np.arange(300, 600), np.arange(300)), (np.arange(300), np.arange(300, 600))]
    weighted = make(
        **({} if make is PosthocCalibrator else {"cv": folds}), calibrator="temperature"
    )
    weighted.fit(logits, labels, sample_weight=weights)
    assert weighted.calibrator_.temperature != pytest.approx(
        clone(weighted).fit(logits, labels).calibrator_.temperature
    )
    if make is PosthocCalibrator:
        repeated = make().fit(np.repeat(logits, weights, 0), np.repeat(labels, weights))
        assert repeated.calibrator_.temperature == pytest.approx(weighted.calibrator_.temperature)


@pytest.mark.parametrize(
    "base",
    [
        LogisticRegression(),
        LinearSVC(),
        RidgeClassifier(),
        GaussianNB(),
        SVC(),
        RandomForestClassifier(20, random_state=0),
        make_pipeline(StandardScaler(), LinearSVC()),
    ],
    ids=lambda base: type(base).__name__,
)
@pytest.mark.parametrize("classes", [2, 3])
def test_any_classifier_is_calibrated(base, classes):
    x, y = make_classification(600, 8, n_informative=5, n_classes=classes, random_state=0)
    names = np.array(["c", "a", "b"])[y]
    with warnings.catch_warnings():
        # A forest is certain of some answers: those probabilities are replaced.
        warnings.filterwarnings("ignore", ".* probabilities are exactly 0")
        found = CalibratedClassifier(base, calibrator="temperature").fit(x[:400], names[:400])
    assert found.classes_.tolist() == sorted(set(names))
    probs = found.predict_proba(x[400:])
    assert probs.shape == (200, classes)
    np.testing.assert_allclose(probs.sum(1), 1)
    alone = clone(base).fit(x[:400], names[:400])
    # Temperature scaling keeps the answers of a classifier.
    assert (found.predict(x[400:]) == alone.predict(x[400:])).mean() > 0.98
    codes = np.searchsorted(found.classes_, names[400:])
    assert metrics.nll(Predictions.from_probs(probs, codes)) < np.log(classes)


@pytest.mark.parametrize(("wrap", "cv"), [(FrozenEstimator, 5), (lambda fitted: fitted, "prefit")])
def test_a_fitted_classifier_is_not_refitted(wrap, cv):
    x, y = make_classification(600, 8, n_informative=5, n_classes=3, random_state=0)
    base = LogisticRegression(C=1e4).fit(x[:300], y[:300])
    before = base.coef_.copy()
    found = CalibratedClassifier(wrap(base), cv=cv, calibrator="temperature")
    found.fit(x[300:], y[300:])
    np.testing.assert_array_equal(base.coef_, before)
    expected = TemperatureScaling.fit(Predictions(base.decision_function(x[300:]), y[300:]))
    assert found.calibrator_.temperature == pytest.approx(expected.temperature)
    assert found.calibrator_.origin.examples == 300
    with pytest.raises(NotFittedError):
        CalibratedClassifier(LogisticRegression(), cv="prefit").fit(x, y)


def test_the_calibrator_is_fitted_to_out_of_fold_scores():
    x, y = make_classification(400, 20, n_informative=3, flip_y=0.3, random_state=0)
    forest = RandomForestClassifier(30, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        honest = CalibratedClassifier(forest, calibrator="temperature").fit(x, y)
        forest.fit(x, y)
        flattered = CalibratedClassifier(forest, calibrator="temperature", cv="prefit").fit(x, y)
    # On its own examples a forest is right: a temperature fitted there would be far too low.
    assert honest.calibrator_.temperature > 2 * flattered.calibrator_.temperature


def test_folds_and_responses_can_be_chosen():
    x, y = make_classification(300, random_state=0)
    folds = StratifiedKFold(4, shuffle=True, random_state=1)
    options = {"calibrator": "temperature"}
    found = CalibratedClassifier(cv=folds, response="predict_proba", **options).fit(x, y)
    assert found.response_ == "predict_proba"
    assert CalibratedClassifier(GaussianNB(), **options).fit(x, y).response_ == "predict_proba"
    assert CalibratedClassifier(**options).fit(x, y).response_ == "decision_function"


X, Y = scores(3, 60)
REFUSED = {
    "method": (lambda: PosthocCalibrator("temprature").fit(X, Y), "no calibrator 'temprature'"),
    "kind": (lambda: PosthocCalibrator(kind="odds").fit(X, Y), "kind must be one of logits, probs"),
    "one class": (lambda: PosthocCalibrator().fit(X, 0 * Y), "y holds one class: 0"),
    "columns": (lambda: PosthocCalibrator().fit(X[:, :2], Y), "2 columns of logits for 3 classes"),
    "more columns": (lambda: PosthocCalibrator().fit(X, Y % 2), "3 columns of logits for 2 class"),
    "response": (
        lambda: CalibratedClassifier(response="score").fit(X, Y),
        "response must be auto or one of margin, decision_function, predict_proba, got 'score'",
    ),
    "no scores": (
        lambda: CalibratedClassifier(Perceptron(), response="predict_proba").fit(X, Y),
        "Perceptron has no predict_proba",
    ),
    "NaN": (lambda: PosthocCalibrator().fit(X * np.nan, Y), "NaN"),
    "inf": (lambda: PosthocCalibrator().fit(X + np.inf, Y), "inf"),
    "-inf": (lambda: PosthocCalibrator(kind="features").fit(X - np.inf, Y), "inf"),
    "pairs": (
        lambda: CalibratedClassifier(SVC(decision_function_shape="ovo")).fit(*scores(4, 90)),
        "scores of SVC are of pairs of classes: set decision_function_shape='ovr'",
    ),
    "as many pairs as classes": (
        lambda: CalibratedClassifier(SVC(decision_function_shape="ovo")).fit(X, Y),
        "scores of SVC are of pairs of classes: set decision_function_shape='ovr'",
    ),
    "name of scikit-learn": (
        lambda: CalibratedClassifier(calibrator="sigmoid").fit(X, Y),
        "no calibrator 'sigmoid'; did you mean platt?",
    ),
    "groups of a class": (
        lambda: CalibratedClassifier().fit(X, Y, groups=Y),
        "at least 2 groups of every class",
    ),
    "rare class": (
        lambda: CalibratedClassifier().fit(X, np.where(np.arange(60) == 0, 3, Y)),
        "at least 2 examples of every class",
    ),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_fits_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


class NeverFitted(GaussianNB):
    def fit(self, X, y):  # noqa: N803
        raise AssertionError


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_names_of_calibrators_are_checked_before_any_fit():
    with pytest.raises(ValueError, match="no calibrator 'plat'; did you mean platt"):
        CalibratedClassifier(NeverFitted(), calibrator="plat").fit(X, Y)
    with pytest.raises(TypeError, match="calibrator must be a name such as 'temperature', got"):
        CalibratedClassifier(NeverFitted(), calibrator=TemperatureScaling).fit(X, Y)


def test_what_has_no_fit_is_refused_with_an_alternative():
    class Booster:
        pass

    for given in (Booster(), FrozenEstimator(Booster())):
        with pytest.raises(TypeError, match="Booster has no fit: use PosthocCalibrator, or Pred"):
            CalibratedClassifier(given, cv="prefit").fit(X, Y)


def test_a_number_of_folds_does_not_split_groups():
    seen = []

    class Recorder(GaussianNB):
        def fit(self, X, y):  # noqa: N803
            seen.append({*X[:, 0]})
            return super().fit(X, y)

    groups = np.repeat(np.arange(12), 5)
    marked = np.column_stack([groups, X])
    CalibratedClassifier(Recorder(), calibrator="temperature").fit(marked, Y, groups=groups)
    assert len(seen) == 6
    assert all(len(each) < 12 for each in seen[:5])


def test_weights_that_sum_to_one_are_rescaled_and_zeros_stay_absent():
    logits, labels = scores(2, 150)
    plain = PosthocCalibrator("auto").fit(logits, labels).predict_proba(logits)
    small = PosthocCalibrator("auto").fit(logits, labels, sample_weight=np.ones(150) / 150)
    np.testing.assert_allclose(small.predict_proba(logits), plain, rtol=1e-6)
    more, twice = np.concatenate([logits, -logits]), np.concatenate([labels, labels])
    zeros = np.repeat([0.1, 0.0], 150)
    absent = PosthocCalibrator("isotonic").fit(more, twice, sample_weight=zeros)
    expected = PosthocCalibrator("isotonic").fit(logits, labels)
    np.testing.assert_allclose(absent.predict_proba(logits), expected.predict_proba(logits))


def test_few_examples_are_not_compared_but_warned_about():
    logits, labels = scores(3, 60)
    with pytest.warns(UserWarning, match="needs 100 examples, got 60: used temperature"):
        found = PosthocCalibrator("auto").fit(logits, labels)
    assert isinstance(found.calibrator_, TemperatureScaling)
    with pytest.warns(UserWarning, match="got 60: used temperature"):
        PosthocCalibrator("blend").fit(logits, labels, sample_weight=[0.5] + [1] * 59)


def test_few_examples_that_are_all_predicted_correctly_are_not_calibrated():
    logits = scores(3, 30)[0]
    with pytest.warns(UserWarning, match="got 30: used identity"):
        found = PosthocCalibrator("blend").fit(logits, logits.argmax(1))
    # Temperature scaling would make every later error infinitely wrong.
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(found.predict_proba(logits), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto", "blend"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_auto_and_blend_select_by_cross_validation(name):
    logits, labels = scores(3, 300)
    found = PosthocCalibrator(name).fit(logits, labels)
    expected = select(Predictions(logits, labels))
    wanted = expected.best if name == "auto" else expected.blend
    np.testing.assert_allclose(found.predict_log_proba(logits), wanted(logits), atol=1e-9)


@pytest.mark.parametrize("make", [PosthocCalibrator, CalibratedClassifier])
def test_the_old_name_of_the_calibrator_works_and_warns(make):
    logits, labels = scores(3, 120)
    expected = make(calibrator="vector").fit(logits, labels)
    words = f"{make.__name__}.method is deprecated, use calibrator"
    with pytest.warns(DeprecationWarning, match=words):
        found = make(method="vector").fit(logits, labels)
    assert type(found.calibrator_) is type(expected.calibrator_)
    assert make(method="vector").get_params()["method"] == "vector"


@pytest.mark.filterwarnings("ignore:.*probabilities are exactly 0")
def test_zeros_of_new_examples_get_the_floor_of_the_fit():
    x, y = make_classification(900, 8, n_informative=5, n_classes=3, random_state=0)
    forest = RandomForestClassifier(15, random_state=0)
    found = CalibratedClassifier(forest, calibrator="temperature").fit(x[:500], y[:500])
    probs = found.estimator_.predict_proba(x[500:])
    assert (probs == 0).any()
    floor = found.calibrator_.zero_floor
    assert 1e-4 < floor < 1 / 15
    logits = Predictions.from_probs(probs, y[500:], zero_floor=floor).logits
    expected = found.calibrator_(logits)
    np.testing.assert_allclose(found.predict_log_proba(x[500:]), expected, atol=1e-12)
