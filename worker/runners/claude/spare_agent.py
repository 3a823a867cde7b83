"""Spare processes of the Claude CLI, started before their session is known (``--await-claim``).

A spare makes no calls until ``claim_session`` binds it to a session for good.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_client.contract.errors import SettingsError
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.settings import Settings
from worker.files.folder_trees import remove_tree
from worker.runners.agent_sessions import agent_session_id
from worker.runners.base import Order
from worker.runners.claude import cli_sessions
from worker.runners.claude.claude_models import model_prices
from worker.runners.claude.cli_launch import build_settings, readable_files, write_instructions
from worker.runners.claude.cli_sessions import USER_SETTINGS, BaseSession
from worker.runners.claude.exchange import ProcessFiles
from worker.runners.claude.warm_agent import (
    _LOOK_SECONDS,
    ClaudeAgent,
    compute_launch_key,
    new_process_folder,
    order_inside,
    start_process,
)
from worker.runners.sandbox.agent_process import AgentProcess
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.late_mounts import find_agent
from worker.runners.sandbox.launch import StartedAgent
from worker.runners.sandbox.process_tags import list_family
from worker.runners.sandbox.resource_usage import ResourceLimits
from worker.runners.sandbox.supervision import RunEnding

#: Folder of spare processes; no session's folder starts with a dot.
SPARES = ".spares"
#: Folder with one file per wanted kind, as old as the last request.
KINDS = ".spare-kinds"
#: Age in seconds at which leftovers of killed workers are deleted.
_OLD = 86_400.0
_TO_CLAIM, _TO_MOUNT, _TO_START = 20.0, 10.0, 30.0
#: Seconds between two looks at a sandbox that is being made.
_PAUSE = 0.01
_MOST_BYTES = 2**20
_RULES, _CLAIM = "rules", "claim"


def compute_spare_key(settings: Settings, program: str, order: Order) -> str:
    """Return a digest of the options with which a spare process must be started to fit this run.

    The digest is empty if the run can use no spare process. Raises ``OSError``.
    """
    if order.read_only or order.tools or cli_sessions.find_base(order).transcript is not None:
        return ""
    return compute_launch_key(settings, program, _anonymous_order(order.model, order.option, "", Path("/nowhere")))


def _anonymous_order(model: str, option: str, mark: str, place: Path, *, recorded: bool = False) -> Order:
    return Order(
        turn_id=mark,
        session_id="",
        attempt=1,
        delivery=1,
        prompt="",
        messages=(),
        workdir=place,
        directory=place / "work",
        model=model,
        option=option,
        deadline=math.inf,
        recorded=recorded,
    )


def _note_demand(settings: Settings, order: Order) -> None:
    said = json.dumps([order.model, order.option, order.recorded])
    file = settings.sessions_dir / KINDS / hashlib.sha256(said.encode()).hexdigest()[:32]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(said)


def list_wanted_spares(settings: Settings, since: float) -> Iterator[tuple[float, Order]]:
    """Yield the kinds of spare process requested after ``since``: the time of the request, and a sample run.

    Raises ``OSError``.
    """
    place = settings.sessions_dir / KINDS
    for file in place.iterdir() if place.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            at = file.stat().st_mtime
            model, option, recorded = json.loads(file.read_text()) if at > since else ("", "", False)
            if model in settings.models:
                yield at, _anonymous_order(model, option, "", Path("/nowhere"), recorded=recorded)
            elif time.time() - at > _OLD:
                file.unlink()


@dataclass(frozen=True)
class _NeverStop:
    """A stop request that never comes, for processes that no run is using yet."""

    lease_ends: float
    reason: str = ""


def open_spare(
    agents: AgentProcesses, settings: Settings, program: str, order: Order, part: str, until: float
) -> ClaudeSpare | None:
    """Start a spare process for similar runs. Return None if that is impossible. May block.

    ``part`` is the run's ``compute_spare_key``, ``until`` the end of the first lease (``time.monotonic()``).
    """
    mark = f"spare-{secrets.token_hex(8)}"
    top = settings.sessions_dir / SPARES / mark
    own = _anonymous_order(order.model, order.option, mark, top)
    files = ProcessFiles(top=top, mark=own.process_tag, agent=agent_session_id(own), spare=True)
    files.prices = model_prices(settings.prices)
    held = contextlib.ExitStack()
    held.callback(_remove_spare, top)
    try:
        _sweep_spares(top.parent)
        _note_demand(settings, order)
        begun = start_process(
            agents,
            settings,
            program,
            own,
            files,
            BaseSession(),
            _NeverStop(until),
            held,
            "--await-claim",
            noted=order.recorded,
        )
    except OSError:
        held.close()
        return None
    if isinstance(begun, RunEnding):
        held.close()
        return None
    files.level = begun.level
    spare = ClaudeSpare(begun, held, files, settings, own, part)
    if begun.level.kind != "none" and not _wait_for_sandbox(begun.supervision.process):
        spare.close()
        return None
    return spare


def _wait_for_sandbox(process: AgentProcess) -> bool:
    """Wait until a process's sandbox is complete, because binding a session renames the sandbox's folders."""
    give_up = time.monotonic() + _TO_START
    with contextlib.suppress(OSError):
        while process.wait_for_end(_PAUSE) is None and time.monotonic() < give_up:
            if process.pid and find_agent(process.pid):
                return True
    return False


def _remove_spare(top: Path) -> None:
    with contextlib.suppress(OSError):
        top.unlink() if top.is_symlink() else remove_tree(top)


def _sweep_spares(place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for top in place.iterdir():
        gone = not top.exists() if top.is_symlink() else time.time() - top.stat().st_mtime > _OLD
        if gone:
            _remove_spare(top)


class ClaudeSpare(ClaudeAgent):
    """A process of the Claude CLI that was started in advance and is waiting for its session."""

    def __init__(
        self,
        begun: StartedAgent,
        held: contextlib.ExitStack,
        files: ProcessFiles,
        settings: Settings,
        own: Order,
        part: str,
    ) -> None:
        super().__init__(begun, held, files, ResourceLimits.from_settings(settings))
        self.launch_key = part
        self._settings, self._own = settings, own

    def bind_session(self, order: Order, launch_key: str) -> bool:
        """Assign the process to the run's session. Return False if the process must be closed instead."""
        began, files, before = time.monotonic(), self._files, self._files.top
        self._pids = list_family(self._process.pid)
        if not self._is_alive:
            return False
        top = new_process_folder(order)
        try:
            top.parent.mkdir(parents=True, exist_ok=True)
            before.rename(top)
            self._held.callback(remove_tree, top, ignore_errors=True)
            before.symlink_to(top)
            pass_failpoint("spare.moved")
            write_instructions(order, top / "home", self._settings)
            if self._is_sandboxed and not self._show_session(order, top):
                return False
            pass_failpoint("spare.shown")
            claimed = self._request_claim(order_inside(order, top), top / "home")
        except (SettingsError, OSError, ValueError, LookupError, TypeError):
            return False
        files.top = top
        self.assign_session(order, launch_key, BaseSession(), began)
        return claimed

    def _show_session(self, order: Order, top: Path) -> bool:
        mounts = [(str(top / "work"), True), *((str(path), False) for path in readable_files(order))]
        return not self._process.add_mounts(mounts, _TO_MOUNT)

    def _request_claim(self, inner: Order, home: Path) -> bool:
        rights = json.loads(build_settings(inner, home, self._settings))["permissions"]
        # The CLI reads this file at the claim, which is 10 ms shorter than with the request apply_flag_settings.
        (home / USER_SETTINGS).write_text(json.dumps({"permissions": rights}), encoding="utf-8")
        asked = {
            _CLAIM: {"subtype": "claim_session", "cwd": str(inner.directory)},
            _RULES: {"subtype": "list_permission_rules"},
        }
        packet = b"".join(
            json.dumps({"type": "control_request", "request_id": name, "request": request}).encode() + b"\n"
            for name, request in asked.items()
        )
        if not self._process.write_input(packet, _TO_CLAIM):
            return False
        answers = self._read_answers()
        said = answers[_CLAIM]["response"]
        listed = answers[_RULES]["response"]["state"]["rules"]
        denied = {_unescape(rule["rule"]) for rule in listed if rule["behavior"] == "deny"}
        in_force = denied >= {_unescape(rule) for rule in rights["deny"]}
        return in_force and (said["status"], said["session_id"]) == ("ok", self._files.agent)

    def _read_answers(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        rest, length, give_up = b"", 0, time.monotonic() + _TO_CLAIM
        while (len(found) < 2 or rest) and length < _MOST_BYTES and time.monotonic() < give_up:
            piece = self._process.read_output(_LOOK_SECONDS)
            if piece is None:
                break
            length += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if b'"type":"control_response"' in line:
                    response = json.loads(line)["response"]
                    found[response["request_id"]] = response
        return found


def _unescape(rule: str) -> str:
    """Return a rule without backslashes: the CLI escapes paths with brackets in another way than we do."""
    return rule.replace("\\", "")
