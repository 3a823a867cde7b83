"""The relay: its addresses, its keys, and what it takes in."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaring import setting
from api_client.contract.settings.setting_values import (
    ROLES,
    file_path,
    grants,
    integer,
    key_list,
    message_roles,
    networks,
    text,
    trace_address,
    web_address,
)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The relay: its addresses, its keys, and what it takes in."""

    web_host: str = setting("127.0.0.1", text, "Address the relay listens on.")
    web_port: int = setting(8765, integer(0, 65_535), "Port the relay listens on; 0 takes a free one.")
    trusted_proxies: tuple[str, ...] = setting(
        (),
        networks,
        "Proxies (127.0.0.1,10.1.0.0/16) whose X-Forwarded-For and X-Forwarded-Proto count; none: no proxy is trusted.",
    )
    public_url: str = setting(
        "",
        web_address,
        "Address at which people reach the relay's pages; then a chat that waits for one of them links there.",
    )
    trace_page: str = setting(
        "",
        trace_address,
        "Address of a trace's page, with {trace_id} in it; then the page of a finished turn links there.",
    )
    flower_port: int = setting(5555, integer(0, 65_535), "Port Flower listens on; 0 turns Flower off.")
    api_keys: tuple[str, ...] = setting(
        (),
        key_list,
        "Keys the relay accepts, beside those of `turns keys`; without any it serves loopback only.",
        secret=True,
    )
    forwarding_keys: tuple[str, ...] = setting(
        (),
        key_list,
        "The same for keys that speak for several users, such as Open WebUI's: each request names its user.",
        secret=True,
    )
    keys_file: str = setting(
        "", file_path, "Where `turns keys` keeps its keys (hashes only); none: HELIX_ROOT/.helix/keys.json."
    )
    user_jwt_secret: str = setting(
        "",
        text,
        "Open WebUI's FORWARD_USER_INFO_HEADER_JWT_SECRET: users of a forwarding key must then be signed.",
        secret=True,
    )
    phase_directories: tuple[str, ...] = setting(
        (),
        grants,
        "Folders below HELIX_ROOT in which keys may run phases: FOLDER=OWNER,... (owners of `turns keys list`, or *).",
    )
    turns_per_minute: int = setting(
        60, integer(0, 10**6), "Turns an owner may submit a minute, and at once; more get 429. 0: no limit."
    )
    owner_unfinished: int = setting(
        100, integer(0, 10**7), "Turns of one owner that have not ended; more get 429. 0: no limit."
    )
    owner_bytes: int = setting(
        256 * 2**20,
        integer(0, 2**50),
        "Bytes of one owner's requests within HELIX_RETENTION_SECONDS, half of it at once; more get 429. 0: no limit.",
    )
    owner_requests: int = setting(
        100, integer(0, 10**6), "Requests of one owner in progress at a relay, streams included. 0: no limit."
    )
    max_body_bytes: int = setting(8 * 2**20, integer(1024, 2**30), "Largest request body the relay reads.")
    roles: tuple[str, ...] = setting(ROLES, message_roles, "Roles a message may have.")
