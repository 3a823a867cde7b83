"""Start an agent process in its sandbox, behind its model proxy."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from api_client.contract.failpoints import pass_failpoint
from worker.files.recording import FinishedRun
from worker.runners.base import AgentEvent, Emit, Order, Stop
from worker.runners.event_reader import MAX_ANSWER, AnswerTooLong
from worker.runners.observed_calls import ObservedCalls
from worker.runners.sandbox import bubblewrap, call_log, proxy_client
from worker.runners.sandbox.agent_process import AgentExit
from worker.runners.sandbox.bubblewrap import Isolation, SandboxError, SandboxMount
from worker.runners.sandbox.destinations import TOOLS_PATH, AllowedDestinations, Upstream
from worker.runners.sandbox.guard_client import SOURCE_ROOT, AgentProcesses
from worker.runners.sandbox.proxy_client import ModelProxy
from worker.runners.sandbox.resource_usage import ResourceLimits, ResourceUsage
from worker.runners.sandbox.supervision import LimitReached, RunEnding, Supervision

_PYTHON = dict.fromkeys((sys.base_prefix, sys.prefix))
#: Mounts for agents that are our own programs.
OUR_CODE = tuple(SandboxMount(Path(path)) for path in [*_PYTHON, f"{SOURCE_ROOT}/worker", f"{SOURCE_ROOT}/api_client"])

#: Environment that removes the machine's proxies, which a sandbox cannot reach.
_NO_PROXY = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), "")
_LOCAL = "127.0.0.1,localhost"
_NO_PROXY_FOR = ("NO_PROXY", "no_proxy")
_PROXY = {
    "HTTPS_PROXY": bubblewrap.PROXY_URL,
    "https_proxy": bubblewrap.PROXY_URL,
    **dict.fromkeys(_NO_PROXY_FOR, _LOCAL),
}

#: Where an agent finds its tool gateway, and the variable that says so.
TOOLS_URL = bubblewrap.PROXY_URL + TOOLS_PATH
TOOLS_VARIABLE = "HELIX_TOOLS_URL"
#: Name of the tool gateway among an agent's MCP servers.
TOOLS_SERVER = "helix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Describes the agent process to start: its command, its sandbox and its network access.

    Attributes:
        argv, env, stdin: command, complete environment and input; None: input is written later.
        binds: mounts besides the system and the agent's folder.
        needs_sandbox: True if a model chooses the agent's actions, so that it needs a sandbox.
        outbound: the service behind the model proxy, and other hosts; None for no network.
        writes: writable folders besides the agent's own.
        proxy_env, proxy_files: variables (empty removes one) and files used behind a model proxy. There and in
            ``argv``, ``sandbox.PROXY_URL`` stands for the service's base address.
        proxy_stdin: builds the input used behind a model proxy from the service's base address.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes | None
    binds: Sequence[SandboxMount] = ()
    sandbox: str = "off"
    needs_sandbox: bool = False
    blank_lines: bool = False
    bounds: ResourceLimits = field(default_factory=ResourceLimits)
    writes: Sequence[Path] = ()
    outbound: AllowedDestinations | None = None
    proxy_env: Mapping[str, str] = field(default_factory=dict)
    proxy_stdin: Callable[[str], bytes] | None = None
    proxy_files: Mapping[Path, str] = field(default_factory=dict)


def build_environment(home: Path, names: Iterable[str], more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables for an agent. Of the worker's variables, only ``names`` are copied."""
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TZ": os.environ.get("TZ", ""),
        "TMPDIR": str(home / "tmp"),
        **(more or {}),
        **{name: os.environ.get(name, "") for name in names},
    }
    return {name: value for name, value in env.items() if value}


@dataclass(frozen=True, slots=True)
class CertificationStage:
    """The conditions under which an agent is certified: a stub model service, a wrapper command and mounts.

    ``around`` is the command put before the agent's, ``seen`` the paths mounted into the sandbox.
    """

    service: str
    around: Sequence[str] = ()
    seen: Sequence[Path] = ()


_staged: ContextVar[CertificationStage | None] = ContextVar("staged", default=None)


@contextlib.contextmanager
def use_stage(stage: CertificationStage) -> Iterator[None]:
    """Apply these certification conditions to all runs that start within the ``with`` block."""
    token = _staged.set(stage)
    try:
        yield
    finally:
        _staged.reset(token)


def _apply_stage(launch: Launch, stage: CertificationStage) -> Launch:
    leads = launch.outbound
    if leads and leads.upstream:
        url = stage.service + leads.upstream.path
        leads = AllowedDestinations(upstream=replace(leads.upstream, url=url), hosts=leads.hosts)
    binds = [*launch.binds, *map(SandboxMount, stage.seen)]
    return replace(launch, argv=[*stage.around, *launch.argv], outbound=leads, binds=binds)


Hear = Callable[[bytes], Iterable[AgentEvent]]


@dataclass(frozen=True, slots=True)
class StartedAgent:
    """A running agent process, with everything needed to watch it and to describe its end."""

    supervision: Supervision
    level: Isolation
    proxy: ModelProxy | None = None
    since: int = 0

    @property
    def observed_calls(self) -> ObservedCalls | None:
        """Return the model calls that the proxy observed in this run, or None without a proxy. May block."""
        return self.proxy.observed_calls(self.since) if self.proxy else None

    def build_ending(self, report: AgentExit) -> RunEnding:
        """Describe how the run ended, how the agent was isolated, and which model calls it made. May block."""
        ending = self.supervision.build_ending(report)
        pass_failpoint("agent.ended")
        ending = replace(ending, sandbox=self.level, observed_calls=self.observed_calls)
        if self.level.kind != "none" and not ending.bytes and (problem := bubblewrap.find_sandbox_error(ending.stderr)):
            return replace(ending, exit=replace(ending.exit, error=problem))
        return ending


def start_agent(
    agents: AgentProcesses,
    launch: Launch,
    order: Order,
    stop: Stop,
    emit: Emit,
    take_line: Hear,
    held: contextlib.ExitStack,
    *,
    noted: bool = False,
) -> StartedAgent | RunEnding:
    """Start an agent in its sandbox and return it, or return the reason why it cannot start. May block.

    Close ``held`` after the agent's end. ``noted`` keeps a call log even without a recording.
    """
    try:
        level = bubblewrap.choose_isolation(launch.sandbox, wanted=launch.needs_sandbox)
        path = call_log.call_log_path(order.directory) if order.recorded or noted else None
        if stage := _staged.get():
            launch = _apply_stage(launch, stage)
        launch, model_proxy = _isolate_launch(launch, order, level, held, path)
        agent = agents.spawn_agent(
            launch.argv,
            mark=order.process_tag,
            env=launch.env,
            cwd=order.directory,
            stdin=launch.stdin,
            lease_ends=stop.lease_ends,
            open_files=launch.bounds.most_open_files,
            recorded=order.directory if order.recorded else None,
            facts={"box": level.kind, "cut": level.cut},
        )
    except SandboxError as error:
        return RunEnding(exit=AgentExit(error=str(error)))
    except OSError as error:
        return RunEnding(exit=AgentExit(error=str(error), passing=True))
    pass_failpoint("agent.started")
    footprint = ResourceUsage(launch.bounds, [order.directory, *launch.writes], sandboxed=level.kind != "none")
    supervision = Supervision(agent, order, stop, line_callback(emit, take_line), footprint)
    supervision.blank_lines = launch.blank_lines
    if model_proxy:
        supervision.failures = model_proxy.count_failures
    return StartedAgent(supervision, level, model_proxy)


def rebuild_ending(found: FinishedRun) -> RunEnding:
    """Return how a recorded run ended. Raises ``OSError`` if the recording has no valid end."""
    try:
        facts = dict(found.facts)
        level = Isolation(facts.pop("box"), facts.pop("cut"))
        return RunEnding(exit=AgentExit(**facts), bytes=len(found.output), sandbox=level)
    except (KeyError, TypeError) as error:
        raise OSError(f"its recording has no right end: {error!r}") from error


def line_callback(emit: Emit, take_line: Hear) -> Callable[[bytes], None]:
    """Return a callback that parses a line of output with ``take_line`` and emits its events."""

    def emit_line(line: bytes) -> None:
        try:
            for event in take_line(line):
                emit(event)
        except AnswerTooLong as error:
            raise LimitReached(f"an answer of more than {MAX_ANSWER} characters") from error

    return emit_line


def _isolate_launch(
    launch: Launch, order: Order, level: Isolation, held: contextlib.ExitStack, calls: Path | None
) -> tuple[Launch, ModelProxy | None]:
    if order.tool_access:
        reached = replace(launch.outbound or AllowedDestinations(), tools=Upstream.of_tools(order.tool_access))
        launch = replace(launch, outbound=reached, proxy_env={**launch.proxy_env, TOOLS_VARIABLE: TOOLS_URL})
    leads = launch.outbound
    if leads is None:
        return _sandbox_launch(launch, order, level, None), None
    model_proxy = held.enter_context(proxy_client.open_proxy(leads, calls, sandboxed=level.cut))
    if level.cut:
        launch = _fill_proxy_address(launch, bubblewrap.PROXY_URL)
    elif leads.upstream or leads.tools:
        local = {name: _LOCAL + f",{launch.env[name]}" if launch.env.get(name) else _LOCAL for name in _NO_PROXY_FOR}
        launch = _fill_proxy_address(replace(launch, env={**launch.env, **local}), model_proxy.address)
    return _sandbox_launch(launch, order, level, Path(model_proxy.address) if level.cut else None), model_proxy


def _fill_proxy_address(launch: Launch, address: str) -> Launch:
    def fill_address(text: str) -> str:
        return text.replace(bubblewrap.PROXY_URL, address)

    for path, content in launch.proxy_files.items():
        path.write_text(fill_address(content), encoding="utf-8")
    env = {**launch.env, **{name: fill_address(value) for name, value in launch.proxy_env.items()}}
    return replace(
        launch,
        argv=[fill_address(argument) for argument in launch.argv],
        env={name: value for name, value in env.items() if value},
        stdin=launch.proxy_stdin(address) if launch.proxy_stdin else launch.stdin,
    )


def _sandbox_launch(launch: Launch, order: Order, level: Isolation, proxy_socket: Path | None) -> Launch:
    if level.kind == "none":
        return launch
    if level.cut:
        given = launch.proxy_env if launch.outbound else {}
        env = {**launch.env, **{name: "" for name in _NO_PROXY if name not in given}}
        if launch.outbound is not None and launch.outbound.hosts:
            env |= _PROXY
        launch = replace(launch, env={name: value for name, value in env.items() if value})
    own = SandboxMount(order.directory, writable=not order.read_only)
    sockets = [proxy_socket, order.tools.approval_socket if order.tools else None]
    binds = [*bubblewrap.LISTENER_MOUNTS, *launch.binds, *(SandboxMount(path) for path in sockets if path)]
    argv = bubblewrap.start_command(launch.argv, proxy_socket, launch.bounds.most_processes)
    nested, tmp_mb, writes = (
        bubblewrap.insert_mount(own, binds),
        launch.bounds.tmp_mb,
        [order.directory, *launch.writes],
    )
    hidden = [place for place in _denied_folders(order) if not any(own.is_relative_to(place) for own in writes)]
    return replace(
        launch,
        argv=bubblewrap.sandbox_command(argv, order.directory, nested, cut=level.cut, tmp_mb=tmp_mb, hidden=hidden),
    )


def _denied_folders(order: Order) -> Iterator[Path]:
    for rule in order.tools.rules if order.tools else ():
        if rule.get("do", "ask") != "deny":
            return
        if order.tools and rule.get("folder") and not {"tool", "arguments", "network"} & set(rule):
            root = order.tools.root.resolve()
            place = (root / rule["folder"].removesuffix("/*")).resolve()
            if "*" not in str(place) and place.exists() and root in place.parents:
                yield place
