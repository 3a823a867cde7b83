"""Links lead only where they may. Nothing is opened: the rule reads addresses, it needs no network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from worker.enforcement.documents.document import parse
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option

_URL = re.compile(r"\b([a-z][a-z0-9+.-]{1,15})://[^\s<>\"'`\])}]{1,2000}", re.IGNORECASE)
#: Schemes of links without ``//`` that run or carry something.
_BARE = re.compile(r"\]\(\s{0,8}(javascript|data|vbscript|file):[^)\s]{0,2000}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Links(Rule):
    """Judges addresses outside fenced code: in Markdown links, in angle brackets, and bare."""

    kind: ClassVar[str] = "links"
    bounded: ClassVar[bool] = True

    hosts: tuple[str, ...] = option((), "Hosts that links may lead to; `*.example.org` means every host below it.")
    schemes: tuple[str, ...] = option(("https",), "Schemes that links may have.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.schemes:
            raise ValueError("schemes is empty: no link could be right")
        for host in self.hosts:
            if not host.removeprefix("*.") or "/" in host or "*" in host.removeprefix("*."):
                raise ValueError(f"hosts: {host!r} is not a host such as docs.example.org or *.example.org")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """LINK_NOT_ALLOWED for each address whose scheme or host is not allowed; an empty ``hosts`` allows all."""
        locale = self.words_in(context)
        allowed = ", ".join(self.hosts) or ", ".join(self.schemes)
        return [
            rule_issue("LINK_NOT_ALLOWED", locale, line=line, url=url, allowed=allowed)
            for line, url in _links(response)
            if not self._allows(url)
        ]

    def _allows(self, url: str) -> bool:
        scheme, _, rest = url.partition(":")
        if scheme.lower() not in self.schemes:
            return False
        if not self.hosts:
            return True
        try:
            host = (urlsplit(f"x:{rest}").hostname or "").rstrip(".")
        except ValueError:  # an address that nobody can follow
            return False
        return any(
            host.endswith(allowed[1:].lower()) if allowed.startswith("*.") else host == allowed.lower()
            for allowed in self.hosts
        )


def _links(text: str) -> Iterator[tuple[int, str]]:
    """The addresses outside fences, with their lines, from 1."""
    out = parse(text).out
    fenced = {number for fence in out.fences if not fence.is_document for number in range(fence.start, fence.end)}
    for number, line in enumerate(out.lines):
        if number not in fenced and ":" in line:
            for found in _URL.finditer(line):
                yield number + 1, found[0].rstrip(".,;:!?")
            for found in _BARE.finditer(line):
                yield number + 1, found[0].partition("(")[2].strip()
