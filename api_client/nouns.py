"""The nouns that operators list, each declared once: rows, columns, buttons, and who may read them.

``turns NOUN`` with its ``--json``, ``GET /v1/NOUN`` and the page follow from here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from api_client.api_keys import unmatched_budgets
from api_client.budgets.budget import EACH, Spent
from api_client.client import TurnsClient
from api_client.contract.notices import Entry
from api_client.pauses.pause import BREAKER, LIMIT, WHATS, Pause, clock_time
from api_client.workers.fleet import WorkerLine

Row = TypeVar("Row")
Listed: TypeAlias = tuple[Sequence[Row], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sight:
    """Context of a cell besides its row: the moment, and the names of owners and keys."""

    now: float
    named: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Viewer:
    """The reader over HTTP; ``scopes`` are the budgets that are about it."""

    operator: bool
    metrics: bool
    scopes: frozenset[str]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a noun's table: its heading, and its cell for a row.

    ``kind``: ``wide``, ``num``, ``quiet``, or of a moment (seconds since the epoch) ``when`` or ``clock``; a page says
    how long ago both were. ``most``: characters that are shown. ``id`` is in the terminal only.
    """

    head: str
    cell: Callable[[Row, Sight], Any]
    kind: str = ""
    most: int = 60


@dataclass(frozen=True, kw_only=True)
class Button(Generic[Row]):
    """A button of a page: behind each row with what its form sends, and with ``all_words`` below the table too."""

    name: str
    words: str
    fields: Callable[[Row], Mapping[str, str]]
    act: Callable[[TurnsClient, Mapping[str, str], str], Awaitable[object]]
    all_words: str = ""


async def _nothing(_client: TurnsClient) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Noun(Generic[Row]):
    """A kind of thing that operators list.

    Attributes:
        read: its rows, this many at most (-1: all), and what is said besides them.
        none: said where there is no row. caption: above a page's table, from the facts.
        doing: what only operators do to it, as a refusal says; ``private``: others may not even read it; ``figures``:
            it is for those who may read figures over all owners.
        api: its address; ``called`` and ``about`` say there what ``GET`` is. kind: the ``object`` of a row.
        limited: callers say how many rows they want. shown: a row as a viewer sees it; None: not at all.
    """

    read: Callable[[TurnsClient, int], Awaitable[Listed[Row]]]
    columns: tuple[Column[Row], ...]
    none: str
    api: str
    called: str
    about: str
    caption: Callable[[Mapping[str, Any]], str] = lambda _: ""
    buttons: tuple[Button[Row], ...] = ()
    doing: str = ""
    private: bool = False
    figures: bool = False
    kind: str = ""
    limited: bool = False
    shown: Callable[[Row, Viewer], Row | None] = lambda row, _: row


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A page for operators: the tables of nouns, or a template that shows ``more`` too; empty: made by ``pages``."""

    address: str
    title: str
    nouns: tuple[Noun[Any], ...] = ()
    template: str = "noun.html"
    refresh_seconds: int = 0
    more: Callable[[TurnsClient], Awaitable[dict[str, Any]]] = field(default=_nothing)


def _dollars(amount: float) -> str:
    return f"{amount:.{2 if amount == round(amount, 2) else 4}f}"


async def _spent(client: TurnsClient, _most: int) -> Listed[Spent]:
    nobody = unmatched_budgets(client.settings)
    return [replace(each, matches=each.budget not in nobody) for each in await client.spending.today()], {}


BUDGETS = Noun[Spent](
    read=_spent,
    none="no budgets: HELIX_BUDGETS is not set",
    caption=lambda _: "Today (UTC)",
    columns=(
        Column("budget", lambda each, sight: sight.named(each.scope if EACH in each.budget else each.budget), "wide"),
        Column("spent $", lambda each, _: f"{each.charged_usd:.4f}", "num"),
        Column("of $", lambda each, _: _dollars(each.limit_usd), "num"),
        Column("share", lambda each, _: f"{each.share:.0%}", "num"),
        Column("state", lambda each, _: each.state),
        Column("set aside $", lambda each, _: f"{each.set_aside_usd:.4f}", "num"),
        Column("resets", lambda each, sight: clock_time(each.resets_at, sight.now), "quiet"),
    ),
    api="/v1/budgets",
    called="list_budgets",
    about="The budgets, the most used first.",
    shown=lambda each, viewer: each if viewer.metrics or each.scope in viewer.scopes else None,
)


async def _weeks_spending(client: TurnsClient) -> dict[str, Any]:
    """The week's spending: by whom, and the twenty who spent most."""
    stats = {by: await client.figures.stats(7 * 86_400.0, by) for by in ("model", "key", "owner")}
    return {"spent": [(by, [row for row in each.rows if row.turns][:20]) for by, each in stats.items()]}  # type: ignore[union-attr]


async def _waiting(client: TurnsClient, most: int) -> Listed[Entry]:
    return await client.notices.waiting(most), asdict(await client.notices.counts())


async def _given_up(client: TurnsClient, most: int) -> Listed[Entry]:
    return await client.notices.given_up(most), asdict(await client.notices.counts())


_NOTICE: tuple[Column[Entry], ...] = (
    Column("notice", lambda each, _: each.notice_id, "id"),
    Column("kind", lambda each, _: each.kind),
    Column("put at", lambda each, _: each.put_at, "when"),
    Column("tries", lambda each, _: each.tries, "num"),
    Column("last error", lambda each, _: each.error or ("" if each.tries else "not tried yet"), "wide", 200),
)


def _named(fields: Mapping[str, str]) -> tuple[str, ...]:
    """The notice that a form is about; none: it is about all."""
    return (fields["notice"],) if fields.get("notice") else ()


NOTICES = Noun[Entry](
    read=_waiting,
    none="nothing is waiting to be sent",
    caption=lambda facts: f"{facts['waiting']:,} waiting to be sent",
    columns=_NOTICE,
    api="/v1/notices",
    called="list_waiting",
    about="What is waiting to be sent, the next one first.",
    kind="notice",
    limited=True,
    private=True,
    doing="reads, sends and drops notices",
)
GIVEN_UP = replace(
    NOTICES,
    read=_given_up,
    none="nothing was given up",
    caption=lambda facts: f"{facts['given_up']:,} given up after a day",
    api="/v1/notices/dead",
    called="list_given_up",
    about="What nobody took for a day, the newest first.",
    buttons=(
        Button[Entry](
            name="resend",
            words="Send again",
            all_words="Send all again",
            fields=lambda each: {"notice": each.notice_id},
            act=lambda client, form, by: client.notices.send_again(_named(form), by=by),
        ),
        Button[Entry](
            name="drop",
            words="Drop",
            all_words="Drop all",
            fields=lambda each: {"notice": each.notice_id},
            act=lambda client, form, by: client.notices.drop(_named(form), by=by),
        ),
    ),
)


async def _in_force(client: TurnsClient, _most: int) -> Listed[Pause]:
    return await client.pauses.in_force(), {"held_turns": await client.pauses.held()}


def held_back(facts: Mapping[str, Any]) -> str:
    """Return how many turns pauses hold back."""
    return f"{facts['held_turns']:,} turn{'' if facts['held_turns'] == 1 else 's'} held back"


def _until(each: Pause, sight: Sight) -> str:
    if each.probing:
        return "one turn tries now"
    return clock_time(each.until, sight.now) if each.until else "resumed"


def _of_pause(each: Pause, viewer: Viewer) -> Pause | None:
    """Keys, owners and who paused it are for operators."""
    if viewer.operator:
        return each
    return None if each.what in {"key", "owner"} else replace(each, by="")


PAUSES = Noun[Pause](
    read=_in_force,
    none="nothing is paused",
    caption=held_back,
    columns=(
        Column("what", lambda each, sight: sight.named(each.title)),
        Column("since", lambda each, _: each.since, "clock"),
        Column("until", _until),
        Column(
            "by",
            lambda each, sight: (
                f"{each.errors} errors in a row"
                if each.what == BREAKER
                else f"said {each.errors} time{'s' * (each.errors != 1)}"
                if each.what == LIMIT
                else sight.named(each.by)
            ),
            "quiet",
            40,
        ),
        Column("why", lambda each, _: each.reason, "wide", 200),
    ),
    buttons=(
        Button[Pause](
            name="resume",
            words="Resume",
            fields=lambda each: {"what": "model" if each.what == BREAKER else each.what, "name": each.name},
            act=lambda client, form, by: client.pauses.resume(form.get("what", ""), form.get("name", ""), by=by),
        ),
    ),
    api="/v1/pauses",
    called="list_pauses",
    about="Pauses, open breakers, and services that limit us. Keys, owners and who paused are shown to operators only.",
    doing="pauses and resumes",
    shown=_of_pause,
)


async def _heard_of(client: TurnsClient, _most: int) -> Listed[WorkerLine]:
    standing = await client.workers.standing()
    return standing.workers, {"alerts": [alert.to_dict() for alert in standing.alerts]}


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _heard(line: WorkerLine, sight: Sight) -> str:
    if line.state == "signed off":
        return f"ended {_span(sight.now - line.heard_at)} ago"
    return (
        f"gone for {_span(line.silent_seconds)}" if line.silent_seconds else f"{_span(sight.now - line.heard_at)} ago"
    )


def _does(line: WorkerLine, sight: Sight) -> str:
    does = "; ".join(f"{each.task} {each.turn_id} for {_span(sight.now - each.since)}" for each in line.doing[:3])
    left = len(line.doing) - 3
    does = does + (f"; and {left} more turn{'' if left == 1 else 's'}" if left > 0 else "") or ", ".join(line.queues)
    kept = [f"{each.session_id} ({_span(sight.now - each.since)}, {each.bytes >> 20} MiB)" for each in line.kept]
    return f"{does}; keeps {', '.join(kept)}" if kept else does


WORKERS = Noun[WorkerLine](
    read=_heard_of,
    none="no worker was heard of within a day: start `turns worker`",
    columns=(
        Column("worker", lambda line, _: line.name, most=200),
        Column("state", lambda line, _: line.state + (f": {line.why}" if line.why else ""), most=80),
        Column("pid", lambda line, _: line.pid, "num"),
        Column("version", lambda line, _: line.version),
        Column("slots free", lambda line, _: f"{line.free} of {line.slots}", "num"),
        Column("since", lambda line, _: line.started_at, "when"),
        Column("last heard", _heard),
        Column("does", _does, "wide", 300),
    ),
    api="/v1/workers",
    called="list_workers",
    about="Each worker process of the last day: where it is, what it does and since when, when it was last heard of.",
    kind="worker",
    doing="orders workers",
    figures=True,
)


async def _may_be_paused(client: TurnsClient) -> dict[str, Any]:
    return {"whats": WHATS, "models": client.settings.models}


async def _who_sends(client: TurnsClient) -> dict[str, Any]:
    return {"sent": await client.notices.are_sent()}


async def _standing(client: TurnsClient) -> dict[str, Any]:
    return {"seen": await client.workers.standing()}


NOUNS: tuple[Noun[Any], ...] = (PAUSES, BUDGETS, NOTICES, GIVEN_UP, WORKERS)
#: In the order of the pages' navigation.
SHEETS = (
    Sheet(address="/workers", title="Workers", template="workers.html", more=_standing, refresh_seconds=5),
    Sheet(address="/audit", title="Audit", template=""),
    Sheet(address="/paused", title="Paused", nouns=(PAUSES,), template="paused.html", more=_may_be_paused),
    Sheet(address="/policies", title="Policies", template=""),
    Sheet(address="/budgets", title="Budgets", nouns=(BUDGETS,), template="budgets.html", more=_weeks_spending),
    Sheet(address="/notices", title="Notices", nouns=(GIVEN_UP, NOTICES), template="notices.html", more=_who_sends),
)
