"""Figures of classes, of shifted data and of images: what they draw, and what they refuse."""

import numpy as np
import pytest

from calibrant.metrics import per_class_ece
from calibrant.predictions import Predictions
from calibrant.report import class_figure, frequency_figure, map_figure, save, shift_figure
from calibrant.report.gamma_figure import gamma_figure
from calibrant.study.rows import Row

TAIL = ["test: head", "test: medium", "test: tail"]
BLUR = ["shift: blur 1", "shift: blur 3", "shift: noise 1", "shift: noise 2"]
LONG = "focal loss with a gamma that depends on the sample, 53"
BASE = {"accuracy": 0.8, "ece": 0.1}


def rows(splits: list[str], *, methods=("ce", LONG), better: float = 0.0) -> list[dict]:
    """Three seeds before and after two calibrators; `vector` changes accuracy by `better`."""
    found = []
    for split in ["test", *splits]:
        for at, method in enumerate(methods):
            for seed in range(3):
                for calibrator in ("none", "temperature", "vector"):
                    for metric, base in BASE.items():
                        value = base + 0.02 * at + 0.001 * seed**2 + 0.0001 * len(split)
                        value += better * (calibrator == "vector") * (metric == "accuracy")
                        value /= 2 if calibrator != "none" and metric == "ece" else 1
                        found.append(row(method, seed, calibrator, split, metric, value))
    return found


def row(method, seed, calibrator, split, metric, value) -> dict:
    where = {"dataset": "data", "model": "net", "optimizer": "sgd", "method": method}
    reading = {"split": split, "metric": metric, "value": value, "low": None, "high": None}
    return {**where, "seed": seed, "calibrator": calibrator, **reading}


def seeds(held: list[dict], method: str, calibrator: str, split: str, metric: str) -> list[float]:
    wanted = (method, calibrator, split, metric)
    keys = ("method", "calibrator", "split", "metric")
    return [each["value"] for each in held if tuple(each[key] for key in keys) == wanted]


def predictions(k: int, *, seed: int = 0, absent: int | None = None, **given) -> Predictions:
    generator = np.random.default_rng(seed)
    labels = generator.integers(k, size=900)
    if absent is not None:
        labels[labels == absent] = 0
    logits = generator.normal(size=(900, k)) * generator.uniform(0.5, 4, size=k)
    return Predictions(logits, labels, **given)


def naive_class_error(held: Predictions, c: int, bins: int = 15) -> float:
    given = held.probs[:, c].numpy().astype(float)
    is_class = held.labels.numpy() == c
    place = np.ceil(given * bins).clip(1, bins)
    parts = [place == b for b in range(1, bins + 1)]
    return sum(abs(given[p].sum() - is_class[p].sum()) for p in parts) / len(given)


def test_each_field_is_the_error_of_a_class_and_says_so(assert_clean_layout, tmp_path):
    names = ["cat", "a dog", "an_elephant", "the very long name of an animal"]
    models = {
        "one": predictions(4, absent=2, class_names=names),
        LONG: predictions(4, seed=1, absent=2),
    }
    figure = class_figure(models, title="A title that is by far longer than any that there is room")
    axes = figure.axes[0]
    drawn = axes.images[0].get_array()
    naive = [[naive_class_error(held, c) for c in (0, 1, 3)] for held in models.values()]
    np.testing.assert_allclose(drawn.data[:, [0, 1, 3]], naive, atol=1e-6)
    # A class without an example has neither a shade nor a number.
    assert drawn.mask[:, 2].all()
    texts = [text.get_text() for text in axes.texts[:8]]
    assert texts[:4] == [f"{naive[0][0]:.3f}", f"{naive[0][1]:.3f}", "-", f"{naive[0][2]:.3f}"]
    assert [label.get_text() for label in axes.get_xticklabels()][:3] == names[:3]
    assert axes.get_yticklabels()[1].get_text().startswith("focal loss")
    assert_clean_layout(figure)
    assert save(figure, tmp_path / "classes.png").stat().st_size > 10_000


def test_of_many_classes_the_worst_by_their_mean_are_shown_in_their_order():
    models = {name: predictions(25, seed=at) for at, name in enumerate("ab")}
    axes = class_figure(models).axes[0]
    errors = np.array([per_class_ece(each) for each in models.values()])
    worst = sorted(np.argsort(-errors.mean(0))[:20].tolist())
    assert [int(label.get_text()) for label in axes.get_xticklabels()] == worst
    np.testing.assert_allclose(axes.images[0].get_array().data, errors[:, worst])
    assert any("the 20 worst of 25 classes" in text.get_text() for text in axes.texts)
    assert class_figure(models["a"], most=3).axes[0].images[0].get_array().shape == (1, 3)


def test_points_are_means_over_seeds_of_frequent_and_rare_classes(assert_clean_layout):
    held = rows(TAIL)
    figure = frequency_figure(held, title="Long tail")
    panels = [("accuracy", "none"), ("ece", "none"), ("ece", "temperature")]
    assert len(figure.axes) == len(panels)
    for axes, (metric, calibrator) in zip(figure.axes, panels, strict=True):
        lines, points = axes.collections[::2], axes.collections[1::2]
        for split, line, point in zip(TAIL, lines, points, strict=True):
            read = [seeds(held, name, calibrator, split, metric) for name in ("ce", LONG)]
            means = [np.mean(each) for each in read]
            np.testing.assert_allclose(point.get_offsets().data[:, 0], means)
            ends = [segment[:, 0].tolist() for segment in line.get_segments()]
            assert ends == [[min(each), max(each)] for each in read]
    highest = max(each["value"] for each in held if each["metric"] == "ece")
    for axes in figure.axes[1:]:
        assert highest < axes.get_xlim()[1] < 1.2 * highest
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0].startswith("head")
    assert labels[-1] == "lowest to highest seed"
    assert_clean_layout(figure)


def test_accuracy_after_a_calibrator_is_drawn_where_it_changes():
    held = rows(TAIL, better=0.01)
    assert len(frequency_figure(held, calibrator="vector").axes) == 4
    assert len(frequency_figure(held, calibrator="temperature").axes) == 3
    one_seed = [each for each in held if each["seed"] == 0]
    alone = frequency_figure(one_seed, calibrator="none")
    assert len(alone.axes) == 2
    assert len(alone.legends[0].get_texts()) == 3


def test_lines_go_from_the_test_split_to_the_strongest_shift(assert_clean_layout):
    held = rows([*BLUR, "shift: photographs", "shift: cifar10"], better=0.03)
    figure = shift_figure(held, metric="accuracy", calibrator="vector", title="Shifted")
    blur, noise = figure.axes
    assert [line.get_xdata().tolist() for line in blur.lines] == [[0, 1, 3], [0, 1, 3]]
    for axes, splits in ((blur, ["test", *BLUR[:2]]), (noise, ["test", *BLUR[2:]])):
        for name, line, band in zip(("ce", LONG), axes.lines, axes.collections, strict=True):
            read = [seeds(held, name, "vector", split, "accuracy") for split in splits]
            assert line.get_ydata() == pytest.approx([np.mean(each) for each in read])
            box = band.get_paths()[0].get_extents()
            assert box.ymin == pytest.approx(min(map(min, read)))
            assert box.ymax == pytest.approx(max(map(max, read)))
    assert any("noise, after vector" in text.get_text() for text in noise.texts)
    assert_clean_layout(figure)


def test_rows_of_a_study_are_taken_as_they_are_and_gaps_stay_open():
    held = rows(BLUR)
    for each in held:
        if each["split"] == "shift: blur 1" and each["method"] == "ce":
            each["value"] = None
    first, second = shift_figure([Row(**each) for each in held]).axes[0].lines
    assert np.isnan(first.get_ydata()).tolist() == [False, True, False]
    assert np.isfinite(second.get_ydata()).all()


def test_names_are_what_trainings_differ_in():
    held = rows(BLUR, methods=("ce",))
    other = [{**each, "optimizer": "adam"} for each in held]
    legend = shift_figure([*held, *other]).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["sgd", "adam"]
    several = [*held, *({**each, "model": "wide", "method": "focal"} for each in held)]
    legend = shift_figure(several).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["net, ce", "wide, focal"]


@pytest.mark.parametrize("ignored", [None, 255])
def test_maps_place_confidence_and_errors_at_their_pixels(ignored, assert_clean_layout):
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(10, 8, 11)), generator.integers(10, size=(8, 11))
    labels = np.where(generator.random(labels.shape) < 0.6, logits.argmax(0), labels)
    counts = np.full(labels.shape, True)
    if ignored is not None:
        counts[:2, 3:] = False
        labels[~counts] = ignored
    figure = map_figure(logits, labels, ignore_index=ignored, title="An image " * 20)
    probs = np.exp(logits) / np.exp(logits).sum(0)
    right = logits.argmax(0) == labels
    confidence, errors = (axes.images[0].get_array() for axes in figure.axes[:2])
    np.testing.assert_allclose(confidence.data[counts], probs.max(0)[counts])
    assert errors[counts].tolist() == right[counts].tolist()
    wrong, fine = (figure.axes[1].images[0].to_rgba([value])[0] for value in (0.0, 1.0))
    for shown, patch in zip((fine, wrong), figure.legends[0].get_patches(), strict=False):
        assert shown == pytest.approx(patch.get_facecolor())
    for drawn in (confidence, errors):
        assert (np.ma.getmaskarray(drawn) == ~counts).all()
    facts = f"accuracy {right[counts].mean():.3f}, "
    facts += f"mean confidence {probs.max(0)[counts].mean():.3f}"
    assert figure.get_suptitle().endswith(facts)
    labels_shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels_shown == ["right", "wrong", *(["not counted"] if ignored else [])]
    if ignored:
        assert_clean_layout(figure)


def test_a_line_that_is_not_drawn_has_no_place_in_the_legend_of_gamma():
    epoch = {f"gamma_{name}": 1.0 for name in ("mean", "std", "q05", "q50", "q95")}
    epoch |= {"gamma_right": [1.0, 1.2], "gamma_wrong": [1.1, 0.0]}
    epoch |= {"count_right": [40, 50], "count_wrong": [9, 0]}
    labels = gamma_figure([epoch]).legends[0].get_texts()
    assert [text.get_text() for text in labels][1:] == ["right"]


IMAGE = np.zeros((2, 3, 3)), np.full((3, 3), 255)


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: class_figure({}), "at least one model"),
        (lambda: class_figure(predictions(3), most=0), "most must be at least 1, got 0"),
        (lambda: class_figure({"a": predictions(3), "b": predictions(4)}), "the same classes"),
        (
            lambda: class_figure({n: predictions(2, class_names=[n, "z"]) for n in "ab"}),
            r"alike, got \['a', 'z'\] and \['b', 'z'\]",
        ),
        (lambda: frequency_figure([]), "rows of a study, each with dataset"),
        (lambda: frequency_figure([{"method": "a"}]), "rows of a study, each with dataset"),
        (lambda: frequency_figure("runs/my"), "rows of a study, each with dataset"),
        (lambda: frequency_figure(rows(BLUR)), "test: head, .* long-tailed"),
        (
            lambda: frequency_figure(rows(TAIL), calibrator="x"),
            r"calibrator must be one of \['none', 'temperature', 'vector'\].*'x'",
        ),
        (lambda: shift_figure(rows(TAIL)), "two severities or more"),
        (lambda: shift_figure(rows(BLUR), metric="x"), r"one of \['accuracy', 'ece'\].*'x'"),
        (lambda: shift_figure(rows(BLUR) * 2), "two rows of ce, none, test, accuracy, seed 0"),
        (lambda: map_figure(IMAGE[0], IMAGE[1][:2]), r"got \(2, 3, 3\) and \(2, 3\)"),
        (lambda: map_figure(IMAGE[0][None], IMAGE[1]), "of one image"),
        (lambda: map_figure(*IMAGE, ignore_index=255), "every label is 255"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_what_cannot_be_drawn_is_said_in_one_line(draw, words):
    with pytest.raises(ValueError, match=words) as error:
        draw()
    assert "\n" not in str(error.value)
