"""How long calibrators take to fit, compared with the same method elsewhere."""

import numpy as np
from sklearn.calibration import _TemperatureScaling

from benchmarks.inputs import SEED
from benchmarks.measure import Section, alternate, seconds
from benchmarks.posthoc_rivals import RIVALS
from calibrant import Predictions, metrics
from calibrant.calibrators import (
    FocalTemperatureScaling,
    StructuredMatrixScaling,
    TemperatureScaling,
    focal_landscape,
)
from calibrant.calibrators.focal_temperature import GRID_GAMMAS, GRID_TEMPERATURES

SIZES = ((50_000, 100), (10_000, 1_000))
# Points of the published grid that are run; its time is scaled up from them.
SOME = 20
ABOUT = f"""Float32 logits of an over-confident network that confuses some classes; labels are drawn
from an affine map of them. Times of calibrant include making the Predictions. The published grid of
focal temperature scaling has {len(GRID_GAMMAS)} gammas and {len(GRID_TEMPERATURES)} temperatures
here (gamma = -1 has no focal map). {SOME} grid points are run with our own fast evaluation, and the
time is extrapolated. NLL is measured on the fitting data, for structured matrix scaling on as many
new examples."""


def drawn(n: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits with a signal, some confused classes, and labels of a colder, shifted model."""
    generator = np.random.default_rng(seed)
    fixed = np.random.default_rng(SEED)
    confused = fixed.integers(0, k, (k, 3))
    bias = fixed.normal(size=k) * 0.3
    truth = generator.integers(0, k, n)
    logits = generator.normal(size=(n, k)) * 1.5
    logits[np.arange(n), truth] += 6
    for column in range(3):
        logits[np.arange(n), confused[truth, column]] += 2 + generator.normal(size=n)
    labels = (0.6 * logits + bias + generator.gumbel(size=(n, k))).argmax(1)
    return logits.astype(np.float32), labels


def nll_of(probs: np.ndarray, labels: np.ndarray) -> float:
    """Mean log score of probabilities."""
    return float(-np.log(probs[np.arange(len(labels)), labels]).mean())


def run() -> Section:
    """Measure both sizes."""
    section = Section("Fitting calibrators", ABOUT)
    for n, k in SIZES:
        logits, labels = drawn(n, k, SEED)
        size = f"{n:,} x {k:,}"
        _temperature(section, size, logits, labels)
        _focal(section, size, logits, labels)
        _structured(section, size, logits, labels)
    return section


def _temperature(section: Section, size: str, logits: np.ndarray, labels: np.ndarray) -> None:
    rivals = {
        # Its estimator alone, without the copies that its classifier around it makes.
        "scikit-learn": lambda: _TemperatureScaling().fit(logits, labels),
        "netcal": lambda: RIVALS["netcal temperature"](logits.astype(np.float64), labels),
        "probmetrics": lambda: RIVALS["probmetrics temperature"](logits.astype(np.float64), labels),
    }

    def ours() -> TemperatureScaling:
        return TemperatureScaling.fit(Predictions(logits, labels))

    for name, rival in rivals.items():
        mine, theirs = alternate(ours, rival, repeats=3)
        goal = 5 if name == "scikit-learn" else None
        section.faster(f"temperature against {name}, {size}", mine, theirs, at_least=goal)
    wide = Predictions(logits.astype(np.float64), labels)
    other = _TemperatureScaling().fit(logits.astype(np.float64), labels)
    theirs = wide.map(lambda scores: scores * float(other.beta_))
    gap = metrics.nll(wide.map(ours())) - metrics.nll(theirs)
    section.below(f"NLL above scikit-learn's, {size}", max(gap, 0.0), "", goal=1e-8)


def _focal(section: Section, size: str, logits: np.ndarray, labels: np.ndarray) -> None:
    data = Predictions(logits, labels)
    grid = [(t, g) for g in GRID_GAMMAS for t in GRID_TEMPERATURES]
    some = grid[:: len(grid) // SOME][:SOME]

    def published() -> None:
        for temperature, gamma in some:
            focal_landscape(data, gammas=[gamma], temperatures=[temperature])

    mine = min(seconds(lambda: FocalTemperatureScaling.fit(data)) for _ in range(3))
    theirs = seconds(published) * len(grid) / SOME
    section.faster(f"focal temperature against its grid, {size}", mine, theirs, at_least=20)
    # Around the best temperature the grid is evaluated for every gamma: its least value.
    fitted = FocalTemperatureScaling.fit(data)
    near = sorted(GRID_TEMPERATURES, key=lambda t: abs(np.log(t / fitted.temperature)))[:9]
    least = float(focal_landscape(data, temperatures=sorted(near)).min())
    gap = metrics.nll(data.map(fitted)) - least
    section.below(f"NLL above the grid's best, {size}", max(gap, 0.0), "", goal=1e-8)


def _structured(section: Section, size: str, logits: np.ndarray, labels: np.ndarray) -> None:
    def ours() -> StructuredMatrixScaling:
        return StructuredMatrixScaling.fit(Predictions(logits, labels))

    def rival():
        return RIVALS["probmetrics sms"](logits.astype(np.float64), labels)

    mine, theirs = alternate(ours, rival, repeats=2)
    section.faster(f"structured matrix against probmetrics, {size}", mine, theirs, at_least=2)
    new, answers = drawn(*logits.shape, SEED + 1)
    found = metrics.nll(Predictions(new, answers).map(ours()))
    gap = found - nll_of(rival()(new.astype(np.float64)), answers)
    section.below(f"NLL above probmetrics', {size}", max(gap, 0.0), "", goal=1e-4)
