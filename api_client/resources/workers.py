"""The worker processes of the last day, as a command, API and page."""

from __future__ import annotations

from typing import Any

from api_client.client import TurnsClient
from api_client.resources.resource import CellContext, Column, Listed, Resource, ResourcePage
from api_client.workers.fleet import WorkerRow


async def _heard_of(client: TurnsClient, _most: int) -> Listed[WorkerRow]:
    installation = await client.workers.read_state()
    return installation.workers, {"alerts": [alert.to_dict() for alert in installation.alerts]}


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _heard(line: WorkerRow, context: CellContext) -> str:
    if line.state == "signed off":
        return f"ended {_span(context.now - line.heard_at)} ago"
    return (
        f"gone for {_span(line.silent_seconds)}" if line.silent_seconds else f"{_span(context.now - line.heard_at)} ago"
    )


def _does(line: WorkerRow, context: CellContext) -> str:
    does = "; ".join(f"{each.task} {each.turn_id} for {_span(context.now - each.since)}" for each in line.doing[:3])
    left = len(line.doing) - 3
    does = does + (f"; and {left} more turn{'' if left == 1 else 's'}" if left > 0 else "") or ", ".join(line.queues)
    kept = [f"{each.session_id} ({_span(context.now - each.since)}, {each.bytes >> 20} MiB)" for each in line.kept]
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
