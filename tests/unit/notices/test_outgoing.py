"""Deliveries go to the public internet only, to the address that was checked, and nowhere they are redirected to."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.hooks import HookReceiver
from worker.notices.outgoing import NotSent, inner, post


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::a9fe:a9fe", "fd00:ec2::254"),
        *("64:ff9b:1::101:101", "::127.0.0.1", "::1.1.1.1", "fec0::1", "5f00::1"),
    ],
)
def test_an_address_of_an_inner_network_is_seen_however_it_is_written(address: str) -> None:
    assert inner(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_an_address_of_the_internet_is_none_of_an_inner_network(address: str) -> None:
    assert not inner(address)


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Have names lead to these addresses, one after the other; returns the names that were asked for."""
    asked: list[str] = []

    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *more: Any, **named: Any) -> list[Any]:
        if host[0].isdecimal():  # an address already
            return real(host, port, *more, **named)
        address = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_a_name_that_leads_inside_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with HookReceiver() as receiver:
        resolving(monkeypatch, "127.0.0.1")
        with pytest.raises(NotSent, match=r"leads to 127\.0\.0\.1, an inner address; HELIX_WEBHOOK_INTERNAL=allowed"):
            post(f"http://hooks.example:{receiver.port}/hook", b"{}", {}, allow_inner=False)
        assert receiver.paths == []
        post(f"http://hooks.example:{receiver.port}/hook?a=b", b"{}", {}, allow_inner=True)
        assert receiver.paths == ["/hook?a=b"]


def test_a_name_that_leads_elsewhere_after_the_check_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the second answer would be this machine."""
    asked = resolving(monkeypatch, "1.1.1.1", "127.0.0.1")
    reached: list[Any] = []

    def create_connection(address: Any, *_: Any, **__: Any) -> socket.socket:
        reached.append(address)
        raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(socket, "create_connection", create_connection)
    with pytest.raises(NotSent, match="nobody is there"):
        post("https://hooks.example/hook", b"{}", {}, allow_inner=False)
    assert reached == [("1.1.1.1", 443)]
    assert asked == ["hooks.example"]


def test_a_redirect_is_not_followed() -> None:
    with HookReceiver() as receiver:
        receiver.answer = lambda headers, body: 302
        with pytest.raises(NotSent, match="answers 302, redirects are not followed"):
            post(receiver.url, b"{}", {}, allow_inner=True)
        assert receiver.paths == ["/hook"]


def test_an_error_of_the_receiver_and_one_who_is_not_there_are_not_sent() -> None:
    with HookReceiver() as receiver:
        receiver.answer = lambda headers, body: 500
        with pytest.raises(NotSent, match="answers 500"):
            post(receiver.url, b"{}", {}, allow_inner=True)
    with pytest.raises(NotSent, match="ConnectionRefusedError"):
        post(receiver.url, b"{}", {}, allow_inner=True)
