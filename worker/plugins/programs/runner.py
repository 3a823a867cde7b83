"""Base of runners whose agent is an installed program: prepare, start, read and judge a run, and keep its session."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from api_client.contract.completion import Completion, ErrorKind, Verdict
from api_client.contract.errors import SettingsError
from api_client.contract.image import images_named
from api_client.contract.interruption import Interruption
from api_client.contract.settings import Settings
from worker.enforcement.tool_call_log import ToolCallLog
from worker.files.safe_io import SHORT_OF
from worker.files.workspace import RESPONSE, written_files
from worker.plugins.programs import home as homes
from worker.plugins.programs.declaration import APIS, AgentProgram, DeclarationError, filled
from worker.plugins.programs.home import KeptSession
from worker.runners.agent_sessions import home_of, instructions_of
from worker.runners.base import AgentEvent, Emit, Order, RunResult, config_error, not_begun
from worker.runners.claude.cli_prompt import prompt_for
from worker.runners.claude.command import writable_paths
from worker.runners.claude.hooks import readable_entries
from worker.runners.guard.box import DOOR, Bind
from worker.runners.guard.footprint import Bounds
from worker.runners.guard.launch import Launch, own_environment
from worker.runners.guard.outbound import Outbound, Upstream
from worker.runners.guard.process_runner import Play, ProcessRunner, RunReader
from worker.runners.guard.supervision import Ending, stopped
from worker.runners.pricing import charged
from worker.runners.sent import SentInput
from worker.runners.tool_rules.agent_tools import agent_of, unheld
from worker.runners.transcript import Transcript, judge
from worker.runners.witnessed import ObservedCalls, weigh

#: Placeholder of the key, which the model proxy adds.
PLACEHOLDER = "in-the-box"


class Heard(Protocol):
    """Reader of an agent's output and final report."""

    @property
    def text(self) -> str:
        """The answer so far."""
        ...

    @property
    def usage(self) -> Mapping[str, Any]:
        """The reported usage, as in ``RunResult.usage``."""
        ...

    @property
    def session(self) -> str:
        """The agent's own name of its session; empty without one."""
        ...

    @property
    def tool_calls(self) -> ToolCallLog | None:
        """The agent's tool calls; None if it reports none."""
        ...

    @property
    def finished(self) -> bool:
        """Return whether the agent has reported its end, after which a hanging process may be killed."""
        ...

    @property
    def said(self) -> Mapping[str, Any]:
        """The agent's facts about itself for the evidence, JSON-ready."""
        ...

    def take_line(self, line: bytes) -> Iterable[AgentEvent]:
        """Read one line of output. Raises ``AnswerTooLong``."""
        ...

    def judge(self, ending: Ending, evidence: dict[str, Any]) -> Completion:
        """Return the verdict from the agent's own evidence. May read its folder."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an agent program, with its settings and its kept session."""

    order: Order
    settings: Settings
    program: AgentProgram
    path: str
    model: str
    home: Path
    kept: KeptSession

    @property
    def prompt(self) -> str:
        """The prompt: the session's instructions, the conversation, and a person's decision."""
        order = self.order
        asked = prompt_for(
            order.prompt, order.messages, knows=self.kept.knows, so_far=order.so_far, locale=order.locale
        ).decode()
        before = "" if self.program.instructions or self.kept.knows else self.instructions
        answer = order.tools.said if order.tools else ""
        return "\n\n".join(filter(None, [before, asked, answer]))

    @property
    def instructions(self) -> str:
        """The content of the session's CLAUDE.md, or an empty text."""
        return instructions_of(self.order)

    @property
    def images(self) -> list[Path]:
        """The images named in the user's message, as files of the session."""
        asked = self.order.messages[-1].get("content", "") if self.order.messages else self.order.prompt
        paths = [self.order.workdir / "input" / name for name in images_named(asked)]
        return [path for path in paths if path.is_file()]

    @property
    def values(self) -> dict[str, str]:
        """The values for the placeholders in the agent's declaration."""
        return {
            "model": self.model,
            "url": DOOR,
            "key": PLACEHOLDER,
            "home": str(self.home),
            "directory": str(self.order.directory),
            "session": self.kept.session,
            "prompt": self.prompt,
            "prompt_file": str(self.home / "prompt.txt"),
        }


class ProgramRunner(ProcessRunner):
    """Base of runners of programs; subclasses choose the program, its command and its reader."""

    name = ""
    #: True if a model chooses the agent's actions: use a sandbox wherever the machine can make one.
    wanted = True
    #: True if the agent can be limited to reading.
    can_only_read = True
    #: True if the agent's tool calls obey the policy's ``tools``; other agents run no turns with such rules.
    holds_tools = False
    #: True if a complete run needs at least one model call seen by the model proxy.
    needs_witness = True
    #: True if each failed call leaves a gap in the answer; in an agent's loop with tools, helpers may fail.
    needs_every_call = False

    def model(self, option: str) -> str:
        """Return the model requested from the service: the part of the option after the agent's name."""
        return option.partition(":")[2]

    def program(self, option: str, settings: Settings) -> AgentProgram:
        """Return the program that a model's option names. Raises ``DeclarationError``."""
        raise NotImplementedError

    def problem(self, option: str, settings: Settings) -> str:
        """Return why the settings make every run of this model fail; empty if they do not."""
        try:
            program = self.program(option, settings)
        except DeclarationError as error:
            return str(error)
        if program.asks_here and not settings.openai_url:
            return "the address of its model is missing: url in the model's block, or HELIX_OPENAI_URL"
        if program.names("model") and not self.model(option):
            return "its service's model is not named: write it behind the agent, as in acp:opencode:MODEL"
        return ""

    def missing(self, option: str, settings: Settings) -> str:
        """Return which program this machine lacks; empty if it is installed."""
        try:
            find(self.program(option, settings), settings)
        except (DeclarationError, SettingsError) as error:
            return str(error)
        return ""

    def certified(self, option: str, settings: Settings) -> tuple[str, str]:
        """Return the program's path and its certified version."""
        program = self.program(option, settings)
        return find(program, settings), program.version

    def listed_name(self, option: str, settings: Settings) -> str:
        """Return the model's name in its service's model list; empty if there is no list to check."""
        program = self.program(option, settings)
        return self.model(option) if program.asks_here and program.api in {"chat", "responses"} else ""

    def hear(self, run: Run) -> Heard:
        """Return a reader for the run's output."""
        raise NotImplementedError

    def answer(self, run: Run, heard: Heard, witnessed: ObservedCalls | None) -> str:
        """Return the answer in the agent's output."""
        return heard.text

    def interruption(self, run: Run, heard: Heard) -> Interruption | None:
        """Return what the turn waits for after a run that ended with a question."""
        return None

    def arguments(self, run: Run) -> Sequence[str]:
        """Return the command-line arguments of the agent's program."""
        return [filled(text, run.values) for text in run.program.arguments]

    def stdin(self, run: Run) -> bytes:
        """Return the standard input of the agent's program."""
        return run.prompt.encode()

    def started(self, run: Run) -> tuple[Sequence[str], Sequence[Bind]]:
        """Return the command that starts the agent, and the mounts that it needs."""
        return [run.path, *self.arguments(run)], ()

    def prepare(self, order: Order) -> Play | RunResult:
        """Prepare a run; an invalid declaration or a missing program or address is a configuration error."""
        run = self._run(order)
        if isinstance(run, RunResult):
            return run
        reading = self._reading(run)
        try:
            files = {name: filled(text, run.values, quoted=True) for name, text in run.program.files.items()}
            files |= {run.program.instructions: run.instructions} if run.program.instructions else {}
            homes.make(run.home, run.kept, {**files, "prompt.txt": run.prompt})
            return reading.play(self._launch(run))
        except OSError as error:
            reading.clear()
            return not_begun(f"the run's folders could not be made: {error}", host=error.errno in SHORT_OF)
        except BaseException:
            reading.clear()
            raise

    def read_back(self, order: Order) -> RunReader | RunResult:
        """Return a reader for an earlier run's recording."""
        run = self._run(order)
        return run if isinstance(run, RunResult) else self._reading(run)

    def _run(self, order: Order) -> Run | RunResult:
        settings = self._settings.of_model(order.model)
        if order.read_only and not self.can_only_read:
            return config_error(f"{self.name}: it cannot be kept from writing; name another model for this")
        if order.tools and not self.holds_tools:
            return config_error(f"{self.name}: it cannot hold an agent to the policy's tools; name another model")
        for rule in order.tools.rules if order.tools else ():
            why, never_asks = unheld(rule.get("tool", "*"), agent_of(f"{self.name}:{order.option}"))
            if never_asks and rule.get("do", "ask") != "run":
                return config_error(f"{self.name}: it cannot be held to the policy's tools: {why}; name another model")
        if problem := self.problem(order.option, settings) or self.missing(order.option, settings):
            return config_error(problem)
        program = self.program(order.option, settings)
        kept = homes.kept_for(order) if program.state else KeptSession()
        return Run(
            order=order,
            settings=settings,
            program=program,
            path=find(program, settings),
            model=self.model(order.option),
            home=home_of(order),
            kept=kept,
        )

    def _launch(self, run: Run) -> Launch:
        argv, more = self.started(run)
        own, stdin = own_environment(run.home, run.settings.agent_env), self.stdin(run)
        files = {run.home / name: filled(text, run.values, quoted=True) for name, text in run.program.files.items()}
        given = {name: filled(text, run.values) for name, text in run.program.environment.items()}
        return Launch(
            argv=argv,
            env=own if run.program.asks_here else {**own, **given},
            stdin=stdin,
            binds=[*binds(run), *more],
            box=run.settings.box,
            wanted=self.wanted,
            blank_lines=self.blank_lines,
            bounds=Bounds.of(run.settings),
            writes=[run.home],
            outbound=outbound(run),
            door_env=given,
            door_stdin=stdin,
            door_files=files,
        )

    def _reading(self, run: Run) -> RunReader:
        heard = self.hear(run)

        def conclude(ending: Ending, emit: Emit) -> RunResult:
            result = self._concluded(run, heard, ending, emit)
            asks = result.completion.verdict is Verdict.ASKS
            return replace(result, interruption=self.interruption(run, heard)) if asks else result

        clear = functools.partial(shutil.rmtree, run.home, ignore_errors=True)
        return RunReader(take_line=heard.take_line, conclude=conclude, clear=clear, finished=lambda: heard.finished)

    def _concluded(self, run: Run, heard: Heard, ending: Ending, emit: Emit) -> RunResult:
        order, evidence = run.order, {**ending.evidence, **heard.said}
        if ending.finished:  # the exit code is from our kill
            ending = replace(ending, exit=replace(ending.exit, code=0))
        written = written_files(order.directory).get(RESPONSE, "").strip()
        text = written or self.answer(run, heard, ending.witnessed)
        completion = weigh(
            stopped(ending, order, evidence) or heard.judge(ending, evidence),
            ending.witnessed,
            answer=text,
            every=self.needs_every_call,
            required=self.needs_witness,
        )
        if text.strip() != heard.text.strip() and completion.verdict is not Verdict.CANCELLED:
            reason = "the answer is in the file" if written else "the agent's own notes do not belong to the answer"
            emit(AgentEvent(kind="reset", text=reason))
            emit(AgentEvent(kind="output", text=text))
        if completion.kind is ErrorKind.SESSION_LOST:
            homes.forget(order, run.kept)
        session = ""
        if completion.verdict in {Verdict.COMPLETE, Verdict.ASKS} and run.program.state and heard.session:
            spent = run.kept.spent + float(heard.usage.get("cost_usd") or 0.0)
            session = homes.keep(order, run.home, run.program.state, heard.session, spent)
        said = run.instructions if run.program.instructions else ""
        sent = SentInput(system=said, messages=({"role": "user", "content": run.prompt},), continues=run.kept.knows)
        usage = charged(heard.usage, ending.counted, run.settings.prices)
        return RunResult(
            completion=completion, text=text, usage=usage, agent_session=session, sent=sent, tool_calls=heard.tool_calls
        )


def find(program: AgentProgram, settings: Settings) -> str:
    """Return the path of an agent program. Raises ``SettingsError`` if it is not installed."""
    name = settings.agent_path or program.program
    found = shutil.which(str(Path(name).expanduser()))
    if found is None:
        raise SettingsError([f"HELIX_AGENT_PATH: no such program {name!r}; install it for this user (docs/agents.md)"])
    return str(Path(found).absolute())


def outbound(run: Run) -> Outbound:
    """Return the destinations that the agent may reach: its model service and the configured hosts."""
    settings = run.settings
    upstream = None
    if run.program.asks_here:
        paths, header = APIS[run.program.api]
        bearer = f"Bearer {settings.openai_api_key}" if header == b"authorization" else settings.openai_api_key
        upstream = Upstream(
            url=settings.openai_url,
            paths=frozenset(paths),
            ours={header: bearer if settings.openai_api_key else ""},
            models=(run.model, *settings.proxy_models) if run.model else settings.proxy_models,
            allows=settings.proxy_allows,
        )
    return Outbound.of(upstream, settings, settings.agent_env)


def binds(run: Run) -> list[Bind]:
    """Return the mounts of the agent's sandbox; later mounts cover earlier ones."""
    order, settings = run.order, run.settings
    found = [Bind(path) for path in _parts(Path(run.path))]
    if not order.read_only:
        session = [order.workdir / name for name in ("context", "input", "feedback.md")]
        found += [Bind(path) for path in [*readable_entries(settings.root), *session, *order.inputs]]
        found += [Bind(path, writable=True) for path in writable_paths(settings)]
    return [*found, Bind(run.home, writable=True)]


def _parts(program: Path) -> list[Path]:
    """Return a program's files: link and target, an npm package's ``node_modules``, a script's interpreter."""
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


class ChildLines(Transcript):
    """Reader of the JSON lines that our agent processes print."""

    @property
    def session(self) -> str:
        """The agent's own name of its session."""
        return str(self.facts.get("agent_session") or "")

    @property
    def finished(self) -> bool:
        """Return whether the agent gave its result."""
        return self.result

    @property
    def said(self) -> Mapping[str, Any]:
        """The agent's facts about itself."""
        return self.evidence

    def judge(self, ending: Ending, evidence: dict[str, Any]) -> Completion:
        """Return the verdict from the agent's own events."""
        return judge(self, ending.exit.code, evidence)
