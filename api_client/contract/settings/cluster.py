"""The address of a Redis Cluster as store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The parsed address of a Redis Cluster, such as ``redis+cluster://:password@host:port,host:port/``."""

    nodes: tuple[tuple[str, int], ...]
    url: str
    password: str = ""

    @classmethod
    def parse(cls, url: str) -> ClusterAddress | None:
        """Parse the address of a Redis Cluster, or return None for any other address.

        Raises ``ValueError`` if the address names no node, or names a database, of which a cluster has only one.
        """
        scheme, _, rest = url.partition("://")
        if scheme.lower() not in {"redis+cluster", "rediss+cluster"}:
            return None
        # ``urlsplit`` is not used here: newer releases of Python refuse hosts before a bracketed host.
        where, behind, options = re.split(r"([/?#]|$)", rest, maxsplit=1)
        login, at, several = where.rpartition("@")
        hosts = several.split(",")
        first = urlsplit(f"{scheme[: -len('+cluster')]}://{login}{at}{hosts[0]}{behind}{options}")
        nodes = tuple((node.hostname or "", node.port or 6379) for node in (urlsplit(f"//{host}") for host in hosts))
        if not all(host for host, _ in nodes) or first.path not in {"", "/", "/0"}:
            raise ValueError("must look like redis+cluster://host:6379,host:6379 (rediss+cluster:// for TLS)")
        return cls(nodes, first.geturl(), unquote(login.partition(":")[2]))
