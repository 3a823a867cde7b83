"""Addresses of brokers and stores: shown without their password, and refused where anybody could read and run all."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit, urlunsplit

from api_client.contract.settings.cluster import Cluster
from api_client.contract.settings.sentinels import Sentinels


def masked(url: str) -> str:
    """An address without its password, fit for a message."""
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


def open_brokers(broker_url: str, store_url: str) -> list[str]:
    """Name the fault of a server on another machine without a password: anyone who reaches it reads and runs all."""
    return [
        f"{name}={masked(url)}: a server beyond this machine needs a password: redis://user:password@host (Valkey: ACL "
        "users as in compose/broker/users.acl, or requirepass); HELIX_OPEN_BROKER=allowed takes it as it is"
        for name, url in (("HELIX_BROKER_URL", broker_url), ("HELIX_STORE_URL", store_url))
        if url and not _guarded(url)
    ]


def _guarded(url: str) -> bool:
    """Return whether a server has a password, or only this machine reaches it. Pure: names are not looked up."""
    if several := Sentinels.parse(url) or Cluster.parse(url):
        return bool(several.password) or all(is_loopback(host) for host, _ in several.nodes)
    parts = urlsplit(url)
    return parts.scheme not in {"redis", "rediss"} or bool(parts.password) or is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """True for ``localhost`` and the loopback addresses."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
