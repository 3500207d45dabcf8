"""Every calibrator of calibrant and of other libraries on tables, images and text; writes a page.

`make arena`. Each experiment is a file in runs/arena: re-run the command to resume. After a change
of calibrant start with `rm -r runs/arena/calibrant`: other libraries are not measured again. The
rows are kept in benchmarks/results, the page is docs/arena.md.
"""

import csv
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch

from benchmarks.arena_page import FIELDS, RESULTS, page, read_rows
from benchmarks.arena_problems import GROUPS, SIZES, Problem, problems
from benchmarks.real_data import DATA, ROOT
from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, select

KEPT = ROOT / "runs" / "arena"
PAGE = ROOT / "docs" / "arena.md"
RESAMPLES = 200

Map = Callable[[Predictions], Predictions]
Named = tuple[str, Callable[[], Map]]


def main() -> int:
    """Measure what has not been measured, and write rows and page."""
    if sys.argv[1:] != ["page"]:
        given = list(problems())
        if not given:
            print(f"no data in {DATA}: put their folder in CALIBRANT_DATA; {PAGE} is unchanged")
            return 0
        jobs = [
            (library, problem, size)
            for library in LIBRARIES
            for problem in given
            for size in SIZES
            if (size or 0) < len(problem.fit) and not kept(library, problem, size).exists()
        ]
        for library in LIBRARIES:
            (KEPT / library).mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(2, initializer=_alone) as pool:
            results = pool.map(measure, *zip(*jobs, strict=True)) if jobs else ()
            for done, (name, took) in enumerate(results, 1):
                print(f"{done}/{len(jobs)} {name}: {took:.0f} s", file=sys.stderr, flush=True)
        write_rows()
    PAGE.write_text(page(read_rows()))
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


def kept(library: str, problem: Problem, size: int | None) -> Path:
    """Where an experiment is kept."""
    name = f"{problem.group} {problem.name} {size or 'all'}".replace("/", "+")
    return KEPT / library / f"{name}.json"


def _alone() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def measure(library: str, problem: Problem, size: int | None) -> tuple[str, float]:
    """The methods of calibrant or of others on one problem, with so many examples for the fit."""
    start, rows = time.perf_counter(), []
    order = np.random.default_rng(0).permutation(len(problem.fit))[:size]
    fit = problem.fit.take(order)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        for method, make in LIBRARIES[library](fit):
            rows += _rows(problem, size, method, make)
    path = kept(library, problem, size)
    path.with_suffix(".draft").write_text(json.dumps(rows))
    path.with_suffix(".draft").replace(path)
    return f"{library} {path.stem}", time.perf_counter() - start


def calibrant_methods(fit: Predictions) -> Iterator[Named]:
    """Names of our methods, and what fits each of them and returns a map of predictions."""

    def ours(made) -> Map:
        return lambda data: data.map(made)

    yield "uncalibrated", lambda: ours(CALIBRATORS["identity"].fit(fit))
    for name, kind in CALIBRATORS.items():
        if name != "identity":
            # A copy: nothing that another calibrator computed is used again.
            yield name, lambda kind=kind: ours(kind.fit(replaced(fit)))
    yield "select", lambda: ours(select(replaced(fit), resamples=RESAMPLES).best)
    yield "blend", lambda: ours(select(replaced(fit), resamples=RESAMPLES).blend)


def other_methods(fit: Predictions) -> Iterator[Named]:
    """The same of other libraries, where they can run."""
    from benchmarks.arena_rivals import ARENA  # other libraries, only in their environment

    logits = fit.map(CALIBRATORS["identity"].fit(fit)).logits.double().numpy()
    labels, classes = fit.labels.numpy(), fit.classes
    for name, rival in ARENA.items():
        if classes <= rival.classes and logits.size <= rival.scores:
            yield name, lambda rival=rival: _theirs(rival.fit(logits, labels), fit)


LIBRARIES = {"calibrant": calibrant_methods, "others": other_methods}


def replaced(predictions: Predictions) -> Predictions:
    """The same predictions as another object."""
    return predictions.take(np.arange(len(predictions)))


def _theirs(apply: Callable[[np.ndarray], np.ndarray], fit: Predictions) -> Map:
    identity = CALIBRATORS["identity"].fit(fit)

    def found(data: Predictions) -> Predictions:
        probs = apply(data.map(identity).logits.double().numpy())
        return Predictions.from_probs(np.asarray(probs, np.float64), data.labels)

    return found


def _rows(
    problem: Problem, size: int | None, method: str, make: Callable[[], Map]
) -> list[dict[str, str]]:
    row = {"problem": problem.name, "group": problem.group, "size": str(size or "all")}
    row |= {"half": "choices" if problem.chosen_on else "report", "method": method, "shift": ""}
    begin = time.process_time()
    try:
        apply = make()
        fitted = time.process_time()
        tested = apply(problem.test)
        nll = metrics.nll(tested)
        applied = time.process_time()
        rows = [row | {"nll": nll, "brier": metrics.brier(tested), "ece": metrics.ece(tested)}]
        rows[0] |= {"fit": fitted - begin, "apply": applied - fitted}
        for shift, data in problem.shifted.items() if size is None else ():
            other = apply(data)
            found = {"nll": metrics.nll(other), "brier": metrics.brier(other)}
            rows.append(row | found | {"ece": metrics.ece(other), "shift": shift})
    except Exception:
        return [row]
    return [
        {key: f"{value:.5g}" if isinstance(value, float) else value for key, value in each.items()}
        for each in rows
    ]


def write_rows() -> None:
    """Collect the experiments into one file for each group."""
    RESULTS.mkdir(exist_ok=True)
    found = [row for path in sorted(KEPT.glob("*/*.json")) for row in json.loads(path.read_text())]
    for group in GROUPS:
        with open(RESULTS / f"arena-{group}.csv", "w", newline="") as handle:
            writer = csv.DictWriter(handle, FIELDS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(row for row in found if row["group"] == group)


if __name__ == "__main__":
    sys.exit(main())
