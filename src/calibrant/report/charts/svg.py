"""SVG as text: escaping, marks, the frame of a chart, legends.

What the style sheet and script of a page rely on. Nothing has an id, a colour or a style attribute.

- `svg.chart`: every chart, at its natural size; it takes the focus for the arrow keys.
- `[data-tip]`: exact numbers as text. `.mark` are visible shapes, most with a `<title>` for pages
  without a script; `.hit` are invisible columns of a line chart.
- `.s1` to `.s8` with `.d0` to `.d2`: colour and dashes of a series, for `.line`, `.band`, `.dot`.
  `[data-series]` on groups and legends brings one to the front; `.spare` is seen only then.
- `.over`, `.under`: gaps. `.right`, `.wrong`: parts of a histogram. `.bar`, `.whisker`, `.faint`.
- `.heat`: shade of the variable `--heat`, by `fill-opacity`; `.value`: a number on it.
- `.guide` dashed, `.path` thin, `.halo` broad lines; `.spot` a point, `.hollow` the second one.
- `.ink` with `.k1` (strong) to `.k4` (weak), `.all` (grey): instead of the colour of a series.
- `.axis`, `.grid`, `.tick`, `.name`, `.note`: frame and text, 12 or 11 pixels high.
- HTML: `div.plots` is a grid of charts 360 pixels wide, `div.plots.free` holds others; in them
  `figure.plot` > `figcaption`, `div.beside`. `ul.legend`; `table.numbers` in `div.scroll`, perhaps
  in `details.numbers`; `img.map`.
"""

import html
import re
from collections.abc import Sequence

HUES, DASHES = 8, 3
# Lines of one chart that can still be told apart: each hue solid and dashed.
MOST = 2 * HUES
# Colours of charts in notebooks, readable on white and on black.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b0559a", "#b8860b", "#7a4310", "#6a4fb3", "#6b7280")
INLINE = {
    "axis": {"stroke": "#888"},
    "grid": {"stroke": "#8884"},
    "guide": {"stroke": "#888", "stroke-dasharray": "4 4"},
    "line": {"stroke": "hue", "stroke-width": "1.8"},
    "d1": {"stroke-dasharray": "6 4"},
    "band": {"fill": "hue", "opacity": "0.2"},
    "dot": {"fill": "hue"},
    "faint": {"opacity": "0.35"},
    "tick": {"fill": "#888"},
    "name": {"fill": "#888"},
}


def escape(text: object) -> str:
    """Text for HTML and SVG, between tags or in an attribute, without control characters."""
    plain = "".join(each if each.isprintable() or each == "\n" else " " for each in str(text))
    return html.escape(plain, quote=True).replace("\n", "&#10;")


def rounded(value: float) -> str:
    """A coordinate in few characters."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def element(name: str, *content: str, **attributes: str | float | None) -> str:
    """An element whose content is SVG already and whose attributes are not escaped yet.

    `class_` is written `class`, other underscores become hyphens, and None leaves one out.
    """
    parts = "".join(
        f' {key.rstrip("_").replace("_", "-")}="'
        f'{escape(value) if isinstance(value, str) else rounded(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(content)
    return f"<{name}{parts}>{inside}</{name}>" if inside else f"<{name}{parts}/>"


def chart(*content: str, width: float, height: float, title: str, about: str = "") -> str:
    """A whole chart; title and description are also read by screen readers."""
    inside = [f"<title>{escape(title)}</title>", f"<desc>{escape(about)}</desc>" if about else ""]
    return element(
        "svg",
        *inside,
        *content,
        class_="chart",
        viewBox=f"0 0 {rounded(width)} {rounded(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=f"{title}. {about}" if about else title,
        aria_describedby="how",
        tabindex="0",
        font_size=12,
    )


def text(
    x: float, y: float, words: object, *, role: str = "note", anchor: str = "start", size: int = 12
) -> str:
    """Words at a position; `anchor` is start, middle or end."""
    small = None if size == 12 else size
    where = None if anchor == "start" else anchor
    return element("text", escape(words), x=x, y=y, class_=role, text_anchor=where, font_size=small)


def mark(*content: str, tip: str, role: str = "", titled: bool = True) -> str:
    """Shapes that stand for numbers; `titled` shows the tip also where no script runs."""
    name = f"mark {role}".strip()
    title = f"<title>{escape(tip)}</title>" if titled else ""
    return element("g", title, *content, class_=name, data_tip=tip)


def line(x1: float, y1: float, x2: float, y2: float, *, role: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=role)


def box(x1: float, y1: float, x2: float, y2: float, *, role: str) -> str:
    """A rectangle between two corners; as a path, which takes half the characters."""
    left, top, wide, high = min(x1, x2), min(y1, y2), abs(x2 - x1), abs(y2 - y1)
    path = f"M{rounded(left)},{rounded(top)}h{rounded(wide)}v{rounded(high)}h-{rounded(wide)}z"
    return element("path", d=path, class_=role)


def hue(at: int) -> str:
    """Classes of the colour and the dashes of a series."""
    return f"s{at % HUES + 1} d{at // HUES % DASHES}"


def legend(names: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Which colour is which, as a list; with a note behind each name."""
    entries = []
    for at, name in enumerate(names):
        swatch = _swatch(element("path", d="M1 6H23", class_=f"line {hue(at)}", fill="none"))
        note = f" <small>{escape(notes[at])}</small>" if notes and notes[at] else ""
        entries.append(f'<li data-series="{at}">{swatch} {escape(name)}{note}</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def shape_legend(entries: dict[str, str]) -> str:
    """What filled shapes mean, as a list: label by its classes."""
    parts = []
    for role, name in entries.items():
        if {"line", "guide", "path", "whisker"} & set(role.split()):
            shape = element("path", d="M1 6H23", class_=role, fill="none")
        elif {"dot", "spot"} & set(role.split()):
            shape = element("circle", cx=12, cy=6, r=5, class_=role)
        else:
            strength = "0.65" if role == "heat" else None
            shape = element("rect", x=6, width=12, height=12, class_=role, fill_opacity=strength)
        parts.append(f"<li>{_swatch(shape)} {escape(name)}</li>")
    return f'<ul class="legend">{"".join(parts)}</ul>'


def _swatch(shape: str) -> str:
    size, view = {"width": 24, "height": 12}, "0 0 24 12"
    return element("svg", shape, class_="swatch", viewBox=view, **size, aria_hidden="true")


def plot(caption: str, *charts: str, note: str = "", beside: bool = False) -> str:
    """Charts under a caption of plain text: one over the other, or beside one another."""
    small = f" <small>{escape(note)}</small>" if note else ""
    inside = f'<div class="beside">{"".join(charts)}</div>' if beside else "".join(charts)
    caption = f"<figcaption>{escape(caption)}{small}</figcaption>"
    return f'<figure class="plot">{caption}{inside}</figure>'


def plots(figures: Sequence[str], *, free: bool = False, beside: str = "") -> str:
    """Figures of one size on a grid as wide as the page; at their natural sizes if `free`.

    A legend can take the next position of the grid, `beside` them.
    """
    side = f'<div class="side">{beside}</div>' if beside else ""
    return f'<div class="plots{" free" if free else ""}">{"".join(figures)}{side}</div>'


def inline(drawn: str) -> str:
    """A chart with its colours inside, for notebooks, which have no style sheet of ours."""

    def styled(found: re.Match[str]) -> str:
        roles = found[1].split()
        look = {k: v for role in roles for k, v in INLINE.get(role, {}).items()}
        hue = next((SERIES[int(r[1:]) - 1] for r in roles if re.fullmatch(r"s[1-8]", r)), "#666")
        return found[0] + "".join(f' {k}="{v.replace("hue", hue)}"' for k, v in look.items())

    return re.sub(r'class="([^"]*)"', styled, drawn)


def number_text(value: float | None) -> str:
    """A number as readers want it: four digits, a dash where there is none."""
    if value is None or value != value or abs(value) == float("inf"):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 1e-3 <= abs(value) < 1:
        return f"{value:.4f}"
    return f"{value:.4g}" if value == 0 or abs(value) >= 1 else f"{value:.3g}"
