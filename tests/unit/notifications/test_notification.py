"""A notification's id, its form, and its signature as OpenAI's own verifier sees it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import openai
import pytest

from api_client.contract.addresses import is_internal_address
from api_client.contract.errors import SettingsError
from api_client.contract.notification import KINDS, Notification, OutboxEntry, sign_headers
from api_client.contract.settings import load_settings
from api_client.contract.worker_reports import WorkerReport
from tests.hooks import HookReceiver
from worker.plugins.notifications.delivery import DeliveryError, is_wanted, mask_target, post_body
from worker.plugins.notifications.gathering import find_gone_workers

SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="


def unwrap(notification: Notification, secret: str, with_secret: str, *, now: float = 0.0) -> object:
    body = notification.to_body()
    headers = sign_headers(secret, notification.notification_id, body, now or time.time())
    return openai.OpenAI(api_key="any", webhook_secret=with_secret).webhooks.unwrap(body, headers)


@pytest.mark.parametrize("secret", [SECRET, "any text at all"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_sdk_of_openai_accepts_every_kind(kind: str, secret: str) -> None:
    notification = Notification(kind=kind, subject="turn-1", at=1_000.0, data={"id": "resp_turn-1"})
    event = unwrap(notification, secret, secret)
    assert (event.type, event.id, event.created_at) == (kind, notification.notification_id, 1_000)  # type: ignore[attr-defined]
    assert event.data.id == "resp_turn-1"  # type: ignore[attr-defined]


def test_the_sdk_refuses_another_secret_and_an_old_delivery() -> None:
    notification = Notification(kind="turn.failed", subject="turn-1", at=1_000.0)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrap(notification, SECRET, "another")
    with pytest.raises(openai.InvalidWebhookSignatureError, match="too old"):
        unwrap(notification, SECRET, SECRET, now=time.time() - 3_600)


def test_the_same_kind_and_subject_are_the_same_notification() -> None:
    one = Notification(kind="turn.failed", subject="turn-1", at=1.0, data={"a": 1})
    assert one.notification_id == Notification(kind="turn.failed", subject="turn-1", at=2.0).notification_id
    assert one.notification_id != Notification(kind="turn.dead", subject="turn-1", at=1.0).notification_id
    with pytest.raises(ValueError, match=r"no kind of notification 'turn\.fails'"):
        Notification(kind="turn.fails", subject="turn-1", at=1.0)


def test_the_pauses_between_tries_double_up_to_an_hour() -> None:
    pauses = [OutboxEntry(notification_id="a", body="{}", put_at=0.0, tries=tries).delay for tries in range(1, 13)]
    assert pauses[:4] == [5.0, 10.0, 20.0, 40.0]
    assert pauses[-2:] == [3600.0, 3600.0]


def test_kinds_are_chosen_by_name_or_by_their_beginning() -> None:
    settings = load_settings({"HELIX_NOTIFICATION_KINDS": "turn.dead,response.*"})
    assert [kind for kind in KINDS if is_wanted(settings, kind)] == [
        *("response.completed", "response.failed", "response.cancelled", "turn.dead")
    ]
    with pytest.raises(SettingsError, match=r"no kind of notification 'turn.fails'"):
        load_settings({"HELIX_NOTIFICATION_KINDS": "turn.fails"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HELIX_WEBHOOK_URLS", "ftp://x/y", "must look like https://host"),
        ("HELIX_WEBHOOK_URLS", "https://me:pass@host/y", "must not hold a user or password"),
        ("HELIX_WEBHOOK_SECRET", "whsec_no base64!", "must be base64"),
    ],
)
def test_wrong_settings_are_refused_without_showing_a_secret(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        load_settings({name: value})
    assert value not in str(caught.value)


def test_an_address_is_shown_without_its_path_where_secrets_are() -> None:
    assert mask_target("https://hooks.example/services/T0/secret?key=secret") == "https://hooks.example"


def worker(at: float, **more: Any) -> WorkerReport:
    return replace(WorkerReport(at=at, started_at=10.0, host="a", queues=("helix.run",)), **more)


def test_a_worker_is_gone_when_it_is_silent_and_nobody_took_its_place() -> None:
    def gone(**workers: WorkerReport) -> list[object]:
        reports = [replace(report, name=name) for name, report in workers.items()]
        return [notification.data["worker"] for notification in find_gone_workers(reports, now=1_000.0)]

    assert gone(fresh=worker(995.0)) == []
    assert gone(silent=worker(900.0)) == ["silent"]
    assert gone(just_silent=worker(980.0)) == []
    assert gone(silent=worker(900.0), other=worker(999.0, host="b", started_at=950.0)) == ["silent"]
    assert gone(silent=worker(900.0), next=worker(999.0, started_at=950.0)) == []
    two = {"one": worker(890.0), "two": worker(900.0), "next": worker(999.0, started_at=950.0)}
    assert gone(**two) == ["two"], "one worker takes the place of one"
    beside = {"one": worker(900.0), "beside": worker(999.0, started_at=11.0)}
    assert gone(**beside) == ["one"], "who was there before replaces nobody"
    chain = {"one": worker(600.0), "two": worker(800.0, started_at=610.0), "three": worker(999.0, started_at=810.0)}
    assert gone(**chain) == [], "who replaced one may have been replaced too"
    assert gone(**chain | {"three": worker(900.0, started_at=810.0)}) == ["three"]
    assert gone(forgotten=worker(1_000.0 - 90_000)) == []


# Deliveries go to the public internet only, to the address that was checked, and nowhere they are redirected to.


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::a9fe:a9fe", "fd00:ec2::254"),
        *("64:ff9b:1::101:101", "::127.0.0.1", "::1.1.1.1", "fec0::1", "5f00::1"),
        *("192.0.0.192", "168.63.129.16", "::ffff:168.63.129.16", "100.100.100.200"),
    ],
)
def test_an_address_of_an_inner_network_is_seen_however_it_is_written(address: str) -> None:
    assert is_internal_address(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_an_address_of_the_internet_is_none_of_an_inner_network(address: str) -> None:
    assert not is_internal_address(address)


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
        with pytest.raises(
            DeliveryError, match=r"leads to 127\.0\.0\.1, an internal address; HELIX_WEBHOOK_INTERNAL=allowed"
        ):
            post_body(f"http://hooks.example:{receiver.port}/hook", b"{}", {}, allow_internal=False)
        assert receiver.paths == []
        post_body(f"http://hooks.example:{receiver.port}/hook?a=b", b"{}", {}, allow_internal=True)
        assert receiver.paths == ["/hook?a=b"]


def test_a_name_that_leads_elsewhere_after_the_check_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the second answer would be this machine."""
    asked = resolving(monkeypatch, "1.1.1.1", "127.0.0.1")
    reached: list[Any] = []

    def create_connection(address: Any, *_: Any, **__: Any) -> socket.socket:
        reached.append(address)
        raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(socket, "create_connection", create_connection)
    with pytest.raises(DeliveryError, match="nobody is there"):
        post_body("https://hooks.example/hook", b"{}", {}, allow_internal=False)
    assert reached == [("1.1.1.1", 443)]
    assert asked == ["hooks.example"]


def test_a_redirect_is_not_followed() -> None:
    with HookReceiver() as receiver:
        receiver.answer = lambda headers, body: 302
        with pytest.raises(DeliveryError, match="answers 302, redirects are not followed"):
            post_body(receiver.url, b"{}", {}, allow_internal=True)
        assert receiver.paths == ["/hook"]


def test_an_error_of_the_receiver_and_one_who_is_not_there_are_not_sent() -> None:
    with HookReceiver() as receiver:
        receiver.answer = lambda headers, body: 500
        with pytest.raises(DeliveryError, match="answers 500"):
            post_body(receiver.url, b"{}", {}, allow_internal=True)
    with pytest.raises(DeliveryError, match="ConnectionRefusedError"):
        post_body(receiver.url, b"{}", {}, allow_internal=True)


@contextmanager
def dripping(first: bytes, drop: bytes) -> Iterator[str]:
    """Serve a receiver that never ends its reply: it sends ``first``, then ``drop`` again and again."""
    closed = threading.Event()

    def drip(taken: socket.socket) -> None:
        with taken, suppress(OSError):
            taken.sendall(first)
            while not closed.wait(0.05):
                taken.sendall(drop)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: drip(server.accept()[0]))
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        closed.set()
        thread.join()


def test_a_receiver_that_never_ends_its_headers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.plugins.notifications.delivery._SECONDS", 0.5)
    with dripping(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n") as url, pytest.raises(DeliveryError, match="no answer within"):
        post_body(url, b"{}", {}, allow_internal=True)


def test_a_notification_is_taken_although_the_body_of_the_reply_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.plugins.notifications.delivery._SECONDS", 0.5)
    with dripping(b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n", b"") as url:
        post_body(url, b"{}", {}, allow_internal=True)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 60000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffff\r\n",
    ],
)
def test_a_reply_of_any_form_that_never_ends_holds_nobody_up(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.plugins.notifications.delivery._SECONDS", 0.5)
    with dripping(head, b"x") as url:
        began = time.monotonic()
        post_body(url, b"{}", {}, allow_internal=True)
        assert time.monotonic() - began < 5


def test_a_receiver_that_never_ends_its_handshake_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.plugins.notifications.delivery._SECONDS", 0.5)
    with dripping(b"", b"") as url, pytest.raises(DeliveryError, match="no answer within"):
        post_body(url.replace("http:", "https:"), b"{}", {}, allow_internal=True)


def test_all_addresses_of_a_receiver_share_the_time_of_one_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.plugins.notifications.delivery._SECONDS", 2.0)
    addresses = [f"127.0.0.{last}" for last in range(2, 6)]
    monkeypatch.setattr("worker.plugins.notifications.delivery.resolve_addresses", lambda *_, **__: addresses)
    tried: list[str] = []

    def create_connection(address: tuple[str, int], timeout: float) -> socket.socket:
        """Let the time pass that one address has, as one does that answers nothing; the last address works."""
        tried.append(address[0])
        if address[0] == addresses[-1]:
            return connect(("127.0.0.1", address[1]), timeout)
        threading.Event().wait(timeout)
        raise TimeoutError("timed out")

    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", create_connection)
    with HookReceiver() as receiver:
        began = time.monotonic()
        post_body(receiver.url, b"{}", {}, allow_internal=True)
        assert time.monotonic() - began < 4
    assert tried == addresses
    assert receiver.paths == ["/hook"]


def test_a_receiver_that_is_late_is_not_asked_again_at_its_other_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.plugins.notifications.delivery._SECONDS", 0.5)
    monkeypatch.setattr(
        "worker.plugins.notifications.delivery.resolve_addresses", lambda *_, **__: ["127.0.0.1", "127.0.0.2"]
    )
    with dripping(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n") as url, pytest.raises(DeliveryError, match="no answer within"):
        post_body(url, b"{}", {}, allow_internal=True)
