"""Rule: links lead only to allowed hosts. It reads addresses and needs no network."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any, ClassVar
from urllib.parse import urlsplit

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import lines_in_spans
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option

_URL = re.compile(r"\b([a-z][a-z0-9+.-]{1,15})://[^\s<>\"'`\])}]{1,2000}", re.IGNORECASE)
_WWW = re.compile(r"(?<![\w/@.:-])www\.[^\s<>\"'`\])}]{1,2000}", re.IGNORECASE)
_PLACES = re.compile(
    r"(?:\]\(\s{0,8}<?|^[ \t>]{0,20}\[[^\]\n]{1,200}\]:\s{0,8}<?|\burl\(\s{0,8}[\"']?"
    r"|\b(?:src|srcset|href|poster|data|action|formaction|background|cite)\s{0,8}=\s{0,8}[\"']?\s{0,8}|<(?=[/\\]{2}))"
    r"([^\s<>\"'`)]{1,2000})",
    re.IGNORECASE | re.MULTILINE,
)
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_BARE = re.compile(r"(?:javascript|data|vbscript|file):", re.IGNORECASE)
_SHORT = re.compile(r"(https?|ftp|wss?):[/\\]{0,9}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LinksRule(Rule):
    """Allows only certain schemes and hosts in the links of an answer. Fenced code is ignored."""

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
        """Return an issue for each link whose scheme or host is not allowed (LINK_NOT_ALLOWED)."""
        locale = self.find_locale(context)
        allowed = ", ".join(self.hosts) or ", ".join(self.schemes)
        return [
            rule_issue("LINK_NOT_ALLOWED", locale, line=line, url=url, allowed=allowed)
            for line, url in _find_links(response)
            if not self._is_allowed(url)
        ]

    def _is_allowed(self, url: str) -> bool:
        scheme, _, rest = url.replace("\\", "/").partition(":") if not url.startswith("//") else ("", "", url)
        if scheme and scheme.lower() not in self.schemes:
            return False
        if not self.hosts:
            return True
        try:
            host = (urlsplit(f"x:{rest}").hostname or "").rstrip(".")
        except ValueError:  # nobody can open this address
            return False
        return any(
            host.endswith(allowed[1:].lower()) if allowed.startswith("*.") else host == allowed.lower()
            for allowed in self.hosts
        )


def _find_links(text: str) -> Iterator[tuple[int, str]]:
    out = parse_document(text).out
    fenced = lines_in_spans(out.code)
    shown = "\n".join("" if number in fenced else line for number, line in enumerate(out.lines))
    ends = [found.start() for found in re.finditer("\n", shown)]
    found = [(each.start(), each[0].rstrip(".,;:!?")) for each in _URL.finditer(shown)]
    found += [(each.start(), f"//{each[0].rstrip('.,;:!?')}") for each in _WWW.finditer(shown)]
    for each in _PLACES.finditer(shown):
        if url := _complete_url(each[1]):
            found.append((each.start(1), url))
    for place, url in sorted(found):
        yield bisect_left(ends, place) + 1, url


def _complete_url(written: str) -> str:
    for read in (unescape(written), unescape(_ESCAPED.sub(r"\1", written))):
        url = "".join(char for char in read if char > " ").replace("\\", "/")
        if url.startswith("//"):
            return "//" + url.lstrip("/")
        if _BARE.match(url):
            return url
        if (short := _SHORT.match(url)) and not _URL.match(written):
            return f"{short[1]}://{url[short.end() :]}"
    return ""
