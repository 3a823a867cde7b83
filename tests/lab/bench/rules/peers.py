"""The peers' share of ``python -m tests.lab.bench.rules``: run by their own interpreter, in their own environment.

Reads answers as JSON from standard input, and writes for each peer the CPU of judging one, in milliseconds. Each has
ten rules, written as its public interface wants validators. Imports nothing of helix-turns.
"""

import asyncio
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

os.environ |= {"OTEL_SDK_DISABLED": "true", "GUARDRAILS_RUN_SYNC": "true", "GUARDRAILS_PROCESS_COUNT": "1"}

_HEADING = re.compile(r"^#+ ", re.MULTILINE)
_LINK = re.compile(r"https://(\S+?)/")
_MARKER = re.compile(r"<!-- STEP: \w+ -->")


def checks() -> list[Callable[[str], bool]]:
    """Ten simple checks, of about what the ten rules look at."""
    return [
        lambda text: bool(_MARKER.search(text)),
        lambda text: "adr_id" not in text,
        lambda text: "files:" not in text,
        lambda text: 10 <= len(text) <= 20_000,
        lambda text: sum(word in {"the", "is", "and", "it"} for word in text.split()) > 5,
        lambda text: not re.search(r"lorem ipsum|foobar", text, re.IGNORECASE),
        lambda text: all(host == "example.org" for host in _LINK.findall(text)),
        lambda text: text.count("```") % 2 == 0,
        lambda text: len(_HEADING.findall(text)) >= 3,
        lambda text: not re.search(r"\b(Alice|Bob)\b", text),
    ]


def guardrails(texts: list[str]) -> Callable[[], None]:
    """One Guard with ten validators."""
    from guardrails import Guard, OnFailAction
    from guardrails.validators import FailResult, PassResult, Validator, register_validator

    guard = Guard()
    guard.configure(allow_metrics_collection=False)
    made = []
    for number, check in enumerate(checks()):

        def validate(_self: Any, value: str, _metadata: Any, check: Callable[[str], bool] = check) -> Any:
            return PassResult() if check(value) else FailResult(error_message="no")

        kind = type(f"Rule{number}", (Validator,), {"_validate": validate, "validate": validate})
        made.append(register_validator(name=f"rule{number}", data_type="string")(kind)(on_fail=OnFailAction.NOOP))
    guard = guard.use(*made)
    assert not guard.validate("Alice").validation_passed

    def judge() -> None:
        for text in texts:
            assert guard.validate(text).validation_passed

    return judge


def pydantic_ai(texts: list[str]) -> Callable[[], None]:
    """One Agent with ten output validators, and a function in the place of its model."""
    from pydantic_ai import Agent, ModelRetry
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    answers: Iterator[str] = iter(())

    def reply(_messages: Sequence[Any], _info: Any) -> Any:
        return ModelResponse(parts=[TextPart(next(answers))])

    agent = Agent(FunctionModel(reply), output_type=str)

    def rule(check: Callable[[str], bool]) -> Callable[[str], Awaitable[str]]:
        async def judge(text: str) -> str:
            if not check(text):
                raise ModelRetry("no")
            return text

        return judge

    for check in checks():
        agent.output_validator(rule(check))

    async def run_all() -> None:
        nonlocal answers
        answers = iter(texts)
        for _ in texts:
            await agent.run("?")

    return lambda: asyncio.run(run_all())


def main() -> None:
    texts = json.load(sys.stdin)
    found = {}
    for name, make in (("Guardrails", guardrails), ("pydantic-ai", pydantic_ai)):
        judge, spent = make(texts), []
        judge()
        for _ in range(5):
            start = time.process_time()
            judge()
            spent.append((time.process_time() - start) / len(texts) * 1000)
        found[name] = statistics.median(spent)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
