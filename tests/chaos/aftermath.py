"""The final reads of a run: everything the store holds, what the relays say, the files, the logs, what still runs."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx2
import redis

from api_client.contract.settings import Settings
from tests.chaos.history import Recorder
from tests.chaos.stage import TEMPORARY
from tests.chaos.targets import Target

#: Our own events in the logs; libraries write sentences.
_NAME = re.compile(r"[a-z]+\.[a-z_]+( \w+)?$")


_PATIENCE_SECONDS = 10.0
#: Every key of the counters, in one moment: workers still run, and their reapers move counters from key to key.
_COUNTERS = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key).ok
  local value = kind == 'hash' and redis.call('HGETALL', key) or kind == 'list' and redis.call('LRANGE', key, 0, -1)
  found[#found + 1] = { key, kind, redis.call('PTTL', key), value or redis.call('GET', key) }
end
return found
"""


def dump_store(settings: Settings, recorder: Recorder) -> list[str]:
    """One line for every key, and one for what the server says of itself; returns the ids of all turns."""
    turns: list[str] = []
    with redis.Redis.from_url(settings.redis_url) as store:
        counters: Any = store.eval(_COUNTERS, 0, f"{settings.namespace}:{{*}}:metrics:*")
        for key, raw_kind, life, found in counters:
            kind = raw_kind.decode()
            value = dict(zip(found[::2], found[1::2], strict=True)) if kind == "hash" else found
            name = key.decode().removeprefix(f"{settings.namespace}:")
            recorder.write("key", name=name, kind=kind, ttl_ms=life, value=_as_json(value))
        for key in store.scan_iter(match=f"{settings.namespace}:*", count=1000):
            kind = store.type(key).decode()
            name = key.decode().removeprefix(f"{settings.namespace}:")
            if ":metrics:" in name:
                continue
            recorder.write("key", name=name, kind=kind, ttl_ms=store.pttl(key), value=_value(store, key, kind))
            if kind == "hash" and name.count(":") == 2 and ":turn:" in name:
                turns.append(name.rpartition(":")[2])
        memory = int(store.info("memory")["used_memory"])
        listened: Any = store.pubsub_channels()
        channels = [channel.decode() for channel in listened]
    recorder.write("server", memory_bytes=memory, channels=channels)
    return sorted(turns)


def _value(store: redis.Redis, key: bytes, kind: str) -> Any:
    """A key's content as JSON knows it; of an event stream the events' text alone."""
    found: Any
    if kind == "hash":
        return _as_json(store.hgetall(key))
    if kind == "stream":
        found = store.xrange(key)
        # The audit log is a stream too, and none of events.
        return [line for _, fields in found for line in _text(fields.get(b"e", b"")).split("\n")]
    if kind == "zset":
        found = store.zrange(key, 0, -1, withscores=True)
        return {_text(member): score for member, score in found}
    if kind in {"list", "set"}:
        return _as_json(store.lrange(key, 0, -1) if kind == "list" else list(store.smembers(key)))
    return _as_json(store.get(key) or b"")


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text(name): _text(part) for name, part in value.items()}
    return [_text(item) for item in value] if isinstance(value, list) else _text(value)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def ask_relays(relays: tuple[str, ...], turns: Iterable[str], recorder: Recorder) -> None:
    """What the relays say of each turn, alternating between them."""
    with httpx2.Client(timeout=_PATIENCE_SECONDS) as http:
        for number, turn in enumerate(turns):
            try:
                answer = http.get(f"{relays[number % len(relays)]}/v1/turns/{turn}")
            except httpx2.HTTPError as error:
                recorder.write("final", "info", turn=turn, error=type(error).__name__)
                continue
            said = answer.json() if answer.is_success else {}
            facts = {name: said.get(name) for name in ("state", "outcome", "response", "attempt", "deliveries", "seq")}
            recorder.write("final", "ok", turn=turn, status=answer.status_code, **facts)


def look_at_files(settings: Settings, recorder: Recorder) -> None:
    """Each session's folder: its answer, its .done, its deliveries, and any .done where none belongs."""
    for folder in sorted(settings.sessions_dir.glob("*")):
        done, answer = folder / "output" / ".done", folder / "output" / "response.md"
        deliveries = [path.name for path in (folder / "attempts").glob("*")]
        recorder.write(
            "files",
            session=folder.name,
            done=_read(done),
            response=_read(answer),
            deliveries=sorted(deliveries),
            strays=sorted(str(path.relative_to(folder)) for path in (folder / "attempts").rglob(".done")),
        )


def look_at_phases(settings: Settings, recorder: Recorder) -> None:
    """Each phase's folder: its output, what each delivery left in its own, and whether feedback still lies there."""
    for folder in sorted(settings.root.glob("*/phases/*")):
        recorder.write(
            "phase_files",
            directory=folder.parents[1].name,
            phase=folder.name,
            output=_texts(folder / "output"),
            deliveries={path.name: _texts(path / "output") for path in sorted((folder / "attempts").glob("*"))},
            feedback=(folder / "feedback.md").exists(),
        )


def _texts(folder: Path) -> dict[str, str | None]:
    return {str(path.relative_to(folder)): _read(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None


def count_log_events(logs: Path, recorder: Recorder) -> None:
    """How often each event stands in the processes' logs: the only trace of what was refused."""
    seen: Counter[str] = Counter()
    for path in logs.glob("*.log"):
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                event = _event(line)
                if _NAME.match(event):
                    seen[event] += 1
    recorder.write("logged", events=dict(seen))


def _event(line: str) -> str:
    try:
        said = json.loads(line)
    except ValueError:
        return ""
    why = said.get("why")
    return f"{said.get('event')} {why}" if isinstance(why, str) else str(said.get("event"))


def look_at_processes(directory: Path, guards: set[Target], recorder: Recorder) -> None:
    """Every process of the run that still runs after all was stopped, and every temporary file that lies there.

    Ours have the run's folder in their environment, but for the guards, which were seen before.
    """
    needle = str(directory).encode()
    alive = {guard.pid for guard in guards if guard.alive()}
    left = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(entry.name) in alive or needle in environ:
            left.append({"pid": int(entry.name), "command": b" ".join(words).decode(errors="replace")[:200]})
    scratch = sorted(path.name for path in (directory / TEMPORARY).iterdir())
    recorder.write("processes", left=left, scratch=scratch)
