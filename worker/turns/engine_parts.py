"""The shared dependencies of the code that carries out turns, as one value per worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from api_client.contract.settings import Settings
from api_client.contract.settings.redaction import make_redactor
from api_client.contract.tasks import ChainTask
from api_client.policies.stored_policies import StoredPolicies
from api_client.turns.record.ledger import Ledger
from worker.agents.model_availability import ModelAvailability
from worker.runners.base import BuildRunner
from worker.turns.leases.lease import LeaseKeeper
from worker.turns.leases.machine_health import Host
from worker.turns.loops.threads import Threads
from worker.turns.run_admissions import RunAdmissions
from worker.turns.session_files import SessionFiles, SharedFolder
from worker.turns.validation_pool import ValidationPool

#: Publishes a turn's next task to Celery. Blocks.
Announce = Callable[[ChainTask, str, str], object]
#: Publishes a turn's next task to the worker process named in the last argument.
Ring = Callable[[ChainTask, str, str, str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """Holds the objects that a worker process needs to carry out turns, such as settings, store and leases."""

    settings: Settings
    ledger: Ledger
    leases: LeaseKeeper
    threads: Threads
    host: Host
    runners: BuildRunner
    validation_pool: ValidationPool
    announce: Announce
    isolate: Announce
    #: Announces a turn that never ran, if the broker and the store are different servers.
    announce_released: Announce = lambda _link, _turn_id, _session_id: None
    #: True once this process is shutting down and starts no more agents.
    ends: Callable[[], bool] = lambda: False
    ring: Ring = lambda _link, _turn_id, _session_id, _worker: None
    ability: ModelAvailability = field(default_factory=ModelAvailability)
    files: SessionFiles = field(default_factory=SharedFolder)
    admissions: RunAdmissions | None = None
    policies: StoredPolicies = field(init=False)
    redact: Callable[[str], str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", StoredPolicies(self.ledger.read_stored_text))
        object.__setattr__(self, "redact", make_redactor(self.settings))
