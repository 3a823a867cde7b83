"""The policy files of the settings: read at the start and again when they change, and applied to requests."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from api_client.contract.issues import BadRequest, SettingsError
from api_client.contract.keys import Keys
from api_client.contract.policy import DEFAULT_ORDER, Applied, Kind, OnError, PolicyFile, Subject, not_offered
from api_client.contract.settings import Settings
from api_client.contract.turn import DEFAULT_VALIDATORS, TurnRequest
from api_client.store import Store
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: A file written so recently may be written again without another time of change: it is read again.
_FRESH_SECONDS = 2.0
#: What a request of a program leaves out: these fields have their defaults.
_DEFAULTS = {"validators": DEFAULT_VALIDATORS, "policy": {}, "max_attempts": 3}
#: Longest policy file, in bytes.
MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was last read. ``file`` is the last usable one, ``problems`` the faults since."""

    stamp: tuple[int, ...]
    text: str
    file: PolicyFile | None
    problems: tuple[str, ...] = ()


class Policies:
    """The policy files that the settings name. A file that became unusable keeps its last usable content active.

    Attributes:
        named: whether the settings name any.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.named = bool(settings.policies)
        self._seen: dict[str, _Seen] = {}
        self._by_hash: dict[str, PolicyFile] = {}

    def check(self) -> None:
        """Read every file.

        Raises ``SettingsError``: with all problems of all files, each with file, line and column.
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
        """Return the faults of files that became unusable since they were read. Looks at the files again."""
        for path in self._settings.policies:
            try:
                self.read(path)
            except SettingsError as error:
                return error.problems
        return [problem for seen in self._seen.values() for problem in seen.problems]

    def text_of(self, policy_hash: str) -> str | None:
        """The text of a policy that this process has read; None for another one."""
        file = self._by_hash.get(policy_hash)
        return file.text if file else None

    def of(self, model: str, owner: str = "", flow: str = "") -> PolicyFile | None:
        """The policy of a model's, owner's and flow version's turns, as its file says now; None where no file is named.

        Raises ``SettingsError``: the file was never usable.
        """
        path = self._settings.policy_of(model, owner, flow)
        return self.read(path) if path else None

    def apply(
        self, request: TurnRequest, *, owner: str = "", route: str = "turns", named: Collection[str]
    ) -> TurnRequest:
        """A request with what the policy gives it; without a policy, the request as it is.

        A phase gets the rules for phases, which judge after its gates. ``owner``: as the API key names it. ``route``:
        chat, responses or turns. ``named``: the fields that the request names itself: those win.

        Raises ``BadRequest``: it names a rule that may not be asked for. ``SettingsError``: as ``of``.
        """
        file = self.of(request.model, owner, request.flow)
        return apply(request, file, owner=owner, route=route, named=named) if file else request

    def completed(self, request: TurnRequest) -> TurnRequest:
        """A request of a program, which cannot say what it names: what is not the default counts as named."""
        if request.applied or not self.named:
            return request
        named = {name for name, default in _DEFAULTS.items() if getattr(request, name) != default}
        return self.apply(request, owner=request.key, named={*named, "locale"})

    def read(self, path: str) -> PolicyFile:
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
        try:
            file = read_named(text, path)
        except SettingsError as error:
            return self._broken(path, stamp, text, error.problems)
        self._seen[path] = _Seen(stamp, text, file)
        self._by_hash[file.hash] = file
        if seen:
            log.info("policy.reloaded", path=path, policy=file.hash)
        return file

    def _broken(self, path: str, stamp: tuple[int, ...], text: str, problems: list[str]) -> PolicyFile:
        """Keep what the file said before, and note the faults of it now."""
        seen = self._seen.get(path)
        before = seen.problems if seen else ()
        file = seen.file if seen else None
        self._seen[path] = broken = _Seen(stamp, text, file, tuple(problems))
        if file and before != broken.problems:
            log.error("policy.unusable", path=path, problems=problems[:20], kept=file.hash)
        return _usable(broken)


@dataclass(frozen=True, slots=True)
class CallersPolicy:
    """The policy files for a caller and a route.

    Attributes:
        owner, route: as ``Policies.apply`` takes them. flows: the flow versions that get turns now.
    """

    policies: Policies
    owner: str
    route: str
    flows: Mapping[str, int]

    def askable(self, model: str) -> tuple[str, ...]:
        """The rules that a request for the model may name; empty where no policy file says.

        Raises ``SettingsError``: the file was never usable.
        """
        found = (self.policies.of(model, self.owner, flow) for flow in self.flows)
        return tuple(dict.fromkeys(name for file in found if file for name in file.askable))

    def apply(self, request: TurnRequest, named: Collection[str]) -> TurnRequest:
        """The request with what its policy gives it. Raises as ``Policies.apply``."""
        return self.policies.apply(request, owner=self.owner, route=self.route, named=named)


def apply(request: TurnRequest, file: PolicyFile, *, owner: str, route: str, named: Collection[str]) -> TurnRequest:
    """A request with what this policy gives it. Arguments as ``Policies.apply``; raises ``BadRequest`` as it does."""
    kind = Kind.CHAT if request.phase is None else Kind.PHASE
    rules = file.judging(Subject(model=request.model, owner=owner, route=route, kind=kind))
    given = tuple(each.name for each in rules if not each.shadow)
    orders = {each.name: tuple(map(str, each.order)) for each in file.rules if each.order != DEFAULT_ORDER}
    lenient = [each.name for each in file.rules if each.on_error is OnError.WARN]
    if kind is Kind.PHASE:  # without rules it has no policy; its gates say how often it is run, and what follows
        applied = Applied(hash=file.hash, lenient=tuple(_of(lenient, given)), filled=("validators", "policy"))
        policy = {name: orders[name] for name in _of(orders, given)}
        return replace(request, validators=given, policy=policy, applied=applied) if given else request
    active = request.validators if "validators" in named else given
    for name in active:
        if name not in file.askable:
            message = not_offered(name, file.askable)
            raise BadRequest(message, param="validators", code="unknown_validator")
    shadow = tuple(each.name for each in rules if each.shadow)
    own = request.policy if "policy" in named else {name: request.policy[name] for name in _of(request.policy, active)}
    return replace(
        request,
        validators=active,
        policy={name: orders[name] for name in _of(orders, active)} | own,
        max_attempts=request.max_attempts if "max_attempts" in named else file.max_attempts,
        locale=request.locale if "locale" in named else file.locale or request.locale,
        applied=Applied(
            hash=file.hash,
            shadow=tuple(name for name in shadow if name not in active),
            caps={each.name: each.max_attempts for each in file.rules if each.max_attempts and each.name in active},
            lenient=tuple(_of(lenient, (*active, *shadow))),
            filled=tuple(name for name in (*_DEFAULTS, "locale") if name not in named),
        ),
    )


def read_named(text: str, name: str) -> PolicyFile:
    """Read a policy file; ``name`` is the file's, for messages.

    Raises ``SettingsError``: it cannot be used; a line for each problem, with the file's name, line and column.
    """
    # Here, because a program that names no policy file needs none of the rules: they take a tenth of a second.
    from worker.enforcement.policies import PolicyError, read_policy

    try:
        return read_policy(text)
    except PolicyError as error:
        raise SettingsError([f"{name}:{problem}" for problem in error.problems]) from None


def _usable(seen: _Seen) -> PolicyFile:
    if seen.file is None:
        raise SettingsError(list(seen.problems))
    return seen.file


def _text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SettingsError([f"{path}: longer than {MAX_BYTES} bytes"])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not UTF-8 at byte {error.start}"]) from None


def _of(names: Iterable[str], wanted: Collection[str]) -> list[str]:
    return [name for name in names if name in wanted]


# Which flow version a new turn gets: by the settings' shares, without versions that were rolled back (ADR-034).

#: So long what was read from the store holds: a rollback reaches every relay within it, in seconds.
FRESH_SECONDS = 1.0


#: Who rolled a version back, where it was no person: a worker, for the bound of the settings file.
GUARD = "guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A version that gets no more turns.

    Attributes:
        at: since when, in seconds since the epoch.
        by: who did it: ``user@host``, or ``GUARD``.
        why: in a few words, for people.
        resumed: it was taken back at ``at``: what failed before that counts no more.
    """

    at: float
    by: str
    why: str = ""
    resumed: bool = False

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> RolledBack:
        """Read what ``to_json`` wrote. Raises ``ValueError``, ``TypeError``: it is something else."""
        return cls(**json.loads(text))


def active(versions: Mapping[str, int], rolled_back: Collection[str]) -> dict[str, int]:
    """The versions that get turns, with their weights.

    Where nothing with a weight is left, the versions of weight 0 get them: what one goes back to. Where nothing is left
    at all, somebody rolled back everything, and the settings hold.
    """
    left = {version: weight for version, weight in versions.items() if version not in rolled_back}
    if any(left.values()):
        return {version: weight for version, weight in left.items() if weight}
    return dict.fromkeys(left, 1) or {version: weight for version, weight in versions.items() if weight}


def flow_of(session_id: str, versions: Mapping[str, int]) -> str:
    """The version of a session, spread by hash as the weights say. A session keeps its own.

    Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005): when a weight changes or a version goes, only those
    sessions move that have to.
    """
    if len(versions) == 1:
        return next(iter(versions))
    weighted = {version: weight for version, weight in versions.items() if weight > 0}
    return max(weighted, key=lambda version: -weighted[version] / math.log(_place(session_id, version)))


def _place(session_id: str, version: str) -> float:
    """A number between 0 and 1, both excluded, that looks drawn."""
    digest = hashlib.sha256(f"flow {version} {session_id}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:6], "big") + 0.5) / 2**48


class Flows:
    """The versions of HELIX_FLOW_VERSION. Each method that asks the store raises ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = Keys(store.namespace).flows
        self._versions = store.settings.flow_version
        self._active: Mapping[str, int] = active(self._versions, ())
        self._read_at = -FRESH_SECONDS

    async def active(self) -> Mapping[str, int]:
        """The versions that get turns now, with their weights. With a single version the store is not asked."""
        if len(self._versions) > 1 and time.monotonic() - self._read_at >= FRESH_SECONDS:
            self._active = active(self._versions, await self.rolled_back())
            self._read_at = time.monotonic()
        return self._active

    async def given(self, request: TurnRequest) -> TurnRequest:
        """The request with the version of its session, unless it has one."""
        return request if request.flow else replace(request, flow=await self.of(request))

    async def of(self, request: TurnRequest) -> str:
        """The version of a request: its own, or its session's."""
        return request.flow or flow_of(request.session_id, await self.active())

    async def rolled_back(self) -> dict[str, RolledBack]:
        """The versions of the settings that were rolled back and not resumed since."""
        said = await self.said()
        return {version: note for version, note in said.items() if version in self._versions and not note.resumed}

    async def roll_back(self, version: str, *, by: str, why: str = "") -> Mapping[str, int]:
        """Give a version no more turns, from ``FRESH_SECONDS`` from now on; returns the versions that get them instead.

        Turns that have it keep it. Doing it again changes nothing. Raises ``BadRequest``: the settings name no such
        version, or no other one is left.
        """
        known = {*await self.rolled_back(), self._known(version)}
        if not set(self._versions) - known:
            raise BadRequest(
                f"no other version is left: {', '.join(self._versions)} is all that HELIX_FLOW_VERSION has"
            )
        await self.note(version, RolledBack(at=time.time(), by=by, why=why))
        return active(self._versions, known)

    async def resume(self, version: str, *, by: str) -> Mapping[str, int]:
        """Give a version turns again; returns the versions that get them. Raises ``BadRequest`` as ``roll_back``."""
        known = {*await self.rolled_back()} - {self._known(version)}
        await self.note(version, RolledBack(at=time.time(), by=by, resumed=True))
        return active(self._versions, known)

    async def note(self, version: str, said: RolledBack) -> None:
        """Note that a version was rolled back, or resumed."""
        await self._store.ask(self._store.redis.hset(self._key, version, said.to_json()))
        self._read_at = -FRESH_SECONDS

    def _known(self, version: str) -> str:
        if version not in self._versions:
            there = ", ".join(self._versions)
            raise BadRequest(f"no flow version {version[:80]!r}; HELIX_FLOW_VERSION has: {there}", param="version")
        return version

    async def said(self) -> dict[str, RolledBack]:
        """Return what is noted of versions that were rolled back or resumed, of the settings' and of others."""
        stored: Mapping[bytes, bytes] = await self._store.ask(self._store.redis.hgetall(self._key))
        found = {}
        for version, text in stored.items():
            try:
                found[version.decode()] = RolledBack.from_json(text)
            except (ValueError, TypeError) as error:  # of a later release, or damaged: the settings hold
                log.warning("flow.unreadable", flow=version.decode(errors="replace"), error=str(error)[:200])
        return found
