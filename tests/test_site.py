"""The documentation site: complete, self-contained, and built without a warning."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import host_table

import calibrant

ROOT = Path(__file__).parents[1]
PACKAGES = [path.stem for path in (ROOT / "docs" / "api").glob("*.md")]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site, where a warning is an error, but not with --quiet."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING -" not in done.stderr
    return folder


def public_names(package: str) -> set[str]:
    """Full names of what a page of the reference must have; modules have pages of their own."""
    name = "calibrant" if package == "calibrant" else f"calibrant.{package}"
    module = importlib.import_module(name)
    values = {each: getattr(module, each) for each in module.__all__}
    return {f"{name}.{each}" for each, value in values.items() if not inspect.ismodule(value)}


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_place_in_the_reference(package, site):
    names = public_names(package)
    if package == "integrations":
        for module in calibrant.integrations.__all__:
            inside = importlib.import_module(f"calibrant.integrations.{module}")
            names |= {
                f"{inside.__name__}.{name}"
                for name in getattr(inside, "__all__", dir(inside))
                if getattr(getattr(inside, name), "__module__", "").startswith(inside.__name__)
                and not name.startswith("_")
            }
    places = set(re.findall(r'id="([^"]+)"', (site / "api" / f"{package}.html").read_text()))
    assert names
    assert not names - places


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site):
    loaded = re.compile(
        r'(?:<(?:script|img|iframe|source)[^>]* src|<link[^>]* href)="?(https?:[^" >]+)'
    )
    urls = re.compile(r"url\(\s*[\"']?(https?:[^)]+)|@import\s+[\"'](https?:[^\"']+)")
    for path in site.rglob("*.html"):
        assert not loaded.findall(path.read_text()), path
    for path in site.rglob("*.css"):
        assert not urls.findall(path.read_text()), path


@pytest.mark.slow
def test_every_formula_is_drawn(site):
    text = "".join(path.read_text() for path in site.rglob("*.html"))
    assert text.count("<math") > 400
    assert 'class="arithmatex"' not in text
    assert (site / "assets" / "formulas.woff").stat().st_size > 10_000


@pytest.mark.slow
def test_every_figure_of_the_gallery_is_made_by_the_build(site):
    named = re.findall(r"\]\(([\w-]+\.svg)\)", (ROOT / "docs" / "gallery.md").read_text())
    assert len(named) >= 12
    assert not list((ROOT / "docs").glob("*.svg"))
    for name in named:
        assert "<svg" in (site / name).read_text()


def test_the_table_of_hosts_is_that_of_the_constraints():
    page = host_table.page()
    assert host_table.PAGE.read_text() == page
    assert "| dev " not in page
    for name in ("lm-evaluation-harness", "OpenAI interface", "vLLM", "mmsegmentation"):
        assert f"| {name} " in page
    logs = (ROOT / "tests" / "language_models" / "conftest.py").read_text()
    assert "lm-evaluation-harness 0.4.13 wrote" in logs


def test_every_package_is_in_the_reference():
    internal = {"cli", "files", "study"}
    folders = {path.parent.name for path in (ROOT / "src" / "calibrant").glob("*/__init__.py")}
    assert folders - internal <= set(PACKAGES)
