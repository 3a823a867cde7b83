"""The base class of runners whose agent is an installed program: prepare, start, read and judge a run."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from api_client.contract.completion import Completion, ErrorKind, Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.image import find_image_names
from api_client.contract.interruption import Interruption
from api_client.contract.settings import Settings
from worker.enforcement.tool_call_log import ToolCallLog
from worker.files.folder_trees import remove_tree
from worker.files.safe_io import SHORT_OF
from worker.files.workspace import RESPONSE, read_accepted_files
from worker.plugins.programs import agent_home as homes
from worker.plugins.programs.agent_home import KeptSession
from worker.plugins.programs.declaration import APIS, AgentProgram, DeclarationError, fill_template
from worker.runners.agent_sessions import home_folder
from worker.runners.base import AgentEvent, Emit, Order, RunResult, config_error, not_begun
from worker.runners.claude.cli_launch import writable_paths
from worker.runners.claude.cli_prompt import build_prompt
from worker.runners.event_reader import EventReader, judge_transcript
from worker.runners.guidance import SKILLS_FOLDER, link_skills, read_instructions, readable_paths
from worker.runners.observed_calls import ObservedCalls, check_observed_calls
from worker.runners.pricing import compute_usage
from worker.runners.sandbox.bubblewrap import PROXY_URL, SandboxMount
from worker.runners.sandbox.destinations import AllowedDestinations, Upstream
from worker.runners.sandbox.launch import Launch, build_environment
from worker.runners.sandbox.process_runner import PreparedRun, ProcessRunner, RunReader
from worker.runners.sandbox.resource_usage import ResourceLimits
from worker.runners.sandbox.supervision import RunEnding, explain_own_stop
from worker.runners.sent_input import SentInput
from worker.runners.tool_rules.agent_tools import check_tool_rule, parse_agent_name

#: Placeholder for the API key, which the model proxy adds.
PLACEHOLDER = "in-the-sandbox"


class OutputReader(Protocol):
    """Interface for reading an agent's output and judging whether the agent really finished."""

    @property
    def text(self) -> str:
        """Return the answer that the agent has written so far."""

    @property
    def usage(self) -> Mapping[str, Any]:
        """Return the tokens and cost that the agent reported, in the form of ``RunResult.usage``."""

    @property
    def session(self) -> str:
        """Return the agent's own name for its session, or an empty string."""

    @property
    def tool_calls(self) -> ToolCallLog | None:
        """Return the log of the agent's tool calls, or None if the agent reports none."""

    @property
    def finished(self) -> bool:
        """Return True if the agent has reported its end. A process that hangs afterwards may be killed."""

    @property
    def reported_facts(self) -> Mapping[str, Any]:
        """Return what the agent reported about itself, as JSON-ready evidence for the verdict."""

    def take_line(self, line: bytes) -> Iterable[AgentEvent]:
        """Read a line of the agent's output and return the events to show. Raises ``AnswerTooLong``."""

    def judge_run(self, ending: RunEnding, evidence: dict[str, Any]) -> Completion:
        """Judge from the agent's reports whether the run was complete. May read the agent's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """A single run of an agent program, with its order, settings, saved session, and all its instructions."""

    order: Order
    settings: Settings
    program: AgentProgram
    path: str
    model: str
    home: Path
    kept: KeptSession
    instructions: str = ""
    url: str = PROXY_URL

    @property
    def prompt(self) -> str:
        """Return the text to send to the agent: instructions, conversation, and a person's decision."""
        order = self.order
        own = {"knows": self.kept.knows, "so_far": order.so_far, "rejected": order.rejected, "locale": order.locale}
        asked = build_prompt(order.prompt, order.messages, **own).decode()
        before = "" if self.program.instructions or self.kept.knows else self.instructions
        answer = order.tools.said if order.tools else ""
        return "\n\n".join(filter(None, [before, asked, answer]))

    @property
    def images(self) -> list[Path]:
        """Return the paths of the images that the user's message names."""
        asked = self.order.messages[-1].get("content", "") if self.order.messages else self.order.prompt
        paths = [self.order.workdir / "input" / name for name in find_image_names(asked)]
        return [path for path in paths if path.is_file()]

    @property
    def placeholder_values(self) -> dict[str, str]:
        return {
            "model": self.model,
            "url": self.url,
            "key": PLACEHOLDER,
            "home": str(self.home),
            "directory": str(self.order.directory),
            "session": self.kept.session,
            "prompt": self.prompt,
            "prompt_file": str(self.home / "prompt.txt"),
        }


class ProgramRunner(ProcessRunner):
    """Base class for running installed programs as agents. Subclasses choose program, command and reader."""

    name = ""
    #: True if a model chooses the agent's actions: use a sandbox wherever the machine can make one.
    needs_sandbox = True
    #: True if the agent can be limited to reading.
    can_only_read = True
    #: True if the agent's tool calls obey the policy's ``tools``; other agents run no turns with such rules.
    obeys_tool_rules = False
    #: True if a complete run needs at least one model call seen by the model proxy.
    needs_observed_call = True
    #: True if each failed call leaves a gap in the answer; in an agent's loop with tools, helpers may fail.
    needs_every_call = False

    def requested_model(self, option: str) -> str:
        """Return the name of the model to request: the part of the option after the agent's name."""
        return option.partition(":")[2]

    def load_program(self, option: str, settings: Settings) -> AgentProgram:
        """Return the agent program named in ``option``, such as ``opencode:MODEL``. Raises ``DeclarationError``."""
        raise NotImplementedError

    def find_config_problem(self, option: str, settings: Settings) -> str:
        try:
            program = self.load_program(option, settings)
        except DeclarationError as error:
            return str(error)
        if program.uses_model_proxy and not settings.openai_url:
            return "the address of its model is missing: url in the model's block, or HELIX_OPENAI_URL"
        if program.uses_placeholder("model") and not self.requested_model(option):
            return "its service's model is not named: write it behind the agent, as in acp:opencode:MODEL"
        return ""

    def find_missing_program(self, option: str, settings: Settings) -> str:
        try:
            find_program(self.load_program(option, settings), settings)
        except (DeclarationError, SettingsError) as error:
            return str(error)
        return ""

    def certified_version(self, option: str, settings: Settings) -> tuple[str, str]:
        program = self.load_program(option, settings)
        return find_program(program, settings), program.version

    def listed_name(self, option: str, settings: Settings) -> str:
        """Return the model's name in the service's list of models, or an empty string if there is no list to check."""
        program = self.load_program(option, settings)
        return self.requested_model(option) if program.uses_model_proxy and program.api in {"chat", "responses"} else ""

    def create_reader(self, run: ProgramRun) -> OutputReader:
        raise NotImplementedError

    def extract_answer(self, run: ProgramRun, reader: OutputReader, observed: ObservedCalls | None) -> str:
        """Return the agent's answer from the output that was read."""
        return reader.text

    def find_interruption(self, run: ProgramRun, reader: OutputReader) -> Interruption | None:
        """Return the question that ended the run, or None if the agent asked nothing."""
        return None

    def build_arguments(self, run: ProgramRun) -> Sequence[str]:
        """Return the command-line arguments for the program, with all placeholders filled in."""
        return [fill_template(text, run.placeholder_values) for text in run.program.arguments]

    def build_input(self, run: ProgramRun) -> bytes:
        """Return the bytes for the program's standard input, by default the prompt."""
        return run.prompt.encode()

    def build_command(self, run: ProgramRun) -> tuple[Sequence[str], Sequence[SandboxMount]]:
        """Return the command that starts the agent, and the mounts that it needs."""
        return [run.path, *self.build_arguments(run)], ()

    def prepare_run(self, order: Order) -> PreparedRun | RunResult:
        run = self._build_run(order)
        if isinstance(run, RunResult):
            return run
        reading = self._build_reader(run)
        try:
            files = {
                name: fill_template(text, run.placeholder_values, quoted=True)
                for name, text in run.program.files.items()
            }
            files |= {run.program.instructions: run.instructions} if run.program.instructions else {}
            homes.create_home(run.home, run.kept, {**files, "prompt.txt": run.prompt})
            if not order.read_only:
                link_skills(run.settings, run.home / SKILLS_FOLDER)
            return reading.with_launch(self._build_launch(run))
        except OSError as error:
            reading.clear()
            return not_begun(f"the run's folders could not be made: {error}", host=error.errno in SHORT_OF)
        except BaseException:
            reading.clear()
            raise

    def read_back(self, order: Order) -> RunReader | RunResult:
        """Create a reader for the recorded output of an earlier run, or return an error result."""
        run = self._build_run(order)
        return run if isinstance(run, RunResult) else self._build_reader(run)

    def _build_run(self, order: Order) -> ProgramRun | RunResult:
        settings = self._settings.for_model(order.model)
        if order.read_only and not self.can_only_read:
            return config_error(f"{self.name}: it cannot be kept from writing; name another model for this")
        if order.tools and not self.obeys_tool_rules:
            return config_error(f"{self.name}: it cannot hold an agent to the policy's tools; name another model")
        for rule in order.tools.rules if order.tools else ():
            checked = check_tool_rule(rule.get("tool", "*"), parse_agent_name(f"{self.name}:{order.option}"))
            if checked.never_asks and rule.get("do", "ask") != "run":
                return config_error(
                    f"{self.name}: it cannot be held to the policy's tools: {checked.warning}; name another model"
                )
        if problem := self.find_config_problem(order.option, settings) or self.find_missing_program(
            order.option, settings
        ):
            return config_error(problem)
        program = self.load_program(order.option, settings)
        kept = homes.find_kept_session(order) if program.state else KeptSession()
        return ProgramRun(
            order=order,
            settings=settings,
            program=program,
            path=find_program(program, settings),
            model=self.requested_model(order.option),
            home=home_folder(order),
            kept=kept,
            instructions=read_instructions(order, settings),
        )

    def _build_launch(self, run: ProgramRun) -> Launch:
        argv, more = self.build_command(run)
        own, stdin = build_environment(run.home, run.settings.agent_env), self.build_input(run)
        files = {
            run.home / name: fill_template(text, run.placeholder_values, quoted=True)
            for name, text in run.program.files.items()
        }
        given = {name: fill_template(text, run.placeholder_values) for name, text in run.program.environment.items()}
        return Launch(
            argv=argv,
            env=own if run.program.uses_model_proxy else {**own, **given},
            stdin=stdin,
            binds=[*sandbox_binds(run), *more],
            sandbox=run.settings.sandbox,
            needs_sandbox=self.needs_sandbox,
            blank_lines=self.blank_lines,
            bounds=ResourceLimits.from_settings(run.settings),
            writes=[run.home],
            outbound=allowed_destinations(run),
            proxy_env=given,
            proxy_stdin=lambda address: self.build_input(replace(run, url=address)),
            proxy_files=files,
        )

    def _build_reader(self, run: ProgramRun) -> RunReader:
        reader = self.create_reader(run)

        def conclude(ending: RunEnding, emit: Emit) -> RunResult:
            result = self._conclude_run(run, reader, ending, emit)
            asks = result.completion.verdict is Verdict.ASKS
            return replace(result, interruption=self.find_interruption(run, reader)) if asks else result

        clear = functools.partial(remove_tree, run.home, ignore_errors=True)
        return RunReader(take_line=reader.take_line, conclude=conclude, clear=clear, finished=lambda: reader.finished)

    def _conclude_run(self, run: ProgramRun, reader: OutputReader, ending: RunEnding, emit: Emit) -> RunResult:
        order, evidence = run.order, {**ending.evidence, **reader.reported_facts}
        if ending.finished:  # the exit code is from our kill
            ending = replace(ending, exit=replace(ending.exit, code=0))
        written = read_accepted_files(order.directory).get(RESPONSE, "").strip()
        text = written or self.extract_answer(run, reader, ending.observed_calls)
        completion = check_observed_calls(
            explain_own_stop(ending, order, evidence) or reader.judge_run(ending, evidence),
            ending.observed_calls,
            answer=text,
            every=self.needs_every_call,
            required=self.needs_observed_call,
        )
        if text.strip() != reader.text.strip() and completion.verdict is not Verdict.CANCELLED:
            reason = "the answer is in the file" if written else "the agent's own notes do not belong to the answer"
            emit(AgentEvent(kind="reset", text=reason))
            emit(AgentEvent(kind="output", text=text))
        if completion.kind is ErrorKind.SESSION_LOST:
            homes.forget_session(order, run.kept)
        session = ""
        if completion.verdict in {Verdict.COMPLETE, Verdict.ASKS} and run.program.state and reader.session:
            spent = run.kept.spent + float(reader.usage.get("cost_usd") or 0.0)
            session = homes.keep_state(order, run.home, run.program.state, reader.session, spent)
        said = run.instructions if run.program.instructions else ""
        sent = SentInput(system=said, messages=({"role": "user", "content": run.prompt},), continues=run.kept.knows)
        usage = compute_usage(reader.usage, ending.counted_tokens, run.settings.prices)
        return RunResult(
            completion=completion,
            text=text,
            usage=usage,
            agent_session=session,
            sent=sent,
            tool_calls=reader.tool_calls,
        )


def find_program(program: AgentProgram, settings: Settings) -> str:
    """Return the path of the agent's program. Raises ``SettingsError`` if the program is not installed."""
    name = settings.agent_path or program.program
    found = shutil.which(str(Path(name).expanduser()))
    if found is None:
        raise SettingsError([f"HELIX_AGENT_PATH: no such program {name!r}; install it for this user (docs/agents.md)"])
    return str(Path(found).absolute())


def allowed_destinations(run: ProgramRun) -> AllowedDestinations:
    """Return the network destinations that the agent may reach: its model service and the configured hosts."""
    settings = run.settings
    upstream = None
    if run.program.uses_model_proxy:
        paths, header = APIS[run.program.api]
        bearer = f"Bearer {settings.openai_api_key}" if header == b"authorization" else settings.openai_api_key
        upstream = Upstream(
            url=settings.openai_url,
            paths=frozenset(paths),
            ours={header: bearer if settings.openai_api_key else ""},
            models=(run.model, *settings.proxy_models) if run.model else settings.proxy_models,
            allows=settings.proxy_allows,
        )
    return AllowedDestinations.from_settings(upstream, settings, settings.agent_env)


def sandbox_binds(run: ProgramRun) -> list[SandboxMount]:
    """Return the files and folders to mount in the agent's sandbox. Later mounts hide earlier mounts."""
    order, settings = run.order, run.settings
    found = [SandboxMount(path) for path in _program_files(Path(run.path))]
    if not order.read_only:
        session = [order.workdir / name for name in ("context", "input", "feedback.md")]
        found += [SandboxMount(path) for path in [*readable_paths(settings), *session, *order.inputs]]
        found += [SandboxMount(path, writable=True) for path in writable_paths(settings)]
    return [*found, SandboxMount(run.home, writable=True)]


def _program_files(program: Path) -> list[Path]:
    real = program.resolve()
    found = [program, real]
    if "node_modules" in real.parts:
        found.append(Path(*real.parts[: real.parts.index("node_modules") + 1]))
    try:
        with real.open("rb") as file:
            first = file.readline(256)
    except OSError:
        first = b""
    if first.startswith(b"#!"):
        words = first[2:].decode("utf-8", "replace").split()
        name = words[-1] if words and words[0].endswith("/env") else next(iter(words), "")
        if interpreter := shutil.which(name):
            found += [Path(interpreter), Path(interpreter).resolve()]
    return found


class ChildEventReader(EventReader):
    """Reads the JSON lines that our own agent processes print."""

    @property
    def session(self) -> str:
        return str(self.facts.get("agent_session") or "")

    @property
    def finished(self) -> bool:
        return self.result

    @property
    def reported_facts(self) -> Mapping[str, Any]:
        return self.evidence

    def judge_run(self, ending: RunEnding, evidence: dict[str, Any]) -> Completion:
        """Judge from the agent's own events and exit code whether the run was complete."""
        return judge_transcript(self, ending.exit.code, evidence)
