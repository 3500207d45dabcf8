"""Pages from templates: one file each, with style and script inside, named in a policy."""

import base64
import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from calibrant import __version__
from calibrant.extras import need
from calibrant.files.atomic import replacing


class SavedPage(ABC):
    """What has a page that can be saved."""

    @abstractmethod
    def to_html(self) -> str:
        """A self-contained page."""

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all; returns its path."""
        return write_page(path, self.to_html())


def write_page(path: str | Path, text: str) -> Path:
    """Write a page, whole or not at all; returns its path."""
    target = Path(path)
    with replacing(target) as handle:
        handle.write(text.encode())
    return target


@dataclass(frozen=True)
class Panel:
    """One part of a page: a word for its address, heading, how to read it, charts and tables."""

    key: str
    title: str
    about: str
    html: str


def render(template: str, *, scripts: str = "", connects: bool = False, **values: Any) -> str:
    """A template of `web/` as text; values are escaped unless the template says otherwise.

    A served page has more `scripts`, and `connects` to its server.
    """
    jinja = need("jinja2", extra="report", what="the page of a report")
    setting = jinja.Environment(
        loader=jinja.FunctionLoader(web_file),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = web_file("page.css"), web_file("page.js") + scripts
    text: str = setting.get_template(template).render(
        policy=policy(style, script, connects=connects),
        style=style,
        script=script,
        version=__version__,
        **values,
    )
    return text


@cache
def web_file(name: str) -> str:
    """A file of `web/`."""
    return (files("calibrant.report") / "web" / name).read_text(encoding="utf-8")


def policy(style: str, script: str, *, connects: bool = False) -> str:
    """Nothing is loaded, and nothing runs but what is ours: a browser checks the digests."""
    sums = [
        base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()
        for each in (style, script)
    ]
    rules = f"default-src 'none'; style-src 'sha256-{sums[0]}'; script-src 'sha256-{sums[1]}'"
    more = "; connect-src 'self'" if connects else ""
    return f"{rules}; img-src data:; base-uri 'none'; form-action 'none'{more}"
