"""Panels of a page, made from a small saved study."""

import json
import re
import shutil
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from markup import parsed, tips
from saved_studies import (
    COUNTS,
    FOCAL,
    PLAIN,
    REASON,
    UNTRUSTED,
    change_cells,
    read_lines,
    small_study,
    write_lines,
)

from calibrant import metrics
from calibrant.calibrators import TemperatureScaling
from calibrant.curvature.correlation import correlation
from calibrant.predictions import Predictions
from calibrant.report.saved import read_saved
from calibrant.report.sections import PANELS, STUDY_PANELS
from calibrant.report.sections.settings import setting_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_study(tmp_path_factory.mktemp("study"))


@pytest.fixture
def plain(folder, tmp_path):
    """A copy with the runs of cross entropy alone, to be changed; and its first cell."""
    place = Path(shutil.copytree(folder, tmp_path / "copy"))
    held = json.loads((place / "cells.json").read_text())["cells"]
    cells = [cell for cell in held if cell["method"] == PLAIN]
    (place / "cells.json").write_text(json.dumps({"cells": cells}))
    rows = read_lines(place / "rows.jsonl")
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


def panel_of(place, key):
    (group,) = read_saved(place).groups()
    return PANELS[key](group)


def texts(root):
    return ["".join(each.itertext()) for each in root]


def first_cell(saved, name):
    return next(cell for cell in saved.cells if cell.labels["method"] == name)


def values_of(saved, method, calibrator, split, metric):
    key = (method, calibrator, split, metric)
    fields = ("method", "calibrator", "split", "metric")
    return [row["value"] for row in saved.rows if tuple(row[f] for f in fields) == key]


def test_there_is_a_panel_for_all_that_the_study_has(folder, panels):
    assert list(panels) == [
        "tradeoff", "reliability", "curves", "confidence", "classes", "tail", "landscape",
        "curvature", "settings",
    ]  # fmt: skip
    for key, panel in panels.items():
        assert panel.key == key
        assert panel.title
        assert panel.about.endswith(".")
    # The same files give the same text.
    (group,) = read_saved(folder).groups()
    assert made(group) == {key: each for key, each in panels.items() if key != "settings"}


def test_a_new_panel_is_one_function_and_one_entry(folder, monkeypatch):
    from calibrant.report.sections.panel import Panel
    from calibrant.report.study_page import page

    def runs_of(group):
        return Panel("runs", "Runs", "How many there are.", f"<p>{len(group.cells)} runs</p>")

    monkeypatch.setitem(PANELS, "runs", runs_of)
    text = page(read_saved(folder))
    assert '<a href="#group-1-runs">Runs</a>' in text
    assert "<p>6 runs</p>" in text


def test_panels_hold_no_colour_id_style_or_address_and_no_name_as_code(panels):
    for key, panel in panels.items():
        for each in parsed(panel).iter():
            assert not {"id", "style", "href", "onclick"} & set(each.attrib)
            fills = {each.get(name) for name in ("fill", "stroke")} - {None}
            assert all(re.fullmatch(r"none|color-mix\(.*var\(--heat\).*", fill) for fill in fills)
            assert each.tag not in {"script", "style", "b", "i"}
        assert not re.search(r"#[0-9a-f]{6}|rgb\(|://", panel.html)
        assert not re.search(r"\bnan\b(?!</|&lt;)|\binf\b", panel.html.replace(REASON, ""))
        if key not in ("landscape", "settings"):
            assert UNTRUSTED in "".join(parsed(panel).itertext()).replace("…", ""), key
        assert UNTRUSTED not in panel.html
    assert REASON in "".join(parsed(panels["settings"]).itertext())


def test_every_chart_has_a_name_and_a_size_that_can_shrink(panels):
    charts = [each for p in panels.values() for each in parsed(p).iter("svg")]
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


def test_reliability_has_the_errors_before_and_after_a_temperature(saved, panels):
    cell = first_cell(saved, PLAIN)
    after = cell.test.map(TemperatureScaling.fit(cell.val))
    entry = parsed(panels["reliability"]).find(".//ul/li/small").text
    assert entry == f"ECE {metrics.ece(cell.test):.4f} → {metrics.ece(after):.4f}"
    assert any(tip.startswith(f"{FOCAL}\nconfidence") for tip in tips(panels["reliability"]))


def test_diagrams_and_histograms_count_every_example(saved, panels):
    test = first_cell(saved, PLAIN).test
    found = tips(parsed(panels["reliability"]).find("details//figure"))
    assert sum(int(re.search(r"(\d+) examples", tip)[1]) for tip in found) == 2 * len(test)
    found = tips(parsed(panels["confidence"]).find(".//figure"))
    pairs = [re.search(r"(\d+) correct, (\d+) wrong", tip).groups() for tip in found]
    assert sum(int(number) for pair in pairs for number in pair) == len(test)
    assert sum(int(good) for good, _ in pairs) == int(test.correct.sum())


def test_curves_are_means_over_the_seeds_with_a_band_where_they_differ(saved, panels, plain):
    captions = texts(parsed(panels["curves"]).iter("figcaption"))
    assert captions == ["ECE, validation", "NLL, validation", "Training loss"]
    last = next(tip for tip in tips(panels["curves"]) if tip.startswith("epoch 4"))
    assert f"{PLAIN}: {first_cell(saved, PLAIN).history[-1]['val_ece']:.4f}" in last
    place, _ = plain
    other = place / "cells" / f"{1:016x}" / "history.jsonl"
    rows = read_lines(other)
    write_lines(other, [{**row, "val_ece": row["val_ece"] + 0.1} for row in rows[:2]])
    found = tips(panel_of(place, "curves"))
    low = rows[0]["val_ece"]
    assert found[0] == f"epoch 1\n{PLAIN}: {low + 0.05:.4f} ({low:.4f} to {low + 0.1:.4f})"
    # The second seed has only two epochs.
    assert found[3] == f"epoch 4\n{PLAIN}: {rows[3]['val_ece']:.4f}"


def test_classes_and_rare_ones_are_means_over_the_rows_of_the_seeds(saved, panels):
    values = values_of(saved, PLAIN, "temperature", "test", "classwise_ece: 5")
    assert len(values) == 2
    assert f"{PLAIN}, class 5: {mean(values):.4f}" in tips(panels["classes"])
    below = texts(parsed(panels["classes"]).find(".//svg").iter("text"))[-len(COUNTS) :]
    assert below == [str(count) for count in COUNTS]
    values = values_of(saved, FOCAL, "none", "test: tail", "ece")
    ends = f"({min(values):.4f} to {max(values):.4f})"
    assert f"{FOCAL}, tail: {mean(values):.4f} {ends}" in tips(panels["tail"])


def test_classes_without_rows_are_measured_on_the_first_seed(plain, saved):
    place, _ = plain
    kept = [row for row in read_saved(place).rows if ": " not in row["metric"]]
    write_lines(place / "rows.jsonl", kept)
    cell = first_cell(saved, PLAIN)
    stages = cell.test, cell.test.map(TemperatureScaling.fit(cell.val))
    errors = [each for test in stages for each in enumerate(metrics.per_class_ece(test))]
    found = tips(panel_of(place, "classes"))
    assert found == [f"{PLAIN}, class {c}: {each:.4f}" for c, each in errors]


def test_the_landscape_marks_its_lowest_score_and_needs_three_classes(saved, panels, plain):
    found = [float(tip.rsplit("NLL ", 1)[1].split(" at ")[0]) for tip in tips(panels["landscape"])]
    scaled, lowest = found[-2:]
    assert lowest <= scaled
    assert lowest <= min(found) + 1e-4
    cell = first_cell(saved, PLAIN)
    expected = metrics.nll(cell.val.map(TemperatureScaling.fit(cell.val)))
    assert scaled == pytest.approx(expected, abs=1e-4)
    place, first = plain
    labels = np.arange(60) % 2
    Predictions(np.stack([labels, 0.5 - labels], 1), labels).save(first / "val.npz")
    assert panel_of(place, "landscape") is None


def test_curvature_has_the_correlation_of_error_and_sharpness(plain):
    place, first = plain
    draw = np.random.default_rng(0)
    rows = [
        {"step": 10 * at, "train_ece": 0.1 + 0.01 * at + 0.02 * draw.random(), "gauss_newton": at}
        for at in range(40)
    ]
    rows[3]["train_ece"] = None
    write_lines(first / "probe.jsonl", rows)
    (place / "cells" / f"{1:016x}" / "probe.jsonl").unlink()
    panel = panel_of(place, "curvature")
    held = [row for row in rows if row["train_ece"] is not None]
    bar = correlation([row["gauss_newton"] for row in held], [row["train_ece"] for row in held])
    assert f"Pearson {bar.value:.2f} [{bar.low:.2f}, {bar.high:.2f}]" in panel.html
    cells = texts(parsed(panel).find(".//tbody/tr"))
    assert cells[:3] == [PLAIN, "1", f"{bar.value:.2f}"]
    assert sum(tip.startswith("step") and "sharpness" in tip for tip in tips(panel)) <= 30 + 40


def test_settings_have_what_failed_and_what_it_was_made_of(saved, panels):
    rows = [texts(row) for row in parsed(panels["settings"]).iter("tr")]
    assert ["runs", "5 done, 1 diverged"] in rows
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
        ("https://host.org/a/b and cells/a/b", "https://host.org/a/b and cells/a/b"),
        ([0.5, True, None], "0.5, true, null"),
        ([], "none"),
    ],
)
def test_settings_have_no_folders_of_the_machine(given, words):
    assert setting_text(given) == words


def test_panels_without_data_are_left_out(plain):
    place, _ = plain
    shutil.rmtree(place / "cells")
    (group,) = read_saved(place).groups()
    assert list(made(group)) == ["tradeoff", "classes", "tail"]
    change_cells(place, status="diverged")
    (place / "rows.jsonl").write_text("")
    saved = read_saved(place)
    assert [made(group) for group in saved.groups()] == [{}]
    assert "2 diverged" in STUDY_PANELS["settings"](saved).html
