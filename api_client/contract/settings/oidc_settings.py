"""The settings of sign-in with an OpenID Connect provider, and their parsers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from api_client.contract.settings.declaration import declare_setting
from api_client.contract.settings.relay_settings import RelaySettings
from api_client.contract.settings.setting_values import names, parse_web_address
from api_client.contract.settings.store_addresses import is_loopback

#: Rights of people who sign in, the strongest first.
PERSON_RIGHTS = ("operator", "user")


def parse_secure_address(value: str) -> str:
    """Check a web address, which must begin with https:// unless it points to this machine."""
    parts = urlsplit(parse_web_address(value))
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("must begin with https://; http:// serves this machine only")
    return value


def parse_group_rights(value: str) -> dict[str, str]:
    """Parse the rights of groups, in the form ``GROUP=operator,GROUP=user``."""
    found = {}
    for item in names(value):
        group, _, right = (part.strip() for part in item.rpartition("="))
        if not group or right not in PERSON_RIGHTS:
            raise ValueError(f"must look like GROUP=RIGHT,GROUP=RIGHT; a right is {' or '.join(PERSON_RIGHTS)}")
        found[group] = right
    return found


@dataclass(frozen=True, kw_only=True)
class OidcSettings(RelaySettings):
    """Settings for sign-in to the web pages with an OpenID Connect provider (docs/sign-in.md)."""

    oidc_issuer: str = declare_setting(
        "", parse_secure_address, "The issuer whose users may sign in to the pages, exactly as its tokens name it."
    )
    oidc_client_id: str = declare_setting(
        "", str, "The relay's client id at the provider, which sends people back to HELIX_PUBLIC_URL."
    )
    oidc_client_secret: str = declare_setting(
        "", str, "The client's secret; none: a public client, which relies on PKCE alone.", secret=True
    )
    oidc_scopes: tuple[str, ...] = declare_setting(
        ("profile",), names, "The scopes that the relay requests besides openid, such as profile,groups."
    )
    oidc_groups_claim: str = declare_setting(
        "groups", str, "The claim of the id token that lists groups: a name, or a path such as realm_access.roles."
    )
    oidc_rights: dict[str, str] = declare_setting(
        dict, parse_group_rights, "What people of a group may do: admins=operator,staff=user; others are refused."
    )
    oidc_owner_claim: str = declare_setting(
        "", str, "The claim with the owner whose turns a user sees; none: oidc:SUBJECT, which no key has."
    )

    def find_problems(self) -> Iterator[str]:
        """Yield a message for each setting that is missing for sign-in, or that has no effect without a provider."""
        yield from super().find_problems()
        if self.oidc_issuer:
            needed = {
                "OIDC_CLIENT_ID": self.oidc_client_id,
                "OIDC_RIGHTS": self.oidc_rights,
                "PUBLIC_URL": self.public_url,
            }
            yield from (f"HELIX_{name}: needed by HELIX_OIDC_ISSUER" for name, value in needed.items() if not value)
        elif self.oidc_client_id or self.oidc_client_secret or self.oidc_rights:
            yield "HELIX_OIDC_ISSUER: needed by the other HELIX_OIDC settings"
        if self.oidc_issuer and self.public_url:
            try:
                parse_secure_address(self.public_url)
            except ValueError as error:
                yield f"HELIX_PUBLIC_URL: people sign in there: {error}"
