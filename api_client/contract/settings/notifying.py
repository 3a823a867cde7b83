"""The people who are called when somebody is needed."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaring import setting
from api_client.contract.settings.setting_values import choice, notice_kinds, text, web_addresses, webhook_key


@dataclass(frozen=True, kw_only=True)
class Notifying:
    """The people who are called when somebody is needed (docs/webhooks.md)."""

    webhook_urls: tuple[str, ...] = setting(
        (), web_addresses, "Addresses that get notices, each signed as OpenAI signs its webhooks.", secret=True
    )
    webhook_secret: str = setting(
        "",
        webhook_key,
        "Signs them: whsec_ and base64, as `turns notices secret` makes one; none: unsigned.",
        secret=True,
    )
    webhook_internal: str = setting(
        "refused", choice("refused", "allowed"), "Whether those addresses may lead to this machine or an inner network."
    )
    notice_command: str = setting(
        "", text, "A shell command that is run for each notice, which it gets as JSON on standard input.", masked=True
    )
    notice_kinds: tuple[str, ...] = setting(
        ("*",), notice_kinds, "The kinds of notices that are sent: turn.failed,response.*; * for all."
    )
