"""A message to a running process of the Claude CLI, and the proof that its answer is complete.

The CLI confirms start and end of each message by its UUID.
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
from api_client.contract.failpoints import pass_failpoint
from worker.files.folder_trees import move_entry
from worker.files.recording import FinishedRun, RunRecording, delete_recording
from worker.files.safe_io import open_folder
from worker.runners.agent_sessions import agent_session_id
from worker.runners.base import AgentEvent, Emit, Order, RunResult
from worker.runners.claude import cli_sessions, completion_gate
from worker.runners.claude.cli_launch import read_base, read_instructions
from worker.runners.claude.cli_prompt import build_prompt
from worker.runners.claude.cli_sessions import BaseSession
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.cli_transcript import UnreadableTranscript, extract_run, read_transcript
from worker.runners.claude.run_leftovers import RunLeftovers, build_evidence, collect_leftovers, find_transcript_gap
from worker.runners.event_reader import json_object
from worker.runners.observed_calls import check_observed_calls
from worker.runners.pricing import Prices, compute_usage
from worker.runners.sandbox import call_log, process_tags
from worker.runners.sandbox.agent_process import AgentExit
from worker.runners.sandbox.bubblewrap import Isolation
from worker.runners.sandbox.guard_client import start_recording
from worker.runners.sandbox.launch import rebuild_ending
from worker.runners.sandbox.supervision import RunEnding, explain_own_stop
from worker.runners.sent_input import SentInput

#: Key of the first line of a message's recording, with the process's files and state.
_HEAD = "helix_message"


@dataclass(slots=True)
class Exchange:
    """Follows one message to a running CLI process, to tell when its answer is complete.

    Attributes:
        taken_at: when the CLI confirmed the start; 0 before.
        begun: True once further output answers this message.
        late: True if output of another message arrived.
        over: True once the CLI has confirmed the end; ``after`` if more output followed.
        crowded: True if other processes of the agent ran at the end.
        ended_at: when a result or an end mark was first seen; 0 before.
    """

    order: Order
    base: BaseSession
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
        """Return the CLI's id for this message."""
        return agent_session_id(self.order)

    def to_packet(self) -> bytes:
        """Return the message as a JSON line for the CLI's standard input."""
        said = {"role": "user", "content": self.prompt.decode("utf-8", "replace")}
        return (
            json.dumps({"type": "user", "message": said, "parent_tool_use_id": None, "uuid": self.uuid}).encode()
            + b"\n"
        )

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Parse one line of output and return its events. Ignore lines about other messages."""
        self.after = self.after or self.over
        if b'"type":"command_lifecycle"' in line:
            self._note_state(json_object(line) or {})
            return []
        if b'"isReplay":true' in line and (record := json_object(line) or {}).get("isReplay") is True:
            self.begun = self.begun or record.get("uuid") == self.uuid
            return []
        self.compacted = self.compacted or b'"subtype":"compact_boundary"' in line
        if not self.begun and not self._may_precede(line):
            self.late = True
            self.settle()
        if self.late:
            return []
        return self.stream.take_line(line)

    def _may_precede(self, line: bytes) -> bool:
        record = json_object(line) or {}
        failed = bool(self.taken_at) and record.get("type") == "result" and record.get("is_error") is True
        return failed or record.get("type") in {"system", "rate_limit_event"}

    def _note_state(self, record: dict[str, Any]) -> None:
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
    """The folders of a CLI process that answers several messages, and the state of its conversation.

    Attributes:
        top: folder of the process, with ``work`` and ``home``.
        spare: True if it was started ahead.
        agent: its agent session, which names its transcript.
        length: bytes of its transcript after the last message.
        spent: its cost until then, in US dollars.
        calls: number of model calls before the current message.
    """

    top: Path
    mark: str
    agent: str
    level: Isolation = field(default_factory=Isolation)
    spare: bool = False
    asked: int = 0
    length: int = 0
    spent: float = 0.0
    calls: int = 0
    prices: Prices = field(default_factory=dict)

    @property
    def work_folder(self) -> Path:
        return self.top / "work"

    @property
    def home_folder(self) -> Path:
        return self.top / "home"

    @property
    def output_folder(self) -> Path:
        """Return the folder into which the agent writes answer files."""
        return self.work_folder / "output"

    @property
    def was_there(self) -> bool:
        """Return True if the process was already running before the current message."""
        return self.spare or self.asked > 1

    def start_recording(self, order: Order) -> RunRecording | None:
        """Start recording the output of a message. Return None if recording is off or fails."""
        facts: list[Any] = [str(self.top), self.level.kind, self.level.cut, self.mark, self.agent]
        facts += [self.asked, self.length, self.spent, self.calls, self.spare]
        head = json.dumps({_HEAD: facts}).encode() + b"\n"
        delete_recording(order.directory)  # left by a process that never took the message
        return start_recording(order.directory, head) if order.recorded else None

    def judge_message(
        self, folder: Path, message: Exchange, ending: RunEnding, *, lives: bool
    ) -> tuple[Completion, RunLeftovers]:
        """Return the verdict on the answer to a message, and the answer. ``lives``: the process still runs."""
        order = replace(message.order, directory=folder)
        left = collect_leftovers(order, self.agent, message.prompt, message.base, self.home_folder, message.stream)
        facts = {**ending.evidence, **self._collect_facts(message), "text_from": left.origin}
        evidence = build_evidence(order, self.mark, self.agent, ending, message.stream, left, lives=lives)
        stop = None if lives else explain_own_stop(ending, order, facts)
        completion = stop or completion_gate.judge_run(evidence, facts)
        return check_observed_calls(completion, ending.observed_calls, answer=left.text), left

    def prove_message(
        self, folder: Path, message: Exchange, ending: RunEnding
    ) -> tuple[Completion, RunLeftovers, int] | None:
        """Return verdict, answer and transcript size if a message's answer is certainly complete, or else None."""
        stream = message.stream
        if not message.over or message.after or message.late or message.compacted or not stream.is_whole:
            return None
        completion, left = self.judge_message(folder, message, ending, lives=True)
        if completion.verdict is not Verdict.COMPLETE or left.origin == "transcript":
            return None
        try:
            content = read_transcript(left.transcript, self.agent, self.home_folder)
            earlier = b"" if self.length else read_base(message.base)
            found = extract_run(content[self.length :], self.agent, message.prompt, earlier)
        except (OSError, ValueError, UnreadableTranscript):
            return None
        return None if find_transcript_gap(found, left.marks, stream) else (completion, left, len(content))

    def build_result(
        self, message: Exchange, completion: Completion, left: RunLeftovers, ending: RunEnding, emit: Emit
    ) -> RunResult:
        """Build the result of a message, and emit the events that correct the text shown so far."""
        order, stream = message.order, message.stream
        if completion.verdict is not Verdict.CANCELLED:
            for event in stream.replace_answer(left.text, f"the answer is in the {left.origin}"):
                emit(event)
        session = ""
        if completion.verdict is Verdict.COMPLETE:
            session = cli_sessions.keep_transcript(order, left.transcript, self.home_folder, of=self.agent)
        said = {"role": "user", "content": message.prompt.decode("utf-8", "replace")}
        return RunResult(
            completion=completion,
            text=stream.text,
            usage=compute_usage(stream.report_usage(self.spent), ending.counted_tokens, self.prices),
            agent_session=session,
            sent=SentInput(system=read_instructions(self.home_folder), messages=(said,), continues=message.base.knows),
            tool_calls=stream.tool_calls,
        )

    def _collect_facts(self, message: Exchange) -> dict[str, Any]:
        stream, taken = message.stream, message.taken_at
        facts: dict[str, Any] = {"retries": stream.retries, "continued": message.base.knows}
        facts |= {"skipped_lines": stream.skipped} if stream.skipped else {}
        facts["start"] = "warm" if self.asked > 1 else "spare" if self.spare else "cold"
        return facts | ({"start_ms": round(1000 * (taken - message.began))} if taken and message.began else {})

    def move_to_delivery(self, order: Order) -> None:
        """Move the files of a message into the folder of its run. Raises ``OSError``."""
        with open_folder(self.work_folder) as source, open_folder(order.directory) as target:
            for path in [path for path in self.work_folder.iterdir() if path.name != "marks"]:
                if path.name != "output" or path.is_symlink() or any(path.iterdir()):
                    move_entry(path.name, source, target)
        pass_failpoint("message.moved")
        for folder in (self.output_folder, order.directory / "output", order.directory / "marks"):
            folder.mkdir(exist_ok=True)
        for mark in (self.work_folder / "marks").iterdir():
            shutil.copyfile(mark, order.directory / "marks" / mark.name)
        if order.recorded:  # the process's files may be gone before the store has the result
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(call_log.call_log_path(self.work_folder), call_log.call_log_path(order.directory))


def build_message_prompt(order: Order, base: BaseSession) -> bytes:
    if order.interruption and base.transcript is not None:
        return b""  # the run continues at its question; a prompt would be a further message
    own = {"knows": base.knows, "so_far": order.so_far, "rejected": order.rejected, "locale": order.locale}
    return build_prompt(order.prompt, order.messages, **own)


def read_process_files(found: FinishedRun | None) -> ProcessFiles | None:
    """Return a CLI process's state from its recording, or None for another kind of recording."""
    try:
        head: list[Any] = json.loads(found.output.partition(b"\n")[0])[_HEAD] if found else []
        top, kind, cut, *facts = head
        names = ("mark", "agent", "asked", "length", "spent", "calls", "spare")
        return ProcessFiles(top=Path(top), level=Isolation(kind, cut), **dict(zip(names, facts, strict=True)))
    except (ValueError, TypeError, KeyError):
        return None


def adopt_message(order: Order, files: ProcessFiles, found: FinishedRun, prices: Prices) -> RunResult | None:
    """Return the result of a message from its recording, or None if the message may not have ended."""
    process_tags.kill_tagged(files.mark)  # left by a guard that died with its worker
    base = cli_sessions.find_base(order)
    message = Exchange(order, base, build_message_prompt(order, base), 0.0, begun=files.asked == 1)
    *lines, torn = found.output.split(b"\n")[1:]
    for line in filter(bytes.strip, lines):
        message.take_line(line)
    message.after = message.after or bool(torn)
    with contextlib.suppress(FileNotFoundError):  # already moved by the dead worker
        files.move_to_delivery(order)
    ending = (
        rebuild_ending(found)
        if found.facts
        else RunEnding(exit=AgentExit(), bytes=len(found.output), sandbox=files.level)
    )
    seen = call_log.read_adopted_calls(files.work_folder, files.calls) or call_log.read_adopted_calls(
        order.directory, files.calls
    )
    ending = replace(ending, observed_calls=seen)
    well = ending.exit.code == 0 and not ending.exit.cause
    judged_before = cli_sessions.kept_transcript(order).is_file()
    if not well and not judged_before and not (message.over and files.prove_message(order.directory, message, ending)):
        return None
    completion, left = files.judge_message(order.directory, message, ending, lives=not well)
    files.prices = prices
    return files.build_result(message, completion, left, ending, lambda _: None)
