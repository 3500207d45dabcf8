"""How far each estimator is from the true calibration error, against n; writes docs/bias.md.

Run with `make bias`. The truth is known because the predictions are synthetic.
"""

import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.progress import track

from calibrant import Predictions, metrics
from calibrant.data import SYNTHETIC

DOCS = Path(__file__).parents[1] / "docs"
SIZES = (128, 512, 2048, 8192, 32768)
NAMES = ("calibrated", "overconfident", "wavy")
BANDWIDTHS = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)
ESTIMATORS: dict[str, Callable[[Predictions], float]] = {
    "ece": metrics.ece,
    "debiased_ece": metrics.debiased_ece,
    "adaptive_ece": metrics.adaptive_ece,
    "smece": metrics.smece,
    **{f"sece h={h:g}": partial(metrics.sece, bandwidth=h) for h in BANDWIDTHS},
    "sece h=0.01, leave one out": partial(metrics.sece, form="leave_one_out"),
}
COVERAGE_SIZES = (500, 5000)
COVERAGE_REPEATS = 100
COVERED = {
    "ece": metrics.ece,
    "debiased_ece": metrics.debiased_ece,
    "smece": metrics.smece,
}
COMPARED = {
    "debiased_ece": metrics.debiased_ece,
    "ece": metrics.ece,
    "smece": metrics.smece,
    "sece": metrics.sece,
}
COMPARE_SIZES = (300, 3000)


def repeats(n: int) -> int:
    """More repeats where a single one is noisy."""
    return max(8, min(200, 200_000 // n))


def readings() -> dict[tuple[str, str, int], tuple[float, float]]:
    """Mean and standard error of every estimator, by (distribution, estimator, n)."""
    found = {}
    cells = [(name, n) for name in NAMES for n in SIZES]
    for name, n in track(cells, description="bias"):
        samples = [SYNTHETIC[name].sample(n, seed=seed).predictions for seed in range(repeats(n))]
        for title, estimator in ESTIMATORS.items():
            values = np.array([estimator(p) for p in samples])
            found[name, title, n] = (values.mean(), values.std(ddof=1) / len(values) ** 0.5)
    return found


def coverage() -> dict[tuple[str, str, str, int], float]:
    """How often a 95 % interval holds the truth, by (distribution, metric, interval type, n)."""
    found = {}
    cells = [(name, n) for name in NAMES for n in COVERAGE_SIZES]
    for name, n in track(cells, description="coverage"):
        many = SYNTHETIC[name].sample(1_000_000, seed=10**6).predictions
        samples = [
            SYNTHETIC[name].sample(n, seed=seed).predictions for seed in range(COVERAGE_REPEATS)
        ]
        for title, metric in COVERED.items():
            truth = SYNTHETIC[name].true_binned_error(15)
            if title == "smece" and name != "calibrated":
                truth = metric(many)
            for kind in metrics.INTERVAL_TYPES:
                hits = 0
                for seed, p in enumerate(samples):
                    bar = metrics.interval(metric, p, resamples=200, seed=seed, interval_type=kind)
                    hits += bar.low <= truth <= bar.high
                found[name, title, kind, n] = hits / COVERAGE_REPEATS
    return found


def bias_table(name: str, found: dict[tuple[str, str, int], tuple[float, float]]) -> str:
    """Mean estimate of every estimator, one row each."""
    lines = [
        "| estimator | " + " | ".join(f"n = {n:,}" for n in SIZES) + " |",
        "|---|" + "---|" * len(SIZES),
    ]
    for title in ESTIMATORS:
        cells = [f"{found[name, title, n][0]:.4f}" for n in SIZES]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def coverage_table(found: dict[tuple[str, str, str, int], float]) -> str:
    """Coverage of each interval type, one row for each distribution, metric and n."""
    lines = [
        "| predictions | metric | n | " + " | ".join(metrics.INTERVAL_TYPES) + " |",
        "|---|---|---|" + "---|" * len(metrics.INTERVAL_TYPES),
    ]
    for name in NAMES:
        for title in COVERED:
            for n in COVERAGE_SIZES:
                cells = [f"{100 * found[name, title, m, n]:.0f} %" for m in metrics.INTERVAL_TYPES]
                lines.append(f"| {name} | {title} | {n:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sharp_and_coarse(n: int, seed: int) -> tuple[Predictions, Predictions]:
    """Two calibrated models on the same labels: one tells examples apart, one hardly does."""
    generator = np.random.default_rng(seed)
    chance = generator.beta(0.5, 0.5, n)
    labels = (generator.random(n) < chance).astype(np.int64)
    mean = 0.5 + 1 / np.pi  # of Beta(1/2, 1/2) above one half
    sharp = Predictions.from_binary(chance, labels, kind="probs")
    coarse = np.where(chance > 0.5, mean, 1 - mean)
    return sharp, Predictions.from_binary(coarse, labels, kind="probs")


def over_and_under(n: int, seed: int) -> tuple[Predictions, Predictions]:
    """Two models that are wrong by 0.08, one upwards and one downwards."""
    generator = np.random.default_rng(seed)
    chance = generator.uniform(0.6, 0.9, n)
    labels = (generator.random(n) < chance).astype(np.int64)
    over = Predictions.from_binary(chance + 0.08, labels, kind="probs")
    return over, Predictions.from_binary(chance - 0.08, labels, kind="probs")


PAIRS = {
    "both calibrated, one sharper": sharp_and_coarse,
    "over- and under-confident by 0.08": over_and_under,
}


def alarm_table() -> str:
    """How often `compare` calls two models different whose true errors are equal."""
    lines = [
        "| the two models | n | " + " | ".join(COMPARED) + " |",
        "|---|---|" + "---|" * len(COMPARED),
    ]
    cells = [(title, n) for title in PAIRS for n in COMPARE_SIZES]
    for title, n in track(cells, description="comparisons"):
        row = []
        for metric in COMPARED.values():
            alarms = 0
            for seed in range(COVERAGE_REPEATS):
                pair = PAIRS[title](n, seed)
                difference = metrics.compare(metric, *pair, resamples=200, seed=seed)
                alarms += difference.p_value < 0.05
            row.append(f"{100 * alarms / COVERAGE_REPEATS:.0f} %")
        lines.append(f"| {title} | {n:,} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def draw(found: dict[tuple[str, str, int], tuple[float, float]], path: Path) -> None:
    """Mean estimates against n, one panel for each distribution, with the truth as a line."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    shown = ("ece", "debiased_ece", "smece", "sece h=0.001", "sece h=0.01", "sece h=0.1")
    colours = ("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7")
    for axes, name in zip(figure.subplots(1, 3, sharey=True), NAMES, strict=True):
        axes.axhline(SYNTHETIC[name].true_error(), color="black", lw=1.2, label="true error")
        for title, colour in zip(shown, colours, strict=True):
            values = [found[name, title, n] for n in SIZES]
            axes.errorbar(
                SIZES,
                [value for value, _ in values],
                [2 * error for _, error in values],
                color=colour,
                marker="o",
                ms=3.5,
                lw=1.4,
                label=title,
            )
        axes.set(xscale="log", xlabel="examples", title=name, ylim=(-0.01, 0.4))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", lw=0.4, alpha=0.6)
    figure.axes[0].set_ylabel("mean estimate")
    figure.axes[-1].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})


PAGE = """# Accuracy of metrics and intervals

This page shows how far each calibration metric lies from the true error. It also shows how often
intervals cover the truth, and how often a comparison raises a false alarm. Use it to choose a
metric for your number of examples. The predictions are synthetic, so the true error is known:

```python
from calibrant import metrics
from calibrant.data import SYNTHETIC

source = SYNTHETIC["overconfident"]
print(source.true_error())                                         # 0.0810, an integral
print(metrics.ece(source.sample(500, seed=0).predictions))         # an estimate, too high
print(metrics.debiased_ece(source.sample(500, seed=0).predictions))
```

`make bias` wrote this page ({machine}, {cores} cores; seeds 0, 1, 2, ...). The tables show means
over {most} samples at n = {small}, down to {least} samples at n = {large}.

![Mean estimate against the number of examples](bias.png)

**calibrated**: the true error is 0, so every value in this table is bias.

{calibrated}

**overconfident**: true error {over:.4f} (in 15 bins: {over_binned:.4f}).

{overconfident}

**wavy**: over-confident and under-confident in turn. The true error is {wavy_true:.4f}; in 15 bins
it is {wavy_binned:.4f}, because errors of opposite sign cancel within a bin.

{wavy}

## Conclusions

- **ECE counts noise as error.** On calibrated predictions it falls only with the square root of n.
  Compare two ECE values only at the same n and with the same bins.
- **Debiased ECE** removes {debiased_part:.0f} % of that bias on calibrated predictions at n =
  {large}. Where the error is large compared with its noise, it removes nearly all of it.
- **smECE** has less bias than ECE on small samples and more on large ones ({smece_large:.4f}
  against {ece_large:.4f} at n = {large}). It measures the distance to the nearest calibrated
  predictor. Errors of alternating sign count less there: on *wavy* it stays below the true error.
- **SECE is biased**, although the paper calls it unbiased. That holds only in the sense that no
  bins are chosen. At a small bandwidth few examples estimate each accuracy, and their noise counts
  as error: a calibrated model gets {sece_small:.3f} at h = 0.01 and n = 128. Leaving each example
  out of its own estimate does not help ({loo_small:.3f}). At a large bandwidth the estimated
  accuracy shrinks towards the overall mean, however many examples there are: at h = 1 and n =
  {large} a calibrated model still gets {sece_wide:.3f}. SECE is consistent: as n grows and h
  shrinks slowly, it tends to the true, unbinned error.

## Coverage of intervals

How often a 95 % interval contained the truth ({coverage_repeats} samples, 200 resamples each). For
`ece` and `debiased_ece` the truth is the error in 15 bins; for `smece` it is the value on a million
examples.

{coverage}

- **Percentile** intervals of a binned error are too high, because resampling adds the sampling
  noise a second time.
- **Basic** intervals, the default of `metrics.interval`, reflect the resampled values about the
  estimate, which reverses that shift.
- **At a true error of zero** no bootstrap interval is valid, because the error cannot be negative.
  `metrics.interval` therefore runs a consistency check when zero lies outside. It draws labels
  from the predicted probabilities. If such calibrated predictions give an error as large, it
  widens the interval to contain zero and the estimate. It does so only without groups and weights,
  because the check assumes independent examples.
- A basic interval can lie below its own estimate if most of the estimate is noise (mostly
  `simplex_ece`). The summary says so.

## False alarms when two models are compared

How often `metrics.compare` found a significant difference (p < 0.05) between two models with equal
true calibration errors ({coverage_repeats} samples, 200 resamples each):

{alarms}

A sharper model spreads its confidences over more bins and has more noise in its estimate. So raw
`ece`, `smece` and `sece` differ between two calibrated models, and more examples only make the
difference more significant. `debiased_ece` stays close to the nominal 5 %, so the verdict of
`calibrant compare` uses it. Proper scores such as `nll` are means over examples and have no such
bias.
"""


def main() -> None:
    """Measure, draw, write the page and print where it is."""
    found, covered = readings(), coverage()
    DOCS.mkdir(exist_ok=True)
    draw(found, DOCS / "bias.png")
    small, large = SIZES[0], SIZES[-1]
    plain, debiased = (found["calibrated", each, large][0] for each in ("ece", "debiased_ece"))
    page = PAGE.format(
        machine=platform.machine(),
        cores=os.cpu_count(),
        debiased_part=100 * (1 - debiased / plain),
        smece_large=found["calibrated", "smece", large][0],
        ece_large=plain,
        most=repeats(small),
        least=repeats(large),
        small=f"{small:,}",
        large=f"{large:,}",
        over=SYNTHETIC["overconfident"].true_error(),
        over_binned=SYNTHETIC["overconfident"].true_binned_error(15),
        wavy_true=SYNTHETIC["wavy"].true_error(),
        wavy_binned=SYNTHETIC["wavy"].true_binned_error(15),
        sece_small=found["calibrated", "sece h=0.01", small][0],
        loo_small=found["calibrated", "sece h=0.01, leave one out", small][0],
        sece_wide=found["calibrated", "sece h=1", large][0],
        coverage=coverage_table(covered),
        coverage_repeats=COVERAGE_REPEATS,
        alarms=alarm_table(),
        **{name: bias_table(name, found) for name in NAMES},
    )
    (DOCS / "bias.md").write_text(page)
    print(f"wrote {DOCS / 'bias.md'} and {DOCS / 'bias.png'}")


if __name__ == "__main__":
    main()
