"""``/v1/workers``: send orders to worker processes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from api_client.contract.order_log import name_caller
from api_client.contract.worker_order import WorkerOrder
from api_client.operator_actions import order_worker
from api_client.resources.workers import WORKERS
from api_client.web.identity.access import CurrentCaller, require_operator
from api_client.web.relay.relay import CurrentRelay
from api_client.web.wire import JSONResponse

router = APIRouter()


@router.post(WORKERS.api + "/{name}/{order}", response_model=None)
async def send_order(name: str, order: WorkerOrder, relay: CurrentRelay, caller: CurrentCaller) -> Response:
    """Order a worker to take no new tasks (quiet), stop when idle (drain), stop now (stop) or resume (resume)."""
    require_operator(caller, WORKERS.doing)
    whole = await order_worker(relay.client, name, order, by=name_caller(caller.owner))
    return JSONResponse({"object": "worker", "name": whole, "order": order.value})
