"""How the Lua commands are called: what each needs besides its own arguments, and where its text is.

Every command's text is ``lua/turn.lua`` (what all have in common) followed by the command's own file.
"""

from __future__ import annotations

import json
from pathlib import Path

from api_client.contract.counters import BOUNDS_MS
from api_client.contract.keys import bucket_lives, keys_of
from api_client.contract.settings import Settings
from api_client.contract.words.messages import GIVEN_UP

_LUA = Path(__file__).with_name("lua")
_COMMON = _LUA / "turn.lua"

#: Time a decided turn has left at least, in seconds: what a person accepted must not expire on its way.
RESUME_SECONDS = 600.0

#: Both sides cancel: a caller its turn, a reaper the turn that another is to interrupt.
CANCEL = _LUA / "cancel.lua"


def command_text(path: Path) -> str:
    """The whole text of the command in ``path``."""
    return f"{_COMMON.read_text()}\n{path.read_text()}"


def common_settings(settings: Settings) -> str:
    """ARGV[3] of every command."""
    return json.dumps(
        {
            "announce_ms": int(settings.announce_seconds * 1000),
            "retention_ms": int(settings.retention_seconds * 1000),
            "resume_ms": int(RESUME_SECONDS * 1000),
            "bucket_ttl": [int(life) for life in bucket_lives(settings).values()],
            "bounds_ms": BOUNDS_MS,
            "errors": GIVEN_UP,
        }
    )


def turn_keys(namespace: str, turn_id: str, session_id: str, at: float) -> list[str]:
    """KEYS[1..12] of every command, in the order ``lua/turn.lua`` lists them.

    ``at`` (seconds since the epoch, the caller's clock) chooses the metrics buckets.

    Raises:
        ValueError: this is no turn id.
    """
    keys = keys_of(namespace, turn_id)
    return [
        keys.turn(turn_id),
        keys.log(turn_id),
        keys.attempts(turn_id),
        keys.session(session_id),
        keys.due,
        keys.finished,
        keys.dead,
        *keys.metrics(at),
        keys.inbox,
    ]
