"""One message to a kept process of the Claude CLI, and the proof that it was answered whole.

Each message has its own UUID, by which the CLI says when it took it and when it was done with it: what comes before
the first belongs to an earlier message, and nothing comes after the second. The proof needs no process: it is made
while that lives, when it was killed as soon as it had answered, and from the recording by who takes the turn over.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from api_client.contract.completion import Completion, Verdict
from api_client.contract.failpoints import reach
from worker.files.recording import FinishedRun, RunRecording, forget
from worker.runners.agent_sessions import session_of
from worker.runners.base import AgentEvent, Emit, Order, RunResult
from worker.runners.claude import cli_sessions, completion_gate
from worker.runners.claude.answer import RunRemains, evidence_of, left_by, problem_of
from worker.runners.claude.cli_prompt import prompt_for
from worker.runners.claude.cli_sessions import Base
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.cli_transcript import NotReadable, content_of, recorded
from worker.runners.claude.command import before, instructions
from worker.runners.guard import call_record, marks
from worker.runners.guard.agent_process import Exit
from worker.runners.guard.box import Level
from worker.runners.guard.launch import ended_before
from worker.runners.guard.processes import recording_beside
from worker.runners.guard.supervision import Ending, stopped
from worker.runners.pricing import Prices, charged
from worker.runners.sent import SentInput
from worker.runners.transcript import json_object
from worker.runners.witnessed import weigh

#: The first line of a message's recording: where its process had its files, and what it had heard before.
_HEAD = "helix_message"


@dataclass(slots=True)
class Exchange:
    """One message on its way: its order, and what came since it was asked.

    Attributes:
        taken_at: when the CLI said that it took it; 0 before. begun: it has repeated it, so what follows answers it; a
            process that was asked nothing before has nothing else to say. late: something of another message came.
        watched: its process is. over: the CLI said that it is done with it. after: it said something more.
        crowded: there was a further process then. settle: tells the watch that there is nothing more to wait for.
        ended_at: when its result or a mark of its end was first seen; 0 before.
    """

    order: Order
    base: Base
    prompt: bytes
    began: float
    stream: ClaudeStream = field(default_factory=ClaudeStream)
    taken_at: float = 0.0
    begun: bool = False
    late: bool = False
    watched: bool = True
    over: bool = False
    after: bool = False
    crowded: bool = False
    compacted: bool = False
    settle: Callable[[], object] = lambda: None
    ended_at: float = 0.0

    @property
    def uuid(self) -> str:
        """The name by which the CLI reports on it."""
        return session_of(self.order)

    def packet(self) -> bytes:
        """As the CLI reads it: one line."""
        said = {"role": "user", "content": self.prompt.decode("utf-8", "replace")}
        return (
            json.dumps({"type": "user", "message": said, "parent_tool_use_id": None, "uuid": self.uuid}).encode()
            + b"\n"
        )

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Read one line of the process; one of another message is not this one's."""
        self.after = self.after or self.over
        if b'"type":"command_lifecycle"' in line:
            self._note(json_object(line) or {})
            return []
        if b'"isReplay":true' in line and (record := json_object(line) or {}).get("isReplay") is True:
            self.begun = self.begun or record.get("uuid") == self.uuid
            return []
        self.compacted = self.compacted or b'"subtype":"compact_boundary"' in line
        if not self.begun and not self._precedes(line):
            self.late = True
            self.settle()
        if self.late:
            return []
        return self.stream.take_line(line)

    def _precedes(self, line: bytes) -> bool:
        """Return whether a line may come before the CLI repeats this message: its own words, or this one's failure."""
        record = json_object(line) or {}
        failed = bool(self.taken_at) and record.get("type") == "result" and record.get("is_error") is True
        return failed or record.get("type") in {"system", "rate_limit_event"}

    def _note(self, record: dict[str, Any]) -> None:
        if record.get("type") != "command_lifecycle" or record.get("command_uuid") != self.uuid:
            return
        match record.get("state"):
            case "queued":
                pass
            case "started":
                self.taken_at = time.monotonic()
            case _:
                self.over = True
                self.settle()


@dataclass(slots=True, kw_only=True)
class ProcessFiles:
    """What a kept process has on the disk, and how far its conversation has come.

    Attributes:
        top: its folder: ``work`` is the agent's, ``home`` its HOME. level: the box around it.
        spare: it was started ahead.
        mark: of its processes, in the marks of its hooks. agent: its agent session, which names its transcript.
        asked: how many messages it was given. length: of its transcript when the last one had ended, in bytes.
        spent: US dollars until then, by its own word. calls: how many model calls had begun at its door.
        prices: of the models that it may ask for; not recorded.
    """

    top: Path
    mark: str
    agent: str
    level: Level = field(default_factory=Level)
    spare: bool = False
    asked: int = 0
    length: int = 0
    spent: float = 0.0
    calls: int = 0
    prices: Prices = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """What its agent sees as its own folder."""
        return self.top / "work"

    @property
    def home(self) -> Path:
        """Its HOME."""
        return self.top / "home"

    @property
    def output(self) -> Path:
        """Where its agent writes files of an answer."""
        return self.work / "output"

    @property
    def was_there(self) -> bool:
        """Return whether it was there before the message that it was given last: another one could take that."""
        return self.spare or self.asked > 1

    def recording(self, order: Order) -> RunRecording | None:
        """Begin the recording of a message; None where it is not to be recorded, or cannot be."""
        facts: list[Any] = [str(self.top), self.level.kind, self.level.cut, self.mark, self.agent]
        facts += [self.asked, self.length, self.spent, self.calls, self.spare]
        head = json.dumps({_HEAD: facts}).encode() + b"\n"
        forget(order.directory)  # of a process that never took it
        return recording_beside(order.directory, head) if order.recorded else None

    def judged(self, folder: Path, message: Exchange, ending: Ending, *, lives: bool) -> tuple[Completion, RunRemains]:
        """The gate's verdict over a message whose files and marks are in a folder.

        ``lives``: its process has not come to its own end; the message is judged without.
        """
        order = replace(message.order, directory=folder)
        left = left_by(order, self.agent, message.prompt, message.base, self.home, message.stream)
        facts = {**ending.evidence, **self._facts(message), "text_from": left.origin}
        evidence = evidence_of(order, self.mark, self.agent, ending, message.stream, left, lives=lives)
        stop = None if lives else stopped(ending, order, facts)
        completion = stop or completion_gate.judge(evidence, facts)
        return weigh(completion, ending.witnessed, answer=left.text), left

    def proven(self, folder: Path, message: Exchange, ending: Ending) -> tuple[Completion, RunRemains, int] | None:
        """The verdict over a message that is complete beyond doubt, and the length of the transcript; None in doubt."""
        stream = message.stream
        if not message.over or message.after or message.late or message.compacted or not stream.whole:
            return None
        completion, left = self.judged(folder, message, ending, lives=True)
        if completion.verdict is not Verdict.COMPLETE or left.origin == "transcript":
            return None
        try:
            content = content_of(left.transcript, self.agent, self.home)
            earlier = b"" if self.length else before(message.base)
            found = recorded(content[self.length :], self.agent, message.prompt, earlier)
        except (OSError, ValueError, NotReadable):
            return None
        return None if problem_of(found, left.marks, stream) else (completion, left, len(content))

    def result(
        self, message: Exchange, completion: Completion, left: RunRemains, ending: Ending, emit: Emit
    ) -> RunResult:
        """The result, with the log made to agree with the answer, and the transcript kept where it is complete."""
        order, stream = message.order, message.stream
        if completion.verdict is not Verdict.CANCELLED:
            for event in stream.replace(left.text, f"the answer is in the {left.origin}"):
                emit(event)
        session = ""
        if completion.verdict is Verdict.COMPLETE:
            session = cli_sessions.keep(order, left.transcript, self.home, of=self.agent)
        said = {"role": "user", "content": message.prompt.decode("utf-8", "replace")}
        return RunResult(
            completion=completion,
            text=stream.text,
            usage=charged(stream.usage(self.spent), ending.counted, self.prices),
            agent_session=session,
            sent=SentInput(system=instructions(self.home), messages=(said,), continues=message.base.knows),
            journal=stream.journal,
        )

    def _facts(self, message: Exchange) -> dict[str, Any]:
        stream, taken = message.stream, message.taken_at
        facts: dict[str, Any] = {"retries": stream.retries, "continued": message.base.knows}
        facts |= {"skipped_lines": stream.skipped} if stream.skipped else {}
        facts["start"] = "warm" if self.asked > 1 else "spare" if self.spare else "cold"
        return facts | ({"start_ms": round(1000 * (taken - message.began))} if taken and message.began else {})

    def hand_over(self, order: Order) -> None:
        """Move what a message wrote into its delivery's folder: the next one finds none of it. Raises ``OSError``.

        Who takes over from a worker that died in here does it once more.
        """
        for path in [path for path in self.work.iterdir() if path.name != "marks"]:
            if path.name == "output" and not path.is_symlink() and not any(path.iterdir()):
                continue
            path.rename(order.directory / path.name)
        reach("message.moved")
        for folder in (self.output, order.directory / "output", order.directory / "marks"):
            folder.mkdir(exist_ok=True)
        for mark in (self.work / "marks").iterdir():
            shutil.copyfile(mark, order.directory / "marks" / mark.name)
        if order.recorded:  # what its process leaves may be gone before the store has the result
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(call_record.path_of(self.work), call_record.path_of(order.directory))


def prompt_of(order: Order, base: Base) -> bytes:
    """What the CLI is asked."""
    if order.interruption and base.transcript is not None:
        return b""  # it goes on from its question; a prompt would be another message behind that
    return prompt_for(order.prompt, order.messages, knows=base.knows, so_far=order.so_far, locale=order.locale)


def files_of(found: FinishedRun | None) -> ProcessFiles | None:
    """The files of the kept process that a recording is of; None for the recording of another one."""
    try:
        head: list[Any] = json.loads(found.output.partition(b"\n")[0])[_HEAD] if found else []
        top, kind, cut, *facts = head
        names = ("mark", "agent", "asked", "length", "spent", "calls", "spare")
        return ProcessFiles(top=Path(top), level=Level(kind, cut), **dict(zip(names, facts, strict=True)))
    except (ValueError, TypeError, KeyError):
        return None


def adopted(order: Order, files: ProcessFiles, found: FinishedRun, prices: Prices) -> RunResult | None:
    """The result of a recorded message that had ended when its worker died; None where that is not proven. May block.

    Raises:
        AnswerTooLong: as ``ClaudeStream.take_line``. OSError: its files cannot be moved.
    """
    marks.sweep(files.mark)  # of a guard that was killed with its worker
    base = cli_sessions.base_of(order)
    message = Exchange(order, base, prompt_of(order, base), 0.0, begun=files.asked == 1)
    *lines, torn = found.output.split(b"\n")[1:]
    for line in filter(bytes.strip, lines):
        message.take_line(line)
    message.after = message.after or bool(torn)
    with contextlib.suppress(FileNotFoundError):  # its worker moved them, and removed what was left
        files.hand_over(order)
    ending = ended_before(found) if found.facts else Ending(exit=Exit(), bytes=len(found.output), box=files.level)
    seen = call_record.adopted(files.work, files.calls) or call_record.adopted(order.directory, files.calls)
    ending = replace(ending, witnessed=seen)
    well = ending.exit.code == 0 and not ending.exit.cause
    judged_before = cli_sessions.kept_of(order).is_file()
    if not well and not judged_before and not (message.over and files.proven(order.directory, message, ending)):
        return None
    completion, left = files.judged(order.directory, message, ending, lives=not well)
    files.prices = prices
    return files.result(message, completion, left, ending, lambda _: None)
