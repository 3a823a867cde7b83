"""``python ask.py CLIENT URL [KEY]``: ask a relay as a user of this library does, and print each feature's result.

It runs in a Python of its own that has the libraries, and imports nothing of ours.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

CITY, JSON, REFUSED, FAILED, TEXT = "a wrong field", "a fence", "refuse it", "never right", "two attempts"
URL = sys.argv[2]
KEY = sys.argv[3] if len(sys.argv) > 3 else "none"


class City(BaseModel):
    """What the agent must answer with."""

    city: str
    people: int


def openai_python() -> dict[str, Callable[[], Any]]:
    import openai

    client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)

    def chat(text: str, **more: Any) -> Any:
        return client.chat.completions.create(model="helix", messages=[{"role": "user", "content": text}], **more)

    def parse(text: str) -> Any:
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.parse(model="helix", messages=messages, response_format=City).choices[0].message

    def pieces() -> Iterator[str]:
        for chunk in chat(TEXT, stream=True):
            yield from (choice.delta.content or "" for choice in chunk.choices)

    tool = {"type": "function", "function": {"name": "City", "parameters": City.model_json_schema()}}
    return {
        "answer": lambda: chat(TEXT).choices[0].message.content,
        "stream": lambda: "".join(pieces()),
        "usage": lambda: chat(TEXT).usage.total_tokens,
        "schema": lambda: parse(CITY).parsed,
        "json_object": lambda: json.loads(
            chat(JSON, response_format={"type": "json_object"}).choices[0].message.content
        ),
        "refusal": lambda: parse(REFUSED).refusal,
        "no answer": lambda: parse(FAILED),
        "tool call": lambda: chat(CITY, tools=[tool], tool_choice="required"),
    }


def langchain() -> dict[str, Callable[[], Any]]:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="helix", base_url=URL, api_key=KEY, max_retries=0)
    schema = model.with_structured_output(City, method="json_schema")
    return {
        "answer": lambda: model.invoke(TEXT).content,
        "stream": lambda: "".join(piece.content for piece in model.stream(TEXT)),
        "usage": lambda: model.invoke(TEXT).usage_metadata["total_tokens"],
        "schema": lambda: schema.invoke(CITY),
        "json_object": lambda: model.with_structured_output(City, method="json_mode").invoke(JSON),
        "refusal": lambda: schema.invoke(REFUSED),
        "no answer": lambda: schema.invoke(FAILED),
        "tool call": lambda: model.with_structured_output(City, method="function_calling").invoke(CITY),
    }


def instructor() -> dict[str, Callable[[], Any]]:
    import instructor
    import openai

    plain = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)

    def ask(mode: str, text: str, **more: Any) -> Any:
        client = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="helix", messages=messages, max_retries=1, **more)

    return {
        "answer": lambda: ask("JSON_SCHEMA", TEXT, response_model=None).choices[0].message.content,
        "stream": lambda: list(ask("JSON_SCHEMA", CITY, response_model=instructor.Partial[City], stream=True))[-1],
        "usage": lambda: ask("JSON_SCHEMA", TEXT, response_model=None).usage.total_tokens,
        "schema": lambda: ask("JSON_SCHEMA", CITY, response_model=City),
        "json_object": lambda: ask("JSON", JSON, response_model=City),
        "refusal": lambda: ask("JSON_SCHEMA", REFUSED, response_model=City),
        "no answer": lambda: ask("JSON_SCHEMA", FAILED, response_model=City),
        "tool call": lambda: ask("TOOLS", CITY, response_model=City),
    }


def pydantic_ai() -> dict[str, Callable[[], Any]]:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("helix", provider=OpenAIProvider(base_url=URL, api_key=KEY))

    def ask(text: str, output: Any = str) -> Any:
        return Agent(model, output_type=output).run_sync(text)

    async def streamed() -> str:
        async with Agent(model).run_stream(TEXT) as run:
            return "".join([piece async for piece in run.stream_text(delta=True)])

    return {
        "answer": lambda: ask(TEXT).output,
        "stream": lambda: asyncio.run(streamed()),
        "usage": lambda: ask(TEXT).usage.total_tokens,
        "schema": lambda: ask(CITY, NativeOutput(City)).output,
        "refusal": lambda: ask(REFUSED, NativeOutput(City)).output,
        "no answer": lambda: ask(FAILED, NativeOutput(City)).output,
        "tool call": lambda: ask(CITY, City).output,
    }


def tell(ask: Callable[[], Any]) -> dict[str, str]:
    try:
        found = ask()
    except Exception as error:  # whatever a library raises is what its user sees
        return {"error": type(error).__name__, "said": str(error)}
    return {"error": "", "said": str(found.model_dump() if isinstance(found, BaseModel) else found)}


CLIENTS = {"openai": openai_python, "langchain": langchain, "instructor": instructor, "pydantic-ai": pydantic_ai}
if __name__ == "__main__":
    print(json.dumps({name: tell(ask) for name, ask in CLIENTS[sys.argv[1]]().items()}))
