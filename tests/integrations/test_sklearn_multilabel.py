"""The scikit-learn face of calibrated multi-label classifiers, with its own multi-output forms."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from calibrant import MultiLabel
from calibrant.calibrators import MultiLabelCalibrator
from calibrant.integrations.sklearn import CalibratedMultiLabelClassifier

X, Y = make_multilabel_classification(900, n_features=10, n_classes=3, random_state=0)
FIT, TEST = slice(0, 400), slice(400, 900)
pytestmark = pytest.mark.filterwarnings("ignore:.*probabilities are exactly 0")

LISTS = {
    "forest": RandomForestClassifier(10, random_state=0),
    "neighbours": KNeighborsClassifier(15),
    "multi-output": MultiOutputClassifier(GaussianNB()),
}
ARRAYS = {
    "one versus rest": OneVsRestClassifier(GaussianNB()),
    "chain": ClassifierChain(GaussianNB()),
    "ridge": RidgeClassifier(),
    "pipeline": make_pipeline(StandardScaler(), OneVsRestClassifier(LogisticRegression())),
    "network": MLPClassifier((8,), max_iter=15, random_state=0),
}


def columns(probs):
    return np.stack([each[:, 1] for each in probs], 1) if isinstance(probs, list) else probs


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("name", [*LISTS, *ARRAYS])
def test_probabilities_have_the_form_of_the_classifier_and_a_lower_loss(name):
    estimator = (LISTS | ARRAYS)[name]
    model = CalibratedMultiLabelClassifier(estimator, cv=3).fit(X[FIT], Y[FIT])
    found = model.predict_proba(X[TEST])
    assert isinstance(found, list) == (name in LISTS)
    shapes = [each.shape for each in found] if name in LISTS else found.shape
    assert shapes == ([(500, 2)] * 3 if name in LISTS else (500, 3))
    probs = columns(found)
    assert (model.predict(X[TEST]) == (probs >= 0.5)).all()
    if hasattr(model.estimator_, "predict_proba"):
        plain = columns(model.estimator_.predict_proba(X[TEST]))
        before, after = (
            np.mean([log_loss(Y[TEST][:, at], each[:, at]) for at in range(3)])
            for each in (plain, probs)
        )
        assert after < before + 0.01


def test_it_is_fitted_to_out_of_fold_scores():
    folds, estimator = KFold(3, shuffle=True, random_state=0), OneVsRestClassifier(GaussianNB())
    model = CalibratedMultiLabelClassifier(estimator, cv=folds, calibrator="temperature")
    model.fit(X[FIT], Y[FIT])
    scores = cross_val_predict(estimator, X[FIT], Y[FIT], cv=folds, method="predict_proba")
    expected = MultiLabelCalibrator.fit(
        MultiLabel.from_probs(scores, Y[FIT]), calibrator="temperature"
    )
    for own, other in zip(
        model.calibrator_.calibrators.values(), expected.calibrators.values(), strict=True
    ):
        assert own.temperature == pytest.approx(other.temperature)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_fitted_classifier_is_kept_and_labels_may_be_missing(wrapped):
    fitted = OneVsRestClassifier(GaussianNB()).fit(X[:200], Y[:200])
    partly = Y[200:400].astype(float)
    partly[::3, 1] = np.nan
    given = FrozenEstimator(fitted) if wrapped else fitted
    model = CalibratedMultiLabelClassifier(given, cv=5 if wrapped else "prefit")
    model.fit(X[200:400], partly)
    expected = MultiLabelCalibrator.fit(
        MultiLabel.from_probs(fitted.predict_proba(X[200:400]), partly)
    )
    known = [each.examples for each in expected.summaries]
    assert [each.examples for each in model.calibrator_.summaries] == known == [200, 133, 200]
    with pytest.raises(ValueError, match="missing labels need a prefit classifier"):
        CalibratedMultiLabelClassifier(GaussianNB()).fit(X[200:400], partly)


def test_weights_count_examples_of_the_calibrator():
    fitted = FrozenEstimator(OneVsRestClassifier(GaussianNB()).fit(X[:200], Y[:200]))
    weights = np.r_[np.ones(100), np.zeros(100)]
    model = CalibratedMultiLabelClassifier(fitted)
    part = clone(model).fit(X[200:300], Y[200:300])
    whole = model.fit(X[200:400], Y[200:400], sample_weight=weights)
    own, other = whole.calibrator_.shared, part.calibrator_.shared
    assert own.coefficients.tolist()[0] == pytest.approx(other.coefficients.tolist()[0], rel=1e-4)


def test_a_label_of_one_class_in_training_is_never_predicted():
    labels = Y[FIT].copy()
    labels[:, 1] = 0
    model = CalibratedMultiLabelClassifier(LISTS["forest"], cv=3).fit(X[FIT], labels)
    probs = model.predict_proba(X[TEST])
    assert [each.shape for each in probs] == [(500, 2)] * 3
    assert probs[1][:, 1].max() < 0.05


def test_conventions_of_estimators_hold():
    model = CalibratedMultiLabelClassifier(OneVsRestClassifier(GaussianNB()), cv=3)
    with pytest.raises(NotFittedError):
        model.predict(X)
    fitted = clone(model).fit(X[FIT], csr_matrix(Y[FIT]))
    assert not hasattr(model, "estimator_")
    assert fitted.n_features_in_ == 10
    assert list(fitted.classes_) == [0, 1, 2]
    copied = pickle.loads(pickle.dumps(fitted))  # noqa: S301, our own bytes
    np.testing.assert_allclose(copied.predict_proba(X[TEST]), fitted.predict_proba(X[TEST]))
    tags = get_tags(model)
    assert tags.classifier_tags.multi_label
    assert tags.target_tags.multi_output
    search = GridSearchCV(model, {"calibrator": ["temperature", "beta"]}, cv=2)
    assert search.fit(X[FIT], Y[FIT]).best_score_ > 0.2


def test_what_cannot_be_fitted_is_said():
    model = CalibratedMultiLabelClassifier(GaussianNB())
    with pytest.raises(ValueError, match=r"indicator matrix \(n, k\) of 2 or more labels"):
        model.fit(X, Y[:, 0])
    with pytest.raises(ValueError, match="calibrator must be one of temperature, platt, beta"):
        clone(model).set_params(calibrator="vector").fit(X, Y)
    forest = CalibratedMultiLabelClassifier(LISTS["forest"], response="decision_function", cv=2)
    with pytest.raises(ValueError, match="RandomForestClassifier has no decision_function"):
        forest.fit(X[FIT], Y[FIT])
