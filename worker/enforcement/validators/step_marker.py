"""Validator of the step marker at the end of an answer (ADR-038 section 2, as repaired by ADR-036)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from api_client.contract.step_marker import STEPS, UNKNOWN
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.part_names import STEP_MARKER
from worker.enforcement.documents.splice import put_marker
from worker.enforcement.documents.step import infer_step, strip_marker, trailing_marker
from worker.enforcement.validators.codes import DEFAULT_LOCALE, choose_text, make_issue
from worker.enforcement.validators.validator import ResponseValidator

#: Context key for the step that the fallback wrote: only the fallback may write ``unknown``.
FALLBACK_STEP = "fallback_step"


class StepMarkerValidator(ResponseValidator):
    """Checks that an answer ends with a step marker, a comment that names the step of the conversation."""

    name = "step_marker"
    bounded: ClassVar[bool] = True
    VALID_STEPS = frozenset(STEPS)

    def __init__(self, locale: str = DEFAULT_LOCALE) -> None:
        self.locale = locale

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue if the answer does not end with a single valid step marker.

        The codes are MISSING_STEP_MARKER, INVALID_STEP, SEVERAL_STEP_MARKERS and TEXT_AFTER_MARKER.
        """
        locale = str(context.get("locale", self.locale))
        found = parse_document(response).markers
        if not found:
            return [make_issue("MISSING_STEP_MARKER", locale, part=STEP_MARKER)]
        last, issues = found[-1], []
        line = response.count("\n", 0, last.start) + 1
        if last.step is None and not (last.value.lower() == UNKNOWN and context.get(FALLBACK_STEP) == UNKNOWN):
            issues.append(make_issue("INVALID_STEP", locale, line=line, part=STEP_MARKER, step=last.value))
        if len(found) > 1:
            issues.append(make_issue("SEVERAL_STEP_MARKERS", locale, line=line, count=len(found)))
        if response[last.end :].strip():
            issues.append(make_issue("TEXT_AFTER_MARKER", locale, line=line))
        return issues

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Return the answer with a fitting step marker (``<!-- STEP: … -->``), or None if it already has a valid one.

        Without any sign of a step, the marker is ``unknown``.
        """
        last = trailing_marker(response)
        if last is not None and last.step:
            return None
        return put_marker(response, infer_step(strip_marker(response)))

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        last = trailing_marker(after)
        if last is None:
            return ()
        locale = str(context.get("locale", self.locale))
        if last.value == UNKNOWN:
            german, english = (
                "STEP-Marker ergänzt: {} (Schritt nicht erkennbar)",
                "STEP marker added: {} (no step to see)",
            )
            return (choose_text(locale, german, english).format(UNKNOWN),)
        german, english = "STEP-Marker ergänzt: {} (aus der Antwort erschlossen)", "STEP marker added: {} (inferred)"
        return (choose_text(locale, german, english).format(last.value),)
