"""Structured output: OpenAI's client asks for JSON of a schema, and a real worker's agent must write it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from api_client.contract.turn import Outcome
from tests.installation import Installation

SCRIPT = """
- when: a fence
  attempts:
    - - say: "```json\\n{\\"city\\": \\"Bonn\\", \\"people\\": 3}\\n```\\n\\n<!-- STEP: what -->"
- when: prose first
  attempts:
    - - say: "Bonn has three people. It lies at the Rhine, and it was a capital once."
    - - say: "{\\"city\\": \\"Bonn\\", \\"people\\": 3}"
- when: a wrong field
  attempts:
    - - say: "{\\"city\\": \\"Bonn\\", \\"people\\": \\"three\\"}"
    - - say: "{\\"city\\": \\"Bonn\\", \\"people\\": 3}"
- when: never right
  attempts:
    - - say: "{\\"city\\": 1}"
- when: refuse it
  attempts:
    - - refuse: "I cannot help with that."
- when: "matches this JSON Schema"
  attempts:
    - - say: "{\\"saw\\": \\"the schema\\"}"
"""


class City(BaseModel):
    """What the agent must answer with."""

    city: str
    people: int


ANSWER = City(city="Bonn", people=3)


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture
def client(installation: Installation, tmp_path: Path) -> Iterator[openai.OpenAI]:
    """OpenAI's client before a relay and a worker with the default validators."""
    script = tmp_path / "script.yaml"
    script.write_text(SCRIPT)
    installation.change(models={"helix": f"scripted:{script}"}, locale="en")
    installation.worker()
    with openai.OpenAI(base_url=f"{installation.relay().url}/v1", api_key="none", max_retries=0) as made:
        yield made


def parse(client: openai.OpenAI, text: str) -> Any:
    return client.chat.completions.parse(model="helix", messages=user(text), response_format=City).choices[0].message


def test_openais_client_parses_answers_that_were_enforced(client: openai.OpenAI) -> None:
    for text in ("a fence", "prose first", "a wrong field"):
        message = parse(client, text)
        assert message.parsed == ANSWER
        assert json.loads(message.content) == ANSWER.model_dump()
        response = client.responses.parse(model="helix", input=text, text_format=City)
        assert response.output_parsed == ANSWER
        assert json.loads(response.output_text) == ANSWER.model_dump()
    with pytest.raises(openai.UnprocessableEntityError, match="people") as failed:
        parse(client, "never right")
    assert failed.value.code == "failed"
    plain = client.chat.completions.create(
        model="helix", messages=user("hello"), response_format={"type": "json_object"}
    )
    assert json.loads(plain.choices[0].message.content or "") == {"saw": "the schema"}


def test_a_stream_holds_json_alone_and_a_refusal_is_the_clients(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="helix", messages=user("a fence"), response_format=City) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        assert stream.get_final_completion().choices[0].message.parsed == ANSWER
    assert json.loads("".join(pieces)) == ANSWER.model_dump()
    with client.responses.stream(model="helix", input="a fence", text_format=City) as events:
        assert events.get_final_response().output_parsed == ANSWER
    refused = parse(client, "refuse it")
    assert (refused.parsed, refused.content) == (None, None)
    assert "I cannot help with that." in refused.refusal
    with client.chat.completions.stream(model="helix", messages=user("refuse it"), response_format=City) as stream:
        assert stream.get_final_completion().choices[0].message.refusal == refused.refusal
    with client.responses.stream(model="helix", input="refuse it", text_format=City) as events:
        last = events.get_final_response()
    (part,) = last.output[0].content  # type: ignore[union-attr]
    assert (last.status, part.type, getattr(part, "refusal", "")) == ("completed", "refusal", refused.refusal)
    assert client.responses.retrieve(last.id).output[0].content[0].type == "refusal"  # type: ignore[union-attr]


async def test_the_schema_is_part_of_the_stored_request_and_of_its_replay(
    client: openai.OpenAI, installation: Installation
) -> None:
    key = {"extra_headers": {"Idempotency-Key": "one"}}
    asked = {"model": "helix", "messages": user("a wrong field")}
    first = client.chat.completions.with_raw_response.parse(**asked, response_format=City, **key)  # type: ignore[arg-type]
    again = client.chat.completions.with_raw_response.parse(**asked, response_format=City, **key)  # type: ignore[arg-type]
    assert first.headers["x-turn-id"] == again.headers["x-turn-id"]
    with pytest.raises(openai.ConflictError) as other:
        client.chat.completions.create(**asked, response_format={"type": "json_object"}, **key)  # type: ignore[call-overload]
    assert other.value.code == "idempotency_key_reused"
    turn = await installation.result(first.headers["x-turn-id"])
    assert turn.request.attached["response_format"]["given"]["name"] == "City"
    assert turn.request.validators == ("file_existence",)
    said = installation.command("turn", "replay", turn.turn_id, "--json")
    replayed = await installation.result(json.loads(said.stdout)["turn_id"])
    assert replayed.outcome is Outcome.PASSED_AFTER_RETRY
    assert City.model_validate_json(replayed.response) == ANSWER
