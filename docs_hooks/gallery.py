"""Figures of the site are drawn while it is built, by the code blocks shown beside them."""

import contextlib
import os
import re
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = ("gallery.md", "tour.md")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def drawn_by(page: str) -> dict[str, bytes]:
    """Run the code blocks of a page in an empty folder; return the figures that they write."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        names: dict[str, object] = {}
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            for block in PYTHON.findall(page):
                exec(block, names)  # noqa: S102, our own pages
        return {path.name: path.read_bytes() for path in Path().glob("*.svg")}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the figures to the files of the site."""
    for name in PAGES:
        for figure, content in drawn_by((Path(config.docs_dir) / name).read_text()).items():
            files.append(File.generated(config, figure, content=content))
    return files
