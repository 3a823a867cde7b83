"""``/v1/workers``: the worker processes, for keys that may read all owners' figures; ordering them, for operators."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api_client.actions import order_worker
from api_client.audit import by_key
from api_client.contract.values.worker_order import WorkerOrder
from api_client.web.identity.access import Asker, MayReadMetrics, require_operator
from api_client.web.relay import RelayOf
from api_client.web.wire import JSON

router = APIRouter(prefix="/v1/workers")


@router.get("", response_model=None, dependencies=[MayReadMetrics])
async def list_workers(relay: RelayOf) -> Response:
    """Each worker process of the last day: where it is, what it does and since when, when it was last heard of."""
    standing = await relay.client.workers.standing()
    data = [{"object": "worker", **line.to_dict()} for line in standing.workers]
    return JSON({"object": "list", "data": data, "alerts": [alert.to_dict() for alert in standing.alerts]})


@router.post("/{name}/{order}", response_model=None)
async def order(name: str, order: WorkerOrder, relay: RelayOf, caller: Asker) -> Response:
    """Order a worker to take nothing new (quiet), to end when idle (drain) or now (stop), or to go on (resume)."""
    require_operator(caller, "orders workers")
    whole = await order_worker(relay.client, name, order, by=by_key(caller.owner))
    return JSON({"object": "worker", "name": whole, "order": order.value})
