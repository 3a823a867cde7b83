"""Runs ACP agents: ``acp:opencode:MODEL``, or ``acp:FILE:MODEL`` with the user's declaration."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_client.contract.completion import Completion, Verdict
from api_client.contract.image import MAX_IMAGE_BYTES, format_data_url
from api_client.contract.interruption import Interruption
from api_client.contract.settings import Settings
from api_client.contract.value_kinds import Kind, choice_kind, list_kind, read_word
from worker.plugins.programs.declaration import AgentProgram, build_program, read_declaration
from worker.plugins.programs.declaration_file import load_declaration
from worker.plugins.programs.runner import ChildEventReader, OutputReader, ProgramRun, ProgramRunner
from worker.runners.approval_server import build_tool_orders, find_question
from worker.runners.base import AgentEvent
from worker.runners.observed_calls import ObservedCalls
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.runners.sandbox.launch import OUR_CODE
from worker.runners.sandbox.supervision import RunEnding

_HERE = Path(__file__).parent
_CLIENT = _HERE / "agent_client.py"
#: Agents whose declarations are in this folder.
KNOWN = tuple(sorted(path.stem for path in _HERE.glob("*.yaml")))
_KINDS: Mapping[str, Kind] = {
    "mode": read_word,
    "notices": list_kind(read_word, "patterns"),
    "side_calls": choice_kind(("without_tools",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpAgent:
    """The declaration of an agent that speaks ACP, with the session mode to use."""

    program: AgentProgram
    mode: str = ""
    notices: tuple[str, ...] = ()
    side_calls: str = ""


def parse_agent(text: str, source: str) -> AcpAgent:
    """Parse the YAML declaration of an ACP agent. ``source`` names the file in error messages.

    Raises ``DeclarationError`` with one line per problem.
    """
    found = read_declaration(text, source, _KINDS)
    return AcpAgent(program=build_program(found), **{name: found[name] for name in _KINDS if name in found})


class AcpEventReader(ChildEventReader):
    """Reads the events of our ACP client process, including tool calls that need a person's approval.

    ``asks`` is the event with that call; ``pieces`` are pieces of the answer, with the ids of their messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asks: dict[str, Any] = {}
        self.pieces: list[tuple[str, str]] = []

    def collect_event(self, event: dict[str, Any]) -> AgentEvent | None:
        if event.get("event") != "asks":
            reader = super().collect_event(event)
            if reader and reader.kind == "output":
                self.pieces.append((str(event.get("message")), reader.text))
            return reader
        if isinstance(event.get("arguments"), dict):
            self.asks = event
        return None

    def judge_run(self, ending: RunEnding, evidence: dict[str, Any]) -> Completion:
        """Judge from the agent's own events whether the run was complete, asked a person or failed."""
        if self.asks and not self.error and ending.exit.code == 0:
            reason = f"a person is asked about a call of {self.asks.get('tool')}"[:200]
            return Completion(verdict=Verdict.ASKS, reason=reason, evidence={**evidence, **self.evidence})
        return super().judge_run(ending, evidence)


class AcpRunner(ProgramRunner):
    """Runs agents that speak the Agent Client Protocol (ACP): built-in ones, and agents declared in a file."""

    name = "acp"
    obeys_tool_rules = True

    def load_agent(self, option: str, settings: Settings) -> AcpAgent:
        name = option.partition(":")[0]
        return load_declaration(_HERE / f"{name}.yaml" if name in KNOWN else settings.root / name, parse_agent)

    def load_program(self, option: str, settings: Settings) -> AgentProgram:
        return self.load_agent(option, settings).program

    def create_reader(self, run: ProgramRun) -> AcpEventReader:
        return AcpEventReader()

    def extract_answer(self, run: ProgramRun, reader: OutputReader, observed: ObservedCalls | None) -> str:
        """Return the agent's answer without the replies to auxiliary model calls, such as a title for the session."""
        if not (
            isinstance(reader, AcpEventReader)
            and observed
            and self.load_agent(run.order.option, run.settings).side_calls
        ):
            return reader.text
        whole: dict[str, list[str]] = {}
        for name, piece in reader.pieces:
            whole.setdefault(name, []).append(piece)
        asides = {name for name, pieces in whole.items() if observed.is_aside("".join(pieces))}
        kept = "".join(piece for name, piece in reader.pieces if name not in asides)
        return kept.lstrip("\n") if asides else kept

    def find_interruption(self, run: ProgramRun, reader: OutputReader) -> Interruption | None:
        if not isinstance(reader, AcpEventReader) or not reader.asks:
            return None
        return find_question(run.order, str(reader.asks.get("tool")), dict(reader.asks["arguments"]))

    def build_command(self, run: ProgramRun) -> tuple[Sequence[str], Sequence[SandboxMount]]:
        return [sys.executable, "-S", "-P", str(_CLIENT)], OUR_CODE

    def build_input(self, run: ProgramRun) -> bytes:
        """Return the description of the run for our ACP client process, as JSON."""
        order = run.order
        orders = (
            {} if order.read_only else build_tool_orders(order, sandboxed=bubblewrap.uses_sandbox(run.settings.sandbox))
        )
        given = {
            "argv": [run.path, *self.build_arguments(run)],
            "cwd": str(order.directory),
            "session": run.kept.session,
            "spent": run.kept.spent,
            "mode": self.load_agent(order.option, run.settings).mode,
            "notices": self.load_agent(order.option, run.settings).notices,
            "prompt": run.prompt,
            "images": [_encode_image(path) for path in run.images if path.stat().st_size <= MAX_IMAGE_BYTES],
            "allow": [] if order.read_only else list(run.settings.agent_allow),
            "edits": not order.read_only,
            "rules": orders.get("rules", []),
            "asks": orders.get("asks", False),
            "approval_server": orders.get("approval_server"),
            "root": str(run.settings.root),
        }
        return json.dumps(given).encode()


def _encode_image(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    kind = format_data_url(path.name, b"").removeprefix("data:").partition(";")[0]
    return {"mimeType": kind, "data": b64encode(content).decode()}
