"""Policy files: read at the start, read again when they change, and applied to requests."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from api_client.contract.answer_format import MARKDOWN_RULES, AnswerFormat
from api_client.contract.errors import BadRequest, SettingsError
from api_client.contract.policy import DEFAULT_ORDER, AppliedPolicy, PolicyFile, PolicySubject
from api_client.contract.settings import Settings
from api_client.contract.turn import DEFAULT_VALIDATORS, TurnRequest
from api_client.contract.validator_names import describe_unknown_validator
from api_client.contract.work import find_work
from api_client.policies.flows import FLOW
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: A file changed this recently may change again with the same timestamp.
_FRESH_SECONDS = 2.0
_DEFAULTS = {"validators": DEFAULT_VALIDATORS, "policy": {}, "max_attempts": 3}
MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class _ReadFile:
    """A policy file as last read: its last valid content, and the problems found since then."""

    stamp: tuple[int, ...]
    text: str
    file: PolicyFile | None
    problems: tuple[str, ...] = ()


class PolicyFiles:
    """Reads the policy files named in the settings. If a file becomes invalid, its last valid content stays in use."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.named = bool(settings.policy_files)
        self._seen: dict[str, _ReadFile] = {}
        self._by_hash: dict[str, PolicyFile] = {}

    def check_files(self) -> None:
        """Validate all policy files. Raises ``SettingsError`` with the file, line and column of each problem."""
        problems: list[str] = []
        for path in self._settings.policy_files:
            try:
                self.read_file(path)
            except SettingsError as error:
                problems += error.problems
        if problems:
            raise SettingsError(problems)

    @property
    def problems(self) -> list[str]:
        """Read changed policy files again, and return the problems of files that became invalid."""
        for path in self._settings.policy_files:
            try:
                self.read_file(path)
            except SettingsError as error:
                return error.problems
        return [problem for seen in self._seen.values() for problem in seen.problems]

    def find_text(self, policy_hash: str) -> str | None:
        """Return the text of the policy with this hash, or None if this process never read such a policy."""
        file = self._by_hash.get(policy_hash)
        return file.text if file else None

    def find_policy(self, model: str, owner: str = "", flow: str = "") -> PolicyFile | None:
        """Return the current policy for a model, owner and flow version, or None if no policy file applies.

        Raises ``SettingsError`` if the file was never valid.
        """
        path = self._settings.find_policy(model, owner, flow)
        return self.read_file(path) if path else None

    def apply_policy(
        self, request: TurnRequest, *, owner: str = "", route: str = "turns", named: Collection[str]
    ) -> TurnRequest:
        """Return the request completed by its policy file, or unchanged if no policy file applies.

        ``owner`` is the owner named by the API key, ``route`` is ``chat``, ``responses`` or ``turns``, and the fields
        ``named`` by the caller stay unchanged. Raises ``BadRequest`` if the request names a rule that callers may not
        choose, and the errors of ``find_policy``.
        """
        file = self.find_policy(request.model, owner, request.labels.get(FLOW, ""))
        return apply_policy_file(request, file, owner=owner, route=route, named=named) if file else request

    def complete_request(self, request: TurnRequest) -> TurnRequest:
        """Return a program's request completed by its policy file, without changing fields set by the program."""
        if AppliedPolicy.from_request(request) or not self.named:
            return request
        named = {name for name, default in _DEFAULTS.items() if getattr(request, name) != default}
        return self.apply_policy(request, owner=request.key, named={*named, "locale"})

    def read_file(self, path: str) -> PolicyFile:
        """Return the current content of a policy file, or its last valid content. Raises ``SettingsError``."""
        seen = self._seen.get(path)
        try:
            stat = Path(path).stat()
            stamp = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
            if seen and seen.stamp == stamp and time.time() - stat.st_mtime > _FRESH_SECONDS:
                return _require_usable(seen)
            text = _read_text(Path(path))
        except OSError as error:
            return self._keep_last(path, (), "", [f"{path}: cannot be read ({type(error).__name__})"])
        except SettingsError as error:
            return self._keep_last(path, (), "", error.problems)
        if seen and seen.text == text:
            self._seen[path] = replace(seen, stamp=stamp)
            return _require_usable(seen)
        try:
            file = parse_policy_file(text, path)
        except SettingsError as error:
            return self._keep_last(path, stamp, text, error.problems)
        self._seen[path] = _ReadFile(stamp, text, file)
        self._by_hash[file.hash] = file
        if seen:
            log.info("policy.reloaded", path=path, policy=file.hash)
        return file

    def _keep_last(self, path: str, stamp: tuple[int, ...], text: str, problems: list[str]) -> PolicyFile:
        seen = self._seen.get(path)
        before = seen.problems if seen else ()
        file = seen.file if seen else None
        self._seen[path] = broken = _ReadFile(stamp, text, file, tuple(problems))
        if file and before != broken.problems:
            log.error("policy.unusable", path=path, problems=problems[:20], kept=file.hash)
        return _require_usable(broken)


@dataclass(frozen=True, slots=True)
class CallerPolicy:
    """Applies the policy files to the requests of one caller."""

    policies: PolicyFiles
    owner: str
    route: str
    flows: Mapping[str, int]

    def list_askable(self, model: str) -> tuple[str, ...]:
        """Return the rules that a request for the model may select, or an empty tuple without a policy file."""
        found = (self.policies.find_policy(model, self.owner, flow) for flow in self.flows)
        return tuple(dict.fromkeys(name for file in found if file for name in file.requestable))

    def apply_policy(self, request: TurnRequest, named: Collection[str]) -> TurnRequest:
        """Return the request completed by its policy file, or unchanged if no policy file applies."""
        return self.policies.apply_policy(request, owner=self.owner, route=self.route, named=named)


def apply_policy_file(
    request: TurnRequest, file: PolicyFile, *, owner: str, route: str, named: Collection[str]
) -> TurnRequest:
    """Return the request completed with the rules and limits of a policy file."""
    kind = find_work(request)
    rules = file.active_rules(PolicySubject(model=request.model, owner=owner, route=route, kind=kind.name))
    not_for_json = MARKDOWN_RULES if AnswerFormat.from_request(request) else frozenset[str]()
    given = tuple(each.name for each in rules if each.decides and each.rule not in not_for_json)
    orders = {each.name: tuple(map(str, each.order)) for each in file.rules if each.order != DEFAULT_ORDER}
    if not kind.answers_in_text:  # such work has no policy without rules, and brings its own number of attempts
        applied = replace(AppliedPolicy.for_rules(file, (), given), caps={})
        policy = {name: orders[name] for name in _select_names(orders, given)}
        ruled = replace(request, validators=given, policy=policy)
        return applied.attach_to(ruled, ("validators", "policy")) if given else request
    active = request.validators if "validators" in named else given
    for name in active:
        if name not in file.requestable:
            message = describe_unknown_validator(name, file.requestable)
            raise BadRequest(message, param="validators", code="unknown_validator")
    own = (
        request.policy
        if "policy" in named
        else {name: request.policy[name] for name in _select_names(request.policy, active)}
    )
    applied = AppliedPolicy.for_rules(file, rules, active)
    ruled = replace(
        request,
        validators=active,
        policy={name: orders[name] for name in _select_names(orders, active)} | own,
        max_attempts=request.max_attempts if "max_attempts" in named else file.max_attempts,
        locale=request.locale if "locale" in named else file.locale or request.locale,
    )
    return applied.attach_to(ruled, [name for name in (*_DEFAULTS, "locale") if name not in named])


def parse_policy_file(text: str, name: str) -> PolicyFile:
    """Parse the text of a policy file. Error messages use ``name`` for the file.

    Raises ``SettingsError`` with the line and column of each problem.
    """
    from worker.enforcement.policies import PolicyError, read_policy

    try:
        return read_policy(text)
    except PolicyError as error:
        raise SettingsError([f"{name}:{problem}" for problem in error.problems]) from None


def _require_usable(seen: _ReadFile) -> PolicyFile:
    if seen.file is None:
        raise SettingsError(list(seen.problems))
    return seen.file


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SettingsError([f"{path}: longer than {MAX_BYTES} bytes"])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SettingsError([f"{path}: not UTF-8 at byte {error.start}"]) from None


def _select_names(names: Iterable[str], wanted: Collection[str]) -> list[str]:
    return [name for name in names if name in wanted]
