"""The settings of the relay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network

from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import (
    choice_parser,
    integer_parser,
    names,
    parse_path,
    parse_web_address,
)


def parse_networks(value: str) -> tuple[str, ...]:
    """Parse comma-separated IP addresses and networks. Raises ``ValueError`` for an invalid address."""
    given = names(value)
    for each in given:
        ip_network(each)  # raises ValueError with the text
    return given


def parse_keys(value: str) -> tuple[str, ...]:
    """Parse comma-separated API keys. Raises ``ValueError`` for keys with forbidden characters."""
    keys = names(value)
    if any(not key.isprintable() or not set(' "{}[]').isdisjoint(key) for key in keys):
        raise ValueError("must look like key1,key2 on one line; what `turns keys` writes is HELIX_KEYS_FILE's")
    return keys


@dataclass(frozen=True, kw_only=True)
class RelaySettings(SettingsGroup):
    """Settings of the relay: its addresses, API keys and accepted requests."""

    trusted_proxies: tuple[str, ...] = declare_setting(
        (),
        parse_networks,
        "Proxies (127.0.0.1,10.1.0.0/16) whose X-Forwarded-For and X-Forwarded-Proto count; none: no proxy is trusted.",
    )
    public_url: str = declare_setting(
        "",
        parse_web_address,
        "Address at which people reach the relay's pages; then a chat that waits for one of them links there.",
    )
    chat_note: str = declare_setting(
        "no",
        choice_parser("yes", "no"),
        "Below each answer in Open WebUI, in two lines: what it was checked for, and what its turn cost.",
    )
    api_keys: tuple[str, ...] = declare_setting(
        (),
        parse_keys,
        "Keys the relay accepts, beside those of `turns keys`; without any it serves loopback only.",
        secret=True,
    )
    forwarding_keys: tuple[str, ...] = declare_setting(
        (),
        parse_keys,
        "The same for keys that speak for several users, such as Open WebUI's: each request names its user.",
        secret=True,
    )
    keys_file: str = declare_setting(
        "", parse_path, "Where `turns keys` keeps its keys (hashes only); none: HELIX_ROOT/.helix/keys.json."
    )
    user_jwt_secret: str = declare_setting(
        "",
        str,
        "Open WebUI's FORWARD_USER_INFO_HEADER_JWT_SECRET: users of a forwarding key must then be signed.",
        secret=True,
    )
    max_body_bytes: int = declare_setting(
        8 * 2**20, integer_parser(1024, 2**30), "Largest request body the relay reads."
    )
    ping_seconds: float = declare_constant(10.0, "Longest silence on a stream before a keep-alive.")
    stuck_reader_seconds: float = declare_constant(
        60.0, "A reader of the relay that takes nothing for this long is dropped (Linux); 0: never."
    )
    rejoin_seconds: float = declare_constant(
        900.0, "A finished answer nobody received is given to a Regenerate for this long."
    )
    max_connections: int = declare_constant(
        4_096, "Connections a relay serves at once; one more gets 503 and is closed."
    )
    max_unfinished: int = declare_constant(
        10_000, "Unfinished turns with which the relay takes in no more: 429 queue_full."
    )
    stop_grace_seconds: float = declare_constant(
        20.0, "A turn whose Open WebUI reader left is cancelled after this long; 0: never."
    )
    link_seconds: float = declare_constant(604_800.0, "How long a link to a turn's file holds, for whoever has it.")
    max_messages: int = declare_constant(2_000, "Messages a conversation may have.")
    max_message_chars: int = declare_constant(2**20, "Characters one message may have.")

    def find_problems(self) -> Iterator[str]:
        """Yield a message if an API key is listed both for a single caller and for several users."""
        yield from super().find_problems()
        if set(self.api_keys) & set(self.forwarding_keys):
            yield "HELIX_FORWARDING_KEYS: a key is in HELIX_API_KEYS too; leave it in one of them"
