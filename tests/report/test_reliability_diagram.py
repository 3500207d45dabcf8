"""Reliability diagrams: their numbers; of one, of several and of every class; files of figures."""

import struct
import sys

import matplotlib
import numpy as np
import pytest
from jaxtyping import TypeCheckError
from matplotlib.colors import to_hex
from matplotlib.text import Text

from calibrant import BinSums, Predictions, metrics
from calibrant.data import SYNTHETIC
from calibrant.report import classwise_diagrams, reliability_diagram, save
from calibrant.report.figures import style
from calibrant.report.reliability_points import POSITIVE, diagram_sums, points_of, wilson


def drawn(name, n=1500, seed=0):
    return SYNTHETIC[name].sample(n, seed=seed).predictions


@pytest.fixture(scope="module")
def over():
    return drawn("overconfident")


@pytest.fixture(scope="module")
def many():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(900, 30)) * 3
    return Predictions(logits, generator.integers(0, 29, 900))


def words(figure):
    """All that is written in the figure, legends included."""
    return " | ".join(text.get_text() for text in figure.findobj(Text))


def bars(axes):
    """Left end, width, bottom and height of each bar, one row for each call of bar."""
    return [
        np.array([(b.get_x(), b.get_width(), b.get_y(), b.get_height()) for b in container])
        for container in axes.containers
    ]


def at_their_means(marks, points):
    np.testing.assert_allclose(marks.get_offsets(), np.c_[points.confidence, points.accuracy])


def test_wilson_interval_worked_by_hand_stays_in_the_unit_interval_and_widens_with_level():
    # 8 of 10, z = 1.959964: centre (0.8 + 0.192073) / 1.384146 = 0.716740,
    # half-width 1.959964 * sqrt(0.016 + 0.0096036) / 1.384146 = 0.226577.
    low, high = wilson(np.array([8.0]), np.array([10.0]))
    np.testing.assert_allclose([low[0], high[0]], [0.490163, 0.943317], atol=2e-6)
    correct, count = np.array([0.0, 1.0, 5.0]), np.array([1.0, 1.0, 5.0])
    low, high = wilson(correct, count, level=0.95)
    assert (low[0], high[1]) == (0, 1)
    assert ((low >= 0) & (high <= 1)).all()
    wider_low, wider_high = wilson(correct, count, level=0.99)
    assert (wider_high - wider_low > high - low).all()
    for level in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
            wilson(correct, count, level=level)


def test_points_are_the_means_of_the_bins_that_hold_examples(over):
    sums = BinSums.of(over, 12)
    points = points_of(sums)
    filled = sums.count > 0
    assert 0 < filled.sum() < 12
    count = sums.count[filled]
    np.testing.assert_allclose(points.confidence, sums.confidence[filled] / count)
    np.testing.assert_allclose(points.accuracy, sums.correct[filled] / count)
    np.testing.assert_allclose(points.left, np.arange(12)[filled] / 12)
    np.testing.assert_allclose(points.right, np.arange(1, 13)[filled] / 12)
    assert points.count.sum() == len(over)
    gap = (points.count * np.abs(points.confidence - points.accuracy)).sum() / points.count.sum()
    assert gap == pytest.approx(metrics.ece(over, bins=12))


def test_adaptive_sums_are_those_of_adaptive_ece_also_with_ties_and_weights(over):
    sums = diagram_sums(over, bins=9, adaptive=True)
    assert sums.ece == pytest.approx(metrics.adaptive_ece(over, bins=9), abs=1e-12)
    assert sums.count.max() - sums.count.min() <= 1
    points = points_of(sums)
    np.testing.assert_allclose(points.left[1:], points.right[:-1])
    assert ((points.left < points.confidence) & (points.confidence < points.right)).all()
    assert 0 <= points.left[0] < points.right[-1] <= 1
    with pytest.raises(ValueError, match="adaptive bins are a number"):
        diagram_sums(over, bins=[0.0, 0.5, 1.0], adaptive=True)
    # Ties are kept together, and weights count.
    confidence, weights = np.repeat([0.6, 0.7, 0.9], [5, 2, 3]), np.arange(1.0, 11.0)
    ones = np.ones(10, dtype=int)
    p = Predictions.from_binary(confidence, ones, kind="probs", weights=weights)
    sums = diagram_sums(p, bins=2, adaptive=True)
    assert sums.ece == pytest.approx(metrics.adaptive_ece(p, bins=2), abs=1e-12)
    assert sums.count.sum() == 55


def test_a_single_bin_has_a_position_and_fewer_than_ten_examples_are_marked_as_few():
    points = points_of(diagram_sums(Predictions([[1.0, 0.0]] * 4, [0] * 4), adaptive=True))
    assert points.left[0] < points.confidence[0] < points.right[0]
    sums = BinSums.of_confidence(np.repeat([0.2, 0.8], [9, 10]), np.ones(19), bins=2)
    assert points_of(sums).few.tolist() == [True, False]


def test_bars_points_and_whiskers_are_the_sums_per_bin(over):
    upper, lower = reliability_diagram(over, bins=10).axes
    points = points_of(BinSums.of(over, 10))
    base, gap = bars(upper)
    np.testing.assert_allclose(base[:, 0], points.left)
    np.testing.assert_allclose(base[:, 1], 0.1)
    np.testing.assert_allclose(base[:, 3], np.minimum(points.accuracy, points.confidence))
    np.testing.assert_allclose(gap[:, 2], base[:, 3])
    np.testing.assert_allclose(gap[:, 3], np.abs(points.accuracy - points.confidence))
    whiskers, marks = upper.collections
    at_their_means(marks, points)
    ends = np.array(whiskers.get_segments())
    np.testing.assert_allclose(ends[:, 0], np.c_[points.confidence, points.low])
    np.testing.assert_allclose(ends[:, 1], np.c_[points.confidence, points.high])
    np.testing.assert_allclose(bars(lower)[0][:, 3], BinSums.of(over, 10).share)
    confidence, accuracy = (line.get_xdata()[0] for line in lower.lines)
    assert confidence == pytest.approx(float(over.confidence.mean()))
    assert accuracy == pytest.approx(metrics.accuracy(over))
    upper, lower = reliability_diagram(over, bins=[0.0, 0.5, 0.9, 1.0]).axes
    np.testing.assert_allclose(bars(lower)[0][:, 1], [0.5, 0.4, 0.1])
    np.testing.assert_allclose(bars(upper)[0][:, 0], [0, 0.5, 0.9])


def test_gaps_are_coloured_by_their_side_and_few_examples_are_faint(over):
    p = drawn("wavy", 3000)
    upper, _ = reliability_diagram(p).axes
    hues = [to_hex(patch.get_facecolor()) for patch in upper.containers[1]]
    sides = points_of(BinSums.of(p, 15)).over
    assert hues == [style.OVER if over else style.UNDER for over in sides]
    assert len(set(hues)) == 2
    upper, _ = reliability_diagram(over).axes
    few = points_of(BinSums.of(over, 15)).few
    alphas = np.array([patch.get_facecolor()[3] for patch in upper.containers[0]])
    assert few.any()
    assert (alphas[few] < 0.5).all()
    assert (alphas[~few] == 1).all()


def test_the_text_box_of_a_diagram_has_size_accuracy_and_ece(over):
    text = words(reliability_diagram(over, title="my model"))
    facts = f"n = 1,500    accuracy {metrics.accuracy(over):.4f}    ECE {metrics.ece(over):.4f}"
    for part in (facts, "my model", "over-confident", "95% interval"):
        assert part in text
    assert "resnet" in words(reliability_diagram({"resnet": over}))
    # Weights count as examples.
    weighted = {"kind": "probs", "weights": [2.0, 3.0, 1.5]}
    once = Predictions.from_binary([0.8, 0.7, 0.9], [1, 0, 1], **weighted)
    assert "n = 6.5 " in words(reliability_diagram(once))


def test_adaptive_bins_stand_at_their_mean_confidence(over):
    figure = reliability_diagram(over, adaptive=True, bins=6)
    upper, lower = figure.axes
    at_their_means(upper.collections[1], points_of(diagram_sums(over, bins=6, adaptive=True)))
    assert f"adaptive ECE {metrics.adaptive_ece(over, bins=6):.4f}" in words(figure)
    np.testing.assert_allclose(bars(lower)[0][:, 3], BinSums.of(over, 6).share)


def test_line_style_joins_the_points(over):
    upper, _ = reliability_diagram(over, style="line").axes
    points = points_of(BinSums.of(over, 15), merge=True)
    line, _ = upper.lines
    np.testing.assert_allclose(line.get_xydata(), np.c_[points.confidence, points.accuracy])
    assert not points.few.any()
    assert not upper.containers
    # A single bin still has a band.
    p = Predictions.from_binary([0.8] * 50, [1] * 40 + [0] * 10, kind="probs")
    upper, _ = reliability_diagram(p, style="line", bins=10).axes
    boxes = [path.get_extents() for each in upper.collections for path in each.get_paths()]
    assert max(box.width for box in boxes) == pytest.approx(0.1)


@pytest.mark.parametrize("names", [["overconfident"], ["overconfident", "calibrated", "wavy"]])
def test_lines_have_a_band_from_the_low_to_the_high_end_of_the_intervals(names):
    figure = reliability_diagram({name: drawn(name) for name in names}, style="line", level=0.9)
    upper, _ = figure.axes
    corners = [
        {tuple(corner) for path in shade.get_paths() for corner in path.vertices.round(9)}
        for shade in upper.collections
    ]
    for name in names:
        points = points_of(BinSums.of(drawn(name), 15), level=0.9, merge=True)
        ends = np.r_[np.c_[points.confidence, points.low], np.c_[points.confidence, points.high]]
        assert any({tuple(end) for end in ends.round(9)} <= each for each in corners)
    assert "90% interval" in words(figure)
    # Whiskers and marks are line and path collections of their own.
    assert {type(each).__name__ for each in upper.collections} == {"FillBetweenPolyCollection"}


def test_several_are_overlaid_in_different_colours_with_their_ece_in_the_legend(over):
    models = {"first": over, "second": drawn("underconfident"), "third": drawn("calibrated")}
    figure = reliability_diagram(models, bins=10)
    upper, lower = figure.axes
    lines = upper.lines[:-1]
    assert len({line.get_color() for line in lines}) == 3
    assert len({line.get_marker() for line in lines}) == 3
    for line, p in zip(lines, models.values(), strict=True):
        points = points_of(BinSums.of(p, 10), merge=True)
        np.testing.assert_allclose(line.get_xydata(), np.c_[points.confidence, points.accuracy])
    for steps, p in zip(lower.patches, models.values(), strict=True):
        np.testing.assert_allclose(steps.get_data().values, BinSums.of(p, 10).share)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [f"ECE {metrics.ece(p, bins=10):.4f}   {m}" for m, p in models.items()]


def shown(figure):
    return [axes for axes in figure.axes if axes.get_visible()]


def test_every_class_has_a_panel_with_its_ece_size_and_sums():
    ten = drawn("overconfident", 2000)
    figure = classwise_diagrams(ten, bins=8)
    errors, sums = metrics.per_class_ece(ten, bins=8), metrics.class_sums(ten, bins=8)
    sizes = np.bincount(ten.labels.numpy())
    assert len(shown(figure)) == 10
    for c, axes in enumerate(shown(figure)):
        title = f"class {c}\nECE {errors[c]:.4f}, n = {sizes[c]}"
        assert axes.get_title(loc="left") == title
        own = BinSums(sums.count[c], sums.confidence[c], sums.correct[c], sums.edges)
        at_their_means(axes.collections[1], points_of(own))


def test_of_many_classes_the_worst_are_shown_and_the_figure_says_so(many, assert_clean_layout):
    figure = classwise_diagrams(many, most=5)
    worst = np.argsort(-np.nan_to_num(metrics.per_class_ece(many), nan=-1))[:5]
    names = [axes.get_title(loc="left").split("\n")[0] for axes in shown(figure)]
    assert names == [f"class {c}" for c in worst]
    said = "the 5 worst calibrated of 29 classes (1 without an example), worst first"
    assert figure.get_suptitle() == said
    for most in (1, 5, 12):
        assert_clean_layout(classwise_diagrams(many, most=most, title="thirty classes"))
    with pytest.raises(ValueError, match="most must be at least 1"):
        classwise_diagrams(many, most=0)


def test_names_are_not_read_as_mathematics(over):
    figure = reliability_diagram({"$a_": over, "b$ \\frac{": over}, title="cost in $ or $x^")
    figure.draw(figure.canvas.get_renderer())
    assert "cost in $ or $x^" in words(figure)
    p = Predictions([[2.0, 0.0]] * 20, [0, 1] * 10, class_names=["cat", "$dog$"])
    figure = classwise_diagrams(p, title="pets")
    assert "$dog$\n" in words(figure)
    assert figure.get_suptitle() == "pets\nevery class, 2 in all"


@pytest.mark.parametrize(
    ("predictions", "options"),
    [
        (drawn("overconfident"), {"title": "over"}),
        (drawn("overconfident"), {"style": "line"}),
        (drawn("saturated"), {"adaptive": True, "title": "adaptive"}),
        (drawn("overconfident", 20), {"title": "tiny"}),
        (drawn("calibrated", 1), {}),
        (Predictions([[1.0, 1.0]] * 30, [0, 1] * 15), {"adaptive": True}),
        ({name: drawn(name) for name in SYNTHETIC}, {"title": "a very long title " * 6}),
        ({f"runs/some/folder/{i}/$x_{i}$_" * 3: drawn("wavy", 99 + i) for i in range(9)}, {}),
    ],
    ids=["bars", "line", "adaptive", "tiny", "one", "ties", "overlay", "many"],
)
def test_no_text_is_covered_or_cut(predictions, options, assert_clean_layout):
    assert_clean_layout(reliability_diagram(predictions, **options))


def test_wrong_style_and_nothing_to_draw_are_refused(over, monkeypatch):
    with pytest.raises((ValueError, TypeCheckError), match="style"):
        reliability_diagram(over, style="pie")
    with pytest.raises(ValueError, match="at least one Predictions"):
        reliability_diagram({})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"drawing figures needs .*'calibrant\[report\]'"):
        reliability_diagram(over)


@pytest.mark.parametrize(
    ("ending", "magic"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")]
)
def test_the_same_figure_gives_the_same_bytes_at_160_dpi(
    over, tmp_path, ending, magic, monkeypatch
):
    # Neither pyplot nor the settings of matplotlib are touched.
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    before = matplotlib.rcParams["svg.hashsalt"]
    files = [save(reliability_diagram(over), tmp_path / f"{i}.{ending}") for i in range(2)]
    one, two = (path.read_bytes() for path in files)
    assert one == two
    assert one.startswith(magic)
    assert matplotlib.rcParams["svg.hashsalt"] == before
    if ending == "PNG":
        width, height = reliability_diagram(over).get_size_inches() * 160
        assert struct.unpack(">II", one[16:24]) == (round(width), round(height))


def test_a_figure_is_written_whole_or_not_at_all(over, tmp_path, monkeypatch):
    figure = reliability_diagram(over)
    assert save(figure, tmp_path / "new" / "a.svg").is_file()
    with pytest.raises(FileNotFoundError, match="no folder"):
        save(figure, tmp_path / "x" / "y" / "a.svg")
    with pytest.raises(ValueError, match=r"must end in .png, .svg, .pdf; got .*a.jpg"):
        save(figure, tmp_path / "a.jpg")
    path = tmp_path / "new" / "a.svg"
    path.write_bytes(b"old")

    def break_down(handle, **_):
        handle.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figure, "savefig", break_down)
    with pytest.raises(OSError, match="disk full"):
        save(figure, path)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("adaptive", [False, True])
def test_two_classes_are_drawn_by_the_probability_of_the_positive_class(adaptive):
    generator = np.random.default_rng(0)
    probs = generator.random(800) ** 2
    labels = (generator.random(800) < probs).astype(int)
    names = {"class_names": ["healthy", "ill"]}
    p = Predictions.from_binary(probs, labels, kind="probs", **names)
    figure = reliability_diagram(p, bins=10, adaptive=adaptive)
    upper, lower = figure.axes
    assert upper.get_ylabel() == "frequency of ill"
    assert lower.get_xlabel() == "probability of ill"
    at_their_means(
        upper.collections[1], points_of(diagram_sums(p, POSITIVE, bins=10, adaptive=adaptive))
    )
    # Decisions: bins above one half are darker.
    colours = [patch.get_facecolor() for patch in lower.patches]
    assert len(set(colours[:5])) == len(set(colours[5:])) == 1
    assert colours[0] != colours[9]
    assert f"base rate {labels.mean():.4f}" in words(figure)
    assert metrics.binary_ece(p, bins=10) == pytest.approx(diagram_sums(p, POSITIVE, bins=10).ece)
    both = reliability_diagram({"a": p, "b": p}, bins=10)
    assert both.axes[1].get_xlabel() == "probability of ill"
