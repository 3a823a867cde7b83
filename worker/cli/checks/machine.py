"""Check this machine: session folder, disk space, sandbox, validators."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from api_client.contract.settings import Settings
from api_client.contract.validator_names import offered_validators
from api_client.workers.fleet import check_disk
from worker.cli.checks.finding import Finding, State

#: Remedies for a folder that cannot be written, by error number.
_WAYS_TO_WRITE = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "raise the quota of the workers' user, or free space",
    errno.EROFS: "mount it writable",
}
_SWITCH = "set HELIX_SANDBOX=auto; see docs/security.md"
_INSTALL = "install bubblewrap (Debian: apt-get install bubblewrap); see docs/security.md"
_STRENGTHEN = "install bubblewrap 0.8 or later, and let the workers' user make namespaces; see docs/security.md"
_ALLOW = "let the workers' user make namespaces; docs/security.md, 'Where no sandbox can be made', says how"


def check_machine(settings: Settings) -> Iterator[Finding]:
    """Check this machine's disk space, session folder, sandbox and validators; yield findings."""
    disk = shutil.disk_usage(_nearest_existing(settings.sessions_dir))
    room = check_disk(disk.free, disk.total, str(settings.root))
    yield Finding(room.check, cast("State", room.severity), room.message, room.fix if room.severity != "ok" else "")
    yield check_sessions(settings)
    yield from check_sandboxes(settings)
    active = [settings.validators, *(settings.for_model(model).validators for model in settings.models)]
    yield check_active_validators(
        tuple(dict.fromkeys(name for names in active for name in names)), offered_validators()
    )


def group_models(
    settings: Settings, models: Iterable[str], names: Sequence[str]
) -> Iterator[tuple[Sequence[str], Settings]]:
    """Group models with equal values of the named settings, and yield each group with its settings."""
    found: dict[str, list[str]] = {}
    for model in models:
        found.setdefault(repr([getattr(settings.for_model(model), name) for name in names]), []).append(model)
    for named in found.values():
        yield named, settings.for_model(named[0])


def check_sessions(settings: Settings) -> Finding:
    """Check that session files can be written to their folder or to its nearest existing parent."""
    folder = _nearest_existing(settings.sessions_dir)
    draft, name = (folder / f".doctor-{secrets.token_hex(6)}{end}" for end in (".draft", ""))
    try:
        draft.write_text("may be removed")
        draft.replace(name)  # atomically, like all files of this project
    except OSError as error:
        fix = _WAYS_TO_WRITE.get(error.errno or 0, f"let the workers' user (id {os.geteuid()}) write there")
        return Finding("sessions", "wrong", f"{folder} cannot be written: {error.strerror}", fix)
    finally:
        for left in (draft, name):
            with contextlib.suppress(OSError):
                left.unlink()
    return Finding("sessions", "ok", f"{settings.sessions_dir} can be written")


def check_sandboxes(settings: Settings) -> Iterator[Finding]:
    """Report the sandbox of each group of models that have the same settings for it."""
    for named, own in group_models(settings, settings.models, ("sandbox", "sandbox_hosts")):
        yield check_sandbox(replace(own, models={model: settings.models[model] for model in named}))


def check_sandbox(settings: Settings) -> Finding:
    """Report the sandbox in which agents run, or why agents run without a sandbox."""
    from worker.runners.sandbox.bubblewrap import find_network_obstacle, find_obstacle, find_weakness

    real = any(runner.partition(":")[0] == "claude_cli" for runner in settings.models.values())
    unsandboxed: State = "wrong" if settings.sandbox == "required" else "warning" if real else "ok"
    if settings.sandbox == "off":
        return Finding(
            "sandbox", "warning" if real else "ok", "off: agents have the rights of the worker's user", _SWITCH
        )
    if problem := find_obstacle():
        missing = "not installed" in problem
        problem += (
            "; the container is the sandbox, with the limits and the network you give it" if is_in_container() else ""
        )
        return Finding(
            "sandbox",
            unsandboxed,
            f"none, HELIX_SANDBOX={settings.sandbox}: {problem}",
            _INSTALL if missing else _ALLOW,
        )
    if problem := find_network_obstacle():
        said = f"agents in it reach what this machine reaches: {problem}"
        return Finding(
            "sandbox",
            unsandboxed,
            f"a sandbox on the machine's network, HELIX_SANDBOX={settings.sandbox}; {said}",
            _ALLOW,
        )
    who = "every agent runs" if settings.sandbox == "required" else "claude_cli runs"
    hosts = f" and {', '.join(settings.sandbox_hosts)}" if settings.sandbox_hosts else ""
    said = f"{who} in a bubblewrap sandbox, whose network leads to its model{hosts} alone"
    if lacking := find_weakness():
        return Finding("sandbox", "warning", f"{said}; {lacking}", _STRENGTHEN)
    return Finding("sandbox", "ok", said)


def is_in_container(root: Path = Path("/")) -> bool:
    """Return True if this process runs in a recognisable Docker, Podman or Kubernetes container."""
    marks = (root / ".dockerenv", root / "run" / ".containerenv", root / "var/run/secrets/kubernetes.io")
    return any(mark.exists() for mark in marks)


def check_active_validators(active: tuple[str, ...], offered: tuple[str, ...]) -> Finding:
    """Report the active validators that are not installed on this machine."""
    if missing := [name for name in active if name not in offered]:
        fix = "install the package that offers it wherever relay and workers run, or change HELIX_VALIDATORS"
        return Finding("validators", "wrong", f"active, but not offered on this machine: {', '.join(missing)}", fix)
    besides = [name for name in offered if name not in active]
    more = f"; offered besides: {', '.join(besides)}" if besides else ""
    return Finding("validators", "ok", f"active: {', '.join(active) or 'none'}{more}")


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
