"""One message to a kept process of the Claude CLI, and the proof of a complete answer.

The CLI confirms start and end of each message by its UUID. The proof works while the process lives, after it was
killed, and from the recording when another worker adopts the turn.
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

#: Key of the first line of a message's recording, with the process's files and state.
_HEAD = "helix_message"


@dataclass(slots=True)
class Exchange:
    """A message sent to a kept process, with the output received so far.

    Attributes:
        taken_at: when the CLI confirmed the start; 0 before.
        begun: True once further output answers this message.
        late: True if output of another message arrived.
        over: True once the CLI has confirmed the end; ``after`` if more output followed.
        crowded: True if other processes of the agent ran at the end.
        settle: stops the watch.
        ended_at: when a result or an end mark was first seen; 0 before.
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
        """The message's id in the CLI's reports."""
        return session_of(self.order)

    def packet(self) -> bytes:
        """Return the message as one line of the CLI's input."""
        said = {"role": "user", "content": self.prompt.decode("utf-8", "replace")}
        return (
            json.dumps({"type": "user", "message": said, "parent_tool_use_id": None, "uuid": self.uuid}).encode()
            + b"\n"
        )

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Read one line of output; lines of other messages are ignored."""
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
        """Return whether a line of output may come before the CLI confirms this message."""
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
    """The files of a kept process, and the state of its conversation.

    Attributes:
        top: folder of the process, with ``work`` and ``home``.
        spare: True if it was started ahead.
        mark: its process tag.
        agent: its agent session, which names its transcript.
        asked: number of messages so far.
        length: bytes of its transcript after the last message.
        spent: its cost until then, in US dollars.
        calls: number of model calls before the current message.
        prices: prices of its models; not recorded.
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
        """The agent's working folder."""
        return self.top / "work"

    @property
    def home(self) -> Path:
        """The agent's HOME."""
        return self.top / "home"

    @property
    def output(self) -> Path:
        """The folder in which the agent writes answer files."""
        return self.work / "output"

    @property
    def was_there(self) -> bool:
        """Return whether the process existed before its current message."""
        return self.spare or self.asked > 1

    def recording(self, order: Order) -> RunRecording | None:
        """Start recording the output of a message; None if recording is off or fails."""
        facts: list[Any] = [str(self.top), self.level.kind, self.level.cut, self.mark, self.agent]
        facts += [self.asked, self.length, self.spent, self.calls, self.spare]
        head = json.dumps({_HEAD: facts}).encode() + b"\n"
        forget(order.directory)  # left by a process that never took the message
        return recording_beside(order.directory, head) if order.recorded else None

    def judged(self, folder: Path, message: Exchange, ending: Ending, *, lives: bool) -> tuple[Completion, RunRemains]:
        """Judge a message by its files; ``lives`` means that the process has not exited."""
        order = replace(message.order, directory=folder)
        left = left_by(order, self.agent, message.prompt, message.base, self.home, message.stream)
        facts = {**ending.evidence, **self._facts(message), "text_from": left.origin}
        evidence = evidence_of(order, self.mark, self.agent, ending, message.stream, left, lives=lives)
        stop = None if lives else stopped(ending, order, facts)
        completion = stop or completion_gate.judge(evidence, facts)
        return weigh(completion, ending.witnessed, answer=left.text), left

    def proven(self, folder: Path, message: Exchange, ending: Ending) -> tuple[Completion, RunRemains, int] | None:
        """Return the verdict on a message that is certainly complete, or None in doubt."""
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
        """Build a message's result, and correct the event log to match the answer."""
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
            tool_calls=stream.tool_calls,
        )

    def _facts(self, message: Exchange) -> dict[str, Any]:
        stream, taken = message.stream, message.taken_at
        facts: dict[str, Any] = {"retries": stream.retries, "continued": message.base.knows}
        facts |= {"skipped_lines": stream.skipped} if stream.skipped else {}
        facts["start"] = "warm" if self.asked > 1 else "spare" if self.spare else "cold"
        return facts | ({"start_ms": round(1000 * (taken - message.began))} if taken and message.began else {})

    def hand_over(self, order: Order) -> None:
        """Move a message's files into its delivery's folder. Raises ``OSError``."""
        for path in [path for path in self.work.iterdir() if path.name != "marks"]:
            if path.name == "output" and not path.is_symlink() and not any(path.iterdir()):
                continue
            path.rename(order.directory / path.name)
        reach("message.moved")
        for folder in (self.output, order.directory / "output", order.directory / "marks"):
            folder.mkdir(exist_ok=True)
        for mark in (self.work / "marks").iterdir():
            shutil.copyfile(mark, order.directory / "marks" / mark.name)
        if order.recorded:  # the process's files may be gone before the store has the result
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(call_record.path_of(self.work), call_record.path_of(order.directory))


def prompt_of(order: Order, base: Base) -> bytes:
    """Build the prompt of an order."""
    if order.interruption and base.transcript is not None:
        return b""  # the run continues at its question; a prompt would be a further message
    return prompt_for(order.prompt, order.messages, knows=base.knows, so_far=order.so_far, locale=order.locale)


def files_of(found: FinishedRun | None) -> ProcessFiles | None:
    """Read a kept process's state from the head of a recording; None for other recordings."""
    try:
        head: list[Any] = json.loads(found.output.partition(b"\n")[0])[_HEAD] if found else []
        top, kind, cut, *facts = head
        names = ("mark", "agent", "asked", "length", "spent", "calls", "spare")
        return ProcessFiles(top=Path(top), level=Level(kind, cut), **dict(zip(names, facts, strict=True)))
    except (ValueError, TypeError, KeyError):
        return None


def adopted(order: Order, files: ProcessFiles, found: FinishedRun, prices: Prices) -> RunResult | None:
    """Return the result of a recorded message that had ended when its worker died, or None. May block."""
    marks.sweep(files.mark)  # left by a guard that died with its worker
    base = cli_sessions.base_of(order)
    message = Exchange(order, base, prompt_of(order, base), 0.0, begun=files.asked == 1)
    *lines, torn = found.output.split(b"\n")[1:]
    for line in filter(bytes.strip, lines):
        message.take_line(line)
    message.after = message.after or bool(torn)
    with contextlib.suppress(FileNotFoundError):  # already moved by the dead worker
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
