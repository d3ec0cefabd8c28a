"""A report as a browser takes it apart, without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "input", "img", "source", "rect", "use", "circle", "path", "line", "polyline", "polygon"}


@dataclass
class Element:
    """One element: its tag, attributes, and the text that stands directly in it."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""
    inside: list[Element] = field(default_factory=list)


class Page(HTMLParser):
    """All elements of a page in order; `broken` where an end tag does not fit."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.broken: list[str] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        self.broken += [e.tag for e in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        element = Element(tag, dict(attrs))
        if len(attrs) != len(element.attributes):
            self.broken.append(f"{tag} has an attribute twice")
        self.elements.append(element)
        if self._open:
            self._open[-1].inside.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content, as SVG writes it."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        if tag in VOID:
            return
        if not self._open or self._open[-1].tag != tag:
            self.broken.append(f"</{tag}> in {self._open[-1].tag if self._open else 'nothing'}")
            return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        """Text."""
        if self._open:
            self._open[-1].text += data

    def all(self, tag: str) -> list[Element]:
        """Every element of a tag."""
        return [e for e in self.elements if e.tag == tag]

    @property
    def words(self) -> str:
        """All text, white space collapsed."""
        hidden = ("script", "style")
        return " ".join(" ".join(e.text for e in self.elements if e.tag not in hidden).split())
