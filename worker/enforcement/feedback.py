"""Prompts that ask the agent for a better answer (ADR-038, section 5). Their texts are in ``feedback.toml``."""

from __future__ import annotations

from collections.abc import Sequence

from api_client.contract.issue import ValidationIssue
from api_client.contract.word_tables import load_word_table
from worker.enforcement.answer_continuation import quote_last_lines, trim_partial_marks
from worker.enforcement.content_guard import RetryRequest
from worker.enforcement.documents.part_names import (
    FILES,
    STEP_MARKER,
    YAML_HEADER,
    field_part,
    header_key,
    lines_range,
    parse_fence_part,
    section_title,
)
from worker.enforcement.replies.part_tags import CLOSING_TAG, format_opening_tag, make_tag_id
from worker.enforcement.validators.codes import DEFAULT_LOCALE

#: Most issues listed in one prompt; the rest are counted.
MAX_ISSUES = 20
_SAID = load_word_table(__file__)
_SKETCHES = {STEP_MARKER: "<!-- STEP: … -->", YAML_HEADER: "---\n…\n---", field_part(FILES): "files:\n  …"}


def _format_text(name: str, locale: str, **values: object) -> str:
    return str(_SAID[name]["de" if locale.lower().startswith("de") else "en"]).format(**values)


def build_feedback(
    issues: Sequence[ValidationIssue],
    locale: str = DEFAULT_LOCALE,
    *,
    request: RetryRequest | None = None,
    ignored: bool = False,
    nonce: str = "",
) -> str:
    """Return a prompt that lists every error with its fix and asks the agent for a corrected answer.

    Without ``request``, the issues determine the parts to send. ``ignored``: the last reply did not change the answer.
    ``nonce`` identifies the frames (``<part id=…>`` tags) in which the agent must send the parts.
    """
    errors = [issue for issue in issues if issue.is_error]
    lines = [_format_text("wrong", locale), ""]
    for issue in errors[:MAX_ISSUES]:
        where = f" ({_describe_place(issue, locale)})" if issue.file or issue.line else ""
        lines += [f"**{issue.code}**: {issue.message}{where}", f"  → Fix: {issue.fix_hint}", ""]
    if len(errors) > MAX_ISSUES:
        lines += [_format_text("more", locale, more=len(errors) - MAX_ISSUES), ""]
    if request is None:
        mine = [error.part for error in errors if not error.file]
        request = RetryRequest(tuple(dict.fromkeys(part for part in mine if part)), not all(mine))
    nonce = nonce or make_tag_id("\n".join(error.message for error in errors), len(errors))
    framed = not request.whole and any(part != STEP_MARKER for part in request.parts)
    lines += [_format_text(name, locale) for name in ("ignored", "taken")[: 1 + framed]] if ignored else []
    return "\n".join([*lines, _format_text("repeat", locale), *_request_lines(errors, locale, request, nonce)])


def _request_lines(errors: Sequence[ValidationIssue], locale: str, request: RetryRequest, nonce: str) -> list[str]:
    if request.whole or not errors:
        return []
    named = ", ".join(describe_part(part, locale) for part in request.parts)
    files = ", ".join(dict.fromkeys(error.file for error in errors if error.file))
    lines = [_format_text("files", locale, files=files)] if files else []
    if not named:
        return [*lines, _format_text("kept", locale)]
    lines.append(_format_text("only", locale, named=named))
    if request.parts == (STEP_MARKER,):
        return lines
    count = len(request.parts)
    heading = _format_text("heading", locale) if any(map(section_title, request.parts)) else ""
    lines += [_format_text("frame" if count == 1 else "frames", locale, heading=heading), ""]
    for number, part in enumerate(request.parts, 1):
        lines += [format_opening_tag(nonce, number, count), _sketch_part(part), CLOSING_TAG]
    return lines


def _sketch_part(part: str) -> str:
    if fence := parse_fence_part(part):
        return f"```{fence[0]}\n…\n```"
    if part in _SKETCHES:
        return _SKETCHES[part]
    key = header_key(part)
    return f"{key}: …" if key else f"{part}\n\n…" if section_title(part) else "…"


def incomplete_feedback(locale: str = DEFAULT_LOCALE) -> str:
    """Return the prompt that asks the agent again after an answer that was cut off."""
    return _format_text("incomplete", locale)


def continuation_feedback(so_far: str, locale: str = DEFAULT_LOCALE) -> str:
    """Return the prompt that asks the agent to continue a truncated text, quoting the text's last lines."""
    quoted = "\n".join(f"> {line}".rstrip() for line in quote_last_lines(trim_partial_marks(so_far)).split("\n"))
    return _format_text("go_on", locale, quoted=quoted)


def _describe_place(issue: ValidationIssue, locale: str) -> str:
    line = f"{_format_text('line', locale)} {issue.line}" if issue.line else ""
    return ", ".join(piece for piece in (issue.file, line) if piece)


def describe_part(part: str, locale: str) -> str:
    """Describe a part of an answer in words that the agent understands."""
    if fence := parse_fence_part(part):
        return _format_text("part_fence", locale, language=fence[0], number=fence[1])
    if lines := lines_range(part):
        first, last = lines
        return _format_text("part_line" if first == last else "part_lines", locale, first=first, last=last)
    if part == STEP_MARKER:
        return _format_text("part_marker", locale)
    if part == YAML_HEADER:
        return _format_text("part_header", locale)
    if key := header_key(part):
        return _format_text("part_files" if key == FILES else "part_key", locale, key=key)
    return _format_text("part_section", locale, part=part)
