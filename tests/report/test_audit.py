"""An audit in Python: its numbers, its record, and its page in one file."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import calibrant
from calibrant import Predictions, metrics
from calibrant.cli import main


@pytest.fixture(scope="module")
def predictions():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 4)) * 3
    return Predictions(logits, generator.integers(4, size=300))


def test_the_numbers_are_those_of_the_metrics(predictions):
    found = calibrant.audit(predictions, bins=7, level=0.8, seed=3, resamples=20)
    expected = metrics.summary(predictions, bins=7, level=0.8, seed=3, resamples=20)
    assert found.metrics == expected.metrics
    assert found.tests == expected.tests
    assert found.verdict == expected.verdict
    assert found.verdict.startswith("over-confident")
    errors = metrics.per_class_ece(predictions, bins=7)
    worst = {f"class {c}": errors[c] for c in np.argsort(-errors)}
    assert list(found.worst_classes) == list(worst)
    assert found.worst_classes == pytest.approx(worst)
    assert [row[1].text for row in found.metrics_table().rows] == [
        f"{each.value:.4f}" for each in expected.metrics.values()
    ]


def test_the_record_is_the_json_of_the_command_line(predictions, tmp_path, capsys):
    path = tmp_path / "p.npz"
    predictions.save(path)
    for options, given in ((["--resamples", "20"], {"resamples": 20}), (["--no-intervals"], {})):
        assert main(["audit", str(path), *options, "--no-figure", "--no-page", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        found = calibrant.audit(predictions, name=str(path), **{"resamples": 0, **given})
        found = replace(found, file=str(path))
        more = dict.fromkeys(("truth", "limit", "figure", "classwise_figure", "page"))
        assert printed == json.loads(json.dumps(found.to_dict())) | more
        assert ("verdict" in printed) == ("tests" in printed) == bool(given)
        assert ("next_step" in printed) == bool(given)


def test_the_page_holds_verdict_metrics_tests_diagram_and_classes(predictions, tmp_path):
    found = calibrant.audit(predictions, name="runs/a & b.npz", resamples=20)
    text = found.save(tmp_path / "page.html").read_text()
    assert text == found.to_html()
    assert "<title>a &amp; b.npz</title>" in text
    assert f'<p class="headline">{found.verdict[0].upper()}{found.verdict[1:]}</p>' in text
    assert all(name in text for name in ("classwise_ece", "aurc", "smece", "spiegelhalter"))
    assert "Accuracy: higher is better. Overconfidence: best at 0. All others: lower is" in text
    assert text.count('<svg class="chart"') == 3
    assert not re.search(r'(src|href)="http', text)


def test_without_intervals_there_is_neither_a_verdict_nor_a_test(predictions):
    found = calibrant.audit(predictions, resamples=0)
    assert (found.verdict, found.tests, found.remarks) == ("", {}, [])
    assert found.metrics["ece"].value == pytest.approx(metrics.ece(predictions))
    assert np.isnan(found.metrics["ece"].low)
    assert 'class="verdict"' not in found.to_html()
    assert [column.title for column in found.metrics_table().columns] == [
        "metric", "value", "meaning",
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*bins")
@pytest.mark.parametrize("resamples", [0, 20])
def test_an_infinite_nll_is_explained_below_the_metrics(resamples):
    sure = Predictions.from_probs([[1.0, 0.0]] * 20, [1, 0] * 10)
    found = calibrant.audit(sure, resamples=resamples)
    remark = "nll is infinite: the true class of some example has probability 0"
    assert remark in found.remarks
    assert found.to_html().index("All metrics") < found.to_html().index(remark)


@pytest.fixture(scope="module")
def pages(predictions, tmp_path_factory):
    """Pages of one model, of two classes, and of three models."""
    folder = tmp_path_factory.mktemp("pages")
    two = Predictions(predictions.logits[:, :2], predictions.labels % 2)
    three = {name: predictions for name in ("first", "second", "a third with a long name")}
    given = {"one": predictions, "two": two, "three": three}
    return {
        name: calibrant.audit(each, resamples=20).save(folder / f"{name}.html")
        for name, each in given.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two", "three"])
def test_the_page_loads_alone_fits_every_width_and_prints(pages, name, browser):
    browser.look()
    browser.resize(1280, 900)
    browser.open(pages[name].as_uri())
    assert len(browser.requests) == 1
    assert browser.complaints == []
    # All charts of one size, on one grid over the whole width.
    boxes = (
        "[...document.querySelectorAll('.plots svg.chart')].map((e) => e.getBoundingClientRect())"
    )
    sizes = browser.run(f"{boxes}.map((box) => [box.width, box.height].map(Math.round))")
    assert len({tuple(each) for each in sizes}) == 1
    main = "document.querySelector('main').getBoundingClientRect().right"
    assert browser.run(f"{main} - Math.max(...{boxes}.map((box) => box.right))") < 40
    # The tip of a head is its definition.
    over = "dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
    browser.run(f"[...document.querySelectorAll('thead th[data-tip]')][0].{over}")
    assert browser.run("document.getElementById('tip').textContent").endswith(".")
    for width in (390, 800, 1280):
        browser.resize(width, 900)
        assert browser.run("document.documentElement.scrollWidth") <= width, width
    browser.resize(390, 900)
    assert len(set(browser.run(f"{boxes}.map((box) => box.left)"))) == 1
    browser.resize(703, 900)
    browser.look(media="print")
    edge = "Math.max(...[...document.querySelectorAll('table, figure, dl')]"
    assert browser.run(edge + ".map((each) => each.getBoundingClientRect().right))") <= 704
    assert browser.run("getComputedStyle(document.getElementById('theme')).display") == "none"
    browser.look(media="")
    assert browser.printed().startswith(b"%PDF")


def test_an_audit_of_calibrated_predictions_loads_no_training_and_no_calibrators():
    code = """
import sys
from calibrant import Predictions
from calibrant.report.audit import audit
found = audit(Predictions([[0.0, 0.0]] * 40, [0, 1] * 20), resamples=20)
assert found.state == "calibrated", found.verdict
found.to_html()
print(*{name.split(".")[1] for name in sys.modules if name.startswith("calibrant.")})
"""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=True
    )
    loaded = found.stdout.decode().split()
    assert "report" in loaded
    unused = {"training", "methods", "models", "study", "data", "calibrators", "curvature"}
    assert not unused & set(loaded)
