"""The fuzzer itself: it sees planted mistakes, and a few cases of every kind of file pass."""

import os
import time

import numpy as np
import pytest
from benchmarks import fuzz
from benchmarks.fuzz_mutations import MUTATIONS, mutated
from benchmarks.fuzz_targets import TARGETS, Target


def test_every_kind_of_file_passes_a_few_cases():
    tallies = fuzz.fuzz(list(TARGETS), cases=60, seed=5)
    for kind, tally in tallies.items():
        assert sum(tally.counts.values()) == 60
        assert tally.counts[fuzz.REFUSED] > 10, kind
        assert not tally.bad, kind


def outcomes(folder, read, *, plain=False):
    """What becomes of a file of 100 bytes that is read by a planted function."""

    def write(where, seed):
        path = where / "a.bin"
        path.write_bytes(bytes([7, seed] * 50))
        return path

    TARGETS["planted"] = Target(write, read, len, plain)
    try:
        case = fuzz._Case(folder, "planted")
    finally:
        del TARGETS["planted"]
    return [case.outcome(np.random.default_rng(i)) for i in range(40)]


def test_changed_numbers_are_silent_unless_the_format_is_plain(tmp_path):
    (tmp_path / "plain").mkdir()
    read = {kind for kind, _ in outcomes(tmp_path, lambda path: path.read_bytes())}
    assert read == {fuzz.SILENT}
    plain = outcomes(tmp_path / "plain", lambda path: path.read_bytes(), plain=True)
    # A file of another length has another shape.
    assert {kind for kind, _ in plain} == {fuzz.OTHER, fuzz.SILENT}


def test_refusals_and_wrong_exceptions_are_distinguished(tmp_path):
    def read(path):
        data = path.read_bytes()
        if len(data) != 100:
            raise ValueError("cut")
        return {7: b"", 0: b"", 1: b""}[max(data[::2])]

    found = outcomes(tmp_path, read)
    assert (fuzz.REFUSED, "cut") in found
    assert any(kind == fuzz.WRONG and said.startswith("KeyError: ") for kind, said in found)
    assert (fuzz.EQUAL, "") in found


def dying(results, todo, seed):
    results.send(("", ""))
    os._exit(3)


def hanging(results, todo, seed):
    results.send(("", ""))
    time.sleep(600)


@pytest.mark.slow
@pytest.mark.parametrize(("work", "found"), [(dying, fuzz.WRONG), (hanging, fuzz.HANG)])
def test_a_crashed_or_hanging_process_is_counted_and_replaced(monkeypatch, work, found):
    monkeypatch.setattr(fuzz, "_work", work)
    tally = fuzz.fuzz(["predictions.npz"], cases=2, seed=0, patience=1.0)["predictions.npz"]
    assert tally.counts == {found: 2}
    assert len(tally.bad) == 2


def test_mutations_always_change_the_file_and_follow_from_the_seed():
    data, other = bytes(range(48, 98)), bytes(range(60, 110))
    for i in range(300):
        changed = mutated(np.random.default_rng(i), data, other)
        assert changed not in (data, other)
        assert changed == mutated(np.random.default_rng(i), data, other)
    for mutation in MUTATIONS:
        found = {mutation(np.random.default_rng(i), data, other) for i in range(20)}
        assert len(found) > 1, mutation.__name__


def test_digests_distinguish_types_shapes_and_bits():
    values = [0, 0.0, -0.0, "0", None, [0], [[0]], {"a": 0}, np.zeros(2), np.zeros((2, 1))]
    values += [np.zeros(2, "f4"), np.array([0.0, -0.0]), [0, 0], {"a": 0, "b": 0}]
    assert len({fuzz.digest(value) for value in values}) == len(values)


def test_the_page_lists_every_kind_of_file():
    page = fuzz.PAGE.read_text()
    table = page.partition(fuzz.BEGIN)[2].partition(fuzz.END)[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    assert [row[1].split("`")[1] for row in rows] == list(TARGETS)
    for row in rows:
        kind = row[1].split("`")[1]
        bad = [int(cell) for cell in row[-4:-1]]
        assert bad == [0, 0, 0], kind
