import sys

import numpy as np
import pytest
from jaxtyping import TypeCheckError
from matplotlib.colors import to_hex
from matplotlib.text import Text

from calibrant import BinSums, Predictions, metrics
from calibrant.data import SYNTHETIC
from calibrant.report import reliability_diagram, save
from calibrant.report.figures import style
from calibrant.report.reliability_points import points_of, top_label_sums


def drawn(name, n=1500, seed=0):
    return SYNTHETIC[name].sample(n, seed=seed).predictions


@pytest.fixture(scope="module")
def over():
    return drawn("overconfident")


def words(figure):
    """All that is written in the figure, legends included."""
    return " | ".join(text.get_text() for text in figure.findobj(Text))


def bars(axes):
    """Left end, width, bottom and height of each bar, one row for each call of bar."""
    return [
        np.array([(b.get_x(), b.get_width(), b.get_y(), b.get_height()) for b in container])
        for container in axes.containers
    ]


def test_bars_points_and_whiskers_are_the_sums_per_bin(over):
    upper, _ = reliability_diagram(over, bins=10).axes
    points = points_of(BinSums.of(over, 10))
    base, gap = bars(upper)
    np.testing.assert_allclose(base[:, 0], points.left)
    np.testing.assert_allclose(base[:, 1], 0.1)
    np.testing.assert_allclose(base[:, 3], np.minimum(points.accuracy, points.confidence))
    np.testing.assert_allclose(gap[:, 2], base[:, 3])
    np.testing.assert_allclose(gap[:, 3], np.abs(points.accuracy - points.confidence))
    whiskers, marks = upper.collections
    np.testing.assert_allclose(marks.get_offsets(), np.c_[points.confidence, points.accuracy])
    ends = np.array(whiskers.get_segments())
    np.testing.assert_allclose(ends[:, 0], np.c_[points.confidence, points.low])
    np.testing.assert_allclose(ends[:, 1], np.c_[points.confidence, points.high])


def test_gaps_are_coloured_by_their_side():
    p = drawn("wavy", 3000)
    upper, _ = reliability_diagram(p).axes
    points = points_of(BinSums.of(p, 15))
    hues = [to_hex(patch.get_facecolor()) for patch in upper.containers[1]]
    expected = [style.OVER if over else style.UNDER for over in points.over]
    assert hues == expected
    assert len(set(hues)) == 2


def test_bins_with_few_examples_are_faint(over):
    upper, _ = reliability_diagram(over).axes
    points = points_of(BinSums.of(over, 15))
    alphas = np.array([patch.get_facecolor()[3] for patch in upper.containers[0]])
    assert points.few.any()
    assert (alphas[points.few] < 0.5).all()
    assert (alphas[~points.few] == 1).all()


def test_the_histogram_shows_shares_and_both_means(over):
    _, lower = reliability_diagram(over, bins=8).axes
    np.testing.assert_allclose(bars(lower)[0][:, 3], BinSums.of(over, 8).share)
    confidence, accuracy = (line.get_xdata()[0] for line in lower.lines)
    assert confidence == pytest.approx(float(over.confidence.mean()))
    assert accuracy == pytest.approx(metrics.accuracy(over))


def test_the_box_holds_size_accuracy_and_ece(over):
    text = words(reliability_diagram(over, title="my model"))
    for part in (
        "n = 1,500",
        f"accuracy {metrics.accuracy(over):.4f}",
        f"ECE {metrics.ece(over):.4f}",
        "my model",
        "over-confident",
        "95% interval",
    ):
        assert part in text


def test_adaptive_bins_stand_at_their_mean_confidence(over):
    figure = reliability_diagram(over, adaptive=True, bins=6)
    upper, lower = figure.axes
    points = points_of(top_label_sums(over, bins=6, adaptive=True))
    _, marks = upper.collections
    np.testing.assert_allclose(marks.get_offsets(), np.c_[points.confidence, points.accuracy])
    assert f"adaptive ECE {metrics.adaptive_ece(over, bins=6):.4f}" in words(figure)
    np.testing.assert_allclose(bars(lower)[0][:, 3], BinSums.of(over, 6).share)


def test_line_style_joins_the_points(over):
    upper, _ = reliability_diagram(over, style="line").axes
    points = points_of(BinSums.of(over, 15))
    faint, strong, _ = upper.lines
    np.testing.assert_allclose(faint.get_xydata(), np.c_[points.confidence, points.accuracy])
    np.testing.assert_allclose(strong.get_ydata(), np.where(points.few, np.nan, points.accuracy))
    assert not upper.containers


@pytest.mark.parametrize("names", [["overconfident"], ["overconfident", "calibrated", "wavy"]])
def test_lines_have_a_band_from_the_low_to_the_high_end_of_the_intervals(names):
    figure = reliability_diagram({name: drawn(name) for name in names}, style="line", level=0.9)
    upper, _ = figure.axes
    corners = [
        {tuple(corner) for path in shade.get_paths() for corner in path.vertices.round(9)}
        for shade in upper.collections
    ]
    for name in names:
        points = points_of(BinSums.of(drawn(name), 15), level=0.9)
        ends = np.r_[np.c_[points.confidence, points.low], np.c_[points.confidence, points.high]]
        assert any({tuple(end) for end in ends.round(9)} <= each for each in corners)
    assert "90% interval" in words(figure)
    # Whiskers and marks are line and path collections of their own.
    assert {type(each).__name__ for each in upper.collections} == {"FillBetweenPolyCollection"}


def test_a_single_bin_still_has_a_band():
    p = Predictions.from_binary([0.8] * 50, [1] * 40 + [0] * 10, kind="probs")
    upper, _ = reliability_diagram(p, style="line", bins=10).axes
    boxes = [path.get_extents() for each in upper.collections for path in each.get_paths()]
    assert max(box.width for box in boxes) == pytest.approx(0.1)


def test_several_are_overlaid_in_different_colours_with_their_ece_in_the_legend(over):
    models = {"first": over, "second": drawn("underconfident"), "third": drawn("calibrated")}
    figure = reliability_diagram(models, bins=10)
    upper, lower = figure.axes
    lines = upper.lines[:-1]
    assert len({line.get_color() for line in lines}) == 3
    assert len({line.get_marker() for line in lines}) == 3
    for line, p in zip(lines[::2], models.values(), strict=True):
        points = points_of(BinSums.of(p, 10))
        np.testing.assert_allclose(line.get_xydata(), np.c_[points.confidence, points.accuracy])
    for steps, p in zip(lower.patches, models.values(), strict=True):
        np.testing.assert_allclose(steps.get_data().values, BinSums.of(p, 10).share)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [f"ECE {metrics.ece(p, bins=10):.4f}   {m}" for m, p in models.items()]


def test_one_named_prediction_is_titled_by_its_name(over):
    assert "resnet" in words(reliability_diagram({"resnet": over}))


def test_edges_of_ones_own_are_drawn(over):
    upper, lower = reliability_diagram(over, bins=[0.0, 0.5, 0.9, 1.0]).axes
    np.testing.assert_allclose(bars(lower)[0][:, 1], [0.5, 0.4, 0.1])
    np.testing.assert_allclose(bars(upper)[0][:, 0], [0, 0.5, 0.9])


def test_weights_count_as_examples():
    once = Predictions.from_binary(
        [0.8, 0.7, 0.9], [1, 0, 1], kind="probs", weights=[2.0, 3.0, 1.5]
    )
    assert "n = 6.5 " in words(reliability_diagram(once))


@pytest.mark.parametrize(
    ("predictions", "options"),
    [
        (drawn("overconfident"), {"title": "over"}),
        (drawn("overconfident"), {"style": "line"}),
        (drawn("saturated"), {"adaptive": True, "title": "adaptive"}),
        (drawn("tempered"), {"title": "two classes"}),
        (drawn("overconfident", 20), {"title": "tiny"}),
        (drawn("calibrated", 1), {}),
        (Predictions([[1.0, 1.0]] * 30, [0, 1] * 15), {"adaptive": True}),
        ({name: drawn(name) for name in SYNTHETIC}, {"title": "a very long title " * 6}),
        ({f"runs/some/folder/{i}/$x_{i}$_" * 3: drawn("wavy", 99 + i) for i in range(9)}, {}),
    ],
    ids=["bars", "line", "adaptive", "two", "tiny", "one", "ties", "overlay", "many"],
)
def test_no_text_is_covered_or_cut(predictions, options, assert_clean_layout):
    assert_clean_layout(reliability_diagram(predictions, **options))


def test_names_are_not_read_as_mathematics(over):
    figure = reliability_diagram({"$a_": over, "b$ \\frac{": over}, title="cost in $ or $x^")
    figure.draw(figure.canvas.get_renderer())
    assert "cost in $ or $x^" in words(figure)


def test_wrong_style_and_nothing_to_draw_are_refused(over):
    with pytest.raises((ValueError, TypeCheckError), match="style"):
        reliability_diagram(over, style="pie")
    with pytest.raises(ValueError, match="at least one Predictions"):
        reliability_diagram({})


def test_pyplot_is_never_touched(over, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    save(reliability_diagram(over), tmp_path / "a.svg")


def test_without_matplotlib_one_line_says_what_to_install(over, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"drawing figures needs .*'calibrant\[report\]'"):
        reliability_diagram(over)
