"""The page of an audit: all of it in one file, escaped, the same each time."""

import re

import numpy as np
import pytest
from browser import Browser, chromium

from calibrant.cli import main
from calibrant.predictions import Predictions
from calibrant.report.audit_page import audit_page


@pytest.fixture
def file(tmp_path):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 4)) * 3
    path = tmp_path / "a & b.npz"
    Predictions(logits, generator.integers(4, size=300)).save(path)
    return path


def audited(file, page, *more):
    options = ["--no-figure", "--resamples", "20", "--page", str(page), *more]
    return main(["audit", str(file), *options])


def test_the_page_holds_verdict_metrics_diagram_and_classes(file, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert audited(file, page) == 0
    assert f"page: {page}" in capsys.readouterr().out
    text = page.read_text()
    assert "<title>a &amp; b.npz</title>" in text
    assert "over-confident" in text
    assert all(name in text for name in ("classwise_ece", "aurc", "smece"))
    assert text.count("<svg") >= 3
    assert not re.search(r'(src|href)="http', text)
    first = page.read_bytes()
    assert audited(file, page) == 0
    assert page.read_bytes() == first


def test_without_intervals_there_is_a_page_without_a_verdict(file, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert audited(file, page, "--no-intervals") == 0
    assert 'class="verdict"' not in page.read_text()


def test_remarks_are_below_the_metrics_with_a_verdict_or_without():
    found = Predictions(np.eye(3)[[0, 1, 2, 0] * 5], [0, 1, 2, 1] * 5)
    given = {"name": "n", "facts": "f", "heads": ["metric", "value", "what"], "rows": []}
    for verdict in ("", "over-confident"):
        text = audit_page(found, **given, verdict=verdict, remarks=["nll is <infinite>"])
        assert text.index("Every metric") < text.index("nll is &lt;infinite&gt;")


def test_a_page_that_cannot_be_written_is_one_line(file, tmp_path, capsys):
    assert audited(file, tmp_path / "no" / "such" / "page.html") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_page_loads_alone_in_a_browser(file, tmp_path, capsys):
    if chromium() is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    page = tmp_path / "page.html"
    assert audited(file, page) == 0
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(page.as_uri())
        assert browser.run("document.querySelector('h1').innerText") == "a & b.npz"
        assert len(browser.requests) == 1
        assert browser.complaints == []
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    finally:
        browser.close()
