"""Calibrators as scikit-learn estimators, and reliability diagrams as its displays.

>>> from sklearn.datasets import load_iris
>>> from sklearn.svm import LinearSVC
>>> x, y = load_iris(return_X_y=True)
>>> model = CalibratedClassifier(LinearSVC(), calibrator="temperature").fit(x, y)
>>> model.predict_proba(x[:1]).shape
(1, 3)
"""

from calibrant.extras import need

need("sklearn", extra="sklearn", what="a scikit-learn estimator")

# After the check above, which explains a missing package.
from calibrant.integrations.sklearn.classifier import CalibratedClassifier  # noqa: E402
from calibrant.integrations.sklearn.multi_label import CalibratedMultiLabelClassifier  # noqa: E402
from calibrant.integrations.sklearn.posthoc import PosthocCalibrator  # noqa: E402
from calibrant.integrations.sklearn.reliability_display import ReliabilityDisplay  # noqa: E402

__all__ = [
    "CalibratedClassifier",
    "CalibratedMultiLabelClassifier",
    "PosthocCalibrator",
    "ReliabilityDisplay",
]
