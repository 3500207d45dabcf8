"""Calibrators fitted to few examples of two classes, whose only error is a temperature of 2.

`python -m benchmarks.few_examples` prints the table of docs/calibrators.md.
"""

import warnings

import numpy as np

from benchmarks.pages import table
from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS

SIZES, FITS, TEST = (30, 100, 1000), 30, 20_000
NAMES = (
    "gap_temperature",
    "top_label_spline",
    "platt",
    "beta",
    "spline",
    "kernel",
    "venn_abers",
    "centered_isotonic",
    "isotonic",
    "histogram",
    "scaling_binning",
)


def sample(n: int, seed: int) -> Predictions:
    """Log-odds that are too large by a factor of 2; about half of the labels are 1."""
    draw = np.random.default_rng(seed)
    truth = 1.7 * draw.normal(size=n)
    labels = (draw.random(n) < 1 / (1 + np.exp(-truth))).astype(int)
    return Predictions.from_binary(2 * truth, labels, kind="logits")


def main() -> None:
    """Print the mean held-out NLL above that of temperature scaling."""
    # Fits to few examples warn.
    warnings.simplefilter("ignore")
    test = sample(TEST, seed=FITS)

    def held_out(name: str, n: int) -> float:
        fits = (CALIBRATORS[name].fit(sample(n, seed)) for seed in range(FITS))
        return float(np.mean([metrics.nll(test.map(fit)) for fit in fits]))

    plain = {n: held_out("temperature", n) for n in SIZES}
    rows = [["`temperature`", *(f"{plain[n]:.3f}" for n in SIZES)]]
    rows += [
        [f"`{name}`", *(f"{held_out(name, n) - plain[n]:+.3f}" for n in SIZES)] for name in NAMES
    ]
    print(table(["calibrator", *(f"{n:,} examples" for n in SIZES)], rows))


if __name__ == "__main__":
    main()
