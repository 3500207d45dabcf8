"""Text, scales and curves of which charts are made."""

import math

import pytest
from markup import parsed

from calibrant.report.charts import svg
from calibrant.report.charts.axes import Axes, Scale, band, curve, fit_scale, thin, tick_texts
from calibrant.report.charts.lines import Series, line_chart
from calibrant.report.charts.tables import table

NAN = math.nan
AXES = Axes(Scale(0, 10, 0, 100), Scale(0, 10, 100, 0))


def test_no_name_can_leave_its_place():
    hostile = "\"><script>alert('x')</script>&\u202e\x00"
    held = svg.chart(
        svg.mark(svg.text(0, 0, hostile), tip=hostile), width=9, height=9, title=hostile
    )
    root = parsed(held)
    seen = "\"><script>alert('x')</script>&  "
    assert root.find("g").get("data-tip") == root.find("g/text").text == root.get("aria-label")
    assert root.find("g/text").text == seen == root.find("title").text
    assert {each.tag for each in root.iter()} == {"svg", "title", "g", "text"}


def test_a_line_feed_of_a_tip_stays_one():
    root = parsed(svg.mark(tip="one\ntwo"))
    assert root.get("data-tip") == "one\ntwo"


@pytest.mark.parametrize(
    ("value", "words"), [(1.25, "1.2"), (3.0, "3"), (-0.04, "0"), (-1.26, "-1.3"), (120, "120")]
)
def test_coordinates_take_few_characters(value, words):
    assert svg.rounded(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "-"), (NAN, "-"), (math.inf, "-"), (0.34549, "0.3455"), (12345.6, "12,346"), (0, "0"),
     (0.000123, "0.000123"), (2.5, "2.5"), (-0.5, "-0.5000")],
)  # fmt: skip
def test_numbers_are_shown_as_readers_want_them(value, words):
    assert svg.number_text(value) == words


def test_a_scale_puts_numbers_at_their_places_and_others_at_its_ends():
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


def test_what_is_counted_has_whole_ticks():
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


def test_a_long_curve_keeps_its_ends_and_its_extremes():
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


def test_a_line_chart_says_all_numbers_of_a_place():
    two = [
        Series("a", [1, 2, 3], [0.1, 0.2, NAN], [0.05, 0.2, NAN], [0.15, 0.2, NAN]),
        Series("b", [2, 3], [0.4, 0.5]),
    ]
    root = parsed(line_chart(two, "t", "epoch"))
    tips = [each.get("data-tip") for each in root.iter("rect")]
    assert tips == [
        "epoch 1\na: 0.1000 (0.0500 to 0.1500)",
        "epoch 2\na: 0.2000\nb: 0.4000",
        "epoch 3\nb: 0.5000",
    ]
    groups = [each.get("data-series") for each in root.iter("g") if each.get("data-series")]
    assert groups == ["0", "0", "1"]


def test_a_line_chart_of_many_places_keeps_the_last_one():
    many = Series("a", [float(at) for at in range(1000)], [1.0] * 1000)
    root = parsed(line_chart([many], "t", "step"))
    tips = [each.get("data-tip") for each in root.iter("rect")]
    assert len(tips) <= 36
    assert tips[-1].startswith("step 999")


@pytest.mark.parametrize("values", [[], [NAN, NAN, NAN], [math.inf, NAN, 1.0], [2.0]])
def test_a_line_chart_of_almost_nothing_is_still_a_chart(values):
    places = [float(at) for at in range(len(values))]
    one = Series("a", places, values, values, values)
    drawn = line_chart([one], "t", "x", guides=[0.0])
    parsed(drawn)
    assert "nan" not in drawn
    assert "inf" not in drawn


def test_series_beyond_eight_are_dashed():
    assert [svg.hue(at) for at in (0, 7, 8, 16)] == ["s1 d0", "s8 d0", "s1 d1", "s1 d2"]


def test_a_table_says_what_its_fields_belong_to():
    root = parsed(table(["a", "b"], [["<x>", 1]], caption="c", folded=True))
    assert root.tag == "details"
    assert [each.get("scope") for each in root.iter("th")] == ["col", "col", "row"]
    assert root.find(".//th[@scope='row']").text == "<x>"
    assert root.find(".//caption").text == root.find("summary").text == "c"
