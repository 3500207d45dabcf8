"""Every calibrator of calibrant and of other libraries on tables, images and text; writes a page.

`make arena`. Each experiment is a file in runs/arena: re-run the command to resume. After a change
of calibrant remove runs/arena/calibrant and runs/arena/few; other libraries stay measured. The
rows are kept in benchmarks/results, the page is docs/arena.md.
"""

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

from benchmarks import arena_few
from benchmarks.arena_few import few_rows
from benchmarks.arena_page import page
from benchmarks.arena_problems import GROUPS, SIZES, Problem, files, problems, tables
from benchmarks.arena_rows import group_rows, read, write, write_group
from benchmarks.real_data import DATA, ROOT
from calibrant import Predictions, metrics
from calibrant.calibrators import CALIBRATORS, select

KEPT = ROOT / "runs" / "arena"
PAGE = ROOT / "docs" / "arena.md"
RESAMPLES, FEW = 200, "few"

Map = Callable[[Predictions], Predictions]
Named = tuple[str, Callable[[], Map]]


def main() -> int:
    """Measure what has not been measured, and write rows and page."""
    if sys.argv[1:] != ["page"]:
        given = list(problems())
        if not given:
            print(f"no data in {DATA}: put their folder in CALIBRANT_DATA; {PAGE} is unchanged")
            return 0
        plans = dict.fromkeys(LIBRARIES, (given, SIZES))
        plans[FEW] = [*tables(), *files(against={})], arena_few.SIZES
        jobs = [
            (part, problem, size)
            for part, (chosen, sizes) in plans.items()
            for problem in chosen
            for size in sizes
            if (size or 0) < len(problem.fit) and not kept(part, problem, size).exists()
        ]
        for part in plans:
            (KEPT / part).mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(2, initializer=_alone) as pool:
            results = pool.map(measure, *zip(*jobs, strict=True)) if jobs else ()
            for done, (name, took) in enumerate(results, 1):
                print(f"{done}/{len(jobs)} {name}: {took:.0f} s", file=sys.stderr, flush=True)
        write_rows()
    PAGE.write_text(page(group_rows(), read(f"arena-{FEW}")))
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


def kept(part: str, problem: Problem, size: int | None) -> Path:
    """Where an experiment is kept."""
    name = f"{problem.group} {problem.name} {size or 'all'}".replace("/", "+")
    return KEPT / part / f"{name}.json"


def _alone() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def measure(part: str, problem: Problem, size: int | None) -> tuple[str, float]:
    """The methods of calibrant or of others on one problem, with so many examples for the fit."""
    start = time.perf_counter()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        rows = few_rows(problem, size) if part == FEW else _experiment(part, problem, size)
    path = kept(part, problem, size)
    path.with_suffix(".draft").write_text(json.dumps(rows))
    path.with_suffix(".draft").replace(path)
    return f"{part} {path.stem}", time.perf_counter() - start


def _experiment(library: str, problem: Problem, size: int | None) -> list[dict[str, str]]:
    order = np.random.default_rng(0).permutation(len(problem.fit))[:size]
    fit = problem.fit.take(order)
    return [
        row
        for method, make in LIBRARIES[library](fit)
        for row in _rows(problem, size, method, make)
    ]


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
    row |= {"half": problem.half, "method": method, "shift": ""}
    begin = time.process_time()
    try:
        apply = make()
        fitted = time.process_time()
        tested = apply(problem.test)
        nll = metrics.nll(tested)
        applied = time.process_time()
        rows = [row | {"nll": nll, "brier": metrics.brier(tested)}]
        rows[0] |= {"fit": fitted - begin, "apply": applied - fitted}
        for shift, data in problem.shifted.items() if size is None else ():
            other = apply(data)
            found = {"nll": metrics.nll(other), "brier": metrics.brier(other)}
            rows.append(row | found | {"shift": shift})
    except Exception:
        return [row]
    return [
        {key: f"{value:.5g}" if isinstance(value, float) else value for key, value in each.items()}
        for each in rows
    ]


def write_rows() -> None:
    """Collect the experiments into one file for each group, and one for few examples."""
    found = [row for name in LIBRARIES for row in _kept_rows(name)]
    for group in GROUPS:
        write_group(group, [row for row in found if row["group"] == group])
    fields = arena_few.FIELDS
    write(f"arena-{FEW}", fields, ([row[key] for key in fields] for row in _kept_rows(FEW)))


def _kept_rows(part: str) -> list[dict[str, str]]:
    paths = sorted((KEPT / part).glob("*.json"))
    return [row for path in paths for row in json.loads(path.read_text())]


if __name__ == "__main__":
    sys.exit(main())
