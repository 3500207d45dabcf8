"""The figure of a learnt gamma."""

import numpy as np
import pytest

from calibrant import report
from calibrant.report.gamma_figure import gamma_figure

BINS = 15


def row(epoch: int) -> dict:
    middle = 1 + 3 * (1 - np.exp(-epoch / 5))
    counts = [0.0, 5.0, *[40.0] * (BINS - 2)]
    return {
        "gamma_mean": middle,
        "gamma_std": 0.2,
        "gamma_q05": middle - 0.3,
        "gamma_q50": middle,
        "gamma_q95": middle + 0.4,
        "gamma_right": np.linspace(3, 4.5, BINS).tolist(),
        "gamma_wrong": np.linspace(4, 4.8, BINS).tolist(),
        "count_right": counts,
        "count_wrong": counts,
    }


def test_draws_gamma_along_training_and_against_confidence(assert_clean_layout, tmp_path):
    history = [row(epoch) for epoch in range(20)]
    figure = gamma_figure(history, title="a network of this kind")
    left, right = figure.axes
    (middle,) = left.lines
    assert middle.get_ydata() == pytest.approx([each["gamma_q50"] for each in history])
    assert middle.get_xdata().tolist() == list(range(1, 21))
    correct, wrong = right.lines
    # Bins with fewer than ten examples are left out.
    assert np.isnan(correct.get_ydata()[:2]).all()
    assert correct.get_ydata()[2:] == pytest.approx(np.linspace(3, 4.5, BINS)[2:])
    assert wrong.get_ydata()[2:] == pytest.approx(np.linspace(4, 4.8, BINS)[2:])
    assert right.get_xlim() == (0, 1)
    assert any("gamma 3.93" in text.get_text() for text in right.texts)
    assert_clean_layout(figure)
    assert report.save(figure, tmp_path / "gamma.png").stat().st_size > 10_000


def test_one_epoch_is_enough_and_another_history_is_refused():
    gamma_figure([row(0)])
    with pytest.raises(ValueError, match="need the history of a training with gamma_net"):
        gamma_figure([{"epoch": 0}])
    with pytest.raises(ValueError, match="need the history"):
        gamma_figure([])
