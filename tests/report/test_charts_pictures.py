"""Diagrams, histograms, maps and points as charts."""

import base64
import io
import math
import re

import numpy as np
import pytest
from markup import parsed
from matplotlib import image

from calibrant.metrics import BinSums
from calibrant.report.charts.axes import Axes, Scale
from calibrant.report.charts.dots import Dot, dot_rows, scatter
from calibrant.report.charts.heatmap import surface, table_map
from calibrant.report.charts.reliability import histogram, overlay, pair
from calibrant.report.sections.maps import grey_png

NAN = math.nan
# 20 examples of confidence 0.75, 10 of them right, and 4 of confidence 0.25, all right.
SUMS = BinSums.of_confidence([0.75] * 20 + [0.25] * 4, [1.0, 0.0] * 10 + [1.0] * 4, bins=4)


def marks(drawn):
    return [each for each in parsed(drawn).iter("g") if each.get("data-tip")]


def corners(shape):
    """Left, top, width and height of a box."""
    numbers = re.fullmatch(r"M([\d.]+),([\d.]+)h([\d.]+)v([\d.]+)h-\3z", shape.get("d")).groups()
    return tuple(map(float, numbers))


def test_a_diagram_shades_the_gap_between_accuracy_and_confidence():
    few, many = marks(pair([("as trained", SUMS)], title="t"))
    bar, gap, share = many.findall("path")
    assert gap.get("class") == "over"
    # A side of 145 stands for 1, so a gap of a quarter is 36 high, and it ends at the confidence.
    assert corners(gap)[3] == pytest.approx(145 * 0.25, abs=0.1)
    assert corners(bar)[1] == pytest.approx(corners(gap)[1] + corners(gap)[3], abs=0.1)
    assert corners(share)[3] == 36
    assert "mean 0.7500\naccuracy 0.5000 (0.299 to 0.701)\n20 examples, 83.3%" in (
        many.get("data-tip")
    )
    assert few.get("class") == "mark faint"
    assert few.findall("path")[1].get("class") == "under"
    assert many.find("title").text == many.get("data-tip")


def test_a_missing_diagram_leaves_its_place():
    drawn = pair([("as trained", SUMS), ("temperature", None)], title="t")
    assert len(marks(drawn)) == 2
    assert "none" in [each.text for each in parsed(drawn).iter("text")]


def test_diagrams_over_one_another_keep_the_colours_of_their_places():
    drawn = overlay({"a": SUMS, "b": BinSums.zero(), "c": SUMS}, title="t")
    groups = [g.get("data-series") for g in parsed(drawn).iter("g") if g.get("data-series")]
    assert groups == ["0", "2", "0", "2"]
    assert [each.get("data-tip").splitlines()[0] for each in marks(drawn)] == ["a"] * 2 + ["c"] * 2


def test_a_band_leaves_out_bins_with_few_examples():
    sums = BinSums.of_confidence([0.9] * 20 + [0.2] * 4, [1.0, 0.0] * 12, bins=4)
    drawn = parsed(overlay({"a": sums}, title="t"))
    (shade,) = [each for each in drawn.iter("path") if each.get("class") == "band s1 d0"]
    # From the mean confidence of the full bin to its end, which is that of the axis.
    assert re.findall(r"[M ]([\d.]+),", shade.get("d")) == ["443.8", "488", "488", "443.8"]


def test_of_many_diagrams_only_the_chosen_one_shows_its_band():
    drawn = overlay({str(at): SUMS for at in range(6)}, title="t", chosen="2")
    shades = [g for g in parsed(drawn).iter("g") if "band" in (g[0].get("class") or "")]
    assert [g.get("class") for g in shades] == [None if at == 2 else "spare" for at in range(6)]


def test_right_answers_stand_on_wrong_ones():
    sums = BinSums.of_confidence([0.2] * 10 + [0.8] * 90, [0.0] * 70 + [1.0] * 30, bins=2)
    drawn = histogram(sums, highest=1.0, title="t", height=160)
    first, second = marks(drawn)
    assert [each.get("class") for each in first.findall("path")] == ["wrong"]
    wrong, right = map(corners, second.findall("path"))
    assert wrong[3] == pytest.approx(60, abs=0.1)
    assert right[3] == pytest.approx(30, abs=0.1)
    assert right[1] + right[3] == pytest.approx(wrong[1], abs=0.1)
    assert "30 correct, 60 wrong: accuracy 0.3333\n90.0% of all" in second.get("data-tip")


def test_the_shade_of_a_field_is_its_number():
    drawn = table_map(
        [[0.1, 0.2], [NAN, 0.0]], rows=["a", "b"], columns=["x", "y"], highest=0.2, title="t"
    )
    shades = [each.get("fill-opacity") for each in parsed(drawn).iter("rect")]
    assert shades == ["0.33", "0.65", "0"]
    assert [each.get("data-tip") for each in marks(drawn)] == [
        "a, x: 0.1000",
        "a, y: 0.2000",
        "b, x: no value",
        "b, y: 0",
    ]


def test_classes_that_are_only_numbered_are_said_to_be_classes():
    drawn = table_map([[0.1, NAN]], rows=["a"], columns=["0", "1"], highest=1, title="t")
    assert [each.get("data-tip") for each in marks(drawn)] == [
        "a, class 0: 0.1000",
        "a, class 1: no value",
    ]
    assert next(parsed(drawn).iter("text")).text == "class"


def test_names_that_are_too_wide_are_turned():
    drawn = table_map([[0.1]], rows=["a"], columns=["aeroplane"], highest=1, title="t")
    assert "rotate(-40" in drawn


def test_a_surface_fills_its_axes_without_a_gap():
    axes = Axes(Scale(1, 100, 0, 100, log=True), Scale(0, 1, 50, 0))
    drawn = surface(
        axes,
        [[0.0, 1.0, 2.0], [3.0, 9.0, 1.5]],
        x=[1, 10, 100],
        y=[0, 1],
        low=0.0,
        high=3.0,
        tip=lambda i, j: f"{i} {j}",
    )
    fields = list(parsed(drawn).iter("rect"))
    assert [each.get("data-tip") for each in fields] == ["0 0", "0 1", "0 2", "1 0", "1 1", "1 2"]
    # Opaque: shades that overlap on paper would add up.
    assert [re.findall(r"heat\) (\d+)%", each.get("fill")) for each in fields] == [
        [part] for part in ("0", "22", "43", "65", "65", "33")
    ]
    assert {each.get("fill-opacity") for each in fields} == {None}
    area = sum(float(each.get("width")) * float(each.get("height")) for each in fields)
    assert area == pytest.approx(100 * 50)


def test_a_dot_has_its_interval_and_a_missing_one_is_left_out():
    drawn = dot_rows(
        [("m", [Dot(0.5, 0.4, 0.6), Dot(NAN)])], parts=["head", "tail"], x_name="x", title="t"
    )
    (only,) = marks(drawn)
    assert only.get("data-tip") == "m, head: 0.5000 (0.4000 to 0.6000)"
    ends = [float(only.find("line").get(side)) for side in ("x1", "x2")]
    assert ends[0] < float(only.find("circle").get("cx")) < ends[1]


def test_a_scatter_leaves_out_pairs_without_a_number():
    drawn = scatter(
        [1.0, NAN, 3.0], [1.0, 2.0, 3.0], ["a", "b", "c"], x_name="x", y_name="y", title="t",
        shades=[0, 0.5, 1],
    )  # fmt: skip
    assert [each.get("data-tip") for each in marks(drawn)] == ["a", "c"]
    assert [each.find("circle").get("fill-opacity") for each in marks(drawn)] == ["0.20", "1.00"]


def test_a_picture_holds_its_pixels():
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    kind, held = grey_png(pixels).split(",")
    assert kind == "data:image/png;base64"
    read = image.imread(io.BytesIO(base64.b64decode(held)), format="png")
    np.testing.assert_array_equal((read * 255).round().astype(int), pixels)
