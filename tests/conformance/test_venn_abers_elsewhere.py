"""venn-abers: the same multiprobabilities, and the same merged probability."""

import numpy as np
import pytest

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
