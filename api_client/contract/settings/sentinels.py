"""The address of a store behind Redis Sentinel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """The parsed address of Redis Sentinel nodes: ``sentinel://[:password@]host:port,.../master/db``."""

    nodes: tuple[tuple[str, int], ...]
    master: str
    db: int = 0
    password: str = ""

    @property
    def celery_url(self) -> str:
        """Return the addresses of all nodes in the form that Celery expects."""
        login = f":{self.password}@" if self.password else ""
        return ";".join(f"sentinel://{login}{host}:{port}/{self.db}" for host, port in self.nodes)

    @classmethod
    def parse(cls, url: str) -> SentinelAddress | None:
        """Parse the address of Redis Sentinel nodes, or return None for any other address.

        Raises ``ValueError`` if the address names no node or no master.
        """
        scheme, _, rest = url.partition("://")
        if scheme != "sentinel":
            return None
        where, _, which = rest.partition("/")
        login, _, hosts = where.rpartition("@")
        master, _, db = which.partition("/")
        nodes = []
        for node in hosts.split(","):
            host, _, port = node.rpartition(":")
            if not (host and port.isdecimal()):
                raise ValueError("must look like sentinel://host:26379,host:26379/master-name/0")
            nodes.append((host, int(port)))
        if not master:
            raise ValueError("must name the master: sentinel://host:26379,host:26379/master-name/0")
        return cls(tuple(nodes), master, int(db or 0), login.partition(":")[2])
