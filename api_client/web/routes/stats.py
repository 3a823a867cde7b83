"""``/v1/stats`` and ``/metrics``: figures of all owners, for callers with the right to read them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client.figures import BREAKDOWNS, RETRY_BREAKDOWNS
from api_client.figures.spans import seconds_of
from api_client.web.errors import bad_request, shown
from api_client.web.identity.access import MayReadMetrics
from api_client.web.relay.relay import RelayOf
from api_client.web.routes.exposition import CONTENT_TYPE, exposition, read_vitals
from api_client.web.wire import JSON

router = APIRouter(dependencies=[MayReadMetrics])


@router.get("/v1/stats", response_model=None)
async def show_stats(request: Request, relay: RelayOf, since: str = "24h", by: str = "", against: str = "") -> Response:
    """Return the figures of the last ``since``, optionally by a dimension and compared with an earlier period."""
    if by not in {"", *BREAKDOWNS}:
        raise bad_request(f"by: must be one of {', '.join(BREAKDOWNS)}; got {shown(by)}", param="by")
    seconds = _span("since", since)
    body = {"object": "stats", **(await relay.client.figures.stats(seconds, by)).to_dict()}
    if against:
        earlier = await relay.client.figures.stats(seconds, by, ago_seconds=_span("against", against))
        body["against"] = earlier.to_dict()
    return JSON(body)


@router.get("/v1/retry-rate", response_model=None)
async def show_retry_rate(
    relay: RelayOf, since: str = "1h", by: str = "", every: str = "", model: str = ""
) -> Response:
    """Return the retry rate of the last ``since``, optionally by a dimension and per minute, hour or day."""
    if by not in {"", *RETRY_BREAKDOWNS}:
        raise bad_request(f"by: must be one of {', '.join(RETRY_BREAKDOWNS)}; got {shown(by)}", param="by")
    try:
        rate = await relay.client.figures.retry_rate(_span("since", since), by, every, model)
    except ValueError as error:
        raise bad_request(str(error), param="model" if str(error).startswith("model") else "every") from None
    return JSON(
        {"object": "retry_rate", "by": by or None, "every": every or None, "model": model or None, **rate.to_dict()}
    )


@router.get("/metrics", response_model=None)
async def show_metrics(relay: RelayOf) -> Response:
    """Return all counters and gauges in the format of Prometheus."""
    text = exposition(
        await relay.client.figures.totals(), await relay.client.workers.standing(), await read_vitals(relay)
    )
    return Response(text, media_type=CONTENT_TYPE)


def _span(name: str, text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise bad_request(f"{name}: {error}", param=name) from None
