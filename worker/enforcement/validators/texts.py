"""The texts a validator of documents looks at: the answer, and the Markdown files the agent wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from worker.enforcement.documents.adr import Adr
from worker.enforcement.documents.document import parse


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
