"""Starting an agent and watching it to its end: what all runners with a process do alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from api_client.contract.failpoints import reach
from worker.runners.base import AgentEvent, Emit, Order, Stop
from worker.runners.guard import box
from worker.runners.guard.agent_process import Exit
from worker.runners.guard.box import Bind, BoxError
from worker.runners.guard.processes import SOURCE_ROOT, Processes
from worker.runners.guard.supervision import Ending, LimitReached, Supervision
from worker.runners.transcript import MAX_ANSWER, AnswerTooLong

_PYTHON = dict.fromkeys((sys.base_prefix, sys.prefix))
#: What agents that are programs of ours need in a box: our packages, and Python wherever it is installed.
OUR_CODE = tuple(Bind(Path(path)) for path in [*_PYTHON, f"{SOURCE_ROOT}/worker", f"{SOURCE_ROOT}/api_client"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is started.

    Attributes:
        argv, env, stdin: the command, its whole environment, what it reads.
        binds: what it needs in a box besides the system and its own folder. box: ``HELIX_BOX``.
        wanted: it does what a model says, so it is put into a box wherever one can be made.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes
    binds: Sequence[Bind] = ()
    box: str = "off"
    wanted: bool = False


def run(
    agents: Processes,
    launch: Launch,
    order: Order,
    stop: Stop,
    emit: Emit,
    take_line: Callable[[bytes], Iterable[AgentEvent]],
) -> Ending:
    """Run an agent to its end; each line of its output becomes events. One that cannot be started ends at once."""

    def hear(line: bytes) -> None:
        try:
            for event in take_line(line):
                emit(event)
        except AnswerTooLong as error:
            raise LimitReached(f"an answer of more than {MAX_ANSWER} characters") from error

    try:
        level = box.level(launch.box, wanted=launch.wanted)
        argv = launch.argv
        if level != "none":
            own = Bind(order.directory, writable=not order.read_only)
            argv = box.boxed(argv, order.directory, box.nested(own, launch.binds))
        agent = agents.spawn(
            argv,
            mark=order.mark,
            env=launch.env,
            cwd=order.directory,
            stdin=launch.stdin,
            lease_ends=stop.lease_ends,
        )
    except BoxError as error:
        return Ending(exit=Exit(error=str(error)))
    except OSError as error:
        return Ending(exit=Exit(error=str(error), passing=True))
    reach("B6")
    ending = replace(Supervision(agent, order, stop, hear).run(), box=level)
    reach("B8")
    if level != "none" and not ending.bytes and (problem := box.failed(ending.stderr)):
        return replace(ending, exit=replace(ending.exit, error=problem))
    return ending
