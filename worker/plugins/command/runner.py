"""Runs declared commands: ``command:FILE``, or ``command:FILE:MODEL`` with a value for ``{model}``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_client.contract.completion import Completion, IncompleteReason, Verdict
from api_client.contract.settings import Settings
from api_client.contract.value_kinds import (
    Kind,
    choice_kind,
    integer_kind,
    list_kind,
    read_mapping,
    read_word,
    record_kind,
)
from worker.files.safe_io import open_folder, read_below
from worker.plugins.programs.declaration import AgentProgram, build_program, parse_relative_path, read_declaration
from worker.plugins.programs.declaration_file import load_declaration
from worker.plugins.programs.runner import ProgramRun, ProgramRunner
from worker.runners.base import AgentEvent
from worker.runners.event_reader import MAX_ANSWER, AnswerTooLong, find_kill_reason, json_object
from worker.runners.sandbox.supervision import RunEnding

PROMPTS = ("stdin", "argument", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteRule:
    """The conditions under which a command's run counts as complete. All of them must hold.

    ``last_line`` has required values by path in the last line, a JSON object; ``marker`` is a file that must exist in
    the delivery's folder.
    """

    exit_codes: tuple[int, ...] = (0,)
    last_line: Mapping[str, Any] = field(default_factory=dict)
    marker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRule:
    """Tells where to find a command's answer: in its output, in a field of JSON lines, or in a file.

    ``path`` leads to the text in each JSON line with the values of ``where``; the texts are joined.
    """

    path: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredCommand:
    """Declares a program as an agent: how to start it, its prompt, when a run is complete, and where the answer is."""

    program: AgentProgram
    prompt: str
    complete: CompleteRule
    answer: AnswerRule


def _record_kind(made: type[Any], kinds: Mapping[str, Kind], noun: str) -> Kind:
    read = record_kind(kinds, noun=noun)
    return lambda value: made(**read(value))


def _parse_exit_codes(value: Any) -> tuple[int, ...]:
    codes: tuple[int, ...] = list_kind(integer_kind(0, 255), "exit codes")(value)
    if not codes:
        raise ValueError("must name at least one exit code")
    return codes


def _parse_answer_rule(value: Any) -> AnswerRule:
    kinds = {"path": read_word, "where": read_mapping, "file": parse_relative_path}
    rule: AnswerRule = _record_kind(AnswerRule, kinds, "an answer")(value)
    if bool(rule.path) == bool(rule.file):
        raise ValueError("give 'path' (in JSON lines) or 'file', one of the two")
    return rule


_COMPLETE_KINDS: Mapping[str, Kind] = {
    "exit_codes": _parse_exit_codes,
    "last_line": read_mapping,
    "marker": parse_relative_path,
}
_KINDS: Mapping[str, Kind] = {
    "prompt": choice_kind(PROMPTS),
    "complete": _record_kind(CompleteRule, _COMPLETE_KINDS, "a rule"),
    "answer": _parse_answer_rule,
}


def parse_command(text: str, source: str) -> DeclaredCommand:
    """Parse the YAML declaration of a command. ``source`` names the file in error messages.

    Raises ``DeclarationError`` with one line per problem.
    """
    found = read_declaration(text, source, _KINDS, ("complete",))
    return DeclaredCommand(
        program=build_program(found),
        prompt=found.get("prompt", "stdin"),
        complete=found["complete"],
        answer=found.get("answer", AnswerRule()),
    )


def value_at(path: str, line: Mapping[str, Any]) -> Any:
    """Return the value at a path such as ``result.text`` in a JSON object, or None if it is missing."""
    found: Any = line
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def has_values(line: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return True if a JSON object has the given values at the given paths. ``1`` does not equal ``true``."""
    found = [(value_at(path, line), value) for path, value in values.items()]
    return all(type(there) is type(wanted) and there == wanted for there, wanted in found)


class CommandOutputReader:
    """Reads the output of a declared command, and judges by the declared conditions whether the run is complete."""

    usage: Mapping[str, Any] = {}
    tool_calls = None

    def __init__(self, command: DeclaredCommand, read_file: Callable[[str], str | None]) -> None:
        """Create a reader. ``read_file`` returns the text of a file that the command wrote, or None."""
        self._command = command
        self._read_file = read_file
        self._pieces: list[str] = []
        self._length = 0
        self._last: bytes = b""

    @property
    def text(self) -> str:
        rule = self._command.answer
        return (self._read_file(rule.file) or "").strip() if rule.file else "".join(self._pieces).strip()

    @property
    def session(self) -> str:
        return "kept"

    @property
    def finished(self) -> bool:
        return False

    @property
    def reported_facts(self) -> Mapping[str, Any]:
        return {}

    def take_line(self, line: bytes) -> Iterable[AgentEvent]:
        if line.strip():
            self._last = line
        rule = self._command.answer
        if rule.file:
            return ()
        said: Any = line.decode("utf-8", "replace").replace("\0", "\ufffd") + "\n"
        if rule.path:
            found = json_object(line)
            said = value_at(rule.path, found) if found is not None and has_values(found, rule.where) else None
        if not isinstance(said, str) or not said:
            return ()
        said = said.encode("utf-8", "replace").decode()
        self._length += len(said)
        if self._length > MAX_ANSWER:
            raise AnswerTooLong
        self._pieces.append(said)
        return (AgentEvent(kind="output", text=said),)

    def judge_run(self, ending: RunEnding, evidence: dict[str, Any]) -> Completion:
        """Judge by the declared conditions whether the run was complete."""
        rule, code, why, reason = self._command.complete, ending.exit.code, IncompleteReason.BROKE_OFF, ""
        if ended := find_kill_reason(code, "the command"):
            why, reason = ended
        elif code not in rule.exit_codes:
            reason = f"the command ended with exit code {code}; its rule takes {_format_values(rule.exit_codes)}"
        elif rule.last_line and not has_values(json_object(self._last) or {}, rule.last_line):
            reason = f"its last line is not the one that its rule takes: {_format_values(rule.last_line)}"
        elif rule.marker and self._read_file(rule.marker) is None:
            reason = f"there is no {rule.marker}, which its rule takes"
        elif not self.text:
            why, reason = IncompleteReason.SILENT, "the command finished but said nothing"
        if reason:
            return Completion(verdict=Verdict.INCOMPLETE, why=why, reason=reason, evidence=evidence)
        return Completion(verdict=Verdict.COMPLETE, reason="its declared rule takes this end", evidence=evidence)


def _format_values(values: Sequence[int] | Mapping[str, Any]) -> str:
    return ", ".join(map(str, values)) if isinstance(values, Sequence) else json.dumps(dict(values))


class CommandRunner(ProgramRunner):
    """Runs a command that is declared in a file. Relative paths start at ``HELIX_ROOT``."""

    name = "command"
    #: The output may be plain text, in which empty lines count.
    blank_lines = True
    can_only_read = False
    needs_observed_call = False
    needs_every_call = True

    def load_command(self, option: str, settings: Settings) -> DeclaredCommand:
        return load_declaration(settings.root / option.partition(":")[0], parse_command)

    def load_program(self, option: str, settings: Settings) -> AgentProgram:
        return self.load_command(option, settings).program

    def build_arguments(self, run: ProgramRun) -> Sequence[str]:
        """Return the command's arguments, with the prompt as the last argument if the declaration demands that."""
        found = super().build_arguments(run)
        return [*found, run.prompt] if self.load_command(run.order.option, run.settings).prompt == "argument" else found

    def build_input(self, run: ProgramRun) -> bytes:
        """Return the prompt for standard input, or nothing if the command expects the prompt elsewhere."""
        return super().build_input(run) if self.load_command(run.order.option, run.settings).prompt == "stdin" else b""

    def create_reader(self, run: ProgramRun) -> CommandOutputReader:
        return CommandOutputReader(
            self.load_command(run.order.option, run.settings),
            functools.partial(_read_delivery_file, run.order.directory),
        )


def _read_delivery_file(directory: Path, name: str) -> str | None:
    try:
        with open_folder(directory) as folder:
            return read_below(name, folder, MAX_ANSWER).decode("utf-8", "replace")
    except OSError:
        return None
