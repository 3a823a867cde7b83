"""Implement ``turns run traces``: send finished turns as OpenTelemetry traces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import click
import structlog

from api_client import __version__
from api_client.client import TurnsClient
from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.settings import load_settings, require_store
from api_client.figures.time_spans import parse_time_span
from api_client.tracing.switch import explain_off, find_endpoint
from worker.cli.output import json_option, write_json
from worker.logs import configure_logging
from worker.plugins.traces.trace_batches import ReceiverUnavailableError, Send, SendResult, send_next_batch
from worker.processes import own_programs

log = structlog.get_logger()

#: Seconds between polls, and the longest wait while receiver or store are away.
_LOOK_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0


class TracingDisabledError(HelixError):
    """Raised when traces are not configured. The message names the missing parts."""

    code = "tracing_off"


@click.command(epilog="Example: turns run traces --since 1h")
@click.option("--once", is_flag=True, help="Send the waiting traces, then end.")
@click.option("--since", metavar="SPAN", help="Begin with turns that ended this long ago (1h, 7d).")
@json_option
def traces(once: bool, since: str | None, as_json: bool) -> None:
    """Send each finished turn as an OpenTelemetry trace to OTEL_EXPORTER_OTLP_ENDPOINT, until Ctrl-C.

    Continues where it stopped, and waits while the receiver is away. One process per installation is enough: `turns up`
    starts it if a receiver is configured. Touches HELIX_AGENT_READY_FILE while all is well.
    """
    settings = require_store(load_settings())
    seconds = None if since is None else _parse_span(since)
    if why := explain_off(os.environ):
        raise TracingDisabledError(why)
    from worker.plugins.traces.otlp import SpanExporter

    configure_logging(replace(settings, log_level="warning") if once else settings)
    exporter = SpanExporter(__version__)

    async def send_traces() -> SendResult:
        async with TurnsClient(settings) as client:
            await client.untraced.start_reading(seconds)
            if once:
                return await _send_all(client, exporter.send_spans)
            stop = asyncio.Event()

            def end() -> None:
                stop.set()
                exporter.close()

            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, end)
            await _send_until_stopped(stop, client, exporter.send_spans)
            return SendResult()

    sent = asyncio.run(send_traces())
    if not once:
        return
    if as_json:
        write_json({"turns": sent.turns, "spans": sent.spans, "refused": list(sent.refused)})
    else:
        click.echo(f"{sent.turns} turns, {sent.spans} spans sent to {find_endpoint(os.environ)}")
        for turn_id in sent.refused:
            click.echo(f"turns: the receiver refused {turn_id}", err=True)


def _parse_span(text: str) -> float:
    try:
        return parse_time_span(text)
    except ValueError as error:
        raise click.UsageError(f"--since: {error}") from error


async def _send_all(client: TurnsClient, send: Send) -> SendResult:
    total = SendResult()
    while sent := await send_next_batch(client, send):
        total = SendResult(
            turns=total.turns + sent.turns, spans=total.spans + sent.spans, refused=(*total.refused, *sent.refused)
        )
    return total


async def _send_until_stopped(stop: asyncio.Event, client: TurnsClient, send: Send) -> None:
    log.info("traces.started", endpoint=find_endpoint(os.environ))
    delay = _LOOK_SECONDS
    while not stop.is_set():
        try:
            sent = await send_next_batch(client, send)
            delay = _LOOK_SECONDS
            if ready := os.environ.get(own_programs.READY_VARIABLE):
                Path(ready).touch()  # noqa: ASYNC240 - one call
            if sent:
                log.info("traces.sent", turns=sent.turns, spans=sent.spans)
                for turn_id in sent.refused:
                    log.error("traces.refused", turn_id=turn_id)
                continue
        except (ReceiverUnavailableError, StoreUnavailable) as error:
            delay = min(2 * delay, _LONGEST_WAIT_SECONDS)
            if not stop.is_set():
                log.warning("traces.waiting", error=error.code, seconds=delay)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), delay)
