"""Progress in Python: a line for somebody who watches, nothing in a log."""

import sys

import pytest

from calibrant import calibrators, data, methods, metrics, models, progress
from calibrant.data import SYNTHETIC
from calibrant.training import Recipe, train


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "PAUSE", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_notebook_shows_progress_and_clears_it(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    p = SYNTHETIC["overconfident"].sample(200, seed=0).predictions
    for work in (
        lambda: metrics.summary(p, resamples=20),
        lambda: metrics.compare(metrics.nll, p, p, resamples=20),
    ):
        work()
        out, shown = capsys.readouterr()
        assert out == ""
        assert "resampling: 50 %, 0 s left" in shown
        # The line is overwritten with blanks at the end.
        assert shown.endswith("\r")
        assert not shown.split("\r")[-2].strip()


@pytest.mark.usefixtures("impatient")
def test_a_selection_shows_progress(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    p = SYNTHETIC["overconfident"].sample(200, seed=0).predictions
    calibrators.select(p, candidates=["identity", "temperature"], folds=2, resamples=5)
    assert "comparing calibrators: 50 %" in capsys.readouterr().err


@pytest.mark.usefixtures("impatient")
def test_logs_and_callers_with_their_own_display_see_nothing(capsys):
    p = SYNTHETIC["overconfident"].sample(200, seed=0).predictions
    taken = []
    metrics.summary(p, resamples=20)
    metrics.summary(p, resamples=20, progress=lambda: taken.append(1))
    assert capsys.readouterr() == ("", "")
    assert len(taken) == 20


def test_short_work_shows_nothing(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with progress.steps(None, 10, "resampling") as step:
        step()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_a_training_run_shows_progress_unless_the_caller_does(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    splits = data.load("blobs", 0, limit=200)
    network = models.build("mlp", classes=splits.classes, shape=splits.shape)
    method = methods.build("cross_entropy", classes=splits.classes)
    recipe = Recipe(epochs=2, batch=20)
    train(network, method, splits, recipe, on_step=lambda loop: None)
    assert "training" not in capsys.readouterr().err
    train(network, method, splits, recipe)
    assert "training: 100 %, 0 s left" in capsys.readouterr().err
