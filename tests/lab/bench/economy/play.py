"""Plays a case against an agent: with our rules, and as the seeds' policy would have it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.bench.economy.behaviours import Agent
from tests.lab.bench.economy.corpus import Case
from tests.lab.bench.economy.oracle import lost, never_written, problems, unwrapped
from worker.enforcement import (
    Accept,
    Attempt,
    Fail,
    Policy,
    ResponseEnforcer,
    ResponseValidator,
    Retry,
    build_validators,
    decide_next,
    repair_answer,
    validate_attempt,
)
from worker.enforcement.answer_continuation import append_continuation, find_unfinished_text

#: How often the agent runs at most (ADR-038).
RUNS = 3
#: The active validators.
NAMES = ("step_marker", "adr_structure", "file_existence")
_SEEDS = {
    "de": "WICHTIG: Deine letzte Antwort hatte Validierungsfehler. Bitte wiederhole deine Antwort mit den Korrekturen.",
    "en": "IMPORTANT: Your last answer had validation errors. Please repeat your answer with the corrections.",
}


@dataclass(frozen=True, slots=True)
class Played:
    """How a case ended.

    Attributes:
        success: the turn passed. runs: how often the agent ran. regenerated: characters it sent after its first answer.
        wrong: what the oracle finds wrong with an answer that passed. lost: sentences lost in an answer that passed.
        unwritten: sentences that stood in no text of the turn, and are not in an answer that passed.
    """

    case: Case
    success: bool
    answer: str
    runs: int
    regenerated: int
    wrong: tuple[str, ...] = ()
    lost: int = 0
    unwritten: int = 0
    seeds: int = 0


def lay_out(root: Path) -> None:
    """The project that the answers speak of."""
    (root / "src/search").mkdir(parents=True)
    (root / "src/search/index.py").touch()


def play(case: Case, agent: Agent, root: Path, order: dict[str, Sequence[str]] | None = None) -> Played:
    """Play one turn through the pure functions, as the engine calls them.

    Args:
        case: the broken answer. agent: who repairs it. root: the project's folder.
        order: the policy's, per validator; without it ADR-038's.
    """
    lang = case.good.lang
    policy = Policy(max_attempts=RUNS, locale=lang, order=order or {})
    validators, context = build_validators(NAMES, root=root), {"locale": lang}
    told, history, feedback = [], [], ""
    text, complete, so_far = case.first, case.complete, ""
    while True:
        told.append(text)
        if so_far:
            continued = append_continuation(so_far, text, complete=complete)
            text, complete = continued.text, complete and continued.fits
        history.append(
            validate_attempt(history, text, validators, context, policy=policy, complete=complete, feedback=feedback)
        )
        decision = decide_next(history, policy)
        if not isinstance(decision, Retry):
            break
        feedback, so_far = decision.feedback, find_unfinished_text(history) if decision.goes_on else ""
        text, complete = agent(case, feedback, len(history))
    success, answer = _end(decision, history, validators, context)
    return _judged(case, root, told, success, answer, seeds(case, agent, root))


def _end(
    decision: Any, history: Sequence[Attempt], validators: Sequence[ResponseValidator], context: Any
) -> tuple[bool, str]:
    chosen = history[decision.attempt - 1]
    if isinstance(decision, Accept | Fail):
        return isinstance(decision, Accept), chosen.answer
    repaired = repair_answer(chosen.answer, validators, context)
    return repaired.accepted, repaired.text


def _judged(case: Case, root: Path, told: Sequence[str], success: bool, answer: str, seeds_policy: int) -> Played:
    regenerated = sum(map(len, told[1:]))
    if not success:
        return Played(case, success, answer, len(told), regenerated, seeds=seeds_policy)
    return Played(
        case,
        success,
        answer,
        len(told),
        regenerated,
        tuple(problems(answer, is_adr=case.good.is_adr, root=root)),
        len(lost(told, answer)),
        len(never_written(told, answer, case.good.text())),
        seeds_policy,
    )


def seeds(case: Case, agent: Agent, root: Path) -> int:
    """The characters the agent sends when everything is asked for again each time, as the seeds have it."""
    text, complete, sent = case.first, case.complete, 0
    for number in range(1, RUNS):
        if complete and not problems(unwrapped(text), is_adr=case.good.is_adr, root=root):
            break
        text, complete = agent(case, _SEEDS[case.good.lang], number)
        sent += len(text)
    return sent


class _Session:
    """An agent as ``ResponseEnforcer`` runs it."""

    def __init__(self, case: Case, agent: Agent) -> None:
        self.case, self.agent, self.told = case, agent, list[str]()

    async def run_session(self, **_options: Any) -> Any:
        return self._result(self.case.first, self.case.complete)

    async def continue_session(self, *, prompt: str, **_options: Any) -> Any:
        return self._result(*self.agent(self.case, prompt, len(self.told)))

    def _result(self, text: str, complete: bool) -> Any:
        self.told.append(text)
        return type("Result", (), {"stdout": text, "complete": complete})()


async def play_enforcer(case: Case, agent: Agent, root: Path) -> Played:
    """Play one turn through ``ResponseEnforcer``."""
    session = _Session(case, agent)
    enforcer = ResponseEnforcer(session, RUNS - 1, build_validators(NAMES, root=root), locale=case.good.lang)
    result = await enforcer.run_with_enforcement("economy", case.name)
    return _judged(case, root, session.told, result.success, result.response, seeds(case, agent, root))
