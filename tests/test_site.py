"""The documentation site: complete, self-contained, and built without a warning."""

import importlib
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
    """Build the site, where a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_public_name_has_a_place_in_the_reference(site):
    lacking = []
    for package in PACKAGES:
        name = "calibrant" if package == "calibrant" else f"calibrant.{package}"
        places = set(re.findall(r'id="([^"]+)"', (site / "api" / f"{package}.html").read_text()))
        modules = {"integrations": {*calibrant.integrations.__all__}}.get(package, set())
        public = set(importlib.import_module(name).__all__) - modules
        if package == "calibrant":
            public -= {path.name for path in (ROOT / "src" / "calibrant").iterdir()}
        lacking += [f"{name}.{each}" for each in public if f"{name}.{each}" not in places]
    assert not lacking


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
    assert host_table.PAGE.read_text() == host_table.page()


def test_every_package_is_in_the_reference():
    missing = {"cli", "files", "study", "language_models"}
    folders = {path.parent.name for path in (ROOT / "src" / "calibrant").glob("*/__init__.py")}
    assert folders - missing <= set(PACKAGES)
