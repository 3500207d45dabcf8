"""Links that also work on a plain Git host: to files outside docs/, and named by their file."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)\)")
# Where those files are on the site.
FOLDER = "repository"
BY_FILE = re.compile(r"\[(?:docs/)?[\w-]+\.md\]\(([\w-]+\.md)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Copy every linked file of the repository to the site; one that is missing is an error."""
    root = Path(config.config_file_path).parent
    pages = [page.read_text() for page in Path(config.docs_dir).glob("*.md")]
    for path in sorted({path for page in pages for path in OUTSIDE.findall(page)}):
        content = (root / path).read_bytes()
        files.append(File.generated(config, f"{FOLDER}/{path}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Point links to those copies; show the title of a page where its file name is the text."""
    here = posixpath.dirname(page.file.src_uri)
    markdown = OUTSIDE.sub(rf"]({posixpath.relpath(FOLDER, here or '.')}/\1)", markdown)

    def titled(found: re.Match[str]) -> str:
        target = Path(config.docs_dir) / here / found[1]
        if not target.is_file():
            return found[0]
        title = target.read_text().partition("\n")[0].lstrip("# ")
        return f"[{title}]({found[1]}"

    return BY_FILE.sub(titled, markdown)
