"""Implement ``turns demo``: play turns that go wrong on a separate installation."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.events import Event
from api_client.contract.settings import Settings
from worker.cli.figures.stats import format_percent
from worker.cli.installation.relay_binding import RelayBinding
from worker.cli.installation.scenes import SCENES, Scene, SceneResult
from worker.cli.installation.up import Installation, plan_installation
from worker.cli.output import count_noun, json_option, strip_control, write_json, write_table
from worker.cli.turns.timeline import BAD, BOLD, DIM, GOOD, WARN, Line, Timeline
from worker.logs import configure_logging
from worker.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from openai import AsyncOpenAI


#: Shorter than the default, so that the killed worker's turn continues soon.
_LEASE_SECONDS = 3.0
_TURN_SECONDS = 60.0
#: Pieces of the answer after which the worker is killed.
_PIECES_BEFORE_KILL = 10


@click.command(epilog="Example: turns demo --locale de")
@click.option(
    "--locale", type=click.Choice(["de", "en"]), default="en", show_default=True, help="Language of the messages."
)
@json_option
def demo(locale: str, as_json: bool) -> None:
    """Start a temporary installation, run turns that go wrong in every way, and stop everything.

    Needs no key, no Docker, no Redis, and uses none of your settings. Exit code 0 only if every turn ended as expected.
    """
    if not find_spec("openai"):
        raise HelixError('the demo needs the openai client: pip install ".[demo]" in the checkout')
    directory = Path(tempfile.mkdtemp(prefix="helix-demo-"))
    settings = Settings(
        root=directory,
        locale=locale,
        models={"scripted": "scripted"},
        lease_seconds=_LEASE_SECONDS,
        announce_seconds=1.0,
        reap_seconds=0.3,
        shutdown_seconds=0.5,
        kill_grace_seconds=0.5,
        log_level="warning",
    )
    configure_logging(replace(settings, log_level="error"))
    logs = directory / "logs"
    logs.mkdir()
    try:
        installation = plan_installation(settings, RelayBinding(port=0), processes=1)  # a scene kills this process
        with Supervisor(installation.programs, logs=logs) as supervisor:
            results = asyncio.run(_play_scenes(installation, supervisor, locale, as_json=as_json))
    except BaseException:
        click.echo(f"turns: the demo was interrupted; its logs are in {logs}", err=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)
    problems = [f"{result.scene.title}: {problem}" for result in results for problem in result.problems]
    if problems:
        raise HelixError("the demo did not end as expected:\n" + "\n".join(problems))


async def _play_scenes(
    installation: Installation, supervisor: Supervisor, locale: str, *, as_json: bool
) -> list[SceneResult]:
    from openai import AsyncOpenAI

    timeline = None if as_json else Timeline(indent="  ")
    if timeline:
        timeline.write_line(Line(f"  broker  {installation.broker.split('  ')[0]}, append-only file on"))
        timeline.write_line(Line(f"  worker  Celery, {installation.settings.run_slots} agents at once"))
        timeline.write_line(Line(f"  web     {installation.addresses['web_url']}/v1"))
        timeline.write_line(Line("  agent   scripted (no API key needed)"))
    results = []
    async with (
        TurnsClient(installation.settings) as client,
        AsyncOpenAI(base_url=f"{installation.addresses['web_url']}/v1", api_key="none", max_retries=0) as chat,
    ):
        for number, scene in enumerate(SCENES):
            if timeline:
                timeline.write_line(Line(f"\n({chr(ord('a') + number)}) {scene.title}", BOLD))
                timeline.write_line(Line(f"    user: {getattr(scene, locale)}", DIM))
            result = await _play_scene(
                scene, getattr(scene, locale), f"demo-{number}", client, chat, supervisor, timeline
            )
            results.append(result)
            if timeline:
                _show_result(result, timeline)
            else:
                write_json(result.to_dict())
        if timeline:
            await _print_retry_rate(client, timeline, results)
    return results


async def _play_scene(
    scene: Scene,
    message: str,
    chat_id: str,
    client: TurnsClient,
    chat: AsyncOpenAI,
    supervisor: Supervisor,
    timeline: Timeline | None,
) -> SceneResult:
    from openai import APIError

    begun = time.monotonic()
    response = await chat.chat.completions.with_raw_response.create(
        model="scripted",
        messages=[{"role": "user", "content": message}],
        stream=True,
        extra_headers={"X-Conversation-ID": chat_id},
    )
    turn_id = response.headers["x-turn-id"]
    watching = asyncio.create_task(_watch_turn(scene, client, turn_id, supervisor, timeline))
    text, error = "", ""
    try:
        async with asyncio.timeout(_TURN_SECONDS):
            async for chunk in response.parse():
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
    except APIError as problem:
        error = problem.message
    await watching
    seconds = time.monotonic() - begun
    return SceneResult(
        scene=scene,
        turn=await client.reader.read_turn(turn_id),
        seconds=seconds,
        client_text=text.strip(),
        client_error=error,
    )


async def _watch_turn(
    scene: Scene, client: TurnsClient, turn_id: str, supervisor: Supervisor, timeline: Timeline | None
) -> None:
    to_kill, written = scene.kill_worker, 0
    show: Callable[[Event], None] = timeline.show_event if timeline else lambda event: None
    async for event in client.reader.follow_turn(turn_id):
        if event is None:
            continue
        show(event)
        written += isinstance(event.body, AttemptOutput)
        if to_kill and written > _PIECES_BEFORE_KILL:
            to_kill = False
            pid = await asyncio.to_thread(supervisor.kill, "worker-1")
            if timeline:
                timeline.write_line(Line(f"               kill -9 {pid}: the worker is gone, its agent with it", BAD))


def _show_result(result: SceneResult, timeline: Timeline) -> None:
    if result.client_error:
        for line in strip_control(result.client_error).splitlines():
            timeline.write_line(Line(f"    chat: {line}", WARN))
    else:
        first, *rest = [line for line in strip_control(result.client_text).splitlines() if line.strip()]
        more = f"  ... ({count_noun(len(rest), 'more line')})" if rest else ""
        timeline.write_line(Line(f"    chat: {first}{more}"))
    if result.turn.step:
        timeline.write_line(Line(f"    step: {result.turn.step} ({result.turn.step_source})", DIM))
    for problem in result.problems:
        timeline.write_line(Line(f"    NOT AS EXPECTED: {problem}", BAD))
    if not result.problems:
        timeline.write_line(Line(f"    as expected: {result.turn.outcome}, {result.seconds:.1f} s", GOOD))


async def _print_retry_rate(client: TurnsClient, timeline: Timeline, results: list[SceneResult]) -> None:
    whole, by = await client.figures.read_retry_rate(3600), await client.figures.read_retry_rate(3600, "code")
    timeline.write_line(Line("\nretry rate", BOLD))
    timeline.write_line(
        Line(
            f"  {format_percent(whole.rate)} of {whole.turns} finished turns "
            f"were asked again by a validator ({whole.retried})"
        )
    )
    sys.stdout.flush()
    head = ("  code", "rejected", "of validated", "rate")
    rows = [(f"  {row.name}", str(row.rejected), str(row.validated), format_percent(row.rate)) for row in by.rows]
    write_table([head, *rows])
    good = sum(not result.problems for result in results)
    timeline.write_line(
        Line(
            f"\n{good} of {len(results)} turns ended as expected. The demo has stopped everything that it started.",
            BOLD,
        )
    )
