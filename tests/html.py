"""A page as an HTML parser sees it: its elements, text and forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: list[Element] = field(default_factory=list)


class Document(HTMLParser):
    """The elements of a page in order. Fails on a tag that is not closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self._open, [element.tag for element in self._open]

    @property
    def text(self) -> str:
        return " ".join(self.all("body")[0].text.split())

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Return every element with this tag and these attributes."""
        return [e for e in self.elements if e.tag == tag and attributes.items() <= e.attributes.items()]

    def form(self, action: str) -> dict[str, str]:
        """Return the fields that a form would send."""
        [form] = self.all("form", action=action)
        inputs = [e.attributes for e in form.inside if e.tag == "input"]
        return {i["name"]: i.get("value", "") for i in inputs}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        for around in self._open:
            around.inside.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data
