"""Formulas become MathML while the site is built, with a font of the site's own: no scripts."""

import html
import logging
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fontTools import subset
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig

LOG = logging.getLogger("mkdocs.hooks.formulas")
# What pymdownx.arithmatex leaves of $...$ and $$...$$.
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>',
    re.DOTALL,
)
# Commands that latex2mathml does not know.
SPELT = {
    r"\arg": r"\mathrm{arg}",
    r"\lvert": r"\vert",
    r"\rvert": r"\vert",
    r"\lVert": r"\Vert",
    r"\rVert": r"\Vert",
}
# A function and its argument need a space, unless a bracket, an index or a power comes first.
FUNCTION = re.compile(r"\\(?:log|exp|ln|tanh)(?=\s*(?:[a-zA-Z0-9]|\\(?![bB]ig|left|[,!])))")
COMMAND = re.compile(r"\\[a-zA-Z]+")
# Letters of identifiers, which browsers set in italics, and the root; others are seen in formulas.
ITALICS = {0x210E, 0x221A, *range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C)}
seen: set[int] = set(ITALICS)
FONT = "assets/formulas.woff"


def mathml(found: re.Match[str]) -> str:
    """Convert one formula; a command that is not known would be shown as it was typed."""
    tex = html.unescape(found["tex"]).strip()
    block = found["open"] == "["
    spelt = COMMAND.sub(lambda command: SPELT.get(command[0], command[0]), tex)
    spelt = FUNCTION.sub(r"\g<0>\\,", spelt)
    drawn = convert(spelt, display="block" if block else "inline")
    if "\\" in drawn or "&#x0005C" in drawn:
        LOG.warning("formula with an unknown command: %s", tex)
    seen.update(map(ord, html.unescape(drawn)))
    return f'<div class="formula">{drawn}</div>' if block else drawn


def on_page_content(content: str, **_: Any) -> str:
    """Convert the formulas of a page, also those of docstrings."""
    return FORMULA.sub(mathml, content)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the part of STIX Two Math that formulas need; other fonts misplace bars and roots."""
    # Found without importing the package, which is needed for nothing else.
    spec = find_spec("ziamath")
    assert spec is not None  # noqa: S101, an extra of the site
    assert spec.origin is not None  # noqa: S101
    stix = Path(spec.origin).with_name("fonts") / "STIXTwoMath-Regular.ttf"
    options = subset.Options(flavor="woff", layout_features=["*"], notdef_outline=True)
    options.drop_tables += ["DSIG"]
    font = subset.load_font(str(stix), options)
    chosen = subset.Subsetter(options)
    chosen.populate(unicodes=sorted(seen))
    chosen.subset(font)
    subset.save_font(font, str(Path(config.site_dir) / FONT), options)
