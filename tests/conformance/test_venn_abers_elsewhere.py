"""venn-abers: the same multiprobabilities and merged probabilities, inductive and cross."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from calibrant import Predictions
from calibrant.calibrators import VennAbers

venn_abers = pytest.importorskip("venn_abers")
# It divides 0 by 0 at the ends.
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")


def drawn(n: int, seed: int, *, digits: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of class 1, which are too confident, and labels."""
    generator = np.random.default_rng(seed)
    odds = generator.normal(size=n)
    probs = (1 / (1 + np.exp(-2 * odds))).round(digits).clip(0.01, 0.99)
    return probs, (generator.random(n) < 1 / (1 + np.exp(-odds))).astype(int)


@pytest.mark.parametrize("digits", [2, 12])
@pytest.mark.parametrize("n", [10, 100, 2000])
def test_both_probabilities_and_their_merged_value_are_the_same(n, digits):
    (fit, labels), (test, _) = drawn(n, 0, digits=digits), drawn(500, 1, digits=digits)
    given = np.concatenate([test, fit[:50]])
    p0, p1, scores = venn_abers.calc_p0p1(np.stack([1 - fit, fit], 1), labels)
    merged, both = venn_abers.calc_probs(p0, p1, scores, np.stack([1 - given, given], 1))
    fitted = VennAbers.fit(Predictions.from_binary(fit, labels, kind="probs"))
    logits = np.stack([np.log(1 - given), np.log(given)], 1)
    low, high = fitted.interval(logits)
    np.testing.assert_allclose(low[:, 1], both[:, 0], atol=1e-9)
    np.testing.assert_allclose(high[:, 1], both[:, 1], atol=1e-9)
    np.testing.assert_allclose(fitted(logits).exp(), merged, atol=1e-9)


def test_more_classes_are_its_one_against_the_rest():
    generator = np.random.default_rng(0)
    fit, test = (2 * generator.normal(size=(n, 4)) for n in (1500, 300))
    labels = (fit / 2 + generator.gumbel(size=fit.shape)).argmax(1)
    probs, given = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (fit, test))
    # By default it couples pairs of classes, which is another method.
    theirs, _ = venn_abers.venn_abers.predict_proba_prefitted_va(
        probs, labels, given, va_tpe="one_vs_rest"
    )
    ours = VennAbers.fit(Predictions(fit, labels))(test).exp()
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose only feature is its probability of class 1."""

    def fit(self, probs, labels):
        self.classes_ = np.unique(labels)
        return self

    def predict_proba(self, probs):
        return np.concatenate([1 - probs, probs], 1)


@pytest.mark.parametrize("folds", [2, 5])
def test_the_cross_form_is_the_same_on_the_same_parts(folds):
    # We deal examples to the parts in the order of their scores. Its parts are consecutive, with
    # as many examples of each class: so neighbours have the same label, and rows come by part.
    generator = np.random.default_rng(0)
    odds = np.sort(2 * generator.normal(size=400 * folds))
    share = 1 / (1 + np.exp(-odds[::folds] / 2))
    labels = np.repeat((generator.random(400) < share).astype(int), folds)
    by_part = np.argsort(np.arange(len(odds)) % folds, kind="stable")
    odds, labels = odds[by_part], labels[by_part]
    theirs = venn_abers.VennAbersCV(
        Given(), inductive=False, n_splits=folds, shuffle=False, random_state=None
    )
    theirs.fit(1 / (1 + np.exp(-odds[:, None])), labels)
    given = np.linspace(-7, 7, 300)
    expected = theirs.predict_proba(1 / (1 + np.exp(-given[:, None])))
    ours = VennAbers.fit(Predictions.from_binary(odds, labels, kind="logits"), folds=folds)
    logits = np.stack([np.zeros(300), given], 1)
    np.testing.assert_allclose(ours(logits).exp(), expected, atol=1e-9)
    inductive = VennAbers.fit(Predictions.from_binary(odds, labels, kind="logits"))
    assert np.abs(inductive(logits).exp().numpy() - expected).max() > 1e-3
