import numpy as np
import pytest
from matplotlib.text import Text

from calibrant import BinSums, Predictions, metrics
from calibrant.data import SYNTHETIC
from calibrant.report import classwise_diagrams
from calibrant.report.reliability_points import points_of


@pytest.fixture(scope="module")
def ten():
    return SYNTHETIC["overconfident"].sample(2000, seed=0).predictions


@pytest.fixture(scope="module")
def many():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(900, 30)) * 3
    return Predictions(logits, generator.integers(0, 29, 900))


def shown(figure):
    return [axes for axes in figure.axes if axes.get_visible()]


def test_every_class_has_a_panel_with_its_ece_and_size(ten):
    figure = classwise_diagrams(ten)
    errors = metrics.per_class_ece(ten)
    sizes = np.bincount(ten.labels.numpy())
    assert [axes.get_title(loc="left") for axes in shown(figure)] == [
        f"class {c}\nECE {errors[c]:.4f}, n = {sizes[c]}" for c in range(10)
    ]


def test_panels_show_the_sums_of_their_class(ten):
    figure = classwise_diagrams(ten, bins=8)
    sums = metrics.class_sums(ten, bins=8)
    for c, axes in enumerate(shown(figure)):
        of_class = BinSums(sums.count[c], sums.confidence[c], sums.correct[c], sums.edges)
        points = points_of(of_class)
        _, marks = axes.collections
        np.testing.assert_allclose(marks.get_offsets(), np.c_[points.confidence, points.accuracy])


def test_of_many_classes_the_worst_are_shown_and_the_figure_says_so(many):
    figure = classwise_diagrams(many, most=5)
    errors = metrics.per_class_ece(many)
    worst = np.argsort(-np.nan_to_num(errors, nan=-1))[:5]
    names = [axes.get_title(loc="left").split("\n")[0] for axes in shown(figure)]
    assert names == [f"class {c}" for c in worst]
    said = "the 5 worst calibrated of 29 classes (1 without an example), worst first"
    assert figure.get_suptitle() == said


def test_class_names_and_title_are_used():
    p = Predictions([[2.0, 0.0]] * 20, [0, 1] * 10, class_names=["cat", "$dog$"])
    figure = classwise_diagrams(p, title="pets")
    text = " ".join(each.get_text() for each in figure.findobj(Text))
    assert "cat\n" in text
    assert "$dog$\n" in text
    assert figure.get_suptitle() == "pets\nevery class, 2 in all"


@pytest.mark.parametrize("most", [1, 4, 5, 12])
def test_no_text_is_covered_or_cut(many, most, assert_clean_layout):
    assert_clean_layout(classwise_diagrams(many, most=most, title="thirty classes"))


def test_two_classes_have_a_clean_layout(assert_clean_layout):
    p = SYNTHETIC["tempered"].sample(500, seed=0).predictions
    assert_clean_layout(classwise_diagrams(p))


def test_at_least_one_panel(ten):
    with pytest.raises(ValueError, match="most must be at least 1"):
        classwise_diagrams(ten, most=0)
