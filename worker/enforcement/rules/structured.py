"""Rules on JSON in an answer: its text, a JSON Schema, a pydantic model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from api_client.contract.issues import ValidationIssue
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.part import fence_part
from worker.enforcement.documents.splice import strip_marker
from worker.enforcement.rules.rule import Rule, option, rule_issue
from worker.enforcement.validators.codes import words

# Finds the JSON of an answer: a fenced block, or the whole answer.

WHERE = ("fence", "whole", "any")
#: A longer text is not read as JSON, in characters.
MAX_CHARS = 1_000_000


class JsonBlock(NamedTuple):
    """A JSON value, the line of the answer where it begins, from 1, and the name of its block (or empty)."""

    value: Any
    line: int
    part: str


def read_json(response: str, where: str, locale: str) -> JsonBlock | ValidationIssue:
    """The answer's JSON, or the issue that says why it has no such text.

    Args:
        response: the answer.
        where: ``fence`` (the last closed ```json fence), ``whole`` (the answer without its marker), or ``any``: the
            fence where there is one, else the whole.
        locale: language of the issue.
    """
    out, part = parse(response).out, ""
    fences = [fence for fence in out.fences if fence.closed and fence.info.split(" ")[0].lower() == "json"]
    if where != "whole" and fences:
        text, line = "\n".join(out.lines[fences[-1].start + 1 : fences[-1].end - 1]), fences[-1].start + 2
        part = fence_part("json", len(fences))
    elif where == "fence":
        how = words(locale, "Schreibe das JSON in einen ```json-Block", "Write the JSON in a ```json block")
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
        return replace(issue, shortens=not part)  # the answer is to be the value, and nothing else


def mismatch(found: JsonBlock, locale: str, place: str, problem: str) -> ValidationIssue:
    """JSON_MISMATCH at a place of the JSON; where that is the whole answer, the next one may be as short as it is."""
    issue = rule_issue("JSON_MISMATCH", locale, line=found.line, part=found.part, place=place, problem=problem)
    return replace(issue, shortens=not found.part)


def check_where(where: str) -> None:
    """Refuse a place that does not exist.

    Raises:
        ValueError: ``where`` is not one of ``WHERE``.
    """
    if where not in WHERE:
        raise ValueError(f"where must be one of {', '.join(WHERE)}, not {where!r}")


# The answer's JSON fits a JSON Schema.

#: Problems that are reported of one answer; more of them help nobody.
MOST = 10


@dataclass(frozen=True, kw_only=True)
class JsonSchema(Rule):
    """Validates by the ``jsonschema`` package. A reference to another document is not followed: it is an error."""

    kind: ClassVar[str] = "json_schema"

    schema: Mapping[str, Any] = field(default_factory=dict, metadata={"what": "The JSON Schema (draft 2020-12)."})
    where: str = option("any", "Where the JSON is: fence, whole or any.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_where(self.where)
        if not self.schema:
            raise ValueError("schema is empty")
        import jsonschema

        try:
            jsonschema.Draft202012Validator.check_schema(self.schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"schema: {error.json_path}: {error.message}") from None

    @cached_property
    def _validator(self) -> Any:
        import jsonschema
        from referencing import Registry

        return jsonschema.Draft202012Validator(self.schema, registry=Registry())

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """NO_JSON, CODE_DOES_NOT_PARSE, or JSON_MISMATCH for each place that does not fit."""
        locale = self.words_in(context)
        found = read_json(response, self.where, locale)
        if isinstance(found, ValidationIssue):
            return [found]
        problems = sorted(self._validator.iter_errors(found.value), key=lambda problem: list(map(str, problem.path)))
        return [mismatch(found, locale, problem.json_path, problem.message) for problem in problems[:MOST]]


# The answer's JSON is accepted by a pydantic model.


@dataclass(frozen=True, kw_only=True)
class PydanticModel(Rule):
    """Imports the model when it first judges. The package must be installed where workers run."""

    kind: ClassVar[str] = "pydantic_model"

    model: str = option("", "The model's import path, such as mypackage.plans:Plan.")
    where: str = option("any", "Where the JSON is: fence, whole or any.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_where(self.where)
        module, colon, name = self.model.partition(":")
        if not (colon and module and name.isidentifier()):
            raise ValueError(f"model must be an import path such as mypackage.plans:Plan, not {self.model!r}")

    @cached_property
    def _model(self) -> Any:
        module, _, name = self.model.partition(":")
        model = getattr(import_module(module), name)
        if not hasattr(model, "model_validate"):
            raise TypeError(f"{self.model} is not a pydantic model")
        return model

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """NO_JSON, CODE_DOES_NOT_PARSE, or JSON_MISMATCH for each field that the model refuses.

        Raises:
            ImportError, AttributeError, TypeError: the model cannot be loaded (``examine``: VALIDATOR_ERROR).
        """
        from pydantic import ValidationError

        locale, model = self.words_in(context), self._model
        found = read_json(response, self.where, locale)
        if isinstance(found, ValidationIssue):
            return [found]
        try:
            model.model_validate(found.value)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[:MOST]
            return [mismatch(found, locale, _place(one["loc"]), one["msg"]) for one in wrong]
        return []


def _place(path: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
