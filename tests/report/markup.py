"""HTML and SVG of panels, read back."""

from xml.etree import ElementTree


def parsed(text):
    """Our own text as a tree, so nothing in it can be an attack; a panel by its HTML."""
    return ElementTree.fromstring(text if isinstance(text, str) else f"<div>{text.html}</div>")  # noqa: S314


def tips(root):
    """All tips of a panel, or within an element."""
    root = root if isinstance(root, ElementTree.Element) else parsed(root)
    return [each.get("data-tip") for each in root.iter() if each.get("data-tip")]
