"""Undo `scale_pos_weight` of LightGBM in two ways: with validation data, and with priors alone."""

import lightgbm
import numpy as np

from calibrant import Predictions, metrics
from calibrant.calibrators import PriorShift, select

# Your own table: 1.4 % of the examples are positive.
rng = np.random.default_rng(0)
x = rng.normal(size=(60_000, 8))
y = (1.2 * x[:, 0] + x[:, 1] * x[:, 2] - 5.5 + rng.logistic(size=60_000) > 0).astype(int)
train, val, test = np.split(np.arange(60_000), [20_000, 40_000])

# A common remedy for rare positives: weight them until both classes are equally heavy.
rate = y[train].mean()
weight = (1 - rate) / rate
model = lightgbm.LGBMClassifier(
    scale_pos_weight=weight, n_estimators=60, num_leaves=7, min_child_samples=100, verbose=-1
)
model.fit(x[train], y[train])
margins = model.predict_proba(x, raw_score=True)
scores = Predictions.from_binary(margins, y, kind="logits")

# With labelled validation data: fit a calibrator.
calibrator = select(scores.take(val), folds=2, candidates=["temperature", "platt", "beta"]).best
# Without: the weight multiplied the odds of the training data.
odds = weight * rate / (1 - rate)
shift = PriorShift.of_priors(source=odds / (1 + odds), target=rate)

raw = scores.take(test)
for name, found in {
    "scale_pos_weight": raw,
    "prior shift": raw.map(shift),
    "fitted calibrator": raw.map(calibrator),
}.items():
    mean, ece = float(found.positive_probs.mean()), metrics.binary_ece(found)
    print(f"{name:18} mean probability {mean:.3f}  NLL {metrics.nll(found):.4f}  ECE {ece:.3f}")
print(f"{'in the test data':18} positive        {y[test].mean():.3f}")
