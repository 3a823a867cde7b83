"""The page of one turn, with its buttons."""

from __future__ import annotations

import asyncio
import difflib
import itertools
import json
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from api_client.client import Change, act, deaths, export
from api_client.contract import events as kinds
from api_client.contract.events import Event
from api_client.contract.issues import BadRequest, NotFinished, NotParked, error_codes, read_issues
from api_client.contract.messages import handed_over, is_hand_over
from api_client.contract.policy import DEFAULTS, DecisionKind
from api_client.contract.record import AttemptRecord
from api_client.contract.settings.setting_values import TRACE_ID
from api_client.contract.turn import Outcome, Turn, TurnState, replay_id
from api_client.index import find_turn, neighbours
from api_client.pauses import clock_time
from api_client.snapshots import FilesLost, FilesUnavailable
from api_client.store.audit import HOLDER
from api_client.tracing import trace_id
from api_client.turns.inbox import proposal
from api_client.turns.turn_files import LinkedFile
from api_client.web.errors import ApiError, say, shown_text
from api_client.web.identity import needs_key, needs_token, require_local, require_operator
from api_client.web.intake import replay
from api_client.web.pages.render import page, page_router, see_other, visited
from api_client.web.pages.visitor import Form, LongForm, Visitor, VisitorOf, form_of, others_need_token
from api_client.web.relay import Asked, Relay, RelayOf, asked_by, linked_files, whole
from api_client.workers.reports import read_exits

# The changes of an attempt against the one before: lines, and the words within changed lines. Pure.

#: Unchanged lines shown around a change.
_AROUND = 2
#: Comparing takes time that grows with the square of the length; longer texts are not compared in a page.
_MOST_LINES, _MOST_WORDS = 2000, 200
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line: ``same``, ``added``, ``removed``, or ``gap`` (unchanged lines left out; the text says how many).

    ``parts`` are the line's pieces, each with whether it is what changed.
    """

    kind: str
    parts: tuple[tuple[str, bool], ...]


def compare(before: str, after: str) -> list[DiffLine] | None:
    """The changes with what is around them; empty when nothing changed, None when the texts are too long."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > _MOST_LINES:
        return None
    lines: list[DiffLine] = []
    position = 0
    groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_AROUND)
    for group in groups:
        lines += _gap(group[0][1] - position)
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [DiffLine("same", ((line, False),)) for line in old[i1:i2]]
            else:
                lines += _changed(old[i1:i2], new[j1:j2])
            position = i2
    return lines + _gap(len(old) - position) if lines else []


def _gap(count: int) -> list[DiffLine]:
    return [DiffLine("gap", ((f"{count} unchanged {'line' if count == 1 else 'lines'}", False),))] if count > 0 else []


def _changed(old: list[str], new: list[str]) -> list[DiffLine]:
    removed, added = [], []
    for index in range(max(len(old), len(new))):
        if index < len(old) and index < len(new):
            before, after = _words(old[index], new[index])
            removed.append(DiffLine("removed", before))
            added.append(DiffLine("added", after))
        elif index < len(old):
            removed.append(DiffLine("removed", ((old[index], False),)))
        else:
            added.append(DiffLine("added", ((new[index], False),)))
    return removed + added


def _words(old: str, new: str) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, bool], ...]]:
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    if max(len(before), len(after)) > _MOST_WORDS:
        return ((old, False),), ((new, False),)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    if matcher.ratio() < 0.4:  # another line altogether: marking single words would only confuse
        return ((old, False),), ((new, False),)
    left, right = [], []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        left.append(("".join(before[i1:i2]), tag != "equal"))
        right.append(("".join(after[j1:j2]), tag != "equal"))
    return tuple(part for part in left if part[0]), tuple(part for part in right if part[0])


# An event in one line of a page: the facts of its data, without the long texts that stand elsewhere. Pure.

#: Shown in the attempts, or not worth a line.
_ELSEWHERE = {"feedback", "response", "step_source", "fixed"}
_LONGEST = 160


def summary(event: Event) -> str:
    """Return what the event's data says."""
    return " · ".join(filter(None, (_fact(name, value) for name, value in event.data.items())))


def _fact(name: str, value: Any) -> str:
    if name == "text" and value:
        return str(value)[:_LONGEST]
    if name in _ELSEWHERE or value in ("", [], {}, None):
        return ""
    match name, value:
        case "issues", list():
            return ", ".join(error_codes(read_issues(value))) or "warnings only"
        case "error", dict():
            return str(value.get("code", ""))
        case _, bool():
            return name if value else f"not {name}"
        case _, list():
            return f"{name.replace('_', ' ')} {', '.join(map(str, value))}"[:_LONGEST]
        case (("reason" | "outcome" | "verdict" | "name" | "detail" | "during" | "step"), _):
            return str(value).replace("_", " ")[:_LONGEST] if name == "outcome" else str(value)[:_LONGEST]
    return f"{name.replace('_', ' ')} {value}"[:_LONGEST]


# A turn's events as rows of bars over time: who waited for what, and how long. Pure.

#: Kinds of bars, in the order a turn goes through them, and what each means.
KINDS = {
    "queue": "waits for a worker",
    "pause": "is paused",
    "run": "the agent works",
    "lost": "lost with its worker",
    "handed": "handed over by its worker",
    "validate": "is judged",
    "repair": "repaired by code",
    "person": "waits for a person",
}
#: Bars narrower than this many per cent would not be seen.
_NARROWEST = 0.35
#: Steps between ticks of the time axis, in seconds.
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400, 604_800)


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that took time. Seconds since the turn began; ``open``: it is still going on."""

    kind: str
    start: float
    end: float
    open: bool = False

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """One delivery of an attempt, or the repair. ``said`` is how it ended, ``good`` whether that was well."""

    label: str
    bars: tuple[Bar, ...] = ()
    said: str = ""
    good: bool | None = None


@dataclass(slots=True)
class _Walk:
    """A place in the history: the rows so far, and the bar that is open."""

    began: float
    rows: list[WaterfallRow] = field(default_factory=list)
    kind: str = ""
    since: float = 0.0

    def row(self, label: str) -> None:
        """Go to a new row, unless the present one has this name already."""
        if not self.rows or self.rows[-1].label != label:
            self.rows.append(WaterfallRow(label))

    def open(self, kind: str, at: float) -> None:
        """A bar begins."""
        self.kind, self.since = kind, at

    def close(self, at: float, *, kind: str = "", going_on: bool = False) -> None:
        """The open bar ends, if there is one."""
        if self.kind:
            bar = Bar(kind or self.kind, self.since - self.began, max(self.since, at) - self.began, going_on)
            self.rows[-1] = replace(self.rows[-1], bars=(*self.rows[-1].bars, bar))
        self.kind = ""

    def say(self, said: str, *, good: bool | None) -> None:
        """End the present row."""
        self.rows[-1] = replace(self.rows[-1], said=said, good=good)


def waterfall(events: Iterable[Event], now: float) -> list[WaterfallRow]:
    """The rows of a turn, in order. What has not ended lasts until ``now`` (seconds since the epoch)."""
    walk: _Walk | None = None
    for event in events:
        if walk is None:
            walk = _Walk(event.at)
            walk.row("Attempt 1")
            walk.open("queue", event.at)
        _take(walk, event.body, event.at)
    if walk is None:
        return []
    walk.close(now, going_on=True)
    return [row for row in walk.rows if row.bars]


def _take(walk: _Walk, body: kinds.Body, at: float) -> None:
    match body:
        case kinds.AttemptStarted():
            walk.close(at)
            walk.open("run", at)
        case kinds.AttemptCompleted():
            walk.close(at)
            if body.verdict == "complete":
                walk.open("validate", at)
            else:
                walk.say(body.reason or body.verdict, good=False)
        case kinds.AttemptLost():
            planned = is_hand_over(body.during)
            walk.close(at, kind="handed" if planned else "lost")
            walk.say(handed_over(body.during) if planned else "worker lost", good=None if planned else False)
            walk.row(f"Attempt {body.attempt}, delivered again")
            walk.open("validate" if body.during == "validating" else "queue", at)
        case kinds.AttemptAccepted():
            walk.close(at)
            walk.say("accepted", good=True)
        case kinds.AttemptRejected():
            walk.close(at)
            walk.say(", ".join(error_codes(body.issues)) or "rejected", good=False)
        case _:
            _take_turn(walk, body, at)


def _take_turn(walk: _Walk, body: kinds.Body, at: float) -> None:
    match body:
        case kinds.TurnRetrying():
            walk.close(at)
            walk.row(f"Attempt {body.attempt}{f', model {body.model}' if body.model else ''}")
            walk.open("queue", at)
        case kinds.TurnFallback():
            walk.close(at)
            walk.row("Repair")
            walk.open("repair", at)
        case kinds.TurnMended():
            walk.close(at)
            walk.say(f"{len(body.changes)} changed", good=None)
        case kinds.TurnParked():
            walk.close(at)
            walk.row("Inbox")
            walk.open("person", at)
        case kinds.TurnPaused() | kinds.TurnResumed():
            walk.close(at)
            walk.open("pause" if isinstance(body, kinds.TurnPaused) else "queue", at)
        case kinds.TurnDecided():
            walk.close(at)
            walk.say(f"{body.kind} by {body.by}", good=None)
        case kinds.TurnFinished():
            walk.close(at)
            if not walk.rows[-1].said:
                walk.say(body.outcome.replace("_", " "), good=body.success)
        case _:  # took no time
            pass


@dataclass(frozen=True, slots=True)
class Scale:
    """Seconds as per cent of the width."""

    seconds: float

    def at(self, seconds: float) -> str:
        """Return where a moment is."""
        return f"{100 * seconds / self.seconds:.2f}%"

    def width(self, bar: Bar) -> str:
        """Return how wide a bar is; never too narrow to be seen."""
        return f"{max(_NARROWEST, 100 * bar.seconds / self.seconds):.2f}%"

    @property
    def ticks(self) -> list[float]:
        """The moments the axis names: at most seven."""
        step = next((step for step in _STEPS if self.seconds / step <= 7), _STEPS[-1])
        return [step * n for n in range(1, int(self.seconds / step) + 1) if step * n < 0.97 * self.seconds]


_REFRESH_SECONDS = 2

router = page_router()


@router.get("/turns/{turn_id}")
async def show_turn(request: Request, turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """One turn: what happened, why, and what became of it."""
    client = relay.client
    if (whole := await find_turn(client.lists, turn_id, owner=visitor.owner)) != turn_id:
        return see_other(f"/turns/{whole}")
    turn = await client.reader.get(turn_id, owner=visitor.owner)
    attempts = await client.reader.attempts(turn_id, owner=visitor.owner)
    outline = await client.reader.outline(turn_id)
    rows = waterfall(outline.events, turn.finished_at or time.time())
    parked = turn.state is TurnState.PARKED
    again = replay_id(turn.turn_id)
    return visited(
        "turn.html",
        request,
        visitor,
        turn=turn,
        wait=(await client.workers.waits([turn])).get(turn_id),
        attempts=attempts,
        changes=await asyncio.to_thread(_changes, turn, attempts),
        rows=rows,
        scale=Scale(max([0.05, *(bar.end for row in rows for bar in row.bars)])),
        bar_kinds=KINDS,
        events=[(event, summary(event)) for event in outline.events],
        pieces=outline.pieces,
        began=outline.events[0].at if outline.events else turn.created_at,
        replay=again if turn.outcome and await relay.client.lists.read([again]) else "",
        neighbours=await neighbours(client.lists, turn),
        deaths=deaths(outline.events, await read_exits(client.store)) if turn.strikes else [],
        droppable=visitor.operator and turn.outcome is Outcome.DEAD and await client.lists.is_dead_letter(turn_id),
        now=time.time(),
        bundles=visitor.operator and relay.pack is not None,
        files=await _files(relay, turn, visitor.owner),
        trace=relay.settings.trace_page.replace(TRACE_ID, f"{trace_id(turn):032x}") if turn.outcome else "",
        models=tuple(visitor.caller.settings(relay.settings).models),
        decision={"id": secrets.token_hex(8), **proposal(turn, attempts)} if parked else None,
        # A parked turn stands still, and what somebody writes about it must not be taken away.
        refresh=0 if turn.outcome or parked else _REFRESH_SECONDS,
    )


async def _files(relay: Relay, turn: Turn, owner: str | None) -> list[LinkedFile]:
    """Links to the answer's files; none where the object store does not list them now."""
    with suppress(FilesLost, FilesUnavailable):
        return await linked_files(relay, turn.turn_id, owner) if turn.outcome else []
    return []


@router.get("/turns/{turn_id}/export")
async def export_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """The turn's record, attempts and events as a file."""
    body = json.dumps(await export(relay.client, turn_id, owner=visitor.owner), indent=1)
    name = {"content-disposition": f'attachment; filename="{shown_text(turn_id)}.json"'}
    return Response(body, media_type="application/json", headers=name)


@router.get("/turns/{turn_id}/bundle")
async def bundle_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf) -> Response:
    """Send a bug report, as `turns bundle` packs it on the relay's machine: for operators, without prompts."""
    require_operator(visitor.caller, "downloads a bundle: it shows settings")
    if relay.pack is None:
        raise ApiError(404, "this relay makes no bundles: use `turns bundle`", code="not_found")
    body = await asyncio.to_thread(relay.pack, await export(relay.client, turn_id))
    name = {"content-disposition": f'attachment; filename="turns-{shown_text(turn_id)}.zip"'}
    return Response(body, media_type="application/zip", headers=name)


def _changes(turn: Turn, attempts: list[AttemptRecord]) -> dict[int, list[DiffLine] | None]:
    """Return what each attempt changed against the one before; under 0, what the fallback changed."""
    found = {
        after.number: compare(before.answer or before.text, after.answer or after.text)
        for before, after in itertools.pairwise(attempts)
    }
    for attempt in attempts:
        if attempt.mended:
            found[0] = compare(attempt.answer or attempt.text, attempt.mended)
    return found


@router.post("/turns/{turn_id}/cancel")
async def cancel_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Call the turn off, and show what became of it."""
    with others_need_token(visitor):
        await act(relay.client, "cancel", turn_id, by=visitor.name, owner=visitor.changes, detail="page")
    return see_other(f"/turns/{turn_id}")


@router.post("/turns/{turn_id}/replay")
async def replay_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Submit the turn again, and show the new turn. Twice makes one."""
    return await _replayed(relay, visitor, turn_id, Change())


@router.post("/turns/{turn_id}/replay-changed")
async def replay_changed_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, form: LongForm) -> Response:
    """Submit the turn again, by another model or with another message, and show the new turn. Twice makes one."""
    message = form.get("message", "").replace("\r\n", "\n")
    if not message.strip():
        raise ApiError(400, "the message is empty", param="message", code="invalid_value")
    return await _replayed(relay, visitor, turn_id, Change(model=form.get("model", ""), prompt=message))


async def _replayed(relay: Relay, visitor: Visitor, turn_id: str, change: Change) -> Response:
    try:
        with others_need_token(visitor):
            done = await replay(
                relay, turn_id, change, caller=visitor.caller, reach=visitor.changes, by=visitor.name, detail="page"
            )
    except NotFinished:
        raise ApiError(409, "this turn has not finished yet: cancel it first", code="turn_not_finished") from None
    return see_other(f"/turns/{done.new_turn_id}")


@router.post("/turns/{turn_id}/drop")
async def drop_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Take a dead letter off the list, and show what else there is. For operators: the list is theirs."""
    require_operator(visitor.caller, "drops dead letters")
    try:
        await act(relay.client, "drop", turn_id, by=visitor.name, detail="page")
    except NotFinished:
        raise ApiError(409, "this turn is not a dead letter", code="turn_not_finished") from None
    return see_other("/overview")


@router.post("/turns/{turn_id}/decision")
async def decide_turn(turn_id: str, relay: RelayOf, visitor: VisitorOf, form: LongForm) -> Response:
    """Decide on a parked turn, and show what became of it. The same form sent twice decides once."""
    if visitor.keyless:
        raise needs_token()
    fields = {name: form.get(name, "") for name in ("decision", "note", "text", "decision_id")}
    text = fields["text"].replace("\r\n", "\n") if fields["decision"] == DecisionKind.EDIT else ""
    await relay.client.inbox.decide(
        turn_id,
        fields["decision"],
        by=visitor.name,
        note=fields["note"].replace("\r\n", "\n"),
        text=text,
        owner=visitor.changes,
        decision_id=fields["decision_id"],
        parked_at=whole(form.get("parked", "")) / 1000,
    )
    return see_other(f"/turns/{turn_id}")


# Yes or no by a link in a chat: a page that asks, and its form, which answers once. Reading the page changes nothing,
# because chats and mail programs read the links that they show.


@router.get("/answer/{turn_id}")
async def ask(
    request: Request, turn_id: str, relay: RelayOf, parked: str = "", until: str = "", signature: str = ""
) -> Response:
    """Ask, or say that nobody is asked any more."""
    if not needs_key(relay):
        require_local(request)
    asked = await asked_by(relay, turn_id, parked, until, signature)
    return _shown(asked, "" if asked.waits else _over(asked))


@router.post("/answer/{turn_id}")
async def answer(
    request: Request, turn_id: str, relay: RelayOf, parked: str = "", until: str = "", signature: str = ""
) -> Response:
    """Answer, and say so; who comes second reads what the first one said."""
    if not needs_key(relay):
        require_local(request)
    form = await form_of(request)
    asked, kind = await asked_by(relay, turn_id, parked, until, signature), form.get("decision", "")
    if kind not in DEFAULTS:
        raise BadRequest("a tool call is answered by approve or reject", param="decision")
    audit = relay.client.audit
    try:
        if not asked.waits:
            async with audit.noted(kind, by=HOLDER, turn_id=turn_id, detail="link"):
                raise NotParked(turn_id, "the question waits for no answer any more")
        await relay.client.inbox.decide(
            turn_id,
            kind,
            by=HOLDER,
            note=form.get("note", "").replace("\r\n", "\n"),
            owner=asked.turn.request.owner,
            parked_at=asked.parked_ms / 1000,
            how="link",
        )
    except NotParked:
        return _shown(asked, _over(await asked_by(relay, turn_id, parked, until, signature)), 409)
    return _shown(asked, say(f"said_{kind}", asked.turn.request.locale))


def _over(asked: Asked) -> str:
    """The words for a question that nobody can answer any more."""
    turn, locale = asked.turn, asked.turn.request.locale
    decision = turn.decision
    if decision is None or decision.timed_out or round(turn.parked_at * 1000) != asked.parked_ms:
        return say("waits_no_more", locale)
    word = say("yes" if decision.kind is DecisionKind.APPROVE else "no", locale)
    who = say("link_holder", locale) if decision.by == HOLDER else decision.who
    return say("said_before", locale, what=word, who=who)


def _shown(asked: Asked, said: str, status: int = 200) -> Response:
    """The page: the question and its form, or what is said instead of them."""
    turn, locale = asked.turn, asked.turn.request.locale
    until = clock_time(asked.until, time.time())
    return page("answer.html", status, say=say, locale=locale, turn=turn, said=said, until=until)
