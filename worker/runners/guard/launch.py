"""Start an agent process in its sandbox, behind its model proxy."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path

from api_client.contract.failpoints import reach
from worker.files.recording import FinishedRun
from worker.runners.base import AgentEvent, Emit, Order, Stop
from worker.runners.guard import box, call_record, doors
from worker.runners.guard.agent_process import Exit
from worker.runners.guard.box import Bind, BoxError, Level
from worker.runners.guard.doors import Door
from worker.runners.guard.footprint import Bounds, Footprint
from worker.runners.guard.outbound import Outbound
from worker.runners.guard.processes import SOURCE_ROOT, Processes
from worker.runners.guard.supervision import Ending, LimitReached, Supervision
from worker.runners.transcript import MAX_ANSWER, AnswerTooLong
from worker.runners.witnessed import ObservedCalls

_PYTHON = dict.fromkeys((sys.base_prefix, sys.prefix))
#: Mounts for agents that are our own programs: our packages, and Python wherever it is installed.
OUR_CODE = tuple(Bind(Path(path)) for path in [*_PYTHON, f"{SOURCE_ROOT}/worker", f"{SOURCE_ROOT}/api_client"])

#: Environment that removes the machine's proxies, which a sandbox cannot reach.
_NO_PROXY = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), "")
_LOCAL = "127.0.0.1,localhost"
_NO_PROXY_FOR = ("NO_PROXY", "no_proxy")
_PROXY = {"HTTPS_PROXY": box.DOOR, "https_proxy": box.DOOR, **dict.fromkeys(_NO_PROXY_FOR, _LOCAL)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The agent process to start.

    Attributes:
        argv, env, stdin: command, complete environment and input; None: input is written later.
        binds: mounts besides the system and the agent's folder.
        wanted: True if a model chooses the agent's actions, so that it needs a sandbox.
        outbound: the service behind the model proxy, and other hosts; None for no network.
        writes: writable folders besides the agent's own.
        door_env, door_stdin, door_files: variables (empty removes one), input and files used behind a model proxy.
            There and in ``argv``, ``box.DOOR`` stands for the service's base address.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes | None
    binds: Sequence[Bind] = ()
    box: str = "off"
    wanted: bool = False
    blank_lines: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    writes: Sequence[Path] = ()
    outbound: Outbound | None = None
    door_env: Mapping[str, str] = field(default_factory=dict)
    door_stdin: bytes | None = None
    door_files: Mapping[Path, str] = field(default_factory=dict)


def own_environment(home: Path, names: Iterable[str], more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Build an agent's environment with only these variables of the worker."""
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
class StagedSurroundings:
    """Changes that the certification kit makes to a run: service, wrapper command and mounts."""

    service: str
    around: Sequence[str] = ()
    seen: Sequence[Path] = ()


_staged: ContextVar[StagedSurroundings | None] = ContextVar("staged", default=None)


@contextlib.contextmanager
def staged(what: StagedSurroundings) -> Iterator[None]:
    """Apply these certification settings to all runs of the current context."""
    token = _staged.set(what)
    try:
        yield
    finally:
        _staged.reset(token)


def _on_stage(launch: Launch, stage: StagedSurroundings) -> Launch:
    leads = launch.outbound
    if leads and leads.upstream:
        url = stage.service + leads.upstream.path
        leads = Outbound(upstream=replace(leads.upstream, url=url), hosts=leads.hosts)
    binds = [*launch.binds, *map(Bind, stage.seen)]
    return replace(launch, argv=[*stage.around, *launch.argv], outbound=leads, binds=binds)


Hear = Callable[[bytes], Iterable[AgentEvent]]


@dataclass(frozen=True, slots=True)
class Begun:
    """A started agent with its isolation and its model proxy."""

    supervision: Supervision
    level: Level
    door: Door | None = None
    since: int = 0

    @property
    def witnessed(self) -> ObservedCalls | None:
        """Return the agent's model calls in this run, as seen by its model proxy. May block."""
        return self.door.seen(self.since) if self.door else None

    def ended(self, report: Exit) -> Ending:
        """Combine the observed end with isolation and model calls. May block."""
        ending = self.supervision.ending(report)
        reach("agent.ended")
        ending = replace(ending, box=self.level, witnessed=self.witnessed)
        if self.level.kind != "none" and not ending.bytes and (problem := box.failed(ending.stderr)):
            return replace(ending, exit=replace(ending.exit, error=problem))
        return ending


def begin(
    agents: Processes,
    launch: Launch,
    order: Order,
    stop: Stop,
    emit: Emit,
    take_line: Hear,
    held: contextlib.ExitStack,
    *,
    noted: bool = False,
) -> Begun | Ending:
    """Start an agent, or return an ``Ending`` that explains why it cannot start. May block.

    Close ``held`` after the agent's end. ``noted`` keeps a call log even without a recording.
    """
    try:
        level = box.level(launch.box, wanted=launch.wanted)
        path = call_record.path_of(order.directory) if order.recorded or noted else None
        if stage := _staged.get():
            launch = _on_stage(launch, stage)
        launch, door = _within(launch, order, level, held, path)
        agent = agents.spawn(
            launch.argv,
            mark=order.mark,
            env=launch.env,
            cwd=order.directory,
            stdin=launch.stdin,
            lease_ends=stop.lease_ends,
            open_files=launch.bounds.most_open_files,
            recorded=order.directory if order.recorded else None,
            facts={"box": level.kind, "cut": level.cut},
        )
    except BoxError as error:
        return Ending(exit=Exit(error=str(error)))
    except OSError as error:
        return Ending(exit=Exit(error=str(error), passing=True))
    reach("agent.started")
    footprint = Footprint(launch.bounds, [order.directory, *launch.writes], boxed=level.kind != "none")
    supervision = Supervision(agent, order, stop, hearing(emit, take_line), footprint)
    supervision.blank_lines = launch.blank_lines
    if door:
        supervision.failures = door.failures
    return Begun(supervision, level, door)


def ended_before(found: FinishedRun) -> Ending:
    """Rebuild the end of a recorded run, or raise ``OSError`` if the recording has no valid end."""
    try:
        facts = dict(found.facts)
        level = Level(facts.pop("box"), facts.pop("cut"))
        return Ending(exit=Exit(**facts), bytes=len(found.output), box=level)
    except (KeyError, TypeError) as error:
        raise OSError(f"its recording has no right end: {error!r}") from error


def hearing(emit: Emit, take_line: Hear) -> Callable[[bytes], None]:
    """Return a callback that emits the events of each line."""

    def hear(line: bytes) -> None:
        try:
            for event in take_line(line):
                emit(event)
        except AnswerTooLong as error:
            raise LimitReached(f"an answer of more than {MAX_ANSWER} characters") from error

    return hear


def _within(
    launch: Launch, order: Order, level: Level, held: contextlib.ExitStack, calls: Path | None
) -> tuple[Launch, Door | None]:
    """Put a launch into a sandbox, and open the model proxy for its service."""
    leads = launch.outbound
    if leads is None:
        return _in_box(launch, order, level, None), None
    door = held.enter_context(doors.door(leads, calls, boxed=level.cut))
    if level.cut:
        launch = _behind(launch, box.DOOR)
    elif leads.upstream:
        local = {name: _LOCAL + f",{launch.env[name]}" if launch.env.get(name) else _LOCAL for name in _NO_PROXY_FOR}
        launch = _behind(replace(launch, env={**launch.env, **local}), door.address)
    return _in_box(launch, order, level, Path(door.address) if level.cut else None), door


def _behind(launch: Launch, address: str) -> Launch:
    def there(text: str) -> str:
        return text.replace(box.DOOR, address)

    for path, content in launch.door_files.items():
        path.write_text(there(content), encoding="utf-8")
    env = {**launch.env, **{name: there(value) for name, value in launch.door_env.items()}}
    return replace(
        launch,
        argv=[there(argument) for argument in launch.argv],
        env={name: value for name, value in env.items() if value},
        stdin=launch.stdin if launch.door_stdin is None else there(launch.door_stdin.decode()).encode(),
    )


def _in_box(launch: Launch, order: Order, level: Level, door: Path | None) -> Launch:
    if level.kind == "none":
        return launch
    if level.cut:
        given = launch.door_env if launch.outbound else {}
        env = {**launch.env, **{name: "" for name in _NO_PROXY if name not in given}}
        if launch.outbound is not None and launch.outbound.hosts:
            env |= _PROXY
        launch = replace(launch, env={name: value for name, value in env.items() if value})
    own = Bind(order.directory, writable=not order.read_only)
    sockets = [door, order.tools.approval_socket if order.tools else None]
    binds = [*box.FIRST, *launch.binds, *(Bind(path) for path in sockets if path)]
    argv = box.started(launch.argv, door, launch.bounds.most_processes)
    nested, tmp_mb, writes = box.nested(own, binds), launch.bounds.tmp_mb, [order.directory, *launch.writes]
    hidden = [place for place in _denied(order) if not any(own.is_relative_to(place) for own in writes)]
    return replace(launch, argv=box.boxed(argv, order.directory, nested, cut=level.cut, tmp_mb=tmp_mb, hidden=hidden))


def _denied(order: Order) -> Iterator[Path]:
    """Yield the folders that tool rules deny unconditionally."""
    for rule in order.tools.rules if order.tools else ():
        if rule.get("do", "ask") != "deny":
            return
        if order.tools and rule.get("folder") and not {"tool", "arguments", "network"} & set(rule):
            root = order.tools.root.resolve()
            place = (root / rule["folder"].removesuffix("/*")).resolve()
            if "*" not in str(place) and place.exists() and root in place.parents:
                yield place
