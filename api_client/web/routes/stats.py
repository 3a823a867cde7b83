"""``/v1/stats`` and ``/metrics``: figures of all owners, for callers with the right to read them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api_client.figures.statistics import BREAKDOWNS, RETRY_BREAKDOWNS
from api_client.figures.time_spans import parse_time_span
from api_client.web.errors import bad_request, display_value
from api_client.web.identity.access import RequireMetricsRight
from api_client.web.relay.relay import CurrentRelay
from api_client.web.routes.prometheus_metrics import CONTENT_TYPE, read_vitals, render_metrics
from api_client.web.wire import JSONResponse

router = APIRouter(dependencies=[RequireMetricsRight])


@router.get("/v1/stats", response_model=None)
async def show_stats(
    request: Request, relay: CurrentRelay, since: str = "24h", by: str = "", against: str = ""
) -> Response:
    """Return statistics of recent turns, grouped by ``by``. ``against`` adds those of an earlier period to compare.

    ``since``, for example ``24h``, is the length of both periods. The earlier period ended ``against`` ago.
    """
    if by not in {"", *BREAKDOWNS}:
        raise bad_request(f"by: must be one of {', '.join(BREAKDOWNS)}; got {display_value(by)}", param="by")
    seconds = _read_span("since", since)
    body = {"object": "stats", **(await relay.client.figures.read_stats(seconds, by)).to_dict()}
    if against:
        earlier = await relay.client.figures.read_stats(seconds, by, ago_seconds=_read_span("against", against))
        body["against"] = earlier.to_dict()
    return JSONResponse(body)


@router.get("/v1/retry-rate", response_model=None)
async def show_retry_rate(
    relay: CurrentRelay, since: str = "1h", by: str = "", every: str = "", model: str = ""
) -> Response:
    """Return the retry rate since a time, optionally split ``by`` a dimension and for ``every`` minute, hour or day."""
    if by not in {"", *RETRY_BREAKDOWNS}:
        raise bad_request(f"by: must be one of {', '.join(RETRY_BREAKDOWNS)}; got {display_value(by)}", param="by")
    try:
        rate = await relay.client.figures.read_retry_rate(_read_span("since", since), by, every, model)
    except ValueError as error:
        raise bad_request(str(error), param="model" if str(error).startswith("model") else "every") from None
    return JSONResponse(
        {"object": "retry_rate", "by": by or None, "every": every or None, "model": model or None, **rate.to_dict()}
    )


@router.get("/metrics", response_model=None)
async def show_metrics(relay: CurrentRelay) -> Response:
    """Return all counters and gauges in Prometheus format."""
    text = render_metrics(
        await relay.client.figures.read_totals(), await relay.client.workers.read_state(), await read_vitals(relay)
    )
    return Response(text, media_type=CONTENT_TYPE)


def _read_span(name: str, text: str) -> float:
    try:
        return parse_time_span(text)
    except ValueError as error:
        raise bad_request(f"{name}: {error}", param=name) from None
