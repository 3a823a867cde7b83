"""The settings of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import choice_parser, number_parser, parse_path
from api_client.contract.settings.store_addresses import find_open_servers, is_cluster_address, parse_store_address


def parse_directory(value: str) -> Path:
    """Parse the path of an existing directory and return it as an absolute path."""
    path = Path(value).expanduser()
    if not path.is_dir():
        raise ValueError("must be an existing directory")
    if path.resolve() == Path("/"):
        raise ValueError("must not be /, nor a link to it: it is the project, which agents read")
    return path.resolve()


def parse_key_prefix(value: str) -> str:
    """Return a prefix for Redis keys unchanged if it has no spaces, pattern characters or braces."""
    if not value or not value.isprintable() or not set(" {}*?[]\\").isdisjoint(value):
        raise ValueError("must be a word without spaces and without any of {}*?[]\\")
    return value


@dataclass(frozen=True, kw_only=True)
class Storage(SettingsGroup):
    """Settings of the store: where turns are kept, and for how long."""

    root: Path = declare_setting(
        Path.cwd, parse_directory, "The project the agents work in; paths in answers resolve against it."
    )
    config: str = declare_setting(
        "", parse_path, "The settings file (TOML), below; none: HELIX_ROOT/.helix/helix.toml, where there is one."
    )
    broker_url: str = declare_setting(
        "", parse_store_address, "Celery's broker. REDIS_URL sets broker and store at once.", secret=True
    )
    store_url: str = declare_setting("", parse_store_address, "Where turns, events and metrics live.", secret=True)
    open_broker: str = declare_setting(
        "refused",
        choice_parser("refused", "allowed"),
        "What to do with a broker or store beyond this machine whose address has no password.",
    )
    namespace: str = declare_setting(
        "helix", parse_key_prefix, "Prefix of every key, so that several installations can share a store."
    )
    retention_seconds: float = declare_setting(
        7 * 86_400.0, number_parser(60, 10**9), "How long a finished turn stays readable."
    )
    store_wait_seconds: float = declare_constant(
        30.0, "How long a start waits for a store or broker that does not answer."
    )
    minute_metrics_seconds: float = declare_constant(
        2 * 86_400.0, "How long counters by the minute are kept; then hours answer."
    )
    hour_metrics_seconds: float = declare_constant(
        40 * 86_400.0, "How long counters by the hour are kept; then days answer."
    )
    day_metrics_seconds: float = declare_constant(400 * 86_400.0, "How long counters by the day are kept.")

    def find_problems(self) -> Iterator[str]:
        """Yield a message for each problem with the broker's or the store's address, such as a missing password."""
        yield from super().find_problems()
        if is_cluster_address(self.broker_url or self.store_url):
            yield (
                "HELIX_BROKER_URL: a cluster cannot be Celery's broker; name one plain Redis or Valkey beside it: it"
                " carries ids only, and to lose it costs seconds, no turn"
            )
        if self.open_broker != "allowed":
            yield from find_open_servers(self.broker_url, self.store_url)
