"""An answer and the files with it, each parsed at most once: validators and policy share what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from api_client.contract.marker import Marker, candidates
from worker.enforcement.documents.adr import Adr, find_adrs, header_end
from worker.enforcement.documents.excerpt import is_excerpt
from worker.enforcement.documents.marker_scan import outside_code, surely_outside
from worker.enforcement.markdown.outline import Outline
from worker.enforcement.markdown.scan import outline


class Document:
    """A text and its parts, each found when it is first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def out(self) -> Outline:
        """The Markdown outline; ADR headers are not Markdown in it."""
        return outline(self.text, header_end)

    @cached_property
    def starts(self) -> list[int]:
        """Where each line begins, in characters."""
        return [0, *accumulate(len(line) + 1 for line in self.out.lines[:-1])]

    @cached_property
    def markers(self) -> list[Marker]:
        """The step markers outside code and quotes, in the text's order."""
        found = candidates(self.text)
        if not found or ("out" not in self.__dict__ and surely_outside(self.text, found)):
            return found
        return outside_code(self.text, found, self.out, self.starts)

    @cached_property
    def adrs(self) -> list[Adr]:
        """The ADRs of the text; those that are only shown in a fence are ``excerpts``."""
        return [adr for adr in self._found if not is_excerpt(adr)]

    @cached_property
    def excerpts(self) -> list[Adr]:
        """ADRs in a ```markdown fence that decide nothing: a header alone, a template."""
        return [adr for adr in self._found if is_excerpt(adr)]

    @cached_property
    def _found(self) -> list[Adr]:
        if "adr_id" not in self.text and "ADR-" not in self.text:
            return []
        return find_adrs(self.out, self.starts)


@lru_cache(maxsize=8)
def parse(text: str) -> Document:
    """The document of a text; the last few are kept, because several validators look at the same answer."""
    return Document(text)


class Text(NamedTuple):
    """A text and the file it comes from (empty for the answer), and whether it must be an ADR."""

    content: str
    file: str
    is_adr: bool

    @property
    def adrs(self) -> list[Adr]:
        """The ADRs in it, parsed once for all validators."""
        return parse(self.content).adrs

    @property
    def excerpts(self) -> list[Adr]:
        """ADRs that are only shown in it."""
        return parse(self.content).excerpts


def texts_of(response: str, context: Mapping[str, Any]) -> Iterator[Text]:
    """The answer, then the Markdown files of ``context["files"]`` that are not the answer itself.

    Files named ``ADR-*.md`` must hold an ADR; so must the answer when ``context["expect_adr"]`` is true.
    """
    yield Text(response, "", bool(context.get("expect_adr")))
    files = context.get("files") or {}
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.suffix.lower() == ".md" and content != response:
            yield Text(content, name, path.name.upper().startswith("ADR-"))
