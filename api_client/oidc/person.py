"""A person whom an OpenID Connect provider has signed in, and the person's right here."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.settings import Settings
from api_client.contract.settings.oidc_settings import PERSON_RIGHTS

_PREFIX = "person-"
MAX_CHARS = 255


class SignInRefused(Exception):
    """Raised when a sign-in is refused. The message is shown to the person who tried to sign in.

    ``oauth_error`` and ``status`` are the error code and the HTTP status of the provider's answer, if there was one.
    """

    def __init__(self, message: str, *, oauth_error: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.oauth_error, self.status = oauth_error, status


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedInPerson:
    """A person who is signed in.

    Attributes:
        issuer, client: the provider and the client to which it named the person.
        subject: the provider's id of the person, which never changes.
        owner: name of the owner whose turns the person sees.
        groups: the person's groups that had a right at sign-in.
    """

    issuer: str
    client: str
    subject: str
    owner: str
    groups: tuple[str, ...]

    def to_text(self) -> str:
        """Encode the person as text, to store who has signed in."""
        return _PREFIX + base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> SignedInPerson | None:
        """Decode a person from a result of ``to_text``. Return None for any other text."""
        if not text.startswith(_PREFIX):
            return None
        data = json.loads(base64.urlsafe_b64decode(text.removeprefix(_PREFIX) + "=="))
        return cls(**{**data, "groups": tuple(data["groups"])})

    def find_right(self, settings: Settings) -> str:
        """Return the person's strongest right under the current settings, or an empty string without any."""
        if (self.issuer, self.client) != (settings.oidc_issuer, settings.oidc_client_id):
            return ""
        given = {settings.oidc_rights.get(group) for group in self.groups}
        return next((right for right in PERSON_RIGHTS if right in given), "")


def read_person(claims: Mapping[str, Any], settings: Settings) -> SignedInPerson:
    """Return the person described by the verified claims of an id token.

    Raises ``SignInRefused`` if none of the person's groups has a right, or if the claims do not name the owner.
    """
    found = _find_claim(claims, settings.oidc_groups_claim)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    groups = tuple(group for group in settings.oidc_rights if group in listed)
    if not groups:
        missing = (
            "none of your groups" if listed else f"the claim {settings.oidc_groups_claim!r} names no group, so none"
        )
        raise SignInRefused(f"you are signed in there, but {missing} has access here: ask an operator")
    owner, claim = f"oidc:{claims['sub']}", settings.oidc_owner_claim
    if claim:
        owner = claims.get(claim, "")
        if not isinstance(owner, str) or not 0 < len(owner) <= MAX_CHARS:
            raise SignInRefused(f"the provider did not send your {claim}: ask an operator")
        if claim == "email" and claims.get("email_verified") is not True:
            raise SignInRefused("the provider has not verified your e-mail address")
    issuer, client = settings.oidc_issuer, settings.oidc_client_id
    return SignedInPerson(issuer=issuer, client=client, subject=claims["sub"], owner=owner, groups=groups)


def _find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return the claim with this name. If there is none, read the name as a path into nested claims (``a.b``)."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
