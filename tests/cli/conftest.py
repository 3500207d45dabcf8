import io

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.cli import main
from calibrant.data import SYNTHETIC


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a slow machine no line about long work comes between."""
    monkeypatch.setattr("calibrant.cli.screen.PATIENCE", 1e9)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal():
    return Terminal()


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder: returns exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)

    def call(*args):
        code = main([str(arg) for arg in args])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def file(tmp_path):
    """Over-confident predictions of 400 examples."""
    SYNTHETIC["overconfident"].sample(400, seed=0).predictions.save(tmp_path / "test.npz")
    return tmp_path / "test.npz"


@pytest.fixture
def pair(tmp_path):
    """The same 2,000 examples twice: confidence far too high, and about right."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(2000, 3))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    Predictions(4 * logits, labels).save(tmp_path / "sharp.npz")
    Predictions(logits, labels).save(tmp_path / "right.npz")
    return tmp_path / "sharp.npz", tmp_path / "right.npz"
