import re
import sys

import pytest

from calibrant.calibrators import CALIBRATORS
from calibrant.calibrators.storage import COMPOSED
from calibrant.cli import main
from calibrant.cli.listing import KINDS
from calibrant.curvature import MEASURES
from calibrant.data import DATASETS, SYNTHETIC
from calibrant.losses import LOSSES
from calibrant.methods import METHODS
from calibrant.metrics import METRICS
from calibrant.models import MODELS
from calibrant.report.audit import TESTS
from calibrant.training import LOGGERS, RECIPES

MEMBERS = {
    "metrics": METRICS,
    "losses": LOSSES,
    "calibrators": CALIBRATORS | COMPOSED,
    "methods": METHODS,
    "models": MODELS,
    "datasets": DATASETS,
    "measures": MEASURES,
    "shifts": ["noise", "blur", "contrast", "brightness"],
    "examples": SYNTHETIC,
    "recipes": RECIPES,
    "loggers": LOGGERS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_entry_of_a_registry_is_listed_with_its_meaning(run, kind):
    code, out, err = run("list", kind)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == kind
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    for name in MEMBERS[kind]:
        assert len(lines[name].split()) > 2
        # Away from a terminal no line is broken.
        if isinstance(MEMBERS[kind], dict):
            meaning = getattr(MEMBERS[kind][name], "meaning", "").rstrip(".")
            assert meaning[:1].upper() + meaning[1:] in lines[name]
    assert "\x1b" not in out
    assert "$" not in out


def test_without_a_kind_all_are_listed(run):
    _, out, _ = run("list")
    for kind in MEMBERS:
        assert f"{kind}\n" in out


def test_on_a_terminal_tables_are_as_wide_as_it_and_lose_no_word(run, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, plain, _ = run("list", "methods")
    monkeypatch.setattr(sys, "stdout", terminal)
    main(["list", "methods"])
    lines = re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert set(re.findall("[a-z_]+", plain)) <= set(re.findall("[a-z_]+", " ".join(lines)))


def test_meanings_fit_the_table():
    assert max(len(metric.meaning) for metric in METRICS.values()) <= 32
    assert max(map(len, TESTS.values())) <= 52
