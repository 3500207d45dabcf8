"""Text, scales and curves of which charts are made; diagrams, histograms, maps and points."""

import base64
import io
import math
import re

import numpy as np
import pytest
from markup import parsed, tips
from matplotlib import image

from calibrant.metrics import BinSums
from calibrant.report.charts import svg
from calibrant.report.charts.axes import Axes, Scale, band, curve, fit_scale, thin, tick_texts
from calibrant.report.charts.dots import Dot, dot_rows, scatter
from calibrant.report.charts.heatmap import surface, table_map
from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.reliability import histogram, overlay, pair
from calibrant.report.charts.tables import table
from calibrant.report.reliability_points import points_of
from calibrant.report.sections.maps import grey_png

NAN = math.nan
AXES = Axes(Scale(0, 10, 0, 100), Scale(0, 10, 100, 0))
# 20 examples of confidence 0.75, 10 of them right, and 4 of confidence 0.25, all right.
SUMS = BinSums.of_confidence([0.75] * 20 + [0.25] * 4, [1.0, 0.0] * 10 + [1.0] * 4, bins=4)


def marks(drawn):
    return [each for each in parsed(drawn).iter("g") if each.get("data-tip")]


def corners(shape):
    """Left, top, width and height of a box."""
    numbers = re.fullmatch(r"M([\d.]+),([\d.]+)h([\d.]+)v([\d.]+)h-\3z", shape.get("d")).groups()
    return tuple(map(float, numbers))


def test_names_are_escaped_in_markup():
    untrusted = "\"><script>alert('x')</script>&\u202e\x00"
    held = svg.chart(
        svg.mark(svg.text(0, 0, untrusted), tip=untrusted), width=9, height=9, title=untrusted
    )
    root = parsed(held)
    seen = "\"><script>alert('x')</script>&  "
    assert root.find("g").get("data-tip") == root.find("g/text").text == root.get("aria-label")
    assert root.find("g/text").text == seen == root.find("title").text
    assert {each.tag for each in root.iter()} == {"svg", "title", "g", "text"}
    assert parsed(svg.mark(tip="one\ntwo")).get("data-tip") == "one\ntwo"


@pytest.mark.parametrize(
    ("write", "texts"),
    [
        (svg.rounded, {1.25: "1.2", 3.0: "3", -0.04: "0", -1.26: "-1.3", 120: "120"}),
        (svg.number_text, {None: "-", NAN: "-", math.inf: "-", 0.34549: "0.3455", 12345.6: "12,346",
                           0: "0", 0.000123: "0.000123", 2.5: "2.5", -0.5: "-0.5000"}),
    ],
)  # fmt: skip
def test_coordinates_take_few_characters_and_numbers_four_digits(write, texts):
    assert {value: write(value) for value in texts} == texts


def test_a_scale_maps_numbers_to_positions_and_clips_others_to_its_bounds():
    scale = Scale(0, 10, 100, 0)
    assert [scale(each) for each in (0, 5, 10, -3, 12)] == [100, 50, 0, 100, 0]
    powers = Scale(1, 100, 0, 10, log=True)
    assert [powers(each) for each in (1, 10, 100, 0)] == pytest.approx([0, 5, 10, 0])


@pytest.mark.parametrize(
    ("scale", "about", "texts"),
    [
        (Scale(0, 0.38, 0, 1), 3, ["0.0", "0.1", "0.2", "0.3"]),
        (Scale(-3, 7, 0, 1), 5, ["-2", "0", "2", "4", "6"]),
        (Scale(0, 4200, 0, 1), 4, ["0", "1,000", "2,000", "3,000", "4,000"]),
        (Scale(0.004, 30, 0, 1, log=True), 5, ["0.01", "0.1", "1", "10"]),
        (Scale(2, 50, 0, 1, log=True), 5, ["3", "10", "30"]),
        (Scale(1.1, 1.4, 0, 1, log=True), 5, ["1.1", "1.4"]),
        (Scale(1e-9, 3e-9, 0, 1), 2, ["1e-09", "2e-09", "3e-09"]),
    ],
)
def test_ticks_are_round_numbers(scale, about, texts):
    assert tick_texts(scale.ticks(about)) == texts
    assert Scale(1, 3, 0, 1).ticks(8, whole=True) == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([], {}, (0, 1, False)),
        ([NAN, math.inf], {}, (0, 1, False)),
        ([2, 4], {"zero": True}, (0, 4.24, False)),
        ([-2, 2], {"zero": True}, (-2.24, 2.24, False)),
        ([5, 5], {}, (4.7, 5.3, False)),
        ([0, 0], {}, (-1, 1, False)),
        ([0.01, 1], {}, (0.01 / 1.3, 1.3, True)),
        ([0.01, 1], {"plain": True, "zero": True}, (0, 1.06, False)),
    ],
)
def test_a_fitted_scale_shows_all_that_is_finite(values, options, expected):
    scale = fit_scale(values, 0, 1, **options)
    assert (scale.low, scale.high, scale.log) == pytest.approx(expected)


def test_a_thinned_curve_keeps_its_first_and_last_points_and_its_extremes():
    values = [math.sin(at / 300) for at in range(10_000)]
    values[1234], values[8765], values[5000] = 5.0, -5.0, NAN
    kept = thin(values)
    assert len(kept) <= 150
    assert {0, 1234, 8765, 9999} <= set(kept)
    assert kept == sorted(kept)
    assert thin([NAN] * 400)[0] == 0


def test_a_curve_stops_where_a_number_is_missing():
    drawn = curve(AXES, [0, 1, 2, 3, 4, 5], [1, 2, NAN, 3, 4, NAN], role="line s1")
    assert parsed(drawn).get("d") == "M0,90 10,80M30,70 40,60"
    lone = parsed(curve(AXES, [0, 1, 2], [NAN, 2, NAN], role="line s1"))
    assert (lone.tag, lone.get("class"), lone.get("cx")) == ("circle", "dot s1", "10")
    assert curve(AXES, [0], [NAN], role="line") == ""


def test_a_band_lies_between_its_two_curves():
    drawn = band(AXES, [0, 1, 2], [1, 2, NAN], [3, 4, 5], role="band")
    assert parsed(drawn).get("d") == "M0,70 10,60 10,80 0,90Z"
    assert band(AXES, [0, 1], [NAN, 1], [1, 1], role="band") == ""


def test_tips_of_a_line_chart_hold_all_values_at_a_position_and_keep_the_last_position():
    two = [
        Series("a", [1, 2, 3], [0.1, 0.2, NAN], [0.05, 0.2, NAN], [0.15, 0.2, NAN]),
        Series("b", [2, 3], [0.4, 0.5]),
    ]
    root = parsed(line_chart(two, "t", "epoch"))
    assert tips(root) == [
        "epoch 1\na: 0.1000 (0.0500 to 0.1500)",
        "epoch 2\na: 0.2000\nb: 0.4000",
        "epoch 3\nb: 0.5000",
    ]
    groups = [each.get("data-series") for each in root.iter("g") if each.get("data-series")]
    assert groups == ["0", "0", "1"]
    # Of many places the last one is kept.
    many = Series("a", [float(at) for at in range(1000)], [1.0] * 1000)
    found = tips(parsed(line_chart([many], "t", "step")))
    assert len(found) <= 36
    assert found[-1].startswith("step 999")


@pytest.mark.parametrize("values", [[], [NAN, NAN, NAN], [math.inf, NAN, 1.0], [2.0]])
def test_a_line_chart_of_few_or_missing_values_has_no_nan(values):
    places = [float(at) for at in range(len(values))]
    one = Series("a", places, values, values, values)
    drawn = line_chart([one], "t", "x", guides=[0.0])
    parsed(drawn)
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_series_beyond_eight_are_dashed():
    assert [svg.hue(at) for at in (0, 7, 8, 16)] == ["s1 d0", "s8 d0", "s1 d1", "s1 d2"]


def test_table_cells_have_row_and_column_headers():
    root = parsed(table(["a", "b"], [["<x>", 1]], caption="c", folded=True))
    assert root.tag == "details"
    assert [each.get("scope") for each in root.iter("th")] == ["col", "col", "row"]
    assert root.find(".//th[@scope='row']").text == "<x>"
    assert root.find(".//caption").text == root.find("summary").text == "c"


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
    # A missing diagram leaves its place.
    drawn = pair([("as trained", SUMS), ("temperature", None)], title="t")
    assert len(marks(drawn)) == 2
    assert "none" in [each.text for each in parsed(drawn).iter("text")]


def test_overlaid_diagrams_keep_the_colours_of_their_positions():
    drawn = overlay({"a": SUMS, "b": BinSums.zero(), "c": SUMS}, title="t")
    groups = [g.get("data-series") for g in parsed(drawn).iter("g") if g.get("data-series")]
    assert groups == ["0", "2", "0", "2"]
    assert [each.get("data-tip").splitlines()[0] for each in marks(drawn)] == ["a", "c"]


def test_a_line_pools_bins_with_few_examples():
    scores, right = [0.2] * 4 + [0.4] * 8 + [0.6] * 30 + [0.9] * 3, [1.0] * 4 + [0.0] * 41
    sums = BinSums.of_confidence(scores, right, bins=4)
    points = points_of(sums, merge=True)
    assert points.count.tolist() == [12, 33]
    assert points.confidence.tolist() == pytest.approx([4 / 12, 20.7 / 33])
    assert points.accuracy.tolist() == pytest.approx([4 / 12, 0])
    assert (points.left.tolist(), points.right.tolist()) == ([0.0, 0.5], [0.5, 1.0])
    tips = [each.get("data-tip") for each in marks(overlay({"a": sums}, title="t"))]
    assert [re.search(r"(\d+) examples", tip)[1] for tip in tips] == ["12", "33"]
    # Without enough examples for one pool, all of them are a faint one.
    (few,) = marks(overlay({"a": BinSums.of_confidence([0.2] * 3, [1.0] * 3)}, title="t"))
    assert few.get("class") == "mark faint"


def test_of_many_diagrams_only_the_chosen_one_shows_its_band():
    drawn = overlay({str(at): SUMS for at in range(6)}, title="t", chosen="2")
    shades = [g for g in parsed(drawn).iter("g") if "band" in (g[0].get("class") or "")]
    assert [g.get("class") for g in shades] == [None if at == 2 else "spare" for at in range(6)]


def test_histograms_stack_correct_predictions_on_wrong_ones():
    sums = BinSums.of_confidence([0.2] * 10 + [0.8] * 90, [0.0] * 70 + [1.0] * 30, bins=2)
    drawn = histogram(sums, highest=1.0, title="t", height=160)
    first, second = marks(drawn)
    assert [each.get("class") for each in first.findall("path")] == ["wrong"]
    wrong, right = map(corners, second.findall("path"))
    assert wrong[3] == pytest.approx(2 * right[3], abs=0.2)
    assert right[1] + right[3] == pytest.approx(wrong[1], abs=0.1)
    assert "30 correct, 60 wrong: accuracy 0.3333\n90.0% of all" in second.get("data-tip")


def test_the_shade_of_a_field_is_its_number_and_classes_are_named_as_such():
    values = [[0.1, 0.2], [NAN, 0.0]]
    drawn = table_map(values, rows=["a", "b"], columns=["x", "1"], highest=0.2, title="t")
    assert [each.get("fill-opacity") for each in parsed(drawn).iter("rect")] == [
        "0.33",
        "0.65",
        "0",
    ]
    assert tips(parsed(drawn)) == [
        "a, x: 0.1000",
        "a, class 1: 0.2000",
        "b, x: no value",
        "b, class 1: 0",
    ]
    numbered = table_map([[0.1, NAN]], rows=["a"], columns=["0", "1"], highest=1, title="t")
    assert next(parsed(numbered).iter("text")).text == "class"
    # Names that are too wide are turned.
    wide = table_map([[0.1]], rows=["a"], columns=["aeroplane"], highest=1, title="t")
    assert ("rotate(-40" in drawn, "rotate(-40" in wide) == (False, True)


def test_a_surface_fills_its_axes_without_a_gap():
    axes = Axes(Scale(1, 100, 0, 100, log=True), Scale(0, 1, 50, 0))
    values, places = [[0.0, 1.0, 2.0], [3.0, 9.0, 1.5]], {"x": [1, 10, 100], "y": [0, 1]}
    drawn = surface(axes, values, **places, low=0.0, high=3.0, tip=lambda i, j: f"{i} {j}")
    fields = list(parsed(drawn).iter("rect"))
    assert tips(parsed(drawn)) == ["0 0", "0 1", "0 2", "1 0", "1 1", "1 2"]
    # Opaque: shades that overlap on paper would add up.
    assert [re.findall(r"heat\) (\d+)%", each.get("fill")) for each in fields] == [
        [part] for part in ("0", "22", "43", "65", "65", "33")
    ]
    assert {each.get("fill-opacity") for each in fields} == {None}
    area = sum(float(each.get("width")) * float(each.get("height")) for each in fields)
    assert area == pytest.approx(100 * 50)


def test_a_dot_has_its_interval_and_what_has_no_number_is_left_out():
    rows = [("m", [Dot(0.5, 0.4, 0.6), Dot()])]
    (only,) = marks(dot_rows(rows, parts=["head", "tail"], x_name="x", title="t"))
    assert only.get("data-tip") == "m, head: 0.5000 (0.4000 to 0.6000)"
    ends = [float(only.find("line").get(side)) for side in ("x1", "x2")]
    assert ends[0] < float(only.find("circle").get("cx")) < ends[1]
    names = {"x_name": "x", "y_name": "y", "title": "t"}
    drawn = scatter([1.0, NAN, 3.0], [1.0, 2.0, 3.0], ["a", "b", "c"], **names, shades=[0, 0.5, 1])
    assert tips(parsed(drawn)) == ["a", "c"]
    assert [each.find("circle").get("fill-opacity") for each in marks(drawn)] == ["0.20", "1.00"]


def test_an_embedded_png_has_the_given_pixels():
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    kind, held = grey_png(pixels).split(",")
    assert kind == "data:image/png;base64"
    read = image.imread(io.BytesIO(base64.b64decode(held)), format="png")
    np.testing.assert_array_equal((read * 255).round().astype(int), pixels)
