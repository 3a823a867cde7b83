"""Search for the JSON of an answer: in a fenced block, or in the whole answer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, NamedTuple

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.part_names import fence_part
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.validators.codes import choose_text

#: A text that is one code fence and nothing else.
_FENCED = re.compile(r"\s*(`{3,}|~{3,})[ \t]*(?:json)?[ \t]*\r?\n(.*?)\r?\n[ \t]*\1\s*", re.DOTALL | re.IGNORECASE)
WHERE = ("fence", "whole", "any")
MAX_CHARS = 1_000_000


class JsonBlock(NamedTuple):
    """A JSON value found in an answer, with its first line (from 1) and the name of its code block, if any."""

    value: Any
    line: int
    part: str


def read_json(response: str, where: str, locale: str) -> JsonBlock | ValidationIssue:
    """Parse the JSON in an answer. Return the parsed block, or an issue if the JSON is missing or invalid.

    ``where`` is ``fence`` (the last closed ```json fence), ``whole`` (the answer without its marker), or ``any``.
    """
    out, part = parse_document(response).out, ""
    fences = [fence for fence in out.fences if fence.closed and fence.info.split(" ")[0].lower() == "json"]
    if where != "whole" and fences:
        text, line = "\n".join(out.lines[fences[-1].start + 1 : fences[-1].end - 1]), fences[-1].start + 2
        part = fence_part("json", len(fences))
    elif where == "fence":
        how = choose_text(locale, "Schreibe das JSON in einen ```json-Block", "Write the JSON in a ```json block")
        return rule_issue("NO_JSON", locale, part=fence_part("json", 1), how=how)
    else:
        text, line = strip_marker(response).strip(), 1
        part = "" if where == "whole" or text[:1] in ("{", "[") else fence_part("json", 1)
    try:
        if len(text) > MAX_CHARS:
            raise ValueError(f"more than {MAX_CHARS} characters")
        return JsonBlock(json.loads(text), line, part)
    except (ValueError, RecursionError) as error:
        at, said = (error.lineno - 1, error.msg) if isinstance(error, json.JSONDecodeError) else (0, str(error))
        values = {"language": "JSON", "problem": said or type(error).__name__}
        issue = rule_issue("CODE_DOES_NOT_PARSE", locale, line=line + at, part=part, **values)
        return replace(issue, shortens=not part)  # the answer must become the bare value


def unfence_json(response: str) -> str:
    """Return an answer without the code fence that encloses all of it. A step marker is kept."""
    body = strip_marker(response)
    fenced = _FENCED.fullmatch(body)
    return fenced[2] + response[len(body) :] if fenced else response


def json_mismatch(found: JsonBlock, locale: str, place: str, problem: str) -> ValidationIssue:
    """Return an issue for a JSON value that does not meet the requirements (JSON_MISMATCH)."""
    issue = rule_issue("JSON_MISMATCH", locale, line=found.line, part=found.part, place=place, problem=problem)
    return replace(issue, shortens=not found.part)


def check_where(where: str) -> None:
    """Raise ``ValueError`` if ``where`` does not name a place where an answer may have JSON."""
    if where not in WHERE:
        raise ValueError(f"where must be one of {', '.join(WHERE)}, not {where!r}")
