"""Hosts that a sandbox may reach besides its model: names alone, all of whose addresses are looked at."""

import asyncio
import socket
from typing import Any

import pytest

from worker.runners.sandbox.destinations import AllowedDestinations, RequestRefused

NAMED = AllowedDestinations(
    hosts=("*.allowed.example:443", "one.example:443", "localhost:443", "10.1.2.3:443", "[::1]:443")
)


class Reached(Exception):
    """A connection was asked for."""


def reach(monkeypatch: pytest.MonkeyPatch, target: str, *addresses: str, outbound: AllowedDestinations = NAMED) -> str:
    """The address that a request is connected to, or why it is refused."""

    async def getaddrinfo(_: Any, host: str, port: int, **__: Any) -> list[Any]:
        if not addresses:
            host.encode("idna")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses or (host,)]

    async def connected(_: Any, host: str, *__: Any, **___: Any) -> None:
        raise Reached(host)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(AllowedDestinations, "_open_connection", connected)
    try:
        asyncio.run(outbound.connect_host(target))
    except Reached as found:
        return str(found)
    except RequestRefused as refused:
        return f"refused: {refused}" if refused.status == 403 else f"another error: {refused}"
    raise AssertionError("neither")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.9.9.9", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "224.0.0.1", "255.255.255.255"),
        *("::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1"),
        *("::ffff:169.254.169.254", "2002:7f00:1::", "2002:a9fe:a9fe::", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
        *("2001:0:0:0:0:0:5601:5601", "::127.0.0.1", "fec0::1", "5f00::1"),
    ],
)
def test_a_named_host_leads_to_no_inner_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    for target in ("a.allowed.example:443", "one.example:443"):
        assert "an internal address" in reach(monkeypatch, target, address)
        assert "an internal address" in reach(monkeypatch, target, "1.1.1.1", address), "all addresses count"


def test_a_public_address_and_one_that_the_setting_names_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reach(monkeypatch, "a.allowed.example:443", "1.1.1.1", "2606:4700:4700::1111") == "1.1.1.1"
    assert reach(monkeypatch, "ONE.example.:443", "1.1.1.1") == "1.1.1.1"
    assert reach(monkeypatch, "one.example:443", "10.1.2.3") == "10.1.2.3"
    assert reach(monkeypatch, "10.1.2.3:443", "10.1.2.3") == "10.1.2.3"
    assert reach(monkeypatch, "[::1]:443", "::1") == "::1"
    assert reach(monkeypatch, "localhost:443", "127.0.0.1") == "127.0.0.1"
    assert "an internal address" in reach(monkeypatch, "localhost:443", "169.254.169.254")
    here = AllowedDestinations(hosts=("one.example:443", "10.1.2.3:8443"))
    assert "an internal address" in reach(monkeypatch, "one.example:443", "10.1.2.3", outbound=here), "at another port"


LONG = "a" * 64


@pytest.mark.parametrize(
    "name",
    [
        *("evil.example/.allowed.example", "evil.example#.allowed.example", "evil.example?.allowed.example"),
        *(
            "evil.example@.allowed.example",
            "u:p@a.allowed.example",
            "evil.example%00.allowed.example",
            "evil\\.allowed.example",
        ),
        *(".allowed.example", "..allowed.example", "a..allowed.example", "a.allowed.example..", "-a.allowed.example"),
        *(
            "a-.allowed.example",
            "a_b.allowed.example",
            "*.allowed.example",
            "a b.allowed.example",
            "a\t.allowed.example",
        ),
        *("a\0.allowed.example", "a\r\n.allowed.example", "a,b.allowed.example", "a:1.allowed.example"),
        *(
            f"{LONG}.allowed.example",
            f"{'a.' * 130}allowed.example",
            "\u00e4.allowed.example",
            "\ufffd.allowed.example",
        ),
        *("[fe80::1%eth0]", "[::1", "[].allowed.example", "[a.allowed.example]", "", "a.allowed.example:443 x"),
    ],
)
@pytest.mark.parametrize("proxy", ["", "http://proxy.example:3128"])
def test_what_is_no_host_name_is_refused_before_it_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, name: str, proxy: str
) -> None:
    outbound = AllowedDestinations(hosts=NAMED.hosts, proxy=proxy)
    assert "not a host name" in reach(monkeypatch, f"{name}:443", outbound=outbound)


@pytest.mark.parametrize("target", ["a.allowed.example", "a.allowed.example:", "a.allowed.example:80", "b.example:443"])
def test_what_is_not_named_is_refused(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    assert reach(monkeypatch, target).startswith("refused")
    assert reach(monkeypatch, "a.allowed.example:\u0664\u0664\u0663").startswith("refused")
