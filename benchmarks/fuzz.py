"""`python -m benchmarks.fuzz`: damage files of every kind at random, and count what happens.

Each case is a function of the seed, the kind of file and its number, so `--kind NAME --first N
--cases 1` runs one of them again. Cases run in a process of their own with a limit on its memory:
a crash or a hang of it is counted, too.
"""

import argparse
import hashlib
import multiprocessing
import resource
import sys
import tempfile
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fuzz_mutations import mutated
from benchmarks.fuzz_targets import TARGETS, Target
from benchmarks.pages import table, versions
from calibrant.cli import one_line

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- fuzz: begin -->", "<!-- fuzz: end -->"
# Seconds after which a case hangs, and bytes that a process may take beyond those of its libraries.
PATIENCE, MEMORY = 20.0, 2 * 2**30
# What the command line turns into one line with code 2.
REFUSALS = (ValueError, TypeError, OSError)

EQUAL, REFUSED, WARNED, OTHER = "equal numbers", "refused", "warned", "other valid file"
WRONG, HANG, SILENT = "wrong exception", "hang", "silent change"
OUTCOMES = (REFUSED, EQUAL, WARNED, OTHER, WRONG, HANG, SILENT)
# A table with anything in these columns is a mistake of ours.
BAD = (WRONG, HANG, SILENT)


@dataclass
class Tally:
    """What became of the cases of one kind of file, and which of them went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, case: int, outcome: str, said: str) -> None:
        """Count a case."""
        self.counts[outcome] += 1
        if outcome in BAD:
            self.bad.append(f"case {case}: {outcome}: {said}")


def fuzz(
    kinds: Sequence[str],
    *,
    cases: int,
    seed: int,
    first: int = 0,
    patience: float = PATIENCE,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Tally]:
    """Run the cases of these kinds of files in one process, and in a new one after each crash."""
    todo = [(kind, case) for kind in kinds for case in range(first, first + cases)]
    tallies = {kind: Tally() for kind in kinds}
    while todo:
        done = 0
        for outcome, said in _outcomes(todo, seed, patience):
            kind, case = todo[done]
            tallies[kind].add(case, outcome, said)
            done += 1
            if case + 1 == first + cases or (case + 1) % 500 == 0:
                tell(f"{kind}: {case + 1 - first} of {cases}, {dict(tallies[kind].counts)}")
        todo = todo[done:]
    return tallies


def _outcomes(
    todo: Sequence[tuple[str, int]], seed: int, patience: float
) -> Iterator[tuple[str, str]]:
    """What became of each case, in order, until the process that runs them dies or hangs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(there, list(todo), seed), daemon=True)
    worker.start()
    there.close()
    try:
        # Starting takes a while; what is measured begins with the first word.
        if not here.poll(300):
            raise RuntimeError("the process that runs the cases did not start")
        here.recv()
        for _ in todo:
            if not here.poll(patience):
                yield HANG, f"more than {patience:g} seconds"
                return
            try:
                yield here.recv()
            except EOFError:
                worker.join()
                yield WRONG, f"the process ended with code {worker.exitcode}"
                return
    finally:
        worker.kill()
        worker.join()


def _work(results: Connection, todo: Sequence[tuple[str, int]], seed: int) -> None:
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    with tempfile.TemporaryDirectory() as where:
        made: dict[str, _Case] = {}
        results.send(("", ""))
        for kind, case in todo:
            if kind not in made:
                made[kind] = _Case(Path(where), kind)
            rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), case])
            results.send(made[kind].outcome(rng))


class _Case:
    """A file of one kind, whole, with another one to take blocks from."""

    def __init__(self, where: Path, kind: str) -> None:
        self.target: Target = TARGETS[kind]
        folders = [where / f"{zlib.crc32(kind.encode())}-{i}" for i in range(2)]
        for folder in folders:
            folder.mkdir()
        self.path, other = (self.target.write(folder, i) for i, folder in enumerate(folders))
        self.data, self.other = self.path.read_bytes(), other.read_bytes()
        value, self.shape = self._read(self.path)
        # A joined file may be the other one, damaged where it does not matter.
        self.values = {value, self._read(other)[0]}

    def _read(self, path: Path) -> tuple[str, str]:
        value = self.target.read(path)
        return digest(value), repr(self.target.shape(value))

    def outcome(self, rng: np.random.Generator) -> tuple[str, str]:
        """Damage the file, read it, and say what came of it."""
        # A new file each time: some filesystems flush an overwritten one on closing.
        self.path.unlink()
        self.path.write_bytes(mutated(rng, self.data, self.other))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                value, shape = self._read(self.path)
            except REFUSALS as error:
                return REFUSED, one_line(error)
            except BaseException as error:
                return WRONG, f"{type(error).__name__}: {one_line(error)}"
        if value in self.values:
            return EQUAL, ""
        if any(issubclass(each.category, UserWarning) for each in warned):
            return WARNED, str(warned[0].message)
        if self.target.plain and shape == self.shape:
            return OTHER, ""
        return SILENT, "values differ"


def digest(value: Any) -> str:
    """SHA-256 of nested plain values, arrays and tensors: types, shapes and every bit."""
    found = hashlib.sha256()

    def add(each: Any) -> None:
        if isinstance(each, torch.Tensor):
            each = each.numpy()
        if isinstance(each, np.ndarray):
            found.update(f"{each.dtype.str} {each.shape}".encode())
            found.update(np.ascontiguousarray(each).data)
        elif isinstance(each, dict):
            found.update(f"{len(each)}".encode())
            for key, inner in each.items():
                add(key)
                add(inner)
        elif isinstance(each, list | tuple):
            found.update(f"{len(each)}".encode())
            for inner in each:
                add(inner)
        else:
            found.update(f"{type(each).__name__} {each!r};".encode())

    add(value)
    return found.hexdigest()


def section(tallies: dict[str, Tally], *, cases: int, seed: int) -> str:
    """The table between its markers."""
    rows = [
        [f"`{kind}`{' (1)' if TARGETS[kind].plain else ''}", str(cases)]
        + [str(tally.counts[outcome]) for outcome in OUTCOMES]
        for kind, tally in tallies.items()
    ]
    when = datetime.now(UTC).date().isoformat()
    made = f"`python -m benchmarks.fuzz --cases {cases} --seed {seed}`, {when}. {versions()}."
    return f"{BEGIN}\n{table(['file', 'cases', *OUTCOMES], rows)}\n\n{made}\n{END}"


def main() -> int:
    """Run, print, and with `--write` put the table into docs/reliability.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=3000, help="of each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", action="append", choices=TARGETS, help="may be repeated")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    given = parser.parse_args()
    tallies = fuzz(
        given.kind or list(TARGETS),
        cases=given.cases,
        seed=given.seed,
        first=given.first,
        tell=lambda line: print(line, flush=True),
    )
    text = section(tallies, cases=given.cases, seed=given.seed)
    print(text)
    for kind, tally in tallies.items():
        for line in tally.bad[:20]:
            print(f"{kind}: {line}", file=sys.stderr)
    if given.write:
        page = PAGE.read_text()
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        PAGE.write_text(f"{before}{text}{after}")
    return 1 if any(tally.bad for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
