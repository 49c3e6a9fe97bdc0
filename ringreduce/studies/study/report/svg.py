"""Builds SVG elements, with escaped text."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

__all__ = ["add", "group", "picture", "text", "write"]


def picture(width: float, height: float, title: str) -> Element:
    """Returns an empty picture. Screen readers read its title."""
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": title})
    root.set("viewBox", f"0 0 {width:g} {height:g}")
    root.set("width", f"{width:g}")  # the page may make it narrower
    root.set("font-family", "system-ui, sans-serif")
    root.set("font-size", "12")
    return root


def add(parent: Element, tag: str, /, **attributes: str | float) -> Element:
    """Adds a child element. Underscores in attribute names become hyphens, as in ``stroke_width``."""
    child = ElementTree.SubElement(parent, tag)
    for name, value in attributes.items():
        child.set(name.replace("_", "-"), value if isinstance(value, str) else f"{round(value, 1):g}")
    return child


def group(parent: Element, kind: str, tip: str, /, **attributes: str | float) -> Element:
    """Adds a group with a class and a tip, which shows while the mouse is over the group."""
    child = add(parent, "g", **attributes)
    child.set("class", kind)
    add(child, "title").text = tip
    return child


def text(parent: Element, x: float, y: float, words: str, /, **attributes: str | float) -> None:
    """Adds text, by default centred at x and in the text colour of the page."""
    look: dict[str, str | float] = {"text_anchor": "middle", "fill": "currentColor", **attributes}
    add(parent, "text", x=x, y=y, **look).text = words


def write(root: Element, standalone: bool = False) -> str:
    """Returns the picture as text. With ``standalone`` it has a white background."""
    if standalone:
        root.set("style", "background: white")
    return ElementTree.tostring(root, encoding="unicode")
