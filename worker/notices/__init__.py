"""Sending notices, in the second loop of a worker process. One process of an installation sends at a time.

It may die at any line: what it put is in the outbox, and what a target took stays there until the store knows it. So a
target may get a notice twice, with the same id, and none is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import structlog

from api_client.contract.addresses import is_inner
from api_client.contract.failpoints import reach
from api_client.contract.issues import TurnError
from api_client.contract.notices import Entry, Notice, signed
from api_client.contract.settings import Settings
from api_client.contract.worker_reports import WorkerReport, missing
from api_client.notices import Notices
from api_client.policies import GUARD, Flows, RolledBack
from api_client.store import Store
from api_client.store.audit import Audit
from api_client.store.store import OneConnection
from api_client.workers.reports import written_reports

# Targets of notices: addresses (webhooks) and the operator's command.

# One HTTP request to an address of the outside: resolved, checked, and sent to the very address that was checked.
#
# A name that leads to this machine or an inner network is refused unless that is allowed; redirects are not followed,
# and no proxy of the environment is used.

_SECONDS = 10.0
_MOST_READ = 65_536


class NotSent(Exception):
    """The target did not take it; the message says why."""


def addresses(host: str, port: int, *, allow_inner: bool) -> list[str]:
    """The addresses of a host, each of which may be connected to.

    Raises:
        NotSent: it has none, or one of them is of an inner network.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotSent(f"{host} has no address: {error}") from None
    numbers = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not allow_inner and (refused := [number for number in numbers if is_inner(number)]):
        said = f"{host} leads to {refused[0]}, an inner address; HELIX_WEBHOOK_INTERNAL=allowed lets it"
        raise NotSent(said)
    return numbers


def post(url: str, body: bytes, headers: Mapping[str, str], *, allow_inner: bool) -> None:
    """POST a body; any 2xx is success.

    Raises:
        NotSent: it is refused here, cannot be reached, or answers otherwise.
    """
    parts = urlsplit(url)
    host, tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    said = ""
    for address in addresses(host, port, allow_inner=allow_inner):
        connection = _Checked(host, port, address, tls=tls)
        try:
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            answer.read(_MOST_READ)
        except (OSError, http.client.HTTPException) as error:
            said = f"{host}: {type(error).__name__}: {error}"
            continue
        finally:
            connection.close()
        if 200 <= answer.status < 300:
            return
        moved = ", redirects are not followed" if 300 <= answer.status < 400 else ""
        raise NotSent(f"{host} answers {answer.status}{moved}")
    raise NotSent(said)


class _Checked(http.client.HTTPConnection):
    """A connection to one address, which asks for a host by its name."""

    def __init__(self, host: str, port: int, address: str, *, tls: bool) -> None:
        super().__init__(host, port, timeout=_SECONDS)
        self._address, self._tls = address, tls
        self.default_port = 443 if tls else 80  # what the header Host leaves out

    def connect(self) -> None:
        """Connect to the address that was checked, not to what the name leads to by now."""
        plain = socket.create_connection((self._address, self.port), self.timeout)
        try:
            context = ssl.create_default_context() if self._tls else None
            self.sock = context.wrap_socket(plain, server_hostname=self.host) if context else plain
        except BaseException:
            plain.close()
            raise


#: A command that takes longer is ended, in seconds.
_COMMAND_SECONDS = 10.0
#: What the command gets of our environment; none of it is a secret.
_KEPT = ("PATH", "HOME", "LANG", "TZ")
COMMAND = "command"


def targets(settings: Settings) -> tuple[str, ...]:
    """The names of the targets: addresses, and ``command``."""
    return (*settings.webhook_urls, *([COMMAND] if settings.notice_command else ()))


def shown(target: str) -> str:
    """A target as it may be shown: addresses often hold a secret in their path or query."""
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname}" if parts.scheme else target


def wanted(settings: Settings, kind: str) -> bool:
    """Return whether notices of this kind are sent. ``response.*`` names all kinds that begin so."""
    return any(kind == each or (each.endswith("*") and kind.startswith(each[:-1])) for each in settings.notice_kinds)


def deliver(settings: Settings, target: str, entry: Entry) -> None:
    """Deliver a notice to one target. Raises ``NotSent``: it did not take it."""
    if target == COMMAND:
        _run(settings.notice_command, entry)
        return
    headers = {"content-type": "application/json", "user-agent": "helix-turns"}
    headers |= signed(settings.webhook_secret, entry.notice_id, entry.body, time.time())
    post(target, entry.body.encode(), headers, allow_inner=settings.webhook_internal == "allowed")


def _run(command: str, entry: Entry) -> None:
    """Run the operator's command in a shell, with the notice on standard input."""
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environ |= {"NOTICE_ID": entry.notice_id, "NOTICE_KIND": entry.kind}
    try:
        process = subprocess.Popen(  # the operator's own command line
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        raise NotSent(f"the command cannot be started: {error}") from error
    with _ended(process):
        try:
            _, said = process.communicate(entry.body.encode() + b"\n", timeout=_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotSent(f"the command takes longer than {_COMMAND_SECONDS:g} s") from None
    if process.returncode:
        words = said.decode(errors="replace").strip().splitlines()
        raise NotSent(f"the command ended with {process.returncode}{': ' + words[-1][:200] if words else ''}")


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave nothing of the command behind."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# Finding what to call about: turns that ended or wait for a person, workers that are gone, versions rolled back.
#
# Turns are found in the lists that the ledger keeps anyway, from a time noted in the store on. The time moves on
# after the notices are in the outbox, so none is left out; the same notice is put once, however often it is found.

log = structlog.get_logger()

#: A worker that is silent for this long is gone, in seconds; one gone for a day was reported before.
_GONE_SECONDS, _OLD_SECONDS = 30.0, 86_400.0
_FAILED = frozenset({"failed", "incomplete", "refused", "error", "expired"})


async def gather(settings: Settings, store: Store, outbox: Notices) -> None:
    """Put everything new into the outbox. Raises ``StoreUnavailable``."""
    for shard in range(settings.shards):
        await _turns(settings, outbox, shard, parked=False)
        await _turns(settings, outbox, shard, parked=True)
    seconds, _ = await store.ask(store.redis.time())  # as workers report by the store's clock
    found = [*gone_workers(await store.ask(written_reports(store.redis, store.namespace)), float(seconds))]
    if len(settings.flow_version) > 1:
        found += rolled_back_by_itself(settings, await Flows(store).said(), time.time())
    for notice in found:
        if wanted(settings, notice.kind):
            await outbox.put(notice)


async def _turns(settings: Settings, outbox: Notices, shard: int, *, parked: bool) -> None:
    """Put the notices of turns that ended, or were parked, since the time noted for it."""
    notices_of = _of_parked if parked else _of_ended
    async for turn_id, record in outbox.new_turns(shard, parked=parked):
        try:
            found = list(notices_of(settings, turn_id, record))
        except (ValueError, TypeError, AttributeError) as error:  # its record is damaged: the others go on
            log.warning("notice.not_made", turn_id=turn_id, error=type(error).__name__)
            continue
        for notice in found:
            if wanted(settings, notice.kind):
                await outbox.put(notice)


def _of_ended(settings: Settings, turn_id: str, record: dict[str, str]) -> Iterator[Notice]:
    """Yield what a finished turn is a reason for. Pure."""
    outcome = record["outcome"]
    at = int(record["finished_at"] or 0) / 1000
    if '"background"' in record["request"] and json.loads(record["request"]).get("metadata", {}).get("background"):
        status = {"cancelled": "cancelled"}.get(outcome, "completed" if outcome.startswith("passed") else "failed")
        yield Notice(kind=f"response.{status}", subject=turn_id, at=at, data={"id": f"resp_{turn_id}"})
    if outcome in _FAILED or outcome == "dead":
        kind = "turn.dead" if outcome == "dead" else "turn.failed"
        yield Notice(kind=kind, subject=turn_id, at=at, data=_facts(settings, turn_id, record, outcome=outcome))


def _of_parked(settings: Settings, turn_id: str, record: dict[str, str]) -> Iterator[Notice]:
    """Yield what a turn in the inbox is a reason for; it may be parked more than once. Pure."""
    if record["state"] == "parked":
        parked = record["parked_at"]
        data = _facts(settings, turn_id, record)
        yield Notice(kind="inbox.waiting", subject=f"{turn_id} {parked}", at=int(parked or 0) / 1000, data=data)


def _facts(settings: Settings, turn_id: str, record: dict[str, str], **more: str) -> dict[str, str | int | float]:
    error = TurnError.from_json(record["error"]) or TurnError()
    facts = {
        "turn_id": turn_id,
        "session_id": record["session_id"],
        "model": record["model"],
        "code": error.code,
        **more,
    }
    if settings.public_url:
        facts["url"] = f"{settings.public_url.rstrip('/')}/turns/{turn_id}"
    return {"attempts": int(record["attempt"] or 0), **{name: value for name, value in facts.items() if value}}


def rolled_back_by_itself(settings: Settings, said: dict[str, RolledBack], now: float) -> Iterator[Notice]:
    """Flow versions that the guard rolled back; one that a day has passed since was reported before. Pure."""
    for version, note in said.items():
        if note.by != GUARD or note.resumed or now - note.at > _OLD_SECONDS:
            continue
        data: dict[str, str | int | float] = {"flow": version, "why": note.why}
        if settings.public_url:
            data["url"] = f"{settings.public_url.rstrip('/')}/policies"
        yield Notice(kind="flow.rolled_back", subject=f"{version} {note.at}", at=note.at, data=data)


def gone_workers(reports: Iterable[WorkerReport], now: float) -> Iterator[Notice]:
    """Workers that are missing for long enough to call somebody. Pure."""
    for each in missing(reports, now):
        if _GONE_SECONDS < now - each.at < _OLD_SECONDS:
            queues = ",".join(each.queues)
            data: dict[str, str | int | float] = {
                "worker": each.name,
                "host": each.host,
                "queues": queues,
                "last_heard": each.at,
            }
            yield Notice(kind="worker.gone", subject=f"{each.name} {each.started_at}", at=now, data=data)


_LOOK_SECONDS = 1.0
#: This many are sent at the same time, and read from the outbox at once.
_AT_ONCE, _DUE_AT_ONCE = 8, 64


class Notifier:
    """Finds what to call about and sends it. Without a target it does nothing."""

    def __init__(self, settings: Settings, connection: OneConnection | None = None) -> None:
        self._settings = settings
        self._targets = targets(settings)
        self.name, self.seconds = "notifier", _LOOK_SECONDS if self._targets else 0.0
        self._store = Store(settings, connection)
        self._outbox = Notices(self._store, Audit(self._store))
        self._senders = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="notice")

    async def leave(self) -> None:
        """Leave what was not sent in the outbox."""
        self._senders.shutdown(wait=False, cancel_futures=True)
        await self._outbox.leave()

    async def poll(self) -> None:
        """One round: find what is new, and send all that is due. Raises ``StoreUnavailable``."""
        if not await self._outbox.may_send():
            return
        await gather(self._settings, self._store, self._outbox)
        while await self._outbox.may_send():
            due = await self._outbox.due(_DUE_AT_ONCE)
            if not due:
                break
            await asyncio.gather(*map(self._send, due))
        await self._outbox.forget_old()

    async def _send(self, entry: Entry) -> None:
        if not wanted(self._settings, entry.kind):  # a relay put it, which does not know who wants what
            await self._outbox.sent(entry)
            return
        taken: list[str] = []
        problems: list[str] = []
        for target in self._targets:
            if target in entry.taken:
                continue
            if not await self._outbox.may_send():
                return  # this process was away for too long, and another one sends
            reach("notice.due")
            try:
                await asyncio.get_running_loop().run_in_executor(self._senders, deliver, self._settings, target, entry)
                taken.append(target)
                reach("notice.taken")
            except NotSent as error:
                problems.append(f"{shown(target)}: {error}")
        if not problems:
            await self._outbox.sent(entry)
            log.info("notice.sent", notice=entry.notice_id, kind=entry.kind, tries=entry.tries + 1)
            return
        dead = await self._outbox.failed(entry, taken, "; ".join(problems))
        if dead:
            log.error("notice.given_up", notice=entry.notice_id, kind=entry.kind, error=problems[0])
        else:
            log.warning("notice.not_taken", notice=entry.notice_id, kind=entry.kind, error=problems[0])
