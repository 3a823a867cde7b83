"""The parts of a worker process's engine that carrying out a turn needs, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from api_client.contract.settings import Settings
from api_client.contract.settings.redaction import redactor
from api_client.contract.tasks import Link
from api_client.policies.kept import StoredPolicies
from api_client.turns.record.ledger import Ledger
from worker.agents.ability import Ability
from worker.enforcement.attempt import Attempt
from worker.enforcement.repair import RepairResult
from worker.runners.base import BuildRunner
from worker.turns.judges import Case
from worker.turns.leases.host import Host
from worker.turns.leases.lease import LeaseKeeper
from worker.turns.loops.threads import Threads
from worker.turns.run_admissions import RunAdmissions
from worker.turns.session_files import SessionFiles, SharedFolder

#: Announces a turn's next link to Celery: the link, the turn's id, its session's. Blocks.
Announce = Callable[[Link, str, str], object]
#: The same, to the one worker process that is named last.
Ring = Callable[[Link, str, str, str], object]


class AnswerJudge(Protocol):
    """The judge and repairer of answers: ``judges.Judges``, or a test's own."""

    def judge(self, case: Case) -> Attempt:
        """Judge a new attempt. Raises ``CannotJudge``: the validators cannot be made."""
        ...

    def repair(self, case: Case) -> RepairResult:
        """Repair a judged answer. Raises as ``judge``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What one worker process has to carry out turns with. ``isolate`` carries a link out in a separate process."""

    settings: Settings
    ledger: Ledger
    leases: LeaseKeeper
    threads: Threads
    host: Host
    runners: BuildRunner
    judges: AnswerJudge
    announce: Announce
    isolate: Announce
    #: Announces a turn that never ran, where the queues are not the store's.
    let_go: Announce = lambda _link, _turn_id, _session_id: None
    #: Whether this process has been asked to end: then it starts no agent any more.
    ends: Callable[[], bool] = lambda: False
    ring: Ring = lambda _link, _turn_id, _session_id, _worker: None
    ability: Ability = field(default_factory=Ability)
    files: SessionFiles = field(default_factory=SharedFolder)
    #: Asked before each run of an agent.
    admissions: RunAdmissions | None = None
    #: What the parts above make.
    policies: StoredPolicies = field(init=False)
    redact: Callable[[str], str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", StoredPolicies(self.ledger.policy))
        object.__setattr__(self, "redact", redactor(self.settings))
