"""The buttons that give orders to worker processes."""

from __future__ import annotations

from starlette.responses import Response

from api_client.contract.worker_order import WorkerOrder
from api_client.operator_actions import order_worker
from api_client.resources.workers import WORKERS
from api_client.web.identity.access import require_operator
from api_client.web.pages.rendering import page_router, redirect
from api_client.web.pages.visitor import CheckedForm, CurrentVisitor
from api_client.web.relay.relay import CurrentRelay

router = page_router()


@router.post("/workers/{name}/{order}")
async def send_order(
    name: str, order: WorkerOrder, relay: CurrentRelay, visitor: CurrentVisitor, _form: CheckedForm
) -> Response:
    """Give an operator's order to a worker process, and redirect to the list of workers."""
    require_operator(visitor.caller, WORKERS.doing)
    await order_worker(relay.client, name, order, by=visitor.actor_name, detail="page")
    return redirect("/workers")
