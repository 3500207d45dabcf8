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
    """How often a 95 % interval holds the truth, by (distribution, metric, method, n)."""
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
            for method in metrics.METHODS:
                hits = 0
                for seed, p in enumerate(samples):
                    bar = metrics.interval(metric, p, resamples=200, seed=seed, method=method)
                    hits += bar.low <= truth <= bar.high
                found[name, title, method, n] = hits / COVERAGE_REPEATS
    return found


def bias_table(name: str, found: dict[tuple[str, str, int], tuple[float, float]]) -> str:
    """Mean reading of every estimator, one row each."""
    lines = [
        "| estimator | " + " | ".join(f"n = {n:,}" for n in SIZES) + " |",
        "|---|" + "---|" * len(SIZES),
    ]
    for title in ESTIMATORS:
        cells = [f"{found[name, title, n][0]:.4f}" for n in SIZES]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def coverage_table(found: dict[tuple[str, str, str, int], float]) -> str:
    """Coverage of each method, one row for each distribution, metric and n."""
    lines = [
        "| predictions | metric | n | " + " | ".join(metrics.METHODS) + " |",
        "|---|---|---|" + "---|" * len(metrics.METHODS),
    ]
    for name in NAMES:
        for title in COVERED:
            for n in COVERAGE_SIZES:
                cells = [f"{100 * found[name, title, m, n]:.0f} %" for m in metrics.METHODS]
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
    """Mean readings against n, one panel for each distribution, with the truth as a line."""
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
    figure.axes[0].set_ylabel("mean reading")
    figure.axes[-1].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})


PAGE = """# How far are the estimators from the truth?

Written by `make bias` ({machine}, {cores} cores; seeds 0, 1, 2, ...; {most} samples at n =
{small}, {least} at n = {large}). The predictions are those of `calibrant.data.SYNTHETIC`: the
true probability of being right is known for every confidence, so the **true** calibration error
is an integral, not an estimate. Every cell is the mean reading over the samples.

![mean reading against n](bias.png)

**calibrated**: true error 0. Whatever is read here is bias.

{calibrated}

**overconfident**: true error {over:.4f} (in 15 bins: {over_binned:.4f}).

{overconfident}

**wavy**: errors of both signs, true error {wavy_true:.4f} (in 15 bins: {wavy_binned:.4f},
because errors of opposite sign inside a bin cancel).

{wavy}

## What to take from it

- **ECE reads noise as error.** On calibrated predictions it falls only with the root of n. Two
  ECE values are comparable only at the same n and the same bins.
- **The debiased ECE** removes part of it on calibrated predictions ({debiased_part:.0f} % at n
  = {large}) and most of it where there is a real error: the correction is exact for a gap that
  is large against its noise.
- **smECE** reads less noise than ECE on small samples and more on large ones ({smece_large:.4f}
  against {ece_large:.4f} at n = {large}). It measures the distance to the nearest calibrated
  predictor, so errors of alternating sign count less: for *wavy* it stays below the true error.
- **SECE is not unbiased.** "Unbiased", which is said of it, can only mean that no bins are
  chosen; as an *estimator* the kernel form has two biases. At a small bandwidth the accuracy
  near a confidence rests on few examples, and their noise counts as error: at h = 0.01 and n =
  128 a perfectly calibrated model reads {sece_small:.3f}. Leaving each example out of its own
  estimate does not help ({loo_small:.3f}). At a large bandwidth the accuracy is pulled towards
  the overall mean, and the spread of the confidences counts as error however many examples
  there are: at h = 1 and n = {large} it still reads {sece_wide:.3f}. What holds is consistency:
  with n growing and h shrinking slowly, it tends to the true, unbinned error, also where bins
  hide it.

## Do the intervals cover?

How often a 95 % interval held the truth ({coverage_repeats} samples, 200 resamples each). For
`ece` and `debiased_ece` the truth is the error in 15 bins, for `smece` its value on a million
examples.

{coverage}

Resampling a binned error adds the sampling noise a second time, so percentile intervals lie too
high. `basic`, the default of `metrics.interval`, mirrors the resampled values about the
estimate, which turns the shift round. At an error of zero no bootstrap is right, because the
error cannot be negative. Therefore, where zero is left out, calibrated predictions are drawn
from the same scores: if they read as much, the interval is widened to hold zero and the
reading. A `basic` interval may still lie below its own value where noise is most of the reading
(`simplex_ece`, mostly); the summary says so. For examples with groups or weights the widening
is not done, because the drawing takes independent examples.

## Comparing two models

How often `metrics.compare` called two models different (p < 0.05) although their true
calibration errors are equal ({coverage_repeats} samples, 200 resamples each):

{alarms}

`compare` compares what is *read*. A sharper model spreads its confidences over more bins and
collects more noise, so raw `ece`, `smece` and `sece` call two calibrated models different, ever
more surely with more examples. `debiased_ece` keeps close to its level, and `calibrant compare`
rests its verdict on it. Proper scores such as `nll` are means over examples and need no such
care.
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
