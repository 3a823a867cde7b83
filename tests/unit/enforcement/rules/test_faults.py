"""Each rule hangs, raises and eats memory: it is blamed, and the others are heard.

`turns validate` meets each rule with each fault; the enforcer, which judges in the same child, each rule with one,
and under ``make faults`` with each too.

Where an answer, an option or a program brings a rule itself into trouble, it does. Where nothing can, because its work
is bounded (test_rules.py, ../test_foreign_input.py), its own code is broken, and it is called a rule of no known bound.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from api_client.contract.settings import Settings
from tests.fault.matrix import WHOLE
from worker.cli.validate import validate
from worker.enforcement import ResponseEnforcer
from worker.enforcement.policies import PolicySubject, choose_rules, read_policy
from worker.enforcement.rules import RULES
from worker.enforcement.validators import services
from worker.external.local_services import provide_services

FAULTS = ("hangs", "raises", "eats memory")
MEMORY_MB = 64
#: What a rule is told to do in place of its work.
INJECTED = {
    "hangs": lambda: re.match(r"(a+)+$", "a" * 64 + "b"),
    "raises": lambda: {}["nothing"],
    "eats memory": lambda: [bytearray(b"x" * 10**6) for _ in range(10**6)],
}
#: What the issue says of it.
SAYS = {"hangs": "took longer than", "raises": "KeyError", "eats memory": "MemoryError"}


@dataclass(frozen=True)
class Real:
    """A policy's options and an answer that bring a rule into trouble, and what the issue says of it.

    A program that gets no more memory ends by itself: its exit code rejects the answer.
    """

    options: str
    answer: str
    says: str
    code: str = "VALIDATOR_ERROR"


PLAN = '```json\n{"title": "%s", "steps": []}\n```\n'
MODELS = "tests.unit.enforcement.rules.models"
REAL: Mapping[tuple[str, str], Real] = {
    ("regex", "hangs"): Real("{must: ['^(a+)+$']}", "a" * 64 + "!", SAYS["hangs"]),
    ("json_schema", "hangs"): Real(
        "{schema: {properties: {title: {pattern: '^(a+)+$'}}}}", PLAN % ("a" * 64 + "!"), SAYS["hangs"]
    ),
    ("json_schema", "raises"): Real("{schema: {$ref: 'https://example.org/schema.json'}}", PLAN % "x", "Unresolvable"),
    ("pydantic_model", "hangs"): Real(f"{{model: '{MODELS}:Hangs'}}", PLAN % "x", SAYS["hangs"]),
    ("pydantic_model", "raises"): Real(f"{{model: '{MODELS}:Raises'}}", PLAN % "x", "ZeroDivisionError"),
    ("pydantic_model", "eats memory"): Real(f"{{model: '{MODELS}:Eats'}}", PLAN % "x", SAYS["eats memory"]),
    ("command", "hangs"): Real("{command: [sleep, '600'], seconds: 1}", "x", "sleep"),
    ("command", "raises"): Real("{command: [no-such-program]}", "x", "no-such-program"),
    ("command", "eats memory"): Real(
        "{command: [python3, -c, 'bytearray(9**10)'], memory_mb: 256}", "x", "MemoryError", "COMMAND_REJECTED"
    ),
    ("llm_judge", "hangs"): Real("{model: judge, criteria: hang, seconds: 1}", "x", "gave no verdict"),
    ("llm_judge", "raises"): Real("{model: nobody, criteria: any}", "x", "not in HELIX_MODELS"),
    ("llm_judge", "eats memory"): Real("{model: judge, criteria: flood}", "x", "more than 100000"),
}
#: Options that a rule needs, and an answer that makes it work.
NEEDED = {
    "forbidden": "{words: [x]}",
    "json_schema": "{schema: {type: object}}",
    "length": "{max_chars: 9999}",
    "regex": "{must: [x]}",
    "structure": "{preset: adr-nygard}",
}
JUDGE = """
- when: flood
  attempts: [[say: "%s"]]
- attempts: [[wait: 600]]
""" % ("word " * 30_000)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs run without a sandbox, and the judge is a scripted agent."""
    (tmp_path / "judge.yaml").write_text(JUDGE)
    settings = Settings(root=tmp_path, sandbox="off", models={"judge": f"scripted:{tmp_path / 'judge.yaml'}"})
    monkeypatch.setattr("worker.cli.validate.provide_services", lambda: provide_services(settings))
    provide_services(settings)
    yield
    services.provide_services(services.NOTHING)


@pytest.fixture
def trouble(kind: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Real:
    """Brings the rule into trouble; its answer and words. ``policy.yaml`` has the rule, and one that is heard too."""
    made = REAL.get((kind, fault)) or Real(NEEDED.get(kind, "{}"), PLAN % "x", SAYS[fault])
    if (kind, fault) not in REAL:
        monkeypatch.setattr(RULES[kind], "validate", lambda *_: INJECTED[fault]())
        if fault != "raises":
            monkeypatch.setattr(RULES[kind], "bounded", False)
    (tmp_path / "policy.yaml").write_text(
        f"max_attempts: 1\nlocale: en\nrules:\n  - {{rule: {kind}, options: {made.options}}}\n  - step_marker\n"
    )
    monkeypatch.setattr("worker.enforcement.validator_process.MEMORY_MB", MEMORY_MB)
    monkeypatch.setattr("worker.enforcement.validator_process.SECONDS", seconds(fault))
    return made


def seconds(fault: str) -> float:
    """A rule that hangs hangs for as long as it may; all others have time enough on any machine."""
    return 1.0 if fault == "hangs" else 120.0


each_rule = pytest.mark.parametrize("kind", RULES)
each_fault = pytest.mark.parametrize("fault", FAULTS)


@each_rule
@each_fault
def test_in_turns_validate_the_rule_is_blamed_and_the_others_are_heard(
    kind: str, fault: str, trouble: Real, tmp_path: Path
) -> None:
    (tmp_path / "answer.md").write_text(trouble.answer)
    found = CliRunner().invoke(
        validate,
        [str(tmp_path / "answer.md"), "--policy", str(tmp_path / "policy.yaml"), "--root", str(tmp_path)],
        env={"COLUMNS": "400"},
    )
    assert found.exit_code == 1, found.output
    blamed = f"Validator {kind}" if trouble.code == "VALIDATOR_ERROR" else "python3 rejects the answer"
    assert f"{trouble.code}: {blamed}" in found.output
    assert trouble.says in found.output
    assert "MISSING_STEP_MARKER" in found.output


class Runner:
    def __init__(self, answer: str) -> None:
        self._answer = answer

    async def run_session(self, *, session_id: str, prompt: str, **_options: Any) -> Any:
        return SimpleNamespace(stdout=self._answer)

    continue_session = run_session


@pytest.mark.parametrize(
    ("kind", "fault"), itertools.product(RULES, FAULTS) if WHOLE else zip(RULES, itertools.cycle(FAULTS), strict=False)
)
async def test_in_response_enforcer_the_rule_is_blamed_and_the_others_are_heard(
    kind: str, fault: str, trouble: Real, tmp_path: Path
) -> None:
    chosen = choose_rules(
        read_policy((tmp_path / "policy.yaml").read_text()), PolicySubject(), root=tmp_path, locale="en"
    )
    enforcer = ResponseEnforcer(
        Runner(trouble.answer),
        validators=chosen.validators,
        policy=chosen.policy,
        locale="en",
        validation_seconds=seconds(fault),
    )
    result = await enforcer.run_with_enforcement("s", "p")
    assert [(issue.validator, issue.code) for issue in result.issues] == [(kind, trouble.code)]
    assert trouble.says in result.issues[0].message
    assert [issue.code for issue in result.fixed_issues] == ["MISSING_STEP_MARKER"]
