"""Rules in shadow judge live turns, are counted and shown, and change nothing: same load with and without them."""

import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from tests.installation import Installation, asked

ACTIVE = """\
locale: de
rules:
  - step_marker
  - {rule: length, name: short, options: {max_words: 12}}
  - {rule: forbidden, name: polite, reactions: [retry, warn], options: {words: [verdammt]}}
"""
#: One that accepts, one that rejects everything, one that repairs, one that cannot run.
SHADOW = """\
  - {rule: length, name: any, shadow: true, options: {max_words: 1000}}
  - {rule: length, name: none, shadow: true, reactions: [fail], options: {min_words: 999}}
  - {rule: step_marker, name: marker_twice, shadow: true, reactions: [repair]}
  - {rule: command, name: absent, shadow: true, options: {command: [/no/such/program]}}
"""
ENDLESS = "  - {rule: regex, name: endless, shadow: true, reactions: [escalate], options: {must: ['^(a+)+$']}}\n"
MARKER = "\\n\\n<!-- STEP: done -->"
STEPS = [
    f'[{{say: "Kurz.{MARKER}"}}]',
    '[{say: "Ohne Marke."}]',
    f'[{{say: "Das hat {"viel " * 12} zu viele Worte.{MARKER}"}}]',
    f'[{{say: "Verdammt kurz.{MARKER}"}}]',
    '[{say: "Falsch.\\n\\n<!-- STEP: nowhere -->"}]',
    f'[{{say: "{"a" * 40}!{MARKER}"}}]',
    '[{say: "Abgebrochen"}, cut]',
    "[{error: {kind: permanent, message: broken}}]",
]
#: Turns of a load, and what draws their agents' answers.
TURNS, SEED = 20, 16


def script(seed: int) -> str:
    drawn = random.Random(seed)
    lines = []
    for number in range(TURNS):
        attempts = ", ".join(drawn.choice(STEPS) for _ in range(3))
        lines.append(f'- {{when: "turn {number:02}", attempts: [{attempts}]}}')
    return "\n".join(lines)


async def load(client: TurnsClient, side: str) -> list[Turn]:
    ids = [await client.submitter.submit(asked(f"turn {number:02}", f"{side} {number}")) for number in range(TURNS)]
    return [await client.reader.await_result(turn_id, timeout=120) for turn_id in ids]


async def seen(client: TurnsClient, turn: Turn) -> dict[str, Any]:
    """All that a turn's owner can see of what happened, but for its names and times."""
    events = [event async for event in client.reader.follow_turn(turn.turn_id) if event is not None]
    attempts = [attempt.to_dict() for attempt in await client.reader.read_attempts(turn.turn_id)]
    kept = ("text", "answer", "issues", "decision", "feedback", "changes", "mended", "remaining", "completion")
    return {
        "outcome": turn.outcome,
        "response": turn.response,
        "step": (turn.step, turn.step_source),
        "error": turn.error,
        "attempts": [{name: attempt[name] for name in kept} for attempt in attempts],
        "events": [(event.kind, _without_places(event.data)) for event in events],
    }


def _without_places(data: Any) -> Any:
    """An event's data without what differs between two runs of the same turn."""
    if isinstance(data, dict):
        return {key: _without_places(value) for key, value in data.items() if key not in _PLACES}
    return [_without_places(value) for value in data] if isinstance(data, list | tuple) else data


_PLACES = {"turn_id", "worker", "session", "usage", "evidence", "seconds", "silent_ms", "position", "pid"}


@pytest.fixture
def sides(installation: Installation, tmp_path: Path) -> tuple[Settings, Settings]:
    """Settings of callers: with the active rules alone, and with those in shadow too."""
    made = installation.play(script(SEED), validation_seconds=60.0)
    for name, text in (("plain", ACTIVE), ("shadow", ACTIVE + SHADOW)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return replace(made, policy=str(tmp_path / "plain.yaml")), replace(made, policy=str(tmp_path / "shadow.yaml"))


async def test_rules_in_shadow_change_no_byte_of_an_answer_and_no_outcome(
    sides: tuple[Settings, Settings],
    installation: Installation,
) -> None:
    plain, shadow = sides
    installation.worker()
    async with TurnsClient(plain) as before, TurnsClient(shadow) as after:
        without, having = await load(before, "plain"), await load(after, "shadow")
        for one, other in zip(without, having, strict=True):
            assert await seen(before, one) == await seen(after, other), one.request.prompt
        assert len({turn.outcome for turn in having}) > 3, "the load has many ends"
        judged = [
            attempt
            for turn in having
            for attempt in await after.reader.read_attempts(turn.turn_id)
            if attempt.completion["verdict"] == "complete"
        ]
        totals = await after.figures.read_totals()
        assert totals["shadow.judged|none|scripted"] == len(judged)
        assert totals["shadow.rejected|none|scripted"] == len(judged)
        assert totals["shadow.rejected|absent|scripted"] == len(judged)
        assert "shadow.rejected|any|scripted" not in totals
        assert not any("|none|" in name for name in totals if name.startswith(("validator.", "code.")))
        assert {issue.validator for attempt in judged for issue in attempt.shadow} >= {"none", "absent"}
        assert not [
            attempt for turn in without for attempt in await before.reader.read_attempts(turn.turn_id) if attempt.shadow
        ]
        shown = next(turn for turn in having if turn.outcome and turn.outcome.success)
    assert "in shadow" in installation.command("turn", "attempts", shown.turn_id).stdout


async def test_a_worker_that_dies_while_a_rule_in_shadow_judges_costs_the_turn_nothing(
    sides: tuple[Settings, Settings], installation: Installation
) -> None:
    _, shadow = sides
    Path(shadow.policy).write_text(ACTIVE + ENDLESS)
    quick = replace(shadow, policy="", lease_seconds=2.0, reap_seconds=0.2, validation_seconds=5.0)
    first = installation.worker(settings=quick, validation_seconds=600.0)
    async with TurnsClient(shadow) as client:
        number = next(n for n in range(TURNS) if f'"turn {n:02}", attempts: [[{{say: "aaaa' in script(SEED))
        turn_id = await client.submitter.submit(asked(f"turn {number:02}", "killed"))
        async for event in client.reader.follow_turn(turn_id):
            if event and event.kind == "attempt.completed":
                break
        first.kill(signal.SIGKILL)
        installation.worker(settings=quick)
        turn = await client.reader.await_result(turn_id, timeout=120)
        assert turn.outcome
        assert turn.outcome.success
        assert turn.response.startswith("aaaa")
        (attempt,) = await client.reader.read_attempts(turn_id)
        assert [(issue.validator, issue.code) for issue in attempt.shadow] == [("endless", "VALIDATOR_ERROR")]
