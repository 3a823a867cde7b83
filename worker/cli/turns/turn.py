"""Implement the commands about one turn: submit, watch, show, attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.decision import SHOW_COMMAND
from api_client.contract.errors import BadRequest
from api_client.contract.question_language import detect_language
from api_client.contract.settings import Settings, load_settings
from api_client.contract.settings.turn_limits import limit_turn
from api_client.contract.turn import DoubleText, Priority, Turn, TurnRequest, TurnState, new_session_id
from api_client.contract.turn_labels import LABELS
from api_client.contract.work import find_work
from api_client.tools.server_choice import read_tool_servers
from api_client.workers.reason import Wait
from worker.cli import NO
from worker.cli.output import fit_line, format_time, json_option, strip_control, write_json, write_result, write_table
from worker.cli.store_access import run_with_client
from worker.cli.text_input import read_text
from worker.cli.turns.listing import add_turn_argument, complete_model
from worker.cli.turns.timeline import DIM, Line, Timeline, format_error, format_issues

_TICK_SECONDS = 1.0


@click.command(epilog='Example: turns submit --watch "How should we deliver webhooks?"')
@click.argument("message")
@click.option("--session", help="Session the turn belongs to; its turns run in order. Default: a new one.")
@click.option("--model", help="One of HELIX_MODELS. Default: the first.", shell_complete=complete_model)
@click.option(
    "--validator",
    "validators",
    multiple=True,
    help="An offered validator to be active; may be repeated. Default: HELIX_VALIDATORS.",
)
@click.option(
    "--tool-server",
    "tool_servers",
    multiple=True,
    help="An MCP server that the turn may use; may be repeated. '' alone: none. Default: all that its model may.",
)
@click.option("--locale", type=click.Choice(["de", "en"]), help="Language of feedback and messages.")
@click.option("--max-attempts", type=int, help="Most agent runs.")
@click.option("--deadline", "deadline_seconds", type=float, help="Wall time over all attempts, in seconds.")
@click.option("--token-limit", type=int, help="Tokens all attempts may use together; 0: no limit.")
@click.option(
    "--cost-limit", "cost_limit_usd", type=float, help="US dollars all attempts may use together; 0: no limit."
)
@click.option("--busy", type=click.Choice([d.value for d in DoubleText]), help="What to do if the session is busy.")
@click.option("--priority", type=click.Choice([each.value for each in Priority]), help="Whose agents start first.")
@click.option("--idempotency-key", default="", help="Submitting again with the same key gives the same turn.")
@click.option("--wait", is_flag=True, help="Wait for the end and write the answer.")
@click.option("--watch", "watching", is_flag=True, help="Write each event until the end, then the answer.")
@json_option
def submit(message: str, wait: bool, watching: bool, as_json: bool, idempotency_key: str, **options: Any) -> None:
    """Submit MESSAGE (- for standard input) and print the turn's id.

    With --wait or --watch the exit code is 0 if the turn passed and 1 if not.
    """
    settings = load_settings()
    request = build_request(settings, read_text(message) if message == "-" else message, options)

    async def submit_turn(client: TurnsClient) -> Turn | None:
        named = [name for name in ("validators", "max_attempts", "locale") if options[name]]
        complete = await client.complete_request(request, named)
        turn_id = await client.submitter.submit(complete, idempotency_key=idempotency_key)
        if not (wait or watching):
            write_result(as_json, {"turn_id": turn_id, "session_id": request.session_id}, turn_id)
            return None
        if not as_json:
            click.echo(f"turn {turn_id}", err=True)
        if watching:
            await follow_turn(client, turn_id, as_json=as_json)
        return await client.reader.await_result(turn_id)

    turn = run_with_client(submit_turn)
    if turn is None:
        return
    if as_json and not watching:
        write_json(turn.to_dict())
    if not as_json and turn.response:
        click.echo(strip_control(turn.response))
    if turn.outcome and not turn.outcome.success:
        for text in (
            () if watching or as_json else (f"the turn ended as {turn.outcome.value}", *format_error(turn.error))
        ):
            click.echo(f"turns: {text}", err=True)
        raise click.exceptions.Exit(NO)


def build_request(settings: Settings, message: str, options: Mapping[str, Any]) -> TurnRequest:
    if not message.strip():
        raise BadRequest("the message is empty")
    model, session = options["model"] or next(iter(settings.models)), options["session"]
    settings = settings.for_model(model)
    return TurnRequest(
        model=model,
        messages=({"role": "user", "content": message},),
        session_id=new_session_id() if session is None else session,
        validators=options["validators"] or settings.validators,
        locale=options["locale"] or detect_language([message]) or settings.locale,
        double_text=DoubleText(options["busy"] or DoubleText.QUEUE),
        policy=settings.policy_orders,
        priority=options["priority"] or "",
        attached=read_tool_servers(settings, options.get("tool_servers", ())),
        **limit_turn(settings, options),
    )


async def follow_turn(client: TurnsClient, turn_id: str, *, after: int = 0, as_json: bool) -> None:
    """Write the events of a turn to the terminal until the turn ends."""
    timeline = Timeline()
    async for event in client.reader.follow_turn(turn_id, after=after, ping_seconds=None if as_json else _TICK_SECONDS):
        if event is None:
            timeline.show_progress()
        elif as_json:
            write_json(event.to_dict())
        else:
            timeline.show_event(event)


@click.command(epilog="Example: turns turn watch last")
@add_turn_argument()
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events after this number.")
@json_option
def watch(turn_id: str, after: int, as_json: bool) -> None:
    """Print every event of a turn until the turn ends. Ctrl-C stops watching; the turn continues.

    With --json each line is an event as in docs/events.md; `--after SEQ` continues after the last event seen.
    """
    run_with_client(lambda client: follow_turn(client, turn_id, after=after, as_json=as_json))


@click.command(epilog="Example: turns turn show last")
@add_turn_argument()
@json_option
def show(turn_id: str, as_json: bool) -> None:
    """Show a turn's record."""

    async def read_turn(client: TurnsClient) -> tuple[Turn, Wait | None]:
        turn = await client.reader.read_turn(turn_id)
        return turn, (await client.workers.explain_waits([turn])).get(turn_id)

    turn, wait = run_with_client(read_turn)
    if as_json:
        write_json({**turn.to_dict(), "waits": wait.to_dict() if wait else None})
        return
    request, ended, work = turn.request, turn.finished_at, find_work(turn.request)
    facts = {
        "turn": turn.turn_id,
        "session": fit_line(request.session_id),
        "model": fit_line(turn.models),
        "prompt": fit_line(request.prompt),
        work.name: fit_line(work.describe_request(request)) if request.work else None,
        **{each.title: turn.labels[name] or None for name, each in LABELS.items() if each.title},
        "prompt template": request.template or None,
        "state": turn.state.value,
        "waits": fit_line(wait.words(), 300) if wait else None,
        "attempt": f"{turn.attempt} of {turn.max_attempts}, deliveries {turn.delivery}",
        "owner": fit_line(request.shown_owner, 100),
        "created": format_time(turn.created_at),
        "finished": f"{format_time(ended)} ({ended - turn.created_at:.1f} s)" if ended else None,
        "outcome": turn.outcome.value if turn.outcome else None,
        "step": fit_line(f"{turn.step} ({turn.step_source})" if turn.step_source else turn.step) if turn.step else None,
        "worker": fit_line(turn.worker) if turn.worker else None,
        "decided": f"{turn.decision.kind} by {fit_line(turn.decision.who)}" if turn.decision else None,
    }
    rows: list[tuple[str, ...]] = [(name, value) for name, value in facts.items() if value is not None]
    if turn.state is TurnState.SUSPENDED:
        until = f"{format_time(turn.decide_by)}, then {turn.interruption.silence if turn.interruption else ''}"
        rows += [("until", until), ("what to do", f"{SHOW_COMMAND} {turn.turn_id}")]
    elif wait and wait.advice:
        rows.append(("fix", wait.advice))
    rows += [("error", text) for text in format_error(turn.error)]
    if turn.error and turn.error.code:
        rows.append(("what to do", f"turns turn explain {fit_line(turn.error.code)}"))
    write_table(rows)
    if turn.response:
        click.echo(f"\n{strip_control(turn.response)}")


@click.command(epilog="Example: turns turn attempts last --full")
@add_turn_argument()
@click.option("--full", is_flag=True, help="Show the whole prompt, answer and feedback of each attempt.")
@json_option
def attempts(turn_id: str, full: bool, as_json: bool) -> None:
    """Show each attempt of a turn: its prompt, the end of the agent's run, and its issues."""
    found = run_with_client(lambda client: client.reader.read_attempts(turn_id))
    if as_json:
        write_json([attempt.to_dict() for attempt in found])
        return
    timeline = Timeline()
    for attempt in found:
        for line in (*_format_attempt(attempt), *(_format_texts(attempt) if full else ())):
            timeline.write_line(line)


def _format_attempt(attempt: AttemptRecord) -> list[Line]:
    took = f", {attempt.finished_at - attempt.started_at:.1f} s" if attempt.finished_at else ""
    evidence = attempt.completion.get("evidence", {})
    lines = [Line(f"attempt {attempt.number}  {attempt.decision or 'not validated'}{took}", "bold")]
    facts = {
        "asked": fit_line(attempt.prompt),
        "ended": fit_line(" ".join(str(attempt.completion.get(key, "")) for key in ("verdict", "reason"))),
        "said last": "" if attempt.text else fit_line(str(evidence.get("stderr", "")).strip().rpartition("\n")[2]),
        "took over": _describe_fallback(evidence.get("fallback_from") or {}),
        "calls": fit_line(str((evidence.get("model_calls") or {}).get("summary", ""))),
        "answer": f"{len(attempt.text)} characters" if attempt.text else "",
        "deliveries": str(attempt.deliveries) if attempt.deliveries > 1 else "",
        "worker": fit_line(attempt.worker),
        "changed": fit_line(", ".join((*attempt.edits, *attempt.changes))),
    }
    lines += [Line(f"  {name:<10}  {value}") for name, value in facts.items() if value]
    lines += [Line(f"  {'tool':<10}  {_describe_tool(each)}") for each in evidence.get("tools", ())]
    lines += [Line(f"  {line.text}", line.style) for line in format_issues(attempt.issues)]
    return lines + [Line(f"  in shadow  {line.text.strip()}", DIM) for line in format_issues(attempt.shadow)]


def _describe_tool(call: Mapping[str, Any]) -> str:
    size = f", {call.get('result_bytes', 0)} bytes in {call.get('took_ms', 0)} ms"
    return fit_line(f"{call['server']}.{call['tool']} {call['state']}{size}")


def _describe_fallback(fell: Mapping[str, Any]) -> str:
    return "; ".join(
        fit_line(f"{each['next']} from {model}: {each['fault']} ({each['reason']})") for model, each in fell.items()
    )


def _format_texts(attempt: AttemptRecord) -> Iterator[Line]:
    sent = [("instructions that were sent", attempt.sent.get("system", ""))]
    sent += [(f"sent as {each['role']}", each["content"]) for each in attempt.sent.get("messages", ())]
    for title, text in (
        ("asked", attempt.prompt),
        *sent,
        ("answered", attempt.text),
        ("the answer as it was validated", attempt.answer if attempt.answer != attempt.text else ""),
        ("repaired by code", attempt.mended),
        ("feedback", attempt.feedback),
        ("the end of the agent's standard error", str(attempt.completion.get("evidence", {}).get("stderr", ""))),
    ):
        if text:
            yield Line(f"  {title}:", "bold")
            yield from (Line(f"  | {line}") for line in strip_control(text).splitlines())
