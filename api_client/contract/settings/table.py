"""All settings as one value. Each group has its own module."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from api_client.contract.settings.cluster import Cluster
from api_client.contract.settings.declaration import declared, name_of, of_the_file, spelled
from api_client.contract.settings.groups import (
    Agents,
    AnsweringSettings,
    Constants,
    NotificationSettings,
    RelaySettings,
    Storage,
    WorkerSettings,
)
from api_client.contract.settings.sentinels import Sentinels

#: Where a running ``turns up`` writes the address of its broker, under ``HELIX_ROOT``.
STATE_DIR = ".helix"
RUN_FILE = "run.json"
#: Where the Claude CLI finds its service if nothing is set.
_ANTHROPIC = "https://api.anthropic.com"
#: The groups, in the order they are documented.
GROUPS = (Storage, AnsweringSettings, WorkerSettings, RelaySettings, NotificationSettings, Agents)
#: Environment variable with constants for tests: a JSON object, name to text.
CONSTANTS = "HELIX_CONSTANTS"


@dataclass(frozen=True, kw_only=True)
class Settings(Constants, Agents, NotificationSettings, RelaySettings, WorkerSettings, AnsweringSettings, Storage):
    """All settings. The environment name of ``lease_seconds`` is ``HELIX_LEASE_SECONDS``, and so on.

    Attributes:
        model_settings: model -> what its block of the settings file sets; ``of_model`` applies it.
        policy_orders: validator -> what is tried for its errors, where a request says nothing (``TurnRequest.policy``).
        owner_settings: owner -> what its block sets.
        flow_settings: flow version -> what its block sets.
        vision: the model sees images. stream: how its answers are shown: ``live``, ``draft``, ``validated``; empty: the
            caller's default.
        prices: US dollars for a million tokens (``worker/runners/pricing.py``).
        proxy_models: models that an agent may ask for besides its own. proxy_allows: what else its calls may hold.
        api: how ``openai_http`` asks: ``chat`` or ``responses``. parameters: what it sends besides.
        timeouts: how long it waits for the ``first`` and each ``next`` event of an answer, in seconds.
        fallbacks: ``Fault`` of a model's service -> the models that may take over, in order.
    """

    model_settings: dict[str, dict[str, Any]] = of_the_file(dict)
    owner_settings: dict[str, dict[str, Any]] = of_the_file(dict)
    flow_settings: dict[str, dict[str, Any]] = of_the_file(dict)
    policy_orders: dict[str, tuple[str, ...]] = of_the_file(dict)
    prices: dict[str, Any] = of_the_file(dict)
    proxy_models: tuple[str, ...] = of_the_file(())
    proxy_allows: tuple[str, ...] = of_the_file(())
    api: str = of_the_file("chat")
    parameters: dict[str, Any] = of_the_file(dict)
    timeouts: dict[str, float] = of_the_file(dict)
    fallbacks: dict[str, tuple[str, ...]] = of_the_file(dict)
    vision: bool = of_the_file(False)
    stream: str = of_the_file("")

    def of_model(self, model: str) -> Settings:
        """The settings as they hold for a model. Each turn asks several times: they are made once."""
        if model not in self.model_settings:
            return self
        if model not in self._of_models:
            self._of_models[model] = replace(self, **self.model_settings[model])
        return self._of_models[model]

    @cached_property
    def _of_models(self) -> dict[str, Settings]:
        return {}

    def upstream_of(self, model: str) -> str:
        """The service that a model asks: its address, and which key of several; a model that asks none: its own name.

        What limits one model of a service limits all of them.
        """
        return self._upstreams.get(model, model)

    @cached_property
    def _upstreams(self) -> dict[str, str]:
        asked = {model: found for model in self.models if (found := self._asked_by(model))[0]}
        keys = defaultdict[str, set[str]](set)
        for address, key in asked.values():
            keys[address].add(key)
        return {
            model: address if len(keys[address]) == 1 else f"{address}#{sha256(key.encode()).hexdigest()[:4]}"
            for model, (address, key) in asked.items()
        }

    @cached_property
    def at_once(self) -> dict[str, int]:
        """How many agents may ask each service at once, by its name; without those that any number may ask."""
        found: dict[str, int] = {}
        for model in self.models:
            name, most = self.upstream_of(model), self.of_model(model).service_at_once
            if most:
                found[name] = min(most, found.get(name, most))
        return found

    def _asked_by(self, model: str) -> tuple[str, str]:
        """The address of a model's service without scheme and login, and its key; empty where it asks none."""
        settings, runner = self.of_model(model), self.models[model].partition(":")[0]
        if runner == "scripted":
            return "", ""
        claude = runner == "claude_cli"
        url = settings.claude_api_url or _ANTHROPIC if claude else settings.openai_url
        parts = urlsplit(url)
        key = settings.claude_api_key if claude else settings.openai_api_key
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/"), key

    def policy_of(self, model: str, owner: str = "", flow: str = "") -> str:
        """The policy file of a turn: the owner's, the flow version's, the model's, or the one of all; empty without."""
        blocks = self.owner_settings.get(owner, {}), self.flow_settings.get(flow, {})
        named = (str(block.get("policy", "")) for block in blocks)
        return next(filter(None, named), "") or self.of_model(model).policy

    def template_of(self, model: str, flow: str = "") -> str:
        """The session template of a turn: the flow version's, the model's, or the one of all; empty for ours."""
        return str(self.flow_settings.get(flow, {}).get("prompt_template", "")) or self.of_model(model).prompt_template

    @property
    def policies(self) -> tuple[str, ...]:
        """Every policy file that these settings name."""
        blocks = [*self.owner_settings.values(), *self.flow_settings.values(), *self.model_settings.values()]
        named = [self.policy, *(str(block.get("policy", "")) for block in blocks)]
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def keys_path(self) -> Path:
        """The file of ``turns keys``."""
        return Path(self.keys_file).expanduser() if self.keys_file else self.root / STATE_DIR / "keys.json"

    @property
    def token_path(self) -> Path:
        """The file with the operator's token of an installation without keys."""
        return self.root / STATE_DIR / "operator-token"

    @cached_property
    def sessions_dir(self) -> Path:
        """Return where the sessions' folders are (ADR-034)."""
        return self.root / "projects" / "sessions"

    @property
    def bucket_lives(self) -> dict[str, float]:
        """Return how long each kind of metrics bucket is kept, in seconds."""
        return {
            "minute": self.minute_metrics_seconds,
            "hour": self.hour_metrics_seconds,
            "day": self.day_metrics_seconds,
        }

    @property
    def celery_url(self) -> str:
        """The broker's address in Celery's spelling."""
        if sentinels := Sentinels.parse(self.broker_url):
            login = f":{sentinels.password}@" if sentinels.password else ""
            return ";".join(f"sentinel://{login}{host}:{port}/{sentinels.db}" for host, port in sentinels.nodes)
        return self.broker_url.replace("unix://", "redis+socket://", 1)

    @cached_property
    def has_queues(self) -> bool:
        """True if Celery's queues are in the store's own database, so that one command changes both."""
        return self.broker_url == self.store_url and "?" not in self.store_url

    @property
    def store_is_cluster(self) -> bool:
        """True if the store is a Redis Cluster, by its address."""
        return Cluster.parse(self.store_url) is not None

    @property
    def redis_url(self) -> str:
        """The store's address in redis-py's spelling."""
        return self.store_url.replace("redis+socket://", "unix://", 1)

    def environ(self) -> dict[str, str]:
        """The settings as environment variables, for a process we start; it reads the settings file again."""
        values = {name_of(each.name): spelled(getattr(self, each.name)) for each in declared(self, "setting")}
        turned = {
            each.name: spelled(getattr(self, each.name))
            for each in declared(self, "constant")
            if getattr(self, each.name) != each.default
        }
        constants = {CONSTANTS: json.dumps(turned)} if turned else {}
        if failpoint := turned.get("failpoint"):  # read where no settings are loaded
            constants["HELIX_FAILPOINT"] = failpoint
        return {name: value for name, value in values.items() if value != ""} | constants
