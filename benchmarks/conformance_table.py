"""Rewrite docs/conformance.md: where other libraries give the same number, and where not."""

import math
import sys
import warnings
from collections.abc import Callable, Mapping
from unittest import mock

import numpy as np
from sklearn.metrics import brier_score_loss, log_loss

from benchmarks import rivals
from benchmarks.calibrator_agreement import COMPARED, FITTED, same_calibrators
from benchmarks.known_differences import NONE, differences
from benchmarks.pages import LIBRARIES, table, versions
from benchmarks.real_data import CHOSEN, DATA, ROOT, load
from calibrant import Predictions
from calibrant.metrics import (
    adaptive_ece,
    brier,
    classwise_ece,
    debiased_ece,
    debiased_rmsce,
    ecce,
    ece,
    nll,
    rmsce,
    smece,
)

PAGE = ROOT / "docs" / "conformance.md"
COMPARED_WITH = (*LIBRARIES, "betacal", "cir-model", "mcgrad", "ml-insights", "venn-abers")


def main() -> int:
    """Compute every cell and write the page; leave it alone where the data is missing."""
    if not all((DATA / f"logits_{name.split(':')[0]}.npz").exists() for name in CHOSEN):
        print(f"no real logits in {DATA}: put their folder in CALIBRANT_DATA; {PAGE} is unchanged")
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predictions = {name: load(name) for name in CHOSEN}
        parts = [
            HEAD,
            versions(COMPARED_WITH) + ".",
            SAME,
            same_ece(predictions),
            RMSCE,
            same_rmsce(predictions),
            OTHERS,
            same_others(predictions),
            SMECE,
            same_smece(predictions),
            CALIBRATORS,
            same_calibrators(),
            DIFFERENT,
            differences(),
            NOTES,
        ]
    text = "\n\n".join(parts) + "\n"
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    print(text)
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


HEAD = """# Agreement with other libraries

This page shows where calibrant gives the same values as torchmetrics, netcal, scikit-learn,
probmetrics and other libraries, and where and why it does not. Use it when you move code from one
of them. A case in which they differ:

```python
from calibrant import Predictions, metrics

p = Predictions.from_probs([[0.2, 0.8], [0.6, 0.4]], [1, 0])
print(metrics.ece(p, bins=1))               # 0.3, of the predicted class
print(metrics.per_class_ece(p, bins=1)[1])  # 0.1, of class 1: what netcal returns
```

`make conformance` computes every value. `tests/conformance` asserts that metrics agree on all
published predictions used here, that calibrators agree on generated data, and that the known
differences still exist."""

SAME = """## Expected calibration error, 15 bins

Published predictions of real networks, with probabilities in float64. The last row is the largest
difference to calibrant. torchmetrics rounds confidences to float32 and sums them in float32."""

RMSCE = """## Root mean square calibration error, 15 bins

torchmetrics has a separate bin for a confidence of exactly 1, common in float32. Splitting the
last bin does not change ECE where both parts err in the same direction, but it changes RMSCE."""

OTHERS = """## Other metrics

Largest difference over all predictions above."""

SMECE = f"""## Smooth ECE

"all pairs" evaluates the definition at our value without a grid, so it must return that value.
relplot differs because of its grid. Mass at the end of the grid counts half, so confidences above
0.999 have less weight. The end points of its 200-point integration have full weight. Its search
also stops at a step of {2**-10:.1e}. In the last two columns, confidences are clipped to 0.999 and
relplot uses 4,001 points: then both agree."""

CALIBRATORS = f"""## Calibrators

Both are fitted to {FITTED:,} examples and applied to {COMPARED:,} others. "NLL" is the mean log
loss of ours minus that of the other library, "largest difference" that of a probability. The last
column is the reason, if it is more than rounding.

`tests/conformance` also compares multicalibration with MCGrad on planted errors of segments: the
held-out log loss is lower, or higher by less than 0.001."""

DIFFERENT = """## Small cases where libraries differ

Found by calling each library. The name of an exception means that it raised it; `-` means that it
has no such metric."""

NOTES = """\
- **Confidence 1.** calibrant's bins are ((b-1)/B, b/B], compared in float64. The first bin contains
  0 and the last contains 1. torchmetrics and relplot have a separate bin for 1.
- **k/15.** calibrant, uncertainty-calibration and scikit-learn put a float64 confidence of exactly
  k/15 into the lower bin, the others into the upper bin. The float32 value nearest to k/15 can be
  slightly larger than k/15 and then lies in the upper bin. Libraries that also round the edges put
  some of these into the lower bin.
- **Logits in [0, 1].** torchmetrics takes them for probabilities. calibrant never guesses: write
  `Predictions(logits, labels)` or `Predictions.from_probs(probs, labels)`.
- **Two columns.** netcal measures the probability of class 1. In calibrant, `ece` measures the
  predicted class and `per_class_ece(p)[1]` class 1.
- **Absent classes.** `classwise_ece` leaves out classes without examples and warns. netcal refuses
  more than two columns if the labels contain only two classes.
- **Ties.** calibrant and uncertainty-calibration keep equal confidences in one equal-mass bin.
- **Zero probability of the label.** scikit-learn clips it; calibrant's `nll` is infinite.
- **Brier score.** `brier` sums over all classes. scikit-learn reports half of that for two classes.
- **NaN.** calibrant refuses it and names the row and column of the first one.
- **Many rows.** calibrant sums in float64. A float32 sum of millions of confidences drifts."""


def same_ece(predictions: Mapping[str, Predictions]) -> str:
    """ECE by four libraries."""
    columns: dict[str, Callable[[Predictions], float]] = {
        "calibrant": ece,
        "torchmetrics": _torchmetrics,
        "netcal": lambda p: rivals.ECE(15).measure(p.probs.numpy(), p.labels.numpy()),
        "uncertainty-calibration": lambda p: rivals.calibration.get_ece(
            p.probs.numpy(), p.labels.numpy()
        ),
    }
    return _compared(predictions, columns)


def same_rmsce(predictions: Mapping[str, Predictions]) -> str:
    """RMSCE by three libraries, and how many confidences are one in float32."""
    plugin = rivals.calibration.lower_bound_scaling_top_ce
    columns: dict[str, Callable[[Predictions], float]] = {
        "calibrant": rmsce,
        "torchmetrics": lambda p: _torchmetrics(p, norm="l2"),
        "uncertainty-calibration": lambda p: plugin(
            p.probs.numpy(), p.labels.numpy(), debias=False, binning_scheme=rivals.equal_width
        ),
    }
    extra = {
        "confidence is 1 in float32": lambda p: f"{(p.confidence.float() == 1).double().mean():.1%}"
    }
    return _compared(predictions, columns, extra)


def same_smece(predictions: Mapping[str, Predictions]) -> str:
    """Smooth ECE against its definition, and against relplot as it is and made fine."""
    rows = []
    for name, p in predictions.items():
        confidence, correct = p.confidence.numpy(), p.correct.numpy()
        ours, theirs = smece(p), rivals.relplot.smECE(confidence, correct)
        low = np.minimum(confidence, 0.999)
        moved = smece(_with_confidence(low, correct, p.classes))
        usual = rivals.relplot.config.smECE_mesh_pts
        rivals.relplot.config.smECE_mesh_pts = 4001
        fine = rivals.relplot.smECE_sigma(low, correct, sigma=moved)
        rivals.relplot.config.smECE_mesh_pts = usual
        rows.append(
            [
                name,
                f"{ours:.6f}",
                f"{smoothed_error(confidence, correct, ours):.6f}",
                f"{theirs:.6f}",
                f"{(confidence > 0.999).mean():.1%}",
                f"{moved:.6f}",
                f"{fine:.6f}",
            ]
        )
    head = ["predictions", "calibrant", "all pairs", "relplot", "above 0.999"]
    return table([*head, "calibrant, clipped", "relplot, clipped"], rows)


def smoothed_error(confidence: np.ndarray, correct: np.ndarray, sigma: float) -> float:
    """Smooth ECE at one width: residuals of all examples and their mirror images, no grid."""
    points = 1000
    at = (np.arange(points) + 0.5) / points
    mass = (correct - confidence) / len(confidence)
    smooth = np.zeros(points)
    for shift in range(-10, 11, 2):
        for image in (shift + confidence, shift - confidence):
            if max(-image.max(), image.min() - 1) > 9 * sigma:
                continue
            for part in np.array_split(np.arange(len(image)), 1 + len(image) // 1000):
                distance = at[:, None] - image[part]
                smooth += np.exp(-(distance**2) / (2 * sigma**2)) @ mass[part]
    return float(np.abs(smooth).mean() / (sigma * math.sqrt(2 * math.pi)))


def same_others(predictions: Mapping[str, Predictions]) -> str:
    """One line for each further metric that some library defines as we do."""
    pairs: list[tuple[str, str, Callable[[Predictions], float], Callable[..., float]]] = [
        ("adaptive_ece", "uncertainty-calibration", adaptive_ece, _equal_mass),
        ("debiased_rmsce", "uncertainty-calibration", debiased_rmsce, _debiased_l2),
        ("debiased_ece", "uncertainty-calibration, 20,000 draws", debiased_ece, _debiased_l1),
        ("classwise_ece", "uncertainty-calibration", classwise_ece, rivals.marginal_error),
        ("ecce", "MCGrad", ecce, _cumulative),
        ("brier", "scikit-learn", brier, _brier),
        ("nll", "scikit-learn, labels above its clip", _unclipped(nll), _unclipped(_log_loss)),
    ]
    rows = []
    for metric, library, ours, theirs in pairs:
        gaps = [abs(ours(p) - theirs(p)) for p in predictions.values()]
        rows.append([f"`{metric}`", library, f"{max(gaps):.1e}"])
    return table(["metric", "other library", "largest difference"], rows)


def _compared(
    predictions: Mapping[str, Predictions],
    columns: Mapping[str, Callable[[Predictions], float]],
    extra: Mapping[str, Callable[[Predictions], str]] | None = None,
) -> str:
    extra = extra or {}
    values = np.array([[call(p) for call in columns.values()] for p in predictions.values()])
    gaps = np.abs(values - values[:, :1]).max(0)
    rows = [
        [name, *(f"{value:.6f}" for value in row), *(call(p) for call in extra.values())]
        for (name, p), row in zip(predictions.items(), values, strict=True)
    ]
    last = ["largest difference", NONE, *(f"{gap:.1e}" for gap in gaps[1:]), *([NONE] * len(extra))]
    return table(["predictions", *columns, *extra], [*rows, last])


def _with_confidence(confidence: np.ndarray, correct: np.ndarray, classes: int) -> Predictions:
    probs = np.repeat((1 - confidence)[:, None] / (classes - 1), classes, 1)
    probs[:, 0] = confidence
    return Predictions.from_probs(probs, np.where(correct > 0, 0, 1))


def _torchmetrics(p: Predictions, norm: str = "l1") -> float:
    return float(
        rivals.multiclass_calibration_error(p.probs, p.labels, p.classes, n_bins=15, norm=norm)
    )


def _equal_mass(p: Predictions) -> float:
    return rivals.calibration.get_ece_em(p.probs.numpy(), p.labels.numpy())


def _debiased_l2(p: Predictions) -> float:
    return rivals.calibration.lower_bound_scaling_top_ce(
        p.probs.numpy(), p.labels.numpy(), p=2, debias=True, binning_scheme=rivals.equal_width
    )


def _debiased_l1(p: Predictions) -> float:
    """Its resampling over the filled bins; one example alone has no spread, for it and for us."""
    utils = rivals.calibration.utils
    data = np.stack([p.confidence.numpy(), p.correct.numpy()], 1)
    binned = utils.fast_bin(data, rivals.equal_width(data[:, 0], 15))
    filled = [np.repeat(part, 2, 0) if len(part) == 1 else part for part in binned if len(part)]
    # It draws from numpy's global state; a generator of its own makes the page repeatable.
    with mock.patch("numpy.random.normal", np.random.default_rng(0).normal):
        return utils.normal_debiased_ce(filled, power=1, resamples=20_000)


def _cumulative(p: Predictions) -> float:
    """Tied confidences as one weighted example: it does not keep them together."""
    values, at, counts = np.unique(p.confidence.numpy(), return_inverse=True, return_counts=True)
    share = np.bincount(at, p.correct.numpy()) / counts
    return rivals.ecce(share, values, counts / counts.sum())


def _brier(p: Predictions) -> float:
    return brier_score_loss(p.labels, p.probs, labels=np.arange(p.classes), scale_by_half=False)


def _log_loss(p: Predictions) -> float:
    return log_loss(p.labels, p.probs, labels=np.arange(p.classes))


def _unclipped(metric: Callable[[Predictions], float]) -> Callable[[Predictions], float]:
    return lambda p: metric(p.take(p.label_probs > np.finfo(float).eps))


if __name__ == "__main__":
    sys.exit(main())
