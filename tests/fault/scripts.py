"""The real Lua commands with a clock that the test controls, optionally with one guard broken.

Only the one place where the commands read the server's clock is replaced, by the last of KEYS. A ``Mutant`` replaces
one more text, so that a test can prove that it would notice.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_client import index
from api_client.contract.settings import Settings
from api_client.store import commands
from api_client.store.commands import load_script
from api_client.turns import submitter
from api_client.turns.record import ledger

_FOLDERS = [Path(str(module.__file__)).with_name("lua") for module in (commands, submitter, index, ledger)]
_TEXTS = [path for folder in _FOLDERS for path in folder.glob("*.lua")]
#: Every command that changes a turn, by name: a new one is found by itself.
FILES = {path.stem: path for path in _TEXTS if "\n-- args: " in path.read_text()}
LEASE_MS, ANNOUNCE_MS, STRIKES = 2_000, 3_000, 3
SETTINGS = Settings(
    announce_seconds=ANNOUNCE_MS / 1000, retention_seconds=86_400, lease_seconds=LEASE_MS / 1000, strikes=STRIKES
)

_SERVER_CLOCK = """local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)"""
_OWN_CLOCK = "local NOW = tonumber(KEYS[#KEYS])\nlocal clock = { 0, 0 }"
#: So short that requests are long, and of the accepted moves "repaired", but not "accept".
_SHORT_BYTES = f"local SHORT_BYTES = {commands.SHORT_BYTES}", "local SHORT_BYTES = 7"

#: What a look at one turn returns: these fields of its record, then ``Seen`` in the order of its attributes.
FIELDS = (
    *("state", "token", "next", "seq", "lease_until", "not_before", "stop", "outcome", "strikes"),
    *("delivery", "tokens_used", "token_limit", "attempt", "cmd", "last_token", "last_cmd", "retries", "response"),
    *("deadline_at", "decide_by", "suspended_at", "accepted"),
)

# KEYS: as of every command
LOOK = f"""
local top = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local fields = redis.call('HMGET', KEYS[1], '{"', '".join(FIELDS)}')
local accepted = {FIELDS.index("accepted") + 1}
if (fields[accepted] or '') == '' then fields[accepted] = redis.call('HGET', KEYS[4], 'accepted') end
local lives = {{}}
for i = 1, 4 do lives[i] = redis.call('PTTL', KEYS[i]) end
return {{
  fields, redis.call('XLEN', KEYS[2]), top[1] and top[1][1] or '0-0', lives,
  redis.call('LRANGE', KEYS[5], 0, -1), redis.call('ZRANGE', KEYS[6], 0, -1, 'WITHSCORES'),
  redis.call('ZRANGE', KEYS[9], 0, -1),
}}
"""

# KEYS: turn, log  ARGV: cmd and seq as they were before the appends that the store forgets: they changed nothing else.
FORGET = """
redis.call('HSET', KEYS[1], 'cmd', ARGV[1], 'seq', ARGV[2])
local kept = redis.call('XRANGE', KEYS[2], '-', ARGV[2] .. '-0')
redis.call('DEL', KEYS[2])
for _, entry in ipairs(kept) do redis.call('XADD', KEYS[2], entry[1], unpack(entry[2])) end
return { 'forgot' }
"""

# ARGV: pattern. Everything that is stored: name, type, time to live, content; and it is deleted.
TAKE_ALL = """
local read = {
  hash = function(key) return redis.call('HGETALL', key) end,
  stream = function(key) return redis.call('XRANGE', key, '-', '+') end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
  string = function(key) return redis.call('GET', key) end,
}
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key).ok
  found[#found + 1] = { key, kind, redis.call('PTTL', key), read[kind](key) }
  redis.call('DEL', key)
end
return found
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A deliberate bug in the Lua scripts: ``old`` is replaced by ``new`` in a command or in the part that all share.

    ``seed`` is the schedule to begin with if the first schedule that finds the mutant comes late.
    """

    name: str
    command: str
    old: str
    new: str = ""
    seed: int = 0


def _replaced_once(texts: dict[str, str], old: str, new: str) -> dict[str, str]:
    """Replace ``old`` in the texts that contain it, where it must occur once."""
    most = max(text.count(old) for text in texts.values())
    assert most == 1, f"occurs {most} times, not once: {old!r}"
    return {name: text.replace(old, new) for name, text in texts.items()}


def command_texts(mutant: Mutant | None = None) -> dict[str, str]:
    """Return the text of every command by name, with the test's clock."""
    texts = {name: load_script(path, SETTINGS).text for name, path in FILES.items()}
    texts = _replaced_once(texts, _SERVER_CLOCK, _OWN_CLOCK)
    texts = _replaced_once(texts, *_SHORT_BYTES)
    if mutant:
        broken = texts if mutant.command == "turn" else {mutant.command: texts[mutant.command]}
        texts |= _replaced_once(broken, mutant.old, mutant.new)
    return texts


def told_by(reply: list[Any]) -> dict[bytes, bytes]:
    """Return the fields in the reply to a claim, or to a commit whose holder continues."""
    _, _, *told = reply
    pairs = [part for each in told for part in each]
    values = (value if isinstance(value, bytes) else b"%d" % value for value in pairs[1::2])
    return dict(zip(pairs[::2], values, strict=True))


def sha(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()
