"""The settings as one value, assembled from the groups of all subjects."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from api_client.contract.settings.agent_settings import Agents
from api_client.contract.settings.answering_settings import AnsweringSettings
from api_client.contract.settings.audit_settings import AuditSettings
from api_client.contract.settings.breaker_settings import BreakerSettings
from api_client.contract.settings.budget_settings import BudgetSettings
from api_client.contract.settings.declaration import declared_fields, environment_name, spell_value
from api_client.contract.settings.escalation_settings import EscalationSettings
from api_client.contract.settings.guidance import GuidanceSettings
from api_client.contract.settings.notification_settings import NotificationSettings
from api_client.contract.settings.object_store_settings import ObjectStoreSettings
from api_client.contract.settings.oidc_settings import OidcSettings
from api_client.contract.settings.phase_settings import PhaseSettings
from api_client.contract.settings.policy_settings import PolicySettings
from api_client.contract.settings.relay_settings import RelaySettings
from api_client.contract.settings.replica_settings import ReplicaSettings
from api_client.contract.settings.storage_settings import Storage
from api_client.contract.settings.store_addresses import celery_address, is_cluster_address
from api_client.contract.settings.tool_settings import ToolSettings
from api_client.contract.settings.trace_settings import TraceSettings
from api_client.contract.settings.warm_agent_settings import WarmAgentSettings
from api_client.contract.settings.worker_settings import WorkerSettings

#: Where a running ``turns up`` writes the address of its broker, under ``HELIX_ROOT``.
STATE_DIR = ".helix"
RUN_FILE = "run.json"
#: Where the Claude CLI finds its service if nothing is set.
_ANTHROPIC = "https://api.anthropic.com"
#: Environment variable with constants for tests: a JSON object, name to text.
CONSTANTS = "HELIX_CONSTANTS"


@dataclass(frozen=True, kw_only=True)
class Settings(
    ToolSettings,
    WarmAgentSettings,
    GuidanceSettings,
    Agents,
    NotificationSettings,
    AuditSettings,
    TraceSettings,
    OidcSettings,
    RelaySettings,
    BreakerSettings,
    WorkerSettings,
    PhaseSettings,
    EscalationSettings,
    BudgetSettings,
    PolicySettings,
    AnsweringSettings,
    ObjectStoreSettings,
    ReplicaSettings,
    Storage,
):
    """The settings of an installation. ``lease_seconds`` is set by the environment variable ``HELIX_LEASE_SECONDS``."""

    def find_service(self, model: str) -> str:
        """Return the name of the service that serves a model, or the model's own name for an unknown service.

        Limits of one model of a provider apply to all its models.
        """
        return self._upstreams.get(model, model)

    @cached_property
    def _upstreams(self) -> dict[str, str]:
        asked = {model: found for model in self.models if (found := self._find_address(model))[0]}
        keys = defaultdict[str, set[str]](set)
        for address, key in asked.values():
            keys[address].add(key)
        return {
            model: address if len(keys[address]) == 1 else f"{address}#{sha256(key.encode()).hexdigest()[:4]}"
            for model, (address, key) in asked.items()
        }

    @cached_property
    def at_once(self) -> dict[str, int]:
        """Return how many agents may use each service at the same time, by service, without unlimited services."""
        found: dict[str, int] = {}
        for model in self.models:
            name, most = self.find_service(model), self.for_model(model).service_at_once
            if most:
                found[name] = min(most, found.get(name, most))
        return found

    def _find_address(self, model: str) -> tuple[str, str]:
        """Return the address of a model's service without credentials, and its API key. Both are empty if unknown."""
        settings, runner = self.for_model(model), self.models[model].partition(":")[0]
        if runner == "scripted":
            return "", ""
        claude = runner == "claude_cli"
        url = settings.claude_api_url or _ANTHROPIC if claude else settings.openai_url
        parts = urlsplit(url)
        key = settings.claude_api_key if claude else settings.openai_api_key
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/"), key

    @property
    def keys_path(self) -> Path:
        """Return the path of the file with the API keys, which ``turns keys`` manages."""
        return Path(self.keys_file).expanduser() if self.keys_file else self.root / STATE_DIR / "keys.json"

    @property
    def secrets_key_path(self) -> Path:
        return Path(self.secrets_key_file) if self.secrets_key_file else self.root / STATE_DIR / "secrets.key"

    @property
    def token_path(self) -> Path:
        """Return the path of the file with the operator's token, used in an installation without API keys."""
        return self.root / STATE_DIR / "operator-token"

    @cached_property
    def sessions_dir(self) -> Path:
        """Return the directory that contains the folder of each session."""
        return self.root / "projects" / "sessions"

    @property
    def bucket_lives(self) -> dict[str, float]:
        """Return for how many seconds metrics are kept, by their period (minute, hour, day)."""
        return {
            "minute": self.minute_metrics_seconds,
            "hour": self.hour_metrics_seconds,
            "day": self.day_metrics_seconds,
        }

    @property
    def celery_url(self) -> str:
        """Return the broker's address in the form that Celery expects."""
        return celery_address(self.broker_url)

    @cached_property
    def has_queues(self) -> bool:
        """Return True if Celery's queues are in the store's own database, so that a command can change both."""
        return self.broker_url == self.store_url and "?" not in self.store_url

    @property
    def store_is_cluster(self) -> bool:
        return is_cluster_address(self.store_url)

    @property
    def redis_url(self) -> str:
        """Return the store's address in the form that redis-py expects."""
        return self.store_url.replace("redis+socket://", "unix://", 1)

    def to_environment(self) -> dict[str, str]:
        """Return the settings as environment variables for a child process."""
        values = {
            environment_name(each.name): spell_value(getattr(self, each.name))
            for each in declared_fields(self, "setting")
        }
        turned = {
            each.name: spell_value(getattr(self, each.name))
            for each in declared_fields(self, "constant")
            if getattr(self, each.name) != each.default
        }
        constants = {CONSTANTS: json.dumps(turned)} if turned else {}
        if failpoint := turned.get("failpoint"):  # read where no settings are loaded
            constants["HELIX_FAILPOINT"] = failpoint
        return {name: value for name, value in values.items() if value != ""} | constants


GROUPS = tuple(
    each
    for each in reversed(Settings.__bases__)
    if any(f.name in each.__annotations__ for f in declared_fields(each, "setting"))
)
