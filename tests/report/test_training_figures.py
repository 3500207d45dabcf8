"""Figures of histories and of confidence: what they draw, and what they refuse."""

import numpy as np
import pytest

from calibrant.predictions import Predictions
from calibrant.report import confidence_figure, curves_figure, figures


def history(start: float, epochs: int = 5) -> list[dict[str, float]]:
    steps = range(epochs)
    return [{"val_ece": start + e, "val_nll": 2 * start + e, "loss": 1 / (1 + e)} for e in steps]


def predictions(n: int = 400, seed: int = 0) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(n, 4)) * 3
    return Predictions(logits, generator.integers(4, size=n))


def test_a_line_is_the_mean_over_seeds_and_its_band_the_range():
    figure = curves_figure({"a": history(0.0), "b": [history(1.0), history(2.0, 4)]})
    ece = figure.axes[0]
    assert ece.get_ylabel() == "ECE, val"
    first, second = (line.get_ydata().tolist() for line in ece.lines)
    assert first == [0, 1, 2, 3, 4]
    # Seeds of different lengths go as far as the shortest.
    assert second == [1.5, 2.5, 3.5, 4.5]
    (band,) = ece.collections
    assert band.get_paths()[0].get_extents().ymax == 5
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_other_columns_can_be_drawn():
    figure = curves_figure({"a": history(0.0)}, columns={"loss": "loss"}, title="$x_1$ & co")
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss"]


def test_histograms_hold_all_examples_right_and_wrong_apart():
    held = predictions()
    figure = confidence_figure({"one": held, "two": predictions(seed=1)}, title="both")
    assert len(figure.axes) == 2
    bars = figure.axes[0].patches
    wrong, right = (sum(bar.get_height() for bar in part) for part in (bars[:15], bars[15:]))
    accuracy = float(np.asarray(held.correct, dtype=float).mean())
    assert right == pytest.approx(accuracy)
    assert wrong == pytest.approx(1 - accuracy)


def test_one_model_needs_no_name():
    assert len(confidence_figure(predictions(), bins=7).axes[0].patches) == 14


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: curves_figure({}), "need histories"),
        (lambda: curves_figure({"a": []}), "at least one epoch"),
        (lambda: curves_figure({"a": [{"loss": 1.0}]}), "val_ece"),
        (lambda: confidence_figure({}), "at least one model"),
    ],
)
def test_nothing_to_draw_is_said_in_one_line(draw, words):
    with pytest.raises(ValueError, match=words) as error:
        draw()
    assert "\n" not in str(error.value)


def test_every_figure_is_a_function_of_one_module():
    assert all(callable(getattr(figures, name)) for name in figures.__all__)
