"""The settings of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from api_client.contract.settings.declaration import SettingsGroup, constant, setting
from api_client.contract.settings.setting_values import choice, file_path, number
from api_client.contract.settings.store_addresses import is_cluster, open_brokers, store_address


def directory(value: str) -> Path:
    """Parse the path of an existing directory and return it as an absolute path."""
    path = Path(value).expanduser()
    if not path.is_dir():
        raise ValueError("must be an existing directory")
    if path.resolve() == Path("/"):
        raise ValueError("must not be /, nor a link to it: it is the project, which agents read")
    return path.resolve()


def key_prefix(value: str) -> str:
    """Check a prefix for Redis keys, which must not contain spaces, pattern characters or braces."""
    if not value or not value.isprintable() or not set(" {}*?[]\\").isdisjoint(value):
        raise ValueError("must be a word without spaces and without any of {}*?[]\\")
    return value


@dataclass(frozen=True, kw_only=True)
class Storage(SettingsGroup):
    """The place of turns, and their lifetime."""

    root: Path = setting(Path.cwd, directory, "The project the agents work in; paths in answers resolve against it.")
    config: str = setting(
        "", file_path, "The settings file (TOML), below; none: HELIX_ROOT/.helix/helix.toml, where there is one."
    )
    broker_url: str = setting(
        "", store_address, "Celery's broker. REDIS_URL sets broker and store at once.", secret=True
    )
    store_url: str = setting("", store_address, "Where turns, events and metrics live.", secret=True)
    open_broker: str = setting(
        "refused",
        choice("refused", "allowed"),
        "What to do with a broker or store beyond this machine whose address has no password.",
    )
    namespace: str = setting(
        "helix", key_prefix, "Prefix of every key, so that several installations can share a store."
    )
    retention_seconds: float = setting(7 * 86_400.0, number(60, 10**9), "How long a finished turn stays readable.")
    store_wait_seconds: float = constant(
        30.0, number(0, 3600), "How long a start waits for a store or broker that does not answer."
    )
    minute_metrics_seconds: float = constant(
        2 * 86_400.0, number(3600, 10**9), "How long counters by the minute are kept; then hours answer."
    )
    hour_metrics_seconds: float = constant(
        40 * 86_400.0, number(86_400, 10**9), "How long counters by the hour are kept; then days answer."
    )
    day_metrics_seconds: float = constant(
        400 * 86_400.0, number(86_400, 10**9), "How long counters by the day are kept."
    )

    def problems(self) -> Iterator[str]:
        """Yield problems with the addresses of broker and store, such as a missing password."""
        yield from super().problems()
        if is_cluster(self.broker_url or self.store_url):
            yield (
                "HELIX_BROKER_URL: a cluster cannot be Celery's broker; name one plain Redis or Valkey beside it: it"
                " carries ids only, and to lose it costs seconds, no turn"
            )
        if self.open_broker != "allowed":
            yield from open_brokers(self.broker_url, self.store_url)
