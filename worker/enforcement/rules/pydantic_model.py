"""Rule: a pydantic model accepts the answer's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.rules.json_schema import MOST
from worker.enforcement.rules.json_text import check_where, json_mismatch, read_json
from worker.enforcement.rules.rule import Rule, option


@dataclass(frozen=True, kw_only=True)
class PydanticModelRule(Rule):
    """Requires that a pydantic model accepts the JSON in an answer. The model is imported on first use."""

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
        """Return an issue if the answer's JSON is missing or invalid, and for each field that the model rejects.

        The codes are NO_JSON, CODE_DOES_NOT_PARSE and JSON_MISMATCH. Raises ``ImportError``, ``AttributeError`` or
        ``TypeError`` if the model cannot be loaded.
        """
        from pydantic import ValidationError

        locale, model = self.find_locale(context), self._model
        found = read_json(response, self.where, locale)
        if isinstance(found, ValidationIssue):
            return [found]
        try:
            model.model_validate(found.value)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[:MOST]
            return [json_mismatch(found, locale, _format_path(one["loc"]), one["msg"]) for one in wrong]
        return []


def _format_path(path: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
