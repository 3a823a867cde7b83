"""Repairs through real agents: the enforcer asks, our runner runs the program, and a model's stub answers it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.agents.running import RUNNERS, Agent, program_of
from tests.agents.stub import Services, StubReply, calls, said_in, says
from tests.lab.bench.economy.agents.documents import Document, find_frames, list_documents
from tests.lab.bench.economy.agents.models import Question, name_form, reply
from tests.lab.bench.economy.play import RUNS, lay_out
from tests.runs import Ran
from worker.enforcement import ResponseEnforcer
from worker.runners.sandbox.guard_client import AgentProcesses

Report = Callable[[int], None]
KINDS = ("obedient", "chatty", "forgetful")
_PROMPT = {"de": "Schreibe das Dokument.", "en": "Write the document."}
_FEEDBACK = ("Rückmeldung der automatischen Prüfung", "Feedback of the automatic check")
#: A tool that each agent may use without asking anybody.
_LOOKS = {
    "claude": calls("Glob", pattern="*.md"),
    "codex": calls("exec_command", cmd="ls"),
    "opencode": calls("glob", pattern="*.md"),
    "qwen": calls("glob", pattern="*.md"),
}
#: How Qwen asks for what the user may say next, behind each answer.
_ASIDE = "[SUGGESTION MODE"
_TOKEN = re.compile(r"\s*(?:\w{1,8}|[^\w\s]+)|\s+")
#: Tokens in one piece of a stream, in turn.
_PIECES = (1, 3, 12, 1, 40)


@dataclass(frozen=True, slots=True)
class Repair:
    """How a document was repaired.

    Attributes:
        runs: how often the agent ran, with the first answer. sent: characters of the replies behind it.
        unheard: requests that the agent did not pass on as they were, with the answer before.
        changed: replies that came back otherwise.
    """

    document: Document
    kind: str
    form: str
    accepted: bool
    answer: str
    runs: int
    sent: int
    told: tuple[str, ...]
    unheard: int = 0
    changed: int = 0
    seen: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Return True if the answer is the document to the byte, but for blank lines at its end."""
        return self.answer.rstrip() == self.document.good.rstrip()

    @property
    def wrong(self) -> bool:
        """Return True if it passed with other words than those of the document."""
        return self.accepted and self.answer.split() != self.document.good.split()

    @property
    def lost(self) -> int:
        """Return the characters of the document that were sent at some time and are not in the answer."""
        told, kept = "\n".join(self.told).split("\n"), set(self.answer.split("\n"))
        return sum(len(line) for line in {*told} & {*self.document.good.split("\n")} - kept)


class ModelService(Services):
    """The model behind an agent: it writes a document that lacks a part, and is then asked for this part."""

    def __init__(self, agent: str, document: Document) -> None:
        super().__init__([])
        self.agent, self.document = agent, document
        self.kind, self.form, self.number = "obedient", 0, 0
        self.heard, self.sent, self.knows = "", "", False

    def take(self, request: dict[str, Any]) -> StubReply:
        """Return the reply to a model call; calls of the agent's own want a title, or what the user may ask next."""
        if not request.get("tools") or _ASIDE in json.dumps(said_in(request)[-1:]):
            return says("A title")
        self.heard = _last_request(request)
        if not self.heard:
            self.sent = self.document.first
            return says(*cut_text(self.sent))
        if not find_frames(self.heard) and "STEP" not in self.heard:
            return says("Nothing is asked for.")  # a call of the agent's own, with a piece of our prompt
        before = (text for each in said_in(request) for text in _texts_of(each))
        self.knows = any(self.document.first.strip() in text for text in before)
        said = reply(self.kind, self.form, Question(self.document, self.heard), self.number)
        if said.first and not _ends_with_result(request):
            look = _LOOKS[self.agent]
            return StubReply(pieces=tuple(cut_text(said.first)), tool=look.tool)
        self.sent = f"{said.first}\n\n{said.text}" if said.first else said.text
        return says(*cut_text(said.text))


def _last_request(request: dict[str, Any]) -> str:
    """Return the last feedback in a model call, as the agent passed it on; empty if there is none."""
    texts = [text for each in said_in(request) if each.get("role") == "user" for text in _texts_of(each)]
    for text in reversed(texts):
        if (at := max(map(text.rfind, _FEEDBACK))) >= 0:
            return text[at:]
    return ""


def _texts_of(message: Any) -> Iterator[str]:
    content = message.get("content") or message.get("parts") or ""
    for block in [content] if isinstance(content, str) else content:
        yield block if isinstance(block, str) else str(block.get("text") or "")


def _ends_with_result(request: dict[str, Any]) -> bool:
    last = json.dumps(said_in(request)[-2:])
    return any(word in last for word in ('"role": "tool"', '"function_call_output"', '"tool_result"'))


def cut_text(text: str) -> list[str]:
    """Return a text in pieces of one token and of more, as a stream has them."""
    tokens, sizes, pieces = _TOKEN.findall(text), cycle(_PIECES), []
    while tokens:
        size = next(sizes)
        pieces.append("".join(tokens[:size]))
        del tokens[:size]
    return pieces


@dataclass
class _Session:
    """An agent as ``ResponseEnforcer`` runs it. Its first answer is kept for all repairs of a document."""

    agent: Agent
    service: ModelService
    first: Ran | None = None
    told: list[str] = field(default_factory=list)
    unheard: int = 0
    changed: int = 0
    seen: list[str] = field(default_factory=list)

    async def run_session(self, *, prompt: str, **_options: Any) -> Any:
        if self.first is None:
            self.first = await asyncio.to_thread(self._run, prompt)
        self.base = self.first
        return self._result(self.first)

    async def continue_session(self, *, prompt: str, **_options: Any) -> Any:
        self.service.number += 1
        self.base = await asyncio.to_thread(self._run, prompt, agent_session=self.base.result.agent_session)
        self.unheard += prompt not in self.service.heard or not self.service.knows
        return self._result(self.base)

    def _run(self, prompt: str, **more: Any) -> Ran:
        lang = self.service.document.lang
        messages = ({"role": "user", "content": _PROMPT[lang]},)
        self.service.heard = self.service.sent = ""
        more |= {"rejected": self.service.document.first} if more else {}
        ran = self.agent.run(prompt, messages=messages, locale=lang, attempt=self.service.number + 1, **more)
        if ran.result.text.strip() != self.service.sent.strip():
            self.changed += 1
            self.seen.append(ran.result.text)
        self.told.append(self.service.sent)
        return ran

    def begin_repair(self) -> None:
        """Forget the last repair, and keep the first answer."""
        self.told, self.seen, self.unheard, self.changed, self.service.number = self.told[:1], [], 0, 0, 0

    def describe_repair(
        self, document: Document, kind: str, form: str, accepted: bool, answer: str, runs: int
    ) -> Repair:
        sent = sum(map(len, self.told[1:]))
        more = (tuple(self.told), self.unheard, self.changed, tuple(self.seen))
        return Repair(document, kind, form, accepted, answer, runs, sent, *more)

    def _result(self, ran: Ran) -> Any:
        return type("Result", (), {"stdout": ran.result.text, "complete": ran.verdict == "complete"})()


def repair_document(name: str, document: Document, forms: Iterable[tuple[str, int]], agent: Agent) -> list[Repair]:
    """Let an agent's first answer be repaired, once by each form of a model."""
    found = []
    with ModelService(name, document) as service:
        agent.stub = service
        agent.settings |= _settings_of(name, service)
        session = _Session(agent, service)
        for kind, form in forms:
            service.kind, service.form = kind, form
            session.begin_repair()
            enforcer = ResponseEnforcer(session, RUNS - 1, document.rules, locale=document.lang)
            result = asyncio.run(enforcer.run_with_enforcement("s", _PROMPT[document.lang]))
            answer, runs = result.response, result.attempts
            found.append(session.describe_repair(document, kind, name_form(kind, form), result.success, answer, runs))
    return found


def _settings_of(name: str, service: ModelService) -> dict[str, Any]:
    if name == "claude":
        given = {"claude_path": str(program_of(name)), "claude_api_url": service.url, "claude_api_key": "sk-stub"}
        return given | {"claude_spares": 0, "claude_warm_seconds": 0.0}
    return {"agent_path": str(program_of(name))}


def plan_repairs(count: int) -> list[list[tuple[str, int]]]:
    """Return, for each document, the kinds and forms of models that repair it: ``count`` in all."""
    plan = [(kind, at // len(KINDS)) for at, kind in zip(range(count), cycle(KINDS), strict=False)]
    return [plan[at : at + len(KINDS)] for at in range(0, count, len(KINDS))]


def measure_repairs(
    name: str, count: int, root: Path, folders: Sequence[Path] = (), jobs: int = 2, report: Report = lambda done: None
) -> list[Repair]:
    """Return the repairs of ``count`` answers through one agent. ``report`` gets the number of those done so far."""
    lay_out(root)
    plan = plan_repairs(count)
    documents = list_documents(len(plan), root, folders)
    agents = AgentProcesses()
    agents.start_guard()
    runner = "claude_cli" if name == "claude" else RUNNERS[name]

    def repair(at: int) -> list[Repair]:
        own = root / f"{name}-{at}"
        own.mkdir()
        return repair_document(name, documents[at], plan[at], Agent(root=own, runner=runner, agents=agents))

    try:
        with ThreadPoolExecutor(jobs) as pool:
            repairs = list[Repair]()
            for done in as_completed([pool.submit(repair, at) for at in range(len(plan))]):
                repairs += done.result()
                report(len(repairs))
            return repairs
    finally:
        agents.stop_guard()
