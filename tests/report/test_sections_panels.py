"""The panels of a page, made from a small saved study."""

import json
import re
import shutil
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

import numpy as np
import pytest
from saved_studies import COUNTS, FOCAL, HOSTILE, PLAIN, REASON, small_study, write_lines

from calibrant import metrics
from calibrant.calibrators import TemperatureScaling
from calibrant.curvature.correlation import correlation
from calibrant.predictions import Predictions
from calibrant.report.saved import read_saved
from calibrant.report.sections import PANELS, STUDY_PANELS
from calibrant.report.sections.settings import said


def parsed(text):
    """The text as a tree; it is our own, so nothing in it can be an attack."""
    return ElementTree.fromstring(text)  # noqa: S314


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_study(tmp_path_factory.mktemp("study"))


@pytest.fixture
def plain(folder, tmp_path):
    """A copy with the trainings of cross entropy alone, to be changed; and its first cell."""
    place = Path(shutil.copytree(folder, tmp_path / "copy"))
    held = json.loads((place / "cells.json").read_text())["cells"]
    cells = [cell for cell in held if cell["method"] == PLAIN]
    (place / "cells.json").write_text(json.dumps({"cells": cells}))
    rows = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]
    write_lines(place / "rows.jsonl", [row for row in rows if row["method"] == PLAIN])
    return place, place / cells[0]["folder"]


@pytest.fixture(scope="module")
def saved(folder):
    return read_saved(folder)


@pytest.fixture(scope="module")
def panels(saved):
    (group,) = saved.groups()
    return made(group) | {"settings": STUDY_PANELS["settings"](saved)}


def made(group):
    found = {key: make(group) for key, make in PANELS.items()}
    return {key: panel for key, panel in found.items() if panel is not None}


def tree(panel):
    return parsed(f"<div>{panel.html}</div>")


def tips(panel):
    return [each.get("data-tip") for each in tree(panel).iter() if each.get("data-tip")]


def texts(root):
    return ["".join(each.itertext()) for each in root]


def first_cell(saved, name):
    return next(cell for cell in saved.cells if cell.labels["method"] == name)


def test_there_is_a_panel_for_all_that_the_study_has(panels):
    assert list(panels) == [
        "reliability", "diagrams", "curves", "confidence", "classes", "tail", "landscape",
        "curvature", "settings",
    ]  # fmt: skip
    for key, panel in panels.items():
        assert panel.key == key
        assert panel.title
        assert panel.about.endswith(".")


def test_panels_hold_no_colour_id_style_or_address(panels):
    for panel in panels.values():
        for each in tree(panel).iter():
            assert not {"id", "style", "href", "onclick"} & set(each.attrib)
            fills = {each.get(name) for name in ("fill", "stroke")} - {None}
            assert all(re.fullmatch(r"none|color-mix\(.*var\(--heat\).*", fill) for fill in fills)
            assert each.tag not in {"script", "style", "b", "i"}
        assert not re.search(r"#[0-9a-f]{6}|rgb\(|://", panel.html)


def test_names_are_shown_as_they_are_and_never_as_code(panels):
    for key in ("reliability", "diagrams", "curves", "confidence", "classes", "tail", "curvature"):
        assert HOSTILE in "".join(tree(panels[key]).itertext()).replace("…", ""), key
        assert HOSTILE not in panels[key].html
    assert REASON in "".join(tree(panels["settings"]).itertext())


def test_every_chart_has_a_name_and_a_size_that_can_shrink(panels):
    charts = [each for p in panels.values() for each in tree(p).iter("svg")]
    charts = [each for each in charts if each.get("class") == "chart"]
    assert len(charts) > 20
    for each in charts:
        assert each.get("role") == "img"
        assert each.get("aria-label")
        assert each.find("title").text
        wide, high = each.get("width"), each.get("height")
        assert each.get("viewBox") == f"0 0 {wide} {high}"
        assert float(wide) <= 560
        for words in each.iter("text"):
            assert float(words.get("font-size", 12)) >= 11
            assert -1 <= float(words.get("x")) <= float(wide)
            assert 0 <= float(words.get("y")) <= float(high)


def test_the_same_files_give_the_same_text(folder, panels):
    (group,) = read_saved(folder).groups()
    assert made(group) == {key: each for key, each in panels.items() if key != "settings"}


def test_no_number_is_written_as_nan(panels):
    for panel in panels.values():
        assert not re.search(r"\bnan\b(?!</|&lt;)|\binf\b", panel.html.replace(REASON, ""))


def test_reliability_says_the_errors_before_and_after_a_temperature(saved, panels):
    cell = first_cell(saved, PLAIN)
    after = cell.test.map(TemperatureScaling.fit(cell.val))
    entry = tree(panels["reliability"]).find("ul/li/small").text
    assert entry == f"ECE {metrics.ece(cell.test):.4f} → {metrics.ece(after):.4f}"
    assert any(tip.startswith(f"{FOCAL}\nconfidence") for tip in tips(panels["reliability"]))


def test_diagrams_and_histograms_count_every_example(saved, panels):
    size = len(first_cell(saved, PLAIN).test)
    figure = tree(panels["diagrams"]).find(".//figure")
    counts = [
        int(re.search(r"(\d+) examples", each.get("data-tip"))[1])
        for each in figure.iter()
        if each.get("data-tip")
    ]
    assert sum(counts) == 2 * size
    figure = tree(panels["confidence"]).find(".//figure")
    pairs = [
        re.search(r"(\d+) right, (\d+) wrong", each.get("data-tip")).groups()
        for each in figure.iter()
        if each.get("data-tip")
    ]
    assert sum(int(number) for pair in pairs for number in pair) == size
    right = sum(int(good) for good, _ in pairs)
    assert right == int(first_cell(saved, PLAIN).test.correct.sum())


def test_curves_are_means_over_the_seeds(saved, panels):
    captions = texts(tree(panels["curves"]).iter("figcaption"))
    assert captions == ["ECE, val", "NLL, val", "Training loss"]
    last = next(tip for tip in tips(panels["curves"]) if tip.startswith("epoch 4"))
    expected = first_cell(saved, PLAIN).history[-1]["val_ece"]
    assert f"{PLAIN}: {expected:.4f}" in last


def test_curves_have_a_band_where_seeds_differ(plain):
    place, _ = plain
    other = place / "cells" / f"{1:016x}" / "history.jsonl"
    rows = [json.loads(line) for line in other.read_text().splitlines()]
    write_lines(other, [{**row, "val_ece": row["val_ece"] + 0.1} for row in rows[:2]])
    (group,) = read_saved(place).groups()
    found = tips(PANELS["curves"](group))
    low = rows[0]["val_ece"]
    assert found[0] == f"epoch 1\n{PLAIN}: {low + 0.05:.4f} ({low:.4f} to {low + 0.1:.4f})"
    # The second seed has only two epochs.
    assert found[3] == f"epoch 4\n{PLAIN}: {rows[3]['val_ece']:.4f}"


def test_classes_are_means_over_the_rows_of_the_seeds(saved, panels):
    values = [
        row["value"]
        for row in saved.rows
        if (row["method"], row["calibrator"], row["split"]) == (PLAIN, "temperature", "test")
        and row["metric"] == "classwise_ece: 5"
    ]
    assert len(values) == 2
    assert f"{PLAIN}, class 5: {mean(values):.4f}" in tips(panels["classes"])
    below = texts(tree(panels["classes"]).find(".//svg").iter("text"))[-len(COUNTS) :]
    assert below == [str(count) for count in COUNTS]


def test_classes_without_rows_are_measured_from_the_first_seed(plain, saved):
    place, _ = plain
    kept = [row for row in read_saved(place).rows if ": " not in row["metric"]]
    write_lines(place / "rows.jsonl", kept)
    (group,) = read_saved(place).groups()
    panel = PANELS["classes"](group)
    cell = first_cell(saved, PLAIN)
    stages = cell.test, cell.test.map(TemperatureScaling.fit(cell.val))
    errors = [each for test in stages for each in enumerate(metrics.per_class_ece(test))]
    assert tips(panel) == [f"{PLAIN}, class {c}: {each:.4f}" for c, each in errors]


def test_rare_classes_have_the_means_of_their_rows(saved, panels):
    values = [
        row["value"]
        for row in saved.rows
        if (row["method"], row["calibrator"], row["split"]) == (FOCAL, "none", "test: tail")
        and row["metric"] == "ece"
    ]
    ends = f"({min(values):.4f} to {max(values):.4f})"
    assert f"{FOCAL}, tail: {mean(values):.4f} {ends}" in tips(panels["tail"])


def test_the_landscape_marks_its_least_score(saved, panels):
    found = [float(tip.rsplit("NLL ", 1)[1].split(" at ")[0]) for tip in tips(panels["landscape"])]
    plain, least = found[-2:]
    assert least <= plain
    assert least <= min(found) + 1e-4
    cell = first_cell(saved, PLAIN)
    scaled = cell.val.map(TemperatureScaling.fit(cell.val))
    assert plain == pytest.approx(metrics.nll(scaled), abs=1e-4)


def test_two_classes_have_no_landscape(plain):
    place, first = plain
    labels = np.arange(60) % 2
    Predictions(np.stack([labels, 0.5 - labels], 1), labels).save(first / "val.npz")
    (group,) = read_saved(place).groups()
    assert PANELS["landscape"](group) is None


def test_curvature_says_how_error_and_sharpness_go_together(plain):
    place, first = plain
    draw = np.random.default_rng(0)
    rows = [
        {"step": 10 * at, "train_ece": 0.1 + 0.01 * at + 0.02 * draw.random(), "gauss_newton": at}
        for at in range(40)
    ]
    rows[3]["train_ece"] = None
    write_lines(first / "probe.jsonl", rows)
    (place / "cells" / f"{1:016x}" / "probe.jsonl").unlink()
    (group,) = read_saved(place).groups()
    panel = PANELS["curvature"](group)
    held = [row for row in rows if row["train_ece"] is not None]
    bar = correlation([row["gauss_newton"] for row in held], [row["train_ece"] for row in held])
    assert f"Pearson {bar.value:.2f} [{bar.low:.2f}, {bar.high:.2f}]" in panel.html
    cells = texts(tree(panel).find(".//tbody/tr"))
    assert cells[:3] == [PLAIN, "1", f"{bar.value:.2f}"]
    assert sum(tip.startswith("step") and "sharpness" in tip for tip in tips(panel)) <= 30 + 40


def test_settings_say_what_failed_and_what_it_was_made_of(saved, panels):
    root = tree(panels["settings"])
    rows = [texts(row) for row in root.iter("tr")]
    assert ["trainings", "5 done, 1 diverged"] in rows
    assert ["torch", "2.13.0+cpu"] in rows
    (failed,) = [row for row in rows if REASON in row]
    assert failed[1] == "diverged"
    sizes = [f"{sum(COUNTS):,}", "0", "240", "240"]
    assert any(row[1:] == sizes for row in rows)
    assert any(row[2:] == ["ab" * 32] and row[1] == "0, 1" for row in rows)
    assert str(saved.folder) not in panels["settings"].html


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("/home/me/runs/x.npz is damaged", "…/x.npz is damaged"),
        ("see 'file:///tmp/a/b.txt'", "see '…/b.txt'"),
        (r"C:\Users\me\x.npz", "…/x.npz"),
        ("~/data/set/x", "…/x"),
        ("https://host.org/a/b and cells/a/b and 1/2/3", "https://host.org/a/b and cells/a/b "
         "and 1/2/3"),
        ([0.5, True, None], "0.5, true, null"),
        ([], "none"),
    ],
)  # fmt: skip
def test_settings_have_no_folders_of_the_machine(given, words):
    assert said(given) == words


def test_a_study_of_which_nothing_is_done_has_only_settings(plain):
    place, _ = plain
    text = (place / "cells.json").read_text()
    (place / "cells.json").write_text(text.replace('"done"', '"diverged"'))
    (place / "rows.jsonl").write_text("")
    saved = read_saved(place)
    assert [made(group) for group in saved.groups()] == [{}]
    assert "2 diverged" in STUDY_PANELS["settings"](saved).html


def test_files_that_are_gone_leave_out_what_needs_them(plain):
    place, _ = plain
    shutil.rmtree(place / "cells")
    (group,) = read_saved(place).groups()
    assert list(made(group)) == ["classes", "tail"]
