"""Switches one guard off in the workers and relays of a chaos run, so that everybody can see the checker notice.

Python imports this module by its name when it starts, because ``python -m tests.chaos --break GUARD`` puts this folder
on their PYTHONPATH; nothing of it is in the package that is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

BREAK = os.environ.get("HELIX_AGENT_BREAK", "")
with contextlib.suppress(ImportError):
    importlib.import_module("constants_of_tests")  # this module hides the one that does: see ``tests.constants``

#: guard -> command -> what is taken out of its Lua, and what takes its place.
_LUA = {
    "fencing": {
        "commit": [("if turn.token ~= token or turn.state == 'finished' then", "if not turn.state then")],
        "append": [("if turn.token ~= token then", "if not turn.state then")],
        "beat": [("if turn.token ~= token then", "if not turn.state then")],
    },
    "order": {
        "submit": [("local position = redis.call('LLEN', SESSION)", "local position = 0")],
        "claim": [("if not is_head() then return { 'refused', 'waiting' } end", "")],
        "reap": [("if not is_head() then", "if false then")],
    },
    "inbox": {"decide": [("if turn.state ~= 'suspended' then return", "if false then return")]},
    "counters": {"commit": [("count_lines(counters)", "count_lines(counters) count_lines(counters)")]},
}


def _break_lua(changes: dict[str, list[tuple[str, str]]]) -> None:
    from api_client.store import commands

    whole = commands.command_text

    def command_text(path: Path) -> str:
        text = whole(path)
        for old, new in changes.get(path.stem, []):
            if old not in text:
                raise AssertionError(f"{path.name} has no {old!r}: repair tests/fault/sabotage")
            text = text.replace(old, new)
        return text

    commands.command_text = command_text


def _break_lease() -> None:
    """No beats, and nobody stops by its own clock: whoever runs longer than a lease is taken for dead."""
    from worker.turns.leases.lease import Lease, LeaseKeeper

    LeaseKeeper._renew_leases = lambda self, held, planned: None  # type: ignore[method-assign]
    Lease.lease_ends = property(lambda self: time.monotonic() + 3600.0)  # type: ignore[assignment,method-assign]


def _break_reaper() -> None:
    """Nobody looks after turns that nobody looks after."""
    from worker.turns.leases.reaper import Reaper

    Reaper.reap_turns = lambda self: asyncio.sleep(0)  # type: ignore[method-assign]


def _break_beats() -> None:
    """A lease is kept by whoever asks."""
    from api_client.turns.record import lease_renewal

    whole = lease_renewal.read_script()
    guard = "elseif turn[1] ~= token then"
    if guard not in whole:
        raise AssertionError(f"beats.lua has no {guard!r}: mend tests/fault/sabotage")
    lease_renewal.read_script = lambda: whole.replace(guard, "elseif false then")


def _break_older() -> None:
    """An older worker: it has one validator less, and one step of a script."""
    from api_client.contract import validator_names

    validator_names.BUILT_IN = tuple(name for name in validator_names.BUILT_IN if name != "file_existence")  # type: ignore[misc, assignment]
    from worker.runners.scripted import script

    script._STEPS = {name: step for name, step in script._STEPS.items() if name != "note"}  # type: ignore[misc]
    from api_client import build_identity

    build_identity.build_identity = lambda: "0.1.0+older"  # type: ignore[assignment]


def _break_revoked() -> None:
    """A process that dies once, between an operator's order to revoke a task and the store's knowing of it."""
    from worker.turns.engine import Engine

    whole = Engine.cancel_turn

    async def cancel_turn(self: Engine, turn_id: str, stored: Callable[[], object]) -> None:
        died = self.settings.root / "died"
        if not died.exists():
            died.touch()
            await asyncio.sleep(1.0)  # an answer that does not wait for the store is out by now
            os.kill(os.getpid(), signal.SIGKILL)
        await whole(self, turn_id, stored)

    Engine.cancel_turn = cancel_turn  # type: ignore[method-assign]


if BREAK == "older":
    _break_older()
elif BREAK == "revoked":
    _break_revoked()
elif BREAK in _LUA:
    _break_lua(_LUA[BREAK])
    if BREAK == "fencing":
        _break_beats()
elif BREAK == "lease":
    _break_lease()
elif BREAK == "reaper":
    _break_reaper()
