"""Builds the Lua scripts that change a turn, and their keys and arguments.

A command's file declares its arguments (``-- args: token nth# ...``; ``#``: a number, ``...``: further texts) and the
record fields that it reads (``-- reads: state``; ``*``: all; ``nothing``). The script consists of the settings as
constants, the needed part of the common files, and the command, inside one function, whose names the server resolves
fastest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from api_client.contract.completion import ProviderFault
from api_client.contract.counters import BOUNDS_MS, clean_label
from api_client.contract.frozen import checked_frozen
from api_client.contract.keys import Keys, keys_for_turn
from api_client.contract.messages import GIVEN_UP
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN_QUEUE, ChainTask, UnknownTask
from api_client.contract.turn_labels import COUNTED, OWN_COUNTERS

Word: TypeAlias = str | bytes | int

_LUA = Path(__file__).with_name("lua")
_AROUND, _INSIDE = (
    _LUA / "record.lua",
    tuple(_LUA / f"{name}.lua" for name in ("fair_queue", "history", "turn", "pauses")),
)
COMMON = (_AROUND, *_INSIDE)

#: Time left to a decided turn at least, in seconds, so that an accepted answer does not expire.
RESUME_SECONDS = 600.0

#: Longer texts of a turn are stored separately from its record.
SHORT_BYTES = 16_384
#: The version of a turn's record. Workers leave turns of later versions to later workers.
RECORD_FORM = 1
#: How long avoided workers leave a claimable turn to others, in milliseconds.
ELSEWHERE_MS = 5_000

#: Removes a key only if the key still has this value.
REMOVE_OWN = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
#: Reply of ``enqueue.lua`` after which the caller announces the turn.
BEGUN = "begun"
RELEASE = _LUA / "release.lua"
#: Scripts used by clients and workers: clients submit and cancel turns, reapers cancel interrupted turns.
CANCEL, ENQUEUE = _LUA / "cancel.lua", _LUA / "enqueue.lua"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script that reads or changes keys of the store atomically.

    ``rest`` allows further arguments after the named ones; ``keys`` says how many ``turn_keys`` the script needs.
    """

    name: str
    text: str
    sha: str
    arguments: tuple[str, ...]
    rest: bool
    keys: int = 21

    def build_argv(self, turn_id: str, values: dict[str, Word], rest: Sequence[Word] = ()) -> tuple[Word, ...]:
        """Build the script's ARGV for a turn: the turn id, the named ``values``, and then ``rest``.

        Raises ``TypeError`` for an argument that is missing or not declared in the script's header.
        """
        if wrong := values.keys() ^ self.arguments or (rest and not self.rest):
            named = ", ".join(sorted(wrong)) if isinstance(wrong, set) else "no rest"
            raise TypeError(f"{self.name}.lua has other arguments: {named}")
        return (turn_id, *map(values.__getitem__, self.arguments), *rest)


def load_script(path: Path, settings: Settings) -> Script:
    """Load a Lua script from a file, adding shared functions and constants from the settings."""
    return _build_script(path, _format_constants(settings))


def load_queue_script(path: Path, settings: Settings) -> Script:
    """Load a Lua script about the fair queue, adding shared functions from ``lua/fair_queue.lua``."""
    own = path.read_text(encoding="utf-8")
    common = [*_format_constants(settings).splitlines(), *_declarations(_AROUND), *_declarations(_INSIDE[0])]
    text = "\n".join(["#!lua", *_select_needed(common, own), own])
    return Script(path.stem, text, _hash_text(text), (), rest=True)


def find_queue(settings: Settings) -> str:
    """Return the key of the agents' message queue if the store holds the queues, or else an empty string."""
    return f"{settings.namespace}:celery:{RUN_QUEUE}" if settings.has_queues else ""


@checked_frozen(slots=True)
class ReleaseReply:
    """The parsed reply of the Lua script ``release.lua``, which starts waiting turns.

    Attributes:
        places: occupied slots, as the store names them: ``OWNER|ID``.
        left: turns for the caller to announce: task, turn id, session id.
    """

    places: tuple[str, ...] = ()
    left: tuple[tuple[ChainTask, str, str], ...] = ()

    @classmethod
    def parse_reply(cls, reply: Any) -> ReleaseReply:
        """Parse a reply of ``release.lua``. Turns with unknown tasks are left to other workers."""
        places, left = ([part.decode() for part in each] for each in reply)
        known = list[tuple[ChainTask, str, str]]()
        for turn_id, chain_task, session_id in zip(left[::3], left[1::3], left[2::3], strict=True):
            with contextlib.suppress(UnknownTask):
                known.append((ChainTask.parse(chain_task), turn_id, session_id))
        return cls(tuple(places), tuple(known))


def release_keys(keys: Keys, queue: str) -> tuple[str, ...]:
    """Return the KEYS of ``release.lua``, with placeholders for the keys of a single turn."""
    return (*[keys.due] * 5, *_shared_keys(keys), keys.due, *fair_queue_keys(keys, queue))


def load_plain_script(path: Path) -> Script:
    text = path.read_text(encoding="utf-8")
    return Script(path.stem, text, _hash_text(text), (), rest=True)


def _hash_text(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def command_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _build_script(path: Path, constants: str) -> Script:
    own = command_text(path)
    declared = " ".join(re.findall(r"^-- args: (.*)$", own, re.MULTILINE)).split()
    rest = declared[-1:] == ["..."]
    names = declared[:-1] if rest else declared
    arguments = [
        f"local {name[:-1]} = tonumber(ARGV[{at}])" if name.endswith("#") else f"local {name} = ARGV[{at}]"
        for at, name in enumerate(names, 2)
    ]
    arguments += [f"local REST = {len(names) + 2}"] if rest else []
    own = "\n".join([*arguments, own.rstrip(), "end", "local reply = command()", "flush()", "return reply", ""])
    around = [*constants.splitlines(), *_declarations(_AROUND)]
    inside = [text for each in _INSIDE for text in _declarations(each)]
    needed = _select_needed([*around, *inside], f"TURN turn seq number\n{own}")
    text = "\n".join(
        [
            "#!lua",
            *(text for text in needed if text not in inside),
            _read_statement(_find_fields(needed, own)),
            "local function command()",
            *(text for text in needed if text in inside),
            own,
        ]
    )
    keys = 21 if "KEYS[14]" in text else 13  # commands without the fair queue need fewer keys
    return Script(path.stem, text, _hash_text(text), tuple(name.rstrip("#") for name in names), rest, keys)


_DECLARED = re.compile(r"^(?=local |\w+ = function)", re.MULTILINE)
_NAMES = re.compile(r"(?:local )?(?:function )?(\w+(?:, \w+)*)")
_COMMENT, _TEXT = re.compile(r"--.*$", re.MULTILINE), re.compile(r"'[^']*'|\"[^\"]*\"")


def _declarations(path: Path) -> list[str]:
    return [text.rstrip() for text in _DECLARED.split(path.read_text(encoding="utf-8"))[1:]]


def _select_needed(declarations: Sequence[str], used_by: str) -> list[str]:
    words = {text: _find_words(text) for text in declarations}
    wanted, found = {*_find_words(used_by)}, set[str]()
    while more := [text for text in declarations if text not in found and wanted & _declared_names(text)]:
        found.update(more)
        wanted.update(*(words[text] for text in more))
    return [text for text in declarations if text in found]


def _find_words(code: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", _TEXT.sub("", _COMMENT.sub("", code))))


@cache
def _declared_names(text: str) -> frozenset[str]:
    names = _NAMES.match(text)
    return frozenset(names[1].split(", ")) if names else frozenset()


def _find_fields(needed: Sequence[str], own: str) -> list[str]:
    if declared := re.search(r"^-- reads: (.*)$", own, re.MULTILINE):
        return sorted({"seq", *declared[1].split()})
    code = _COMMENT.sub("", "\n".join([*needed, own]))
    labels = (*COUNTED, *OWN_COUNTERS) if "COUNTED_LABELS()" in code else ()
    return sorted(
        {"seq", *labels, *re.findall(r"\bnumber\('(\w+)'\)", code), *re.findall(r"\bturn\.(\w+)", _TEXT.sub("", code))}
    )


def _read_statement(fields: Sequence[str]) -> str:
    if "*" in fields:
        read = "record = redis.call('HGETALL', TURN)\nturn = {}"
        return f"{read}\nfor i = 1, #record, 2 do turn[record[i]] = record[i + 1] end\nseq = number('seq')"
    if "nothing" in fields:
        return "turn, seq = {}, 0"
    found = ", ".join(f"{name} = found[{at}]" for at, name in enumerate(fields, 1))
    asked = ", ".join(f"'{name}'" for name in fields)
    return f"local found = redis.call('HMGET', TURN, {asked})\nturn = {{ {found} }}\nseq = number('seq')"


def _format_constants(settings: Settings) -> str:
    values = {
        "ANNOUNCE_MS": int(settings.announce_seconds * 1000),
        "RETENTION_MS": int(settings.retention_seconds * 1000),
        "RESUME_MS": int(RESUME_SECONDS * 1000),
        "LEASE_MS": int(settings.lease_seconds * 1000),
        "STRIKES": settings.strikes,
        "RECORD_FORM": RECORD_FORM,
        "ELSEWHERE_MS": ELSEWHERE_MS,
        "SHORT_BYTES": SHORT_BYTES,
        "QUEUED": int(settings.has_queues),
        "BOUNDS_MS": list(BOUNDS_MS),
        "GIVEN_UP": GIVEN_UP,
        "COUNTED_LABELS": list(COUNTED),
        "LABEL_COUNTERS": OWN_COUNTERS,
        "UPSTREAMS": {clean_label(model): clean_label(settings.find_service(model)) for model in settings.models},
        "FALLBACKS": {
            clean_label(model): list(others)
            for model in settings.models
            if (others := settings.for_model(model).fallbacks.get(ProviderFault.LIMIT))
        },
        "BREAKERS": {"": _breaker_of(settings)}
        | {clean_label(model): _breaker_of(settings.for_model(model)) for model in settings.models},
        "AT_ONCE": {clean_label(name): most for name, most in settings.at_once.items()},
    }
    return "\n".join(_format_constant(name, value) for name, value in values.items())


def _breaker_of(settings: Settings) -> list[int]:
    return [settings.breaker_errors, int(settings.breaker_seconds * 1000)]


def _format_constant(name: str, value: object) -> str:
    """Return the Lua declaration of a constant. Tables become functions, because most scripts do not use them."""
    if isinstance(value, int):
        return f"local {name} = {value}"
    return f"local function {name}() return {_format_literal(value)} end"


def _format_literal(value: object) -> str:
    if isinstance(value, dict):
        return (
            f"{{ {', '.join(f'[{_format_literal(name)}] = {_format_literal(part)}' for name, part in value.items())} }}"
        )
    if isinstance(value, list):
        return f"{{ {', '.join(map(_format_literal, value))} }}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


@lru_cache(maxsize=256)
def turn_keys(namespace: str, turn_id: str, session_id: str, queue: str = "") -> tuple[str, ...]:
    """Return the KEYS for scripts about a turn, in the order that the scripts expect.

    ``queue`` is the result of ``find_queue``. Raises ``ValueError`` if ``turn_id`` is not a turn id.
    """
    keys = keys_for_turn(namespace, turn_id)
    own = (keys.turn(turn_id), keys.log(turn_id), keys.attempts(turn_id), keys.texts(turn_id))
    session, history = keys.session(session_id), keys.history(session_id)
    return (*own, session, *_shared_keys(keys), history, *fair_queue_keys(keys, queue))


@lru_cache(maxsize=1024)
def _shared_keys(keys: Keys) -> tuple[str, ...]:
    return keys.of_all_turns


@lru_cache(maxsize=1024)
def fair_queue_keys(keys: Keys, queue: str) -> tuple[str, ...]:
    """Return the Redis keys of the fair queue, as the KEYS of Lua scripts expect them.

    ``queue`` is the result of ``find_queue``; another key takes its place if it is empty.
    """
    owners = keys.turns_of("interactive"), keys.turns_of("background")
    return (keys.waiting, keys.shares, *owners, keys.released, keys.at_work, queue or keys.shares)
