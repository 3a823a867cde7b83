"""The worker processes of the last day, as a command, API and page."""

from __future__ import annotations

from typing import Any

from api_client.client import TurnsClient
from api_client.contract.clock_time import format_duration
from api_client.resources.resource import CellContext, Column, Listed, Resource, ResourcePage
from api_client.workers.fleet import WorkerRow


async def _heard_of(client: TurnsClient, _most: int) -> Listed[WorkerRow]:
    installation = await client.workers.read_state()
    return installation.workers, {"alerts": [alert.to_dict() for alert in installation.alerts]}


def _heard(line: WorkerRow, context: CellContext) -> str:
    if line.silent_seconds and line.state != "signed off":
        return f"gone for {format_duration(line.silent_seconds)}"
    ago = f"{format_duration(context.now - line.heard_at)} ago"
    return f"ended {ago}" if line.state == "signed off" else ago


def _does(line: WorkerRow, context: CellContext) -> str:
    def age(since: float) -> str:
        return format_duration(context.now - since)

    does = "; ".join(f"{each.task} {each.turn_id} for {age(each.since)}" for each in line.doing[:3])
    left = len(line.doing) - 3
    does = does + (f"; and {left} more turn{'' if left == 1 else 's'}" if left > 0 else "") or ", ".join(line.queues)
    kept = [f"{each.session_id} ({age(each.since)}, {each.bytes >> 20} MiB)" for each in line.kept]
    return f"{does}; keeps {', '.join(kept)}" if kept else does


WORKERS = Resource[WorkerRow](
    read=_heard_of,
    none="no worker was heard of within a day: start `turns run worker`",
    columns=(
        Column("worker", lambda line, _: line.name, most=200),
        Column("state", lambda line, _: line.state + (f": {line.why}" if line.why else ""), most=80),
        Column("pid", lambda line, _: line.pid, "num"),
        Column("version", lambda line, _: line.version),
        Column("slots free", lambda line, _: f"{line.free} of {line.slots}", "num"),
        Column("since", lambda line, _: line.started_at, "when"),
        Column("last heard", _heard),
        Column("does", _does, "wide", 300),
    ),
    api="/v1/workers",
    called="list_workers",
    about="Each worker process of the last day: where it is, what it does and since when, when it was last heard of.",
    kind="worker",
    doing="orders workers",
    figures=True,
)


async def _standing(client: TurnsClient) -> dict[str, Any]:
    return {"seen": await client.workers.read_state()}


RESOURCES = (WORKERS,)
PAGES = (
    ResourcePage(
        address="/workers", title="Workers", position=1, template="workers.html", more=_standing, refresh_seconds=5
    ),
)
