"""The landscape of focal temperature scaling."""

import numpy as np
import pytest

from calibrant import Predictions, report
from calibrant.calibrators import FocalTemperatureScaling
from calibrant.report.landscape import ridge


@pytest.fixture
def data() -> Predictions:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 4)) * 4
    return Predictions(logits, (logits / 2 + generator.gumbel(size=(300, 4))).argmax(1))


def test_marks_the_fitted_point_and_says_its_numbers(data):
    axes = report.focal_landscape_figure(data, title="net").axes[0]
    fitted = FocalTemperatureScaling.fit(data)
    point = next(line for line in axes.lines if line.get_marker() == "o")
    assert point.get_xydata().ravel() == pytest.approx([fitted.temperature, fitted.gamma])
    assert any(f"T = {fitted.temperature:.2f}" in text.get_text() for text in axes.texts)
    assert axes.get_title(loc="left") == "net"


@pytest.mark.parametrize("criterion", ["nll", "ece"])
def test_draws_the_grid_that_is_given(data, criterion, tmp_path):
    figure = report.focal_landscape_figure(
        data, criterion=criterion, gammas=[0.0, 1.0, 2.0], temperatures=[1.0, 2.0, 3.0, 4.0]
    )
    assert figure.axes[0].get_ylim() == (0.0, 2.0)
    assert report.save(figure, tmp_path / "land.png").stat().st_size > 10_000


def test_theridge_is_the_vertex_of_a_parabola_in_the_logarithm():
    temperatures = np.geomspace(0.5, 8, 9)
    values = np.stack([(np.log(temperatures) - np.log(t)) ** 2 for t in (1.3, 2.9)])
    np.testing.assert_allclose(ridge(temperatures, values), [1.3, 2.9], rtol=1e-9)
