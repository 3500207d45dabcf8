"""Mutation testing: break the source in many small ways and count what the tests notice.

    python -m benchmarks.mutation                       # results in runs/mutation.jsonl; resumes
    python -m benchmarks.mutation --root ../old         # the same mutants against other tests
    python -m benchmarks.mutation --list                # show them, run nothing

A mutant is killed if a test of its part fails, hangs or cannot be collected; else it survives.
The tests run on the source as it is first: they must pass, and their time gives the limit.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from benchmarks.mutants import Mutant, chosen

HERE = Path(__file__).parents[1]
START = multiprocessing.get_context("forkserver")
START.set_forkserver_preload(["torch", "scipy.optimize", "scipy.stats", "sklearn.metrics"])
SEED = 2026


@dataclass(frozen=True)
class Part:
    """A part of the package: its files, its tests, and how many mutants it is given."""

    files: str
    tests: tuple[str, ...]
    mutants: int


PARTS = {
    "losses": Part("losses/*.py", ("tests/losses",), 40),
    "metrics": Part("metrics/**/*.py", ("tests/metrics",), 20),
    "calibrators": Part("calibrators/*.py", ("tests/calibrators",), 18),
    "methods": Part("methods/*.py", ("tests/methods",), 36),
    "loop": Part(
        "training/loop.py",
        ("tests/training/test_training_loop.py", "tests/training/test_checkpoints.py"),
        12,
    ),
}
MOST = 5
# Mutants that no test can kill, by name: the reason.
EQUIVALENT = {
    "calibrators/affine.py _diagonal_preconditioner arithmetic 2": (
        "another scale of the unknowns changes the steps of the search, not its optimum"
    ),
    "calibrators/affine.py _search drop term 1": (
        "the search ends one step earlier or later, within its tolerance"
    ),
    "calibrators/ensemble.py _newton drop term 9": (
        "how fast the step may grow again changes the number of steps, not the optimum"
    ),
    "calibrators/focal_map.py _root drop term 3": (
        "the root is settled one step later at most, within rounding"
    ),
    "calibrators/temperature.py module number 1": (
        "from how many scores on a first search uses a part of them changes the time"
    ),
    "losses/cpc.py _sum_over_pairs flag 2": "the recomputed terms draw no random numbers",
    "metrics/hypothesis_tests.py consistency_test arithmetic 1": (
        "how many resampled sets are drawn at once changes the memory, not the result"
    ),
    "metrics/kernel.py smece_statistic arithmetic 5": (
        "at a confidence of 1 all weight is on the last cell, from either side"
    ),
    "methods/gamma_history.py GammaHistory._quantile drop term 2": (
        "a part of the total is never beyond the last cell: the bound only guards against rounding"
    ),
    "methods/meta_smoothing.py MetaSmoothing.targets drop term 2": (
        "the diagonal is zero already, and its gradient cancels"
    ),
    "methods/meta_smoothing.py MetaSmoothing._keep_within_bounds drop statement 2": (
        "the gradient of the diagonal is zero: it stays zero without being set"
    ),
}


def drawn(source: Path, seed: int) -> dict[str, list[Mutant]]:
    """The mutants of every part."""
    package = source / "calibrant"
    return {
        name: chosen(
            package,
            sorted(str(file.relative_to(package)) for file in package.glob(part.files)),
            part.mutants,
            seed=seed,
            most=part.mutants if name == "loop" else MOST,
        )
        for name, part in PARTS.items()
    }


def test_files(root: Path, part: Part, file: str) -> tuple[list[str], list[str]]:
    """The tests of a part: the files that share a word with the source, and the others."""
    words = Path(file).stem.split("_")
    places = [root / each for each in part.tests]
    found = [f for each in places for f in (each.glob("test_*.py") if each.is_dir() else [each])]
    named = [str(path.relative_to(root)) for path in sorted(found, key=lambda p: p.stat().st_size)]
    near = [each for each in named if file and any(word in Path(each).stem for word in words)]
    return near, [each for each in named if each not in near]


def run_tests(root: Path, source: Path, files: Sequence[str], limit: float) -> str:
    """Run tests against a source tree: "passed", "failed" or "hung"."""
    process = START.Process(target=_child, args=(str(root), str(source), list(files)))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        process.kill()
        process.join()
        return "hung"
    return "passed" if process.exitcode == 0 else "failed"


def _child(root: str, source: str, files: list[str]) -> None:
    """Run in a copy of a process that has loaded torch already, which takes seconds."""
    os.chdir(root)
    sys.path.insert(0, source)
    os.environ["PYTHONPATH"] = source
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    # The marker is named here, too: older tests may not have it.
    options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "markers=slow", "-m", "not slow"]
    code = pytest.main([*options, *files])
    # Files of which all tests are slow are none of ours.
    os._exit(0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code))


def measure(
    root: Path, source: Path, output: Path, *, parts: Sequence[str], jobs: int, seed: int
) -> None:
    """Run what is not in the output yet, and add a line for each mutant that is done."""
    done = {row["name"] for row in read(output)}
    picked = drawn(source, seed)
    todo = [(name, m) for name, found in picked.items() for m in found if name in parts]
    todo = [(name, m) for name, m in todo if m.name not in done and m.name not in EQUIVALENT]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            trees.put(Path(shutil.copytree(source, Path(folder) / str(number))))

        def baseline(name: str) -> float:
            start = time.monotonic()
            _, files = test_files(root, PARTS[name], "")
            if run_tests(root, source, files, 3600) != "passed":
                raise SystemExit(f"the tests of {name} fail without a mutant: repair them first")
            return 60 + 10 * (time.monotonic() - start)

        limits = dict(zip(parts, pool.map(baseline, parts), strict=True)) if todo else {}

        def judge(job: tuple[str, Mutant]) -> dict[str, object]:
            name, mutant = job
            tree = trees.get()
            path = tree / "calibrant" / mutant.file
            before, start, result = path.read_bytes(), time.monotonic(), "passed"
            try:
                path.write_bytes(mutant.applied(before))
                for files in filter(None, test_files(root, PARTS[name], mutant.file)):
                    if result == "passed":
                        result = run_tests(root, tree, files, limits[name])
            finally:
                path.write_bytes(before)
                trees.put(tree)
            seconds = time.monotonic() - start
            return {"part": name, "result": result, "seconds": seconds} | asdict(mutant)

        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("a") as file:
            for number, row in enumerate(pool.map(judge, todo), 1):
                file.write(json.dumps(row) + "\n")
                file.flush()
                word = "SURVIVED" if row["result"] == "passed" else "killed"
                print(f"{number}/{len(todo)} {word} {row['name']}", flush=True)


def read(output: Path) -> list[dict[str, object]]:
    """The lines that are there."""
    return [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []


def table(rows: Sequence[dict[str, object]]) -> str:
    """The score of every part, as a Markdown table."""
    rows = [row for row in rows if row["name"] not in EQUIVALENT]
    lines = ["| part | mutants | killed | survived | score |", "|---|---|---|---|---|"]
    for name in [*PARTS, "all"]:
        of_part = [row for row in rows if name in (row["part"], "all")]
        killed = sum(row["result"] != "passed" for row in of_part)
        if of_part:
            score = f"{killed / len(of_part):.0%}"
            lines.append(
                f"| {name} | {len(of_part)} | {killed} | {len(of_part) - killed} | {score} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the mutants and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--root", type=Path, default=HERE, help="folder with tests/ and pyproject.toml"
    )
    parser.add_argument("--source", type=Path, default=HERE / "src", help="the tree that is broken")
    parser.add_argument("--output", type=Path, default=HERE / "runs" / "mutation.jsonl")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seed", type=int, default=SEED, help="another one draws other mutants")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    options = parser.parse_args()
    # Read when the first child is started. Bytecode of a mutant must not outlive it.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if options.list:
        for mutant in (m for found in drawn(options.source, options.seed).values() for m in found):
            print(f"{mutant.name}, line {mutant.line}: {mutant.old!r} -> {mutant.new!r}")
        return
    places = options.root.resolve(), options.source.resolve(), options.output.resolve()
    measure(*places, parts=options.parts, jobs=options.jobs, seed=options.seed)
    rows = read(options.output)
    for row in rows:
        if row["result"] == "passed" and row["name"] not in EQUIVALENT:
            print(f"survived: {row['name']}, line {row['line']}: {row['old']!r} -> {row['new']!r}")
    print(table(rows))


if __name__ == "__main__":
    main()
