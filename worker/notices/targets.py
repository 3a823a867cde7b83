"""Targets of notices: addresses (webhooks) and the operator's command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from api_client.contract.notices import Entry, signed
from api_client.contract.settings import Settings
from worker.notices.outgoing import NotSent, post

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
    """Deliver a notice to one target.

    Raises:
        NotSent: it did not take it.
    """
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
