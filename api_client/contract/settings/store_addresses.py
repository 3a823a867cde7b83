"""Addresses of brokers and stores: parsed, shown without passwords, and refused if unprotected."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote, urlsplit, urlunsplit

from api_client.contract.settings.cluster import ClusterAddress
from api_client.contract.settings.sentinels import SentinelAddress


def parse_store_address(value: str) -> str:
    """Return the address of a Redis server, Sentinel nodes or Redis Cluster unchanged if it is valid."""
    if _parse_nodes(value):
        return value
    parts = urlsplit(value)
    unix = parts.scheme in {"unix", "redis+socket"}
    if not (parts.scheme in {"redis", "rediss"} and parts.hostname) and not (unix and parts.path):
        raise ValueError(
            "must look like redis://host:6379/0, rediss://..., unix:///path, sentinel://host:port/master or"
            " redis+cluster://host:port,host:port"
        )
    _ = parts.port  # raises ValueError when it is not a port
    return value


def is_cluster_address(url: str) -> bool:
    return ClusterAddress.parse(url) is not None


def celery_address(url: str) -> str:
    """Return a broker's address in the form that Celery expects."""
    sentinels = SentinelAddress.parse(url)
    return sentinels.celery_url if sentinels else url.replace("unix://", "redis+socket://", 1)


def list_passwords(url: str) -> Iterator[str]:
    """Yield the password in a Redis address, both as written and URL-decoded."""
    if several := _parse_nodes(url):
        yield several.password
    elif password := urlsplit(url).password:
        yield from (password, unquote(password))


def _parse_nodes(url: str) -> SentinelAddress | ClusterAddress | None:
    return SentinelAddress.parse(url) or ClusterAddress.parse(url)


def mask_password(url: str) -> str:
    """Return a Redis address with its password replaced by asterisks, for messages."""
    scheme, _, rest = url.partition("://")
    if scheme == "sentinel" or scheme.endswith("+cluster"):  # several nodes
        login, at, rest = rest.rpartition("@")
        return f"{scheme}://{login.partition(':')[0]}:***@{rest}" if at else url
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}{port}"))


def find_open_servers(broker_url: str, store_url: str) -> list[str]:
    """Return a message for each Redis address that names another machine but has no password."""
    return [
        f"{name}={mask_password(url)}: a server beyond this machine needs a password: redis://user:password@host "
        "(Valkey: ACL users as in compose/broker/users.acl, or requirepass); HELIX_OPEN_BROKER=allowed accepts it"
        for name, url in (("HELIX_BROKER_URL", broker_url), ("HELIX_STORE_URL", store_url))
        if url and not _is_protected(url)
    ]


def _is_protected(url: str) -> bool:
    if several := _parse_nodes(url):
        return bool(several.password) or all(is_loopback(host) for host, _ in several.nodes)
    parts = urlsplit(url)
    return parts.scheme not in {"redis", "rediss"} or bool(parts.password) or is_loopback(parts.hostname or "")


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
