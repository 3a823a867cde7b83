"""Rule: the answer's JSON matches a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.rules.json_text import check_where, json_mismatch, read_json, unfence_json
from worker.enforcement.rules.rule import Rule, option

MOST = 10


@dataclass(frozen=True, kw_only=True)
class JsonSchemaRule(Rule):
    """Requires that the JSON in an answer matches a JSON Schema. References to other documents are errors."""

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
        """Return an issue if the answer's JSON is missing or invalid, and for each mismatch with the schema.

        The codes are NO_JSON, CODE_DOES_NOT_PARSE and JSON_MISMATCH.
        """
        locale = self.find_locale(context)
        found = read_json(response, self.where, locale)
        if isinstance(found, ValidationIssue):
            return [found]
        problems = sorted(self._validator.iter_errors(found.value), key=lambda problem: list(map(str, problem.path)))
        return [json_mismatch(found, locale, problem.json_path, problem.message) for problem in problems[:MOST]]

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Return the JSON without the code fence around it if the whole answer must be JSON, otherwise None."""
        return unfence_json(response) if self.where == "whole" else None
