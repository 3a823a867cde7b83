"""Check broker and store: reachable, recent enough, persistent, replicated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError, SettingsError
from api_client.contract.settings import Settings, mask_password
from api_client.contract.store_refusals import find_refusal
from api_client.relay_state.submission_limits import OwnerLimits
from api_client.store.cluster import find_slot
from api_client.store.commands import CANCEL
from api_client.store.unfinished_restore import refuse_unfinished_restore
from worker.cli.checks.finding import Finding
from worker.cli.checks.server_version import Info, check_version
from worker.cli.output import count_noun
from worker.cli.store_access import run_with_settings
from worker.processes.append_only_file import find_append_only_files, remove_holes

#: Largest clock difference before logs and metrics become misleading.
_SKEW_SECONDS = 2.0
_FULL = 0.85

_ASKED = ("min-replicas-to-write", "appendfsync", "cluster-node-timeout")


def check_brokers(settings: Settings) -> Iterator[Finding]:
    """Check the broker and the store, and yield findings. A server with both roles is checked once."""
    if not settings.store_url:
        yield Finding(
            "store",
            "wrong",
            f"no store is set, and no installation runs in {settings.root}",
            "start one here with `turns up`, go to the folder of one that runs (or set HELIX_ROOT), or set REDIS_URL",
        )
        return
    found = [*check_server("store", settings)]
    yield from found
    if found[0].state == "ok":
        yield from check_submit(settings)
    if settings.broker_url != settings.store_url:
        yield from check_server("broker", replace(settings, store_url=settings.broker_url))


def check_server(name: str, settings: Settings) -> Iterator[Finding]:
    """Check one Redis or Valkey server, and yield findings about availability, version and persistence."""
    from redis.exceptions import NoPermissionError, RedisError

    from api_client.store.connecting import open_blocking_store
    from api_client.store.namespace import write_mark

    where = mask_password(settings.store_url)
    try:
        with open_blocking_store(settings, answer_seconds=3.0, resends=0) as redis:
            redis.ping()
            write_mark(redis, settings.namespace)
            yield Finding(name, "ok", f"answers and accepts writes at {where}")
            yield check_clock(name, redis)
            try:
                info: Info = redis.info()
                asked = {each: _read_server_setting(redis, each) for each in _ASKED}
                directory = _read_server_setting(redis, "dir") if _is_embedded(settings) else None
                least, synced = asked["min-replicas-to-write"], asked["appendfsync"]
                yield from check_fail_over(name, asked["cluster-node-timeout"], settings)
                yield from report_unread_settings(name, asked)
                priority = (
                    _read_server_setting(redis, "replica-priority")
                    if settings.store_url.startswith("sentinel:")
                    else "0"
                )
            except NoPermissionError:
                fix = "run it with the operator's address: REDIS_URL=redis://operator:...@... (docs/operations.md)"
                yield Finding(f"{name} details", "warning", "this store user may not read them", fix)
                return
    except (RedisError, OSError, ValueError, SettingsError) as error:
        if refusal := find_refusal(error):
            yield Finding(name, "wrong", f"{refusal}, at {where}", refusal.fix)
            return
        said = f"does not answer at {where}: {error or type(error).__name__}"
        yield Finding(name, "wrong", said, "is REDIS_URL right? is it running?")
        return
    yield from check_mode(name, info, settings)
    yield check_version(name, info)
    yield from check_replication(name, info, settings.durability, least, copies=settings.replicas, priority=priority)
    yield check_persistence(name, info)
    yield from check_append_only_files(name, directory, info)
    yield from check_power(name, synced, settings)
    yield check_memory(name, info)
    if info.get("role", "master") != "master":
        yield Finding(
            f"{name} role", "wrong", "is a replica: it takes no writes", "name the master, or use sentinel://"
        )


def _read_server_setting(redis: Any, name: str) -> str | None:
    from redis.exceptions import RedisError

    try:
        return str(redis.config_get(name).get(name, "")) or None
    except RedisError:
        return None


def report_unread_settings(name: str, asked: Mapping[str, str | None]) -> Iterator[Finding]:
    """Yield a finding about settings that cannot be checked, because the server refuses CONFIG GET."""
    if silent := [each for each, value in asked.items() if value is None]:
        yield Finding(f"{name} settings", "ok", f"not read, CONFIG GET is refused: {', '.join(silent)}")


def check_submit(settings: Settings) -> Iterator[Finding]:
    """Check that the store accepts turns by running the commands that submitting a turn uses."""

    async def try_submit(client: TurnsClient) -> dict[str, str]:
        cancel, of_none = client.store.load_command(CANCEL), client.submitter.create_turn_id()
        await client.store.run_command(cancel, of_none, "doctor", {"owner": "", "reason": "cancelled"})
        await client.allowances.admit_turns(
            "doctor", OwnerLimits(per_minute=1, unfinished=1, stored_bytes=1), cost=0.001
        )
        for monitor in client.monitors:
            await monitor.find_waits(time.time())
        with client.store.tolerate_failures("counting"):
            await client.figures.count_pending()
        return client.store.troubles

    try:
        refuse_unfinished_restore(settings)
        troubles = run_with_settings(settings, try_submit)
    except SettingsError as error:
        yield Finding("restore", "wrong", error.problems[0], "see docs/operations.md, Back up and restore")
        return
    except HelixError as error:
        yield Finding(
            "submit", "wrong", f"the store takes no turn: {error}", "see `turns turn explain store_unavailable`"
        )
        return
    for what, why in troubles.items():
        fix = "turns are accepted nevertheless; see the relay's log (housekeeping.failed), and report this fault"
        yield Finding("housekeeping", "wrong", f"{what} fails: {why}", fix)
    yield Finding("submit", "ok", "the store can carry out a submit")


def check_append_only_files(name: str, directory: str | None, info: Info) -> Iterator[Finding]:
    """Report damage that a full disk may have done to the server's append-only file."""
    check, refused = f"{name} append-only file", info.get("errorstat_MISCONF", {}).get("count", 0)
    if directory and any(
        remove_holes(text := each.read_bytes()) != text for each in find_append_only_files(Path(directory))
    ):
        fix = "free space on its disk: the server then rewrites the file, or `turns up` repairs it at the next start"
        yield Finding(check, "wrong", "a full disk left a hole in the file: no server can load it", fix)
    elif refused and not directory:
        fix = (
            "run BGREWRITEAOF on the server before it restarts, then CONFIG RESETSTAT (docs/operations.md, A full disk)"
        )
        said = f"the server refused {count_noun(refused, 'write')} because of its disk: its file may have a hole"
        yield Finding(check, "warning", said, fix)


def check_mode(name: str, info: Info, settings: Settings) -> Iterator[Finding]:
    """Check that a node of a Redis Cluster is configured as a cluster here, too."""
    if not (info.get("redis_mode") == "cluster" or int(info.get("cluster_enabled", 0))):
        return
    if settings.store_is_cluster:
        yield Finding(f"{name} mode", "ok", f"a cluster; all keys are in slot {find_slot(settings.namespace)}")
    elif name == "broker":
        fix = "set HELIX_BROKER_URL to one plain Redis or Valkey (docs/operations.md, Redis Cluster)"
        yield Finding(f"{name} mode", "wrong", "is a node of a cluster: Celery has no transport to one", fix)
    else:
        fix = "set HELIX_STORE_URL=redis+cluster://host:port,... and HELIX_BROKER_URL to one plain Redis or Valkey"
        yield Finding(f"{name} mode", "wrong", "is a node of a cluster, and is asked as one server", fix)


def check_fail_over(name: str, node_timeout: str | None, settings: Settings) -> Iterator[Finding]:
    """Check that a worker's lease lasts longer than a fail-over of the cluster (``node_timeout`` in milliseconds)."""
    if not settings.store_is_cluster or node_timeout is None:
        return
    check, seconds = f"{name} node timeout", int(node_timeout) / 1000
    said = f"cluster-node-timeout is {seconds:g} s, the lease {settings.lease_seconds:g} s"
    if settings.lease_seconds >= 3 * seconds:
        yield Finding(check, "ok", said)
        return
    fix = f"set HELIX_LEASE_SECONDS={3 * seconds:g} everywhere, or lower cluster-node-timeout on each node"
    yield Finding(check, "warning", f"{said}: after a fail-over agents begin again", fix)


def check_replication(
    name: str, info: Info, durability: str, least: str | None, *, copies: int = 1, priority: str | None = "0"
) -> Iterator[Finding]:
    """Check whether a fail-over of this server can lose acknowledged writes.

    ``least`` is the server's min-replicas-to-write, None if unknown; ``copies`` is the number of replicas that a write
    waits for.
    """
    listed, check = int(info.get("connected_slaves", 0)), f"{name} replication"
    replicas = count_online_replicas(info)
    if durability == "replicated" and replicas < copies:
        alone = "one copy only: do not fail over now; " if listed and not replicas else ""
        found = "no replica is in step" if not replicas else f"{count_noun(replicas, 'replica')} in step, not {copies}"
        fix = "start replicas of it, wait until they have caught up, or lower HELIX_DURABILITY"
        yield Finding(check, "wrong", f"{alone}{found}: with HELIX_DURABILITY=replicated no turn is taken", fix)
    elif listed and (least is None or int(least) < copies):
        said = f"min-replicas-to-write is {least}" if least else "the server does not say its min-replicas-to-write"
        fix = f"set min-replicas-to-write {copies} and min-replicas-max-lag 10 on each server (docs/reliability.md)"
        yield Finding(check, "warning", f"{said}: a master that was cut off takes turns that a fail-over drops", fix)
    elif listed and durability != "replicated":
        fix = "set HELIX_DURABILITY=replicated, if no acknowledged turn may be lost in a fail-over"
        yield Finding(check, "warning", "what a replica has not received yet is lost in a fail-over", fix)
    elif listed and priority != "0":
        fix = (
            "let the store's users of relay and worker do CONFIG SET replica-priority (docs/reliability.md, Fail-over)"
        )
        said = "this master may be promoted again before it has caught up: its replica-priority is not 0"
        yield Finding(check, "warning", said, fix)
    elif listed:
        said = f"{count_noun(replicas, 'replica')} in step, min-replicas-to-write {least}, WAIT {copies} before answers"
        yield Finding(check, "ok", said)


def count_online_replicas(info: Info) -> int:
    listed = (each for key, each in info.items() if key.startswith("slave") and isinstance(each, Mapping))
    return sum(each.get("state") == "online" for each in listed)


def check_clock(name: str, redis: Any) -> Finding:
    """Compare the server's clock with this machine's clock, and return the finding."""
    before = time.time()
    seconds, micros = redis.time()
    skew = seconds + micros / 1e6 - (before + time.time()) / 2
    if abs(skew) <= _SKEW_SECONDS:
        return Finding(f"{name} clock", "ok", f"differs from this machine's by {abs(skew) * 1000:.0f} ms")
    fix = "run NTP on both machines"
    return Finding(f"{name} clock", "warning", f"differs from this machine's by {skew:+.1f} s", fix)


def check_persistence(name: str, info: Info) -> Finding:
    """Check that the server writes acknowledged changes to an append-only file."""
    check = f"{name} persistence"
    if not int(info.get("aof_enabled", 0)):
        fix = "start it with --appendonly yes; until then a stop of the server loses turns"
        return Finding(check, "wrong", "the append-only file is off: a restart loses turns", fix)
    for fact in ("aof_last_write_status", "aof_last_bgrewrite_status"):
        if info.get(fact, "ok") != "ok":
            return Finding(check, "wrong", f"{fact} is {info[fact]}", "check the server's log and its disk")
    return Finding(check, "ok", f"append-only file, {int(info.get('aof_current_size', 0)) / 2**20:.1f} MiB")


def _is_embedded(settings: Settings) -> bool:
    return settings.store_url.startswith("unix://") and settings.store_url.endswith("/valkey.sock")


def check_power(name: str, synced: str | None, settings: Settings) -> Iterator[Finding]:
    """Check whether acknowledged writes survive a power failure. ``synced`` is the server's ``appendfsync``."""
    if settings.durability == "power" or _is_embedded(settings) or synced not in {"everysec", "no"}:
        return
    lost = {
        "everysec": "a server that is killed while it syncs loses acknowledged turns",
        "no": "a loss of power takes acknowledged turns of up to half a minute",
    }
    fix = "set appendfsync always on the server, or HELIX_DURABILITY=power (docs/reliability.md says what each costs)"
    yield Finding(f"{name} power", "warning", f"appendfsync is {synced}: {lost[synced]}", fix)


def check_memory(name: str, info: Info) -> Finding:
    """Check whether the server may evict data or will soon refuse writes."""
    check, policy = f"{name} memory", info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        fix = "start it with --maxmemory-policy noeviction"
        return Finding(check, "wrong", f"the server may evict turns: maxmemory-policy is {policy}", fix)
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if most and used > most * _FULL:
        fix = "raise maxmemory, or keep finished turns for a shorter time (HELIX_RETENTION_SECONDS, `turns data gc`)"
        return Finding(check, "warning", f"{used / most:.0%} of maxmemory is used; at 100 % it takes no turn", fix)
    return Finding(
        check, "ok", f"noeviction, {used / 2**20:.1f} MiB used" + (f" of {most / 2**20:.0f}" if most else "")
    )
