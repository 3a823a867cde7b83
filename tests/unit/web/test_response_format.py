"""Answers of JSON alone: which schemas a request may demand, and which rules then check its answer."""

from typing import Any

import httpx2
import pytest

from api_client.contract.answer_format import AnswerFormat, add_format
from api_client.policies.policy_files import apply_policy_file, parse_policy_file
from tests.unit.web.fake import FakeTurns
from worker.enforcement.rules import JsonSchemaRule

OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}
STEP = OBJECT | {"properties": {"a": {"type": "string"}}, "required": ["a"]}


def nested(levels: int, inner: dict[str, Any]) -> dict[str, Any]:
    for _ in range(levels):
        inner = OBJECT | {"properties": {"a": inner}, "required": ["a"]}
    return inner


def ask(schema: Any, *, strict: bool = False, **more: Any) -> dict[str, Any]:
    demanded = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
    messages = [{"role": "user", "content": "Hallo"}]
    return {"model": "scripted", "messages": messages, "response_format": demanded, **more}


@pytest.mark.parametrize(
    ("schema", "strict", "place", "why"),
    [
        ("x", False, "", "must be an object"),
        ({"type": "strin"}, False, ".type", "is not valid"),
        ({"properties": {"a": {"pattern": "("}}}, False, ".properties.a.pattern", "is not a 'regex'"),
        ({"$ref": "https://example.com/x.json"}, False, ".$ref", "must name a part of this schema"),
        ({"$ref": "#/$defs/no"}, False, ".$ref", "must name a part of this schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}, False, ".$ref", "leads back to itself"),
        ({"$id": "https://example.com/x.json"}, False, ".$id", "is not supported"),
        (nested(28, {}), False, "", "deeper than 48"),
        ({"description": "x" * 70_000}, False, "", "at most 65536"),
        ({"type": "array"}, True, "", "the root must have the type"),
        ({"type": "object"}, True, ".additionalProperties", "must be false"),
        (STEP | {"required": []}, True, ".required", "every property and no other; wrong: a"),
        (STEP | {"required": ["a", "b"]}, True, ".required", "wrong: b"),
        (nested(1, {"allOf": []} | STEP), True, ".properties.a.allOf", "non-empty"),
        (nested(1, {"not": {}}), True, ".properties.a.not", "is not supported with strict"),
        (nested(1, {"type": "string", "minLength": 1}), True, ".properties.a.minLength", "is not supported"),
        (nested(1, {"type": "array", "items": {"if": {}}}), True, ".properties.a.items.if", "is not supported"),
        (nested(1, {"anyOf": [{"oneOf": [{}]}]}), True, ".properties.a.anyOf.0.oneOf", "is not supported"),
        (STEP | {"$defs": {"b": {"type": "object"}}}, True, ".$defs.b.additionalProperties", "must be false"),
        (nested(11, {"type": "string"}), True, ".properties.a" * 10, "at most 10 levels"),
    ],
)
async def test_a_schema_that_cannot_be_demanded_is_refused_by_its_place(
    http: httpx2.AsyncClient, turns: FakeTurns, schema: Any, strict: bool, place: str, why: str
) -> None:
    answer = await http.post("/v1/chat/completions", json=ask(schema, strict=strict))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_value")
    assert why in error["message"]
    if "deeper" not in why:
        assert error["param"] == f"response_format.json_schema.schema{place}"
    assert turns.submitted == []


async def test_a_schema_is_stored_with_the_request_and_rules_about_markdown_do_not_apply(
    http: httpx2.AsyncClient, turns: FakeTurns
) -> None:
    schema = STEP | {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": STEP | {"title": "Ä"}}}
    for body in (ask(schema, strict=True), ask({"minProperties": 1})):
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        request = turns.submitted[-1]
        demanded = AnswerFormat.from_request(type(request).from_json(request.to_json()))
        assert demanded is not None
        assert demanded.schema == body["response_format"]["json_schema"]["schema"]
        assert request.validators == ("file_existence",)
        assert add_format(request, "again")[0] == "again"
        prompt, messages = add_format(request, request.prompt)
        assert messages[-1]["content"] == prompt
        assert prompt.startswith("Hallo\n\nAnswer with one JSON value")
    refused = await http.post("/v1/chat/completions", json=ask(STEP, validators=["step_marker"]))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "validators[0]")
    policy = parse_policy_file("rules: [{rule: step_marker, name: mark}, {rule: length, options: {max_words: 9}}]", "p")
    ruled = apply_policy_file(turns.submitted[-1], policy, owner="", route="chat", named=())
    assert ruled.validators == ("length",)


async def test_open_webuis_tools_are_ignored_and_its_tasks_need_no_turn(
    http: httpx2.AsyncClient, turns: FakeTurns
) -> None:
    page = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-task": ""}
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], "tools": [{"type": "function"}]}
    assert (await http.post("/v1/chat/completions", json=body, headers=page)).status_code == 200
    assert len(turns.submitted) == 1
    task = page | {"x-owui-task": "title_generation"}
    limited = body | {"max_completion_tokens": 1000}
    assert (await http.post("/v1/chat/completions", json=limited, headers=task)).status_code == 200
    assert (await http.post("/v1/chat/completions", json=limited, headers=page)).status_code == 400
    assert len(turns.submitted) == 1


@pytest.mark.parametrize(
    ("answer", "bare"),
    [
        ('```json\n{"a": 1}\n```\n\n<!-- STEP: what -->', '{"a": 1}'),
        ('~~~\n{"a": 1}\n~~~', '{"a": 1}'),
        ('Here:\n```json\n{"a": 1}\n```', ""),
        ('{"a": "```json\\n```"}', ""),
    ],
)
def test_a_fence_around_the_whole_answer_is_taken_off(answer: str, bare: str) -> None:
    rule = JsonSchemaRule(schema={"type": "object"}, where="whole")
    found = rule.apply_fallback(answer, {})
    assert found is not None
    assert found.startswith(bare) if bare else found == answer
    assert bool(rule.validate(found, {})) is answer.startswith("Here")
    assert JsonSchemaRule(schema={"type": "object"}).apply_fallback(answer, {}) is None


@pytest.mark.parametrize("answer", ['"a text"', "[1]", "null", '{"a": 1}'])
def test_an_empty_schema_accepts_any_json_and_nothing_else(answer: str) -> None:
    [rule] = AnswerFormat({}).add_rule(None).rules
    checked = JsonSchemaRule(**rule.options)
    assert checked.validate(answer, {}) == []
    assert checked.validate(f"Here it is: {answer}", {})
