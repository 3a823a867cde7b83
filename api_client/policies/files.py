"""The policy files of the settings: read at the start and again when they change, and applied to requests."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api_client.contract.errors import BadRequest, SettingsError
from api_client.contract.offered import not_offered
from api_client.contract.settings import Settings
from api_client.contract.turn import DEFAULT_VALIDATORS, TurnRequest
from api_client.contract.values.policy import Applied, Asker, PolicySource, ReadPolicy
from api_client.module_log import ModuleLog

log = ModuleLog(__name__)

#: A file written so recently may be written again without another time of change: it is read again.
_FRESH_SECONDS = 2.0
#: What a request of a program leaves out: these fields have their defaults.
_DEFAULTS = {"validators": DEFAULT_VALIDATORS, "policy": {}, "max_attempts": 3}
#: Longest policy file, in bytes.
MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was last read. ``source`` is the last usable one, ``problems`` what is wrong since."""

    stamp: tuple[int, ...]
    text: str
    source: PolicySource | None
    problems: tuple[str, ...] = ()


class Policies:
    """The policy files that the settings name. A file that became unusable keeps its last usable content active.

    Attributes:
        named: whether the settings name any.
    """

    def __init__(self, settings: Settings, reader: ReadPolicy | None = None) -> None:
        self._settings = settings
        self._reader = reader
        self.named = bool(settings.policies)
        self._seen: dict[str, _Seen] = {}
        self._by_hash: dict[str, PolicySource] = {}

    def check(self) -> None:
        """Read every file.

        Raises:
            SettingsError: with all problems of all files, each with file, line and column.
        """
        problems: list[str] = []
        for path in self._settings.policies:
            try:
                self.read(path)
            except SettingsError as error:
                problems += error.problems
        if problems:
            raise SettingsError(problems)

    @property
    def problems(self) -> list[str]:
        """What is wrong with files that became unusable since they were read. Looks at the files again."""
        for path in self._settings.policies:
            try:
                self.read(path)
            except SettingsError as error:
                return error.problems
        return [problem for seen in self._seen.values() for problem in seen.problems]

    def text_of(self, policy_hash: str) -> str | None:
        """The text of a policy that this process has read; None for another one."""
        source = self._by_hash.get(policy_hash)
        return source.text if source else None

    def of(self, model: str, owner: str = "", flow: str = "") -> PolicySource | None:
        """The policy of a model's, owner's and flow version's turns, as its file says now; None where no file is named.

        Raises:
            SettingsError: the file was never usable.
        """
        path = self._settings.policy_of(model, owner, flow)
        return self.read(path) if path else None

    def apply(self, request: TurnRequest, asker: Asker, *, named: Collection[str]) -> TurnRequest:
        """A request with what the policy gives it; without a policy, the request as it is.

        Args:
            request: what is asked for. A phase gets the rules for phases, which judge after its gates.
            asker: who asks, and where.
            named: the fields that the request names itself: those win.

        Raises:
            BadRequest: it names a rule that may not be asked for. SettingsError: as ``of``.
        """
        source = self.of(request.model, asker.owner, request.flow)
        if source is None:
            return request
        return apply(request, source, asker, named=named)

    def completed(self, request: TurnRequest) -> TurnRequest:
        """A request of a program, which cannot say what it names: what is not the default counts as named."""
        if request.applied or not self.named:
            return request
        named = {name for name, default in _DEFAULTS.items() if getattr(request, name) != default}
        return self.apply(request, Asker(owner=request.key), named={*named, "locale"})

    def read(self, path: str) -> PolicySource:
        """A policy file as it says now; as it last was usable, where it is not any more. Raises as ``of``."""
        seen = self._seen.get(path)
        try:
            stat = Path(path).stat()
            stamp = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
            if seen and seen.stamp == stamp and time.time() - stat.st_mtime > _FRESH_SECONDS:
                return _usable(seen)
            text = _text(Path(path))
        except OSError as error:
            return self._broken(path, (), "", [f"{path}: cannot be read ({type(error).__name__})"])
        except SettingsError as error:
            return self._broken(path, (), "", error.problems)
        if seen and seen.text == text:
            self._seen[path] = replace(seen, stamp=stamp)
            return _usable(seen)
        if self._reader is None:
            raise SettingsError(
                [f"{path}: this program gave its TurnsClient no reader of policy files (docs/policy.md)"]
            )
        try:
            source = self._reader(text, path)
        except SettingsError as error:
            return self._broken(path, stamp, text, error.problems)
        self._seen[path] = _Seen(stamp, text, source)
        self._by_hash[source.hash] = source
        if seen:
            log.info("policy.reloaded", path=path, policy=source.hash)
        return source

    def _broken(self, path: str, stamp: tuple[int, ...], text: str, problems: list[str]) -> PolicySource:
        """Keep what the file said before, and note what is wrong with it now."""
        seen = self._seen.get(path)
        before = seen.problems if seen else ()
        source = seen.source if seen else None
        self._seen[path] = broken = _Seen(stamp, text, source, tuple(problems))
        if source and before != broken.problems:
            log.error("policy.unusable", path=path, problems=problems[:20], kept=source.hash)
        return _usable(broken)


def apply(request: TurnRequest, source: PolicySource, asker: Asker, *, named: Collection[str]) -> TurnRequest:
    """A request with what this policy gives it. Arguments as ``Policies.apply``; raises ``BadRequest`` as it does."""
    if request.phase is not None:
        return _of_phase(request, source, asker)
    given = source.given(request.model, asker)
    active = request.validators if "validators" in named else given.active
    for name in active:
        if name not in source.askable:
            message = not_offered(name, source.askable)
            raise BadRequest(message, param="validators", code="unknown_validator")
    orders = {name: order for name, order in given.orders.items() if name in active}
    return replace(
        request,
        validators=active,
        policy=orders | (request.policy if "policy" in named else _of(active, request.policy)),
        max_attempts=request.max_attempts if "max_attempts" in named else given.max_attempts,
        locale=request.locale if "locale" in named else given.locale or request.locale,
        applied=Applied(
            hash=source.hash,
            shadow=tuple(name for name in given.shadow if name not in active),
            caps=_of(active, given.caps),
            lenient=tuple(name for name in given.lenient if name in (*active, *given.shadow)),
            filled=tuple(name for name in (*_DEFAULTS, "locale") if name not in named),
        ),
    )


def _of_phase(request: TurnRequest, source: PolicySource, asker: Asker) -> TurnRequest:
    """A phase with its rules; without one it has no policy. Its gates say how often it is run, and what follows."""
    given = source.given(request.model, asker, "phase")
    if not given.active:
        return request
    lenient = tuple(name for name in given.lenient if name in given.active)
    applied = Applied(hash=source.hash, lenient=lenient, filled=("validators", "policy"))
    return replace(request, validators=given.active, policy=_of(given.active, given.orders), applied=applied)


def _usable(seen: _Seen) -> PolicySource:
    if seen.source is None:
        raise SettingsError(list(seen.problems))
    return seen.source


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SettingsError([f"{path}: longer than {MAX_BYTES} bytes"])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not UTF-8 at byte {error.start}"]) from None


def _of(names: Collection[str], data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name in names}
