"""Compare every calibrator with other libraries on published logits; rewrites a page.

`make posthoc`. Results are saved in runs/posthoc, one file per set of logits; re-run to resume.
After a change of code, start with `rm -r runs/posthoc`.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch

from benchmarks.posthoc_page import page
from benchmarks.posthoc_rivals import RIVALS
from benchmarks.real_data import DATA, ROOT, load
from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, Selection, select
from calibrant.metrics.resampling.draws import resampler
from calibrant.report import focal_landscape_figure, save

KEPT = ROOT / "runs" / "posthoc"
PAGE = ROOT / "docs" / "posthoc.md"
# Whose landscape of focal temperature scaling is drawn.
PICTURE = "pytorchcifar10_resnet18:test"
SPLITS = 5
RESAMPLES = 300
# One fit of these takes up to 90 seconds: they are measured on the first split only.
SLOW = {"netcal logistic", "netcal beta"}
METRICS = ("nll", "brier", "ece", "smece")
# Files whose other splits are shifted: fitted on half of the first, measured on all others.
SHIFTED = {
    "akamaster_c10_resnet20:test": [
        "noise0p04", "noise0p08", "contrast0p4", "contrast0p2", "blur0p7", "blur1p2",
    ],
    "labelshift_c10_vgg:valid": ["shiftedtest"],
}  # fmt: skip

Apply = Callable[[Predictions], Predictions]


def main() -> int:
    """Measure the files without results, and write the page."""
    names = sources()
    if not names:
        print(f"no real logits in {DATA}: put their folder in CALIBRANT_DATA; {PAGE} is unchanged")
        return 0
    KEPT.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not kept(name).exists()]
    with ProcessPoolExecutor(2, initializer=_one_thread) as pool:
        for done, (name, took) in enumerate(pool.map(measure, missing), 1):
            print(f"{done}/{len(missing)} {name}: {took:.0f} s", file=sys.stderr, flush=True)
    text = page({name: json.loads(kept(name).read_text()) for name in names})
    PAGE.write_text(text)
    picture = focal_landscape_figure(load(PICTURE).split(0.2, seed=0)[0], title=PICTURE)
    save(picture, PAGE.with_name("focal_landscape.png"))
    print(text)
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


def sources() -> list[str]:
    """The files, each with the split that is cut in halves."""
    stems = sorted(path.stem.removeprefix("logits_") for path in DATA.glob("logits_*.npz"))
    return [f"{stem}:{'valid' if stem.startswith('labelshift') else 'test'}" for stem in stems]


def kept(name: str):
    """Path of the results of a file."""
    return KEPT / f"{name.replace(':', '.')}.json"


def _one_thread() -> None:
    torch.set_num_threads(1)


def measure(name: str) -> tuple[str, float]:
    """All calibrators on five halvings of one file."""
    start = time.perf_counter()
    warnings.simplefilter("ignore")
    whole = load(name)
    scores: dict[str, dict[str, list[float]]] = {}
    losses: dict[str, np.ndarray] = {}
    seen = np.zeros(len(whole))
    fitted_nll: dict[str, list[float]] = {"temperature": [], "focal_temperature": []}
    choices: list[Selection] = []
    pairs: list[tuple[np.ndarray, Predictions, Predictions]] = []
    shifted: dict[str, dict[str, dict[str, float]]] = {}
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(len(whole))
        half = len(whole) // 2
        fit, test = whole.take(order[:half]), whole.take(order[half:])
        seen[order[half:]] += 1
        tested: dict[str, Predictions] = {}
        for method, apply in fits(fit, seed, choices):
            tested[method] = found = apply(test)
            row = scores.setdefault(method, {metric: [] for metric in METRICS})
            for metric in METRICS:
                row[metric].append(metrics.METRICS[metric](found))
            loss = losses.setdefault(method, np.zeros(len(whole)))
            loss[order[half:]] -= found.example_stats.label_log_prob.numpy()
            if method in fitted_nll:
                fitted_nll[method].append(metrics.nll(apply(fit)))
            if seed == 0 and name in SHIFTED:
                for split in SHIFTED[name]:
                    other = apply(load(f"{name.split(':')[0]}:{split}"))
                    shifted.setdefault(split, {})[method] = {
                        metric: metrics.METRICS[metric](other) for metric in ("nll", "ece")
                    }
        pairs.append((order[half:], tested["temperature"], tested["focal_temperature"]))
    shown = seen > 0
    each = {m: losses[m][shown] / seen[shown] for m, row in scores.items() if len(row["nll"]) > 1}
    record = {
        "examples": len(whole),
        "classes": whole.classes,
        "scores": scores,
        "behind": {m: _mean_and_error(each[m] - each["temperature"]) for m in each},
        "fitted_nll": fitted_nll,
        "chosen": [choice.name for choice in choices],
        "blended": [list(choice.parts) for choice in choices],
        "focal_ece": _ece_difference(pairs, len(whole)),
        "shifted": shifted,
    }
    kept(name).write_text(json.dumps(record))
    return name, time.perf_counter() - start


def fits(fit: Predictions, seed: int, choices: list[Selection]):
    """Fit every calibrator: ours, the selected one, the blend, and those of other libraries."""
    for method, kind in CALIBRATORS.items():
        try:
            found = kind.fit(fit)
        except ValueError:
            # More parameters than examples.
            continue
        yield method, lambda data, found=found: data.map(found)
    choice = select(fit, seed=seed, resamples=RESAMPLES)
    choices.append(choice)
    yield "select", lambda data: data.map(choice.best)
    yield "blend", lambda data: data.map(choice.blend)
    for method, make in RIVALS.items():
        if method in SLOW and seed:
            continue
        apply = make(fit.logits.numpy(), fit.labels.numpy())
        yield (
            method,
            lambda data, apply=apply: Predictions.from_probs(
                apply(data.logits.numpy()), data.labels
            ),
        )


def _mean_and_error(differences: np.ndarray) -> list[float]:
    """Mean of paired differences, and its standard error over examples."""
    return [float(differences.mean()), float(differences.std() / np.sqrt(len(differences)))]


def _ece_difference(
    pairs: list[tuple[np.ndarray, Predictions, Predictions]], examples: int
) -> list[float]:
    """ECE of the second minus the first over all halves, with its bootstrap interval."""
    prepared = [
        (index, resampler(metrics.ece, first), resampler(metrics.ece, second))
        for index, first, second in pairs
    ]
    generator = np.random.default_rng(0)

    def difference(weights: np.ndarray) -> float:
        return float(np.mean([b(weights[i]) - a(weights[i]) for i, a, b in prepared]))

    draws = [
        difference(np.bincount(generator.integers(0, examples, examples), minlength=examples) * 1.0)
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    return [difference(np.ones(examples)), float(low), float(high)]


if __name__ == "__main__":
    sys.exit(main())
