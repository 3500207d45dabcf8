import pytest

from calibrant.calibrators import CALIBRATORS
from calibrant.cli.listing import FAMILIES
from calibrant.curvature import MEASURES
from calibrant.data import DATASETS, SYNTHETIC
from calibrant.losses import LOSSES
from calibrant.methods import METHODS
from calibrant.metrics import METRICS
from calibrant.models import MODELS
from calibrant.report.audit import TESTS

MEMBERS = {
    "metrics": METRICS,
    "losses": LOSSES,
    "calibrators": CALIBRATORS,
    "methods": METHODS,
    "models": MODELS,
    "datasets": DATASETS,
    "measures": MEASURES,
    "shifts": ["noise", "blur", "contrast", "brightness"],
    "examples": SYNTHETIC,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_member_is_listed_with_its_meaning(run, family):
    code, out, err = run("list", family)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == family
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    for name in MEMBERS[family]:
        assert len(lines[name].split()) > 2
        # Away from a terminal no line is broken.
        if isinstance(MEMBERS[family], dict):
            assert getattr(MEMBERS[family][name], "meaning", "") in lines[name]
    assert "\x1b" not in out
    assert "$" not in out


def test_without_a_family_all_are_listed(run):
    _, out, _ = run("list")
    for family in MEMBERS:
        assert f"{family}\n" in out


def test_meanings_fit_the_table():
    assert max(len(metric.meaning) for metric in METRICS.values()) <= 32
    assert max(map(len, TESTS.values())) <= 52
