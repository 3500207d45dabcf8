"""The folder of a study is read lazily, whatever became of its cells; damage is one line."""

import shutil

import pytest
from saved_studies import (
    FOCAL,
    PLAIN,
    REASON,
    UNTRUSTED,
    change_cells,
    read_lines,
    small_study,
    write_lines,
)

from calibrant.predictions import Predictions
from calibrant.report.saved import read_saved
from calibrant.study import runner
from calibrant.study.spec import parse
from calibrant.study.worker import work


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    where = tmp_path_factory.mktemp("made") / "study"
    return small_study(where, metrics=["accuracy", "nll"], examples=60)


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "study")


def test_a_study_is_read_with_every_cell_and_row(folder):
    saved = read_saved(folder)
    assert saved.name == 'small <i>study</i> & "friends"'
    methods = [cell.labels["method"] for cell in saved.cells]
    assert methods == [name for name in (PLAIN, FOCAL, UNTRUSTED) for _ in range(2)]
    assert len(saved.rows) == len((folder / "rows.jsonl").read_text().splitlines())
    cell = saved.cells[0]
    assert cell.done
    assert isinstance(cell.test, Predictions)
    assert len(cell.val) == 60
    assert cell.record["examples"]["test"] == 60
    assert [row["epoch"] for row in cell.history] == [0, 1, 2, 3]
    assert [row["step"] for row in cell.probe] == [0, 10, 20]
    assert saved.plain_names == {PLAIN}


def test_a_cell_without_a_result_has_a_reason_and_what_is_left_of_its_history(folder):
    cell = read_saved(folder).cells[-1]
    assert (cell.status, cell.reason, cell.done) == ("diverged", REASON, False)
    # Files of an earlier attempt are no result.
    for name in ("result.json", "val.npz", "test.npz"):
        shutil.copy(read_saved(folder).cells[0].folder / name, cell.folder)
    assert (cell.record, cell.val, cell.test, cell.probe) == (None, None, None, [])
    assert len(cell.history) == 1
    assert cell.label.endswith(f"{UNTRUSTED}, seed 1")


def test_groups_share_dataset_model_and_optimizer_in_the_order_of_the_study(folder):
    change_cells(folder, dataset=[*["one"] * 2, *["another"] * 2, *["one"] * 2])
    lines = read_lines(folder / "rows.jsonl")
    names = {FOCAL: "another"}
    moved = [{**row, "dataset": names.get(row["method"], "one")} for row in lines]
    write_lines(folder / "rows.jsonl", moved)
    first, second = read_saved(folder).groups()
    assert (first.names, second.names) == ([PLAIN, UNTRUSTED], [FOCAL])
    assert second.labels["dataset"] == "another"
    assert {row["method"] for row in second.rows} == {FOCAL}
    assert len(first.rows) + len(second.rows) == len(lines)


def test_one_method_and_several_optimizers_compare_the_optimizers(folder):
    names = [cell.labels["method"] for cell in read_saved(folder).cells]
    change_cells(folder, optimizer=names, method="one")
    (folder / "rows.jsonl").write_text("")
    (group,) = read_saved(folder).groups()
    assert (group.axis, group.names) == ("optimizer", [PLAIN, FOCAL, UNTRUSTED])
    assert list(group.labels) == ["dataset", "model"]


def test_cells_are_not_opened_before_they_are_asked_for(folder):
    for path in folder.glob("cells/*/*"):
        path.write_bytes(b"broken")
    saved = read_saved(folder)
    assert len(saved.groups()) == 1
    with pytest.raises(ValueError, match=r"history\.jsonl:1 is damaged"):
        _ = saved.cells[0].history
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        _ = saved.cells[0].record


def test_a_folder_without_a_study_or_killed_before_its_rows_says_what_to_run(folder):
    with pytest.raises(FileNotFoundError, match="no study in nowhere: run one with"):
        read_saved("nowhere")
    for name in ("rows.jsonl", "cells.json"):
        (folder / name).unlink()
        with pytest.raises(
            FileNotFoundError, match=f"has no {name}: re-run the same command to resume"
        ):
            read_saved(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("study.json", "{", "study.json is damaged: remove it and re-run"),
        ("study.json", "[]", "study.json is damaged"),
        ("study.json", '{"study": {}}', "study.json is damaged"),
        ("cells.json", '{"cells": 3}', "cells.json is damaged"),
        ("cells.json", '{"cells": [{"seed": 0}]}', "cells.json is damaged"),
        ("rows.jsonl", "{}\n", r"rows.jsonl:1 is damaged"),
        ("rows.jsonl", "\xff\n", r"rows.jsonl:1 is damaged"),
    ],
)
def test_damage_is_named_in_one_line(folder, name, text, message):
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message) as caught:
        read_saved(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("changed", [{"value": "x"}, {"value": "0.5"}, {"seed": None}])
def test_a_damaged_row_is_named_by_its_line(folder, changed):
    rows = read_lines(folder / "rows.jsonl")
    rows[4] |= changed
    write_lines(folder / "rows.jsonl", rows)
    with pytest.raises(ValueError, match=r"rows\.jsonl:5 is damaged"):
        read_saved(folder)


def test_a_cell_may_not_lie_outside_of_the_study(folder):
    change_cells(folder, folder="../elsewhere")
    with pytest.raises(ValueError, match="a folder outside of the study"):
        read_saved(folder)


def test_the_folder_of_a_real_run_is_read(tmp_path, monkeypatch):
    class Here(runner.LocalExecutor):
        def poll(self) -> bool:
            work(self.runs.folder, owner="here")
            return False

    monkeypatch.setattr(runner, "LocalExecutor", Here)
    study = {
        "name": "real",
        "seeds": [0],
        "calibrators": ["temperature"],
        "metrics": ["accuracy", "nll"],
        "resamples": 5,
        "recipe": {"epochs": 1, "batch": 64},
        "dataset": [{"name": "blobs", "limit": 200}],
        "model": [{"name": "mlp", "hidden": [4]}],
        "optimizer": [{"name": "sgd", "lr": 0.05}],
        "method": [{"name": "cross_entropy"}, {"name": "cross_entropy", "label": "its twin"}],
    }
    study["method"][1]["recipe"] = {"epochs": 2}
    rows = runner.run(parse(study), tmp_path / "study")
    saved = read_saved(tmp_path / "study")
    assert len(saved.rows) == len(rows)
    assert [len(cell.history) for cell in saved.cells] == [1, 2]
    assert saved.cells[1].record["identity"]["recipe.epochs"] == 2
    assert saved.plain_names == {"cross entropy"}
    (group,) = saved.groups()
    assert group.names == ["cross entropy", "its twin"]
