"""Sign-in to the pages with a real provider (npm: oidc-provider), in a real browser. ``make e2e-oidc`` runs this."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsing import browse, installation, missing, submitted
from tests.installation import turns
from tests.ports import free_port

FOLDER = os.environ.get("OIDC", "")
pytestmark = [
    pytest.mark.skipif(not FOLDER or bool(missing()), reason=missing() or "run by `make e2e-oidc`"),
    pytest.mark.timeout(300),
]


@contextmanager
def provider(port: int, relay: str) -> Iterator[None]:
    """A provider for one relay; its address is on another site than the relay's."""
    command = ["node", str(Path(__file__).with_name("provider.mjs")), str(port), relay]
    process = subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def relay(root: Path, port: int, issuer: str) -> Iterator[dict[str, Any]]:
    secret = root / "client-secret"
    secret.write_text("secret-of-the-relay\n")
    settings = {
        "HELIX_PUBLIC_URL": f"http://127.0.0.1:{port}",
        "HELIX_OIDC_ISSUER": issuer,
        "HELIX_OIDC_CLIENT_ID": "relay",
        "HELIX_OIDC_CLIENT_SECRET_FILE": str(secret),
        "HELIX_OIDC_SCOPES": "groups",
        "HELIX_OIDC_RIGHTS": "admins=operator,staff=user",
    }
    with installation(root, "--no-flower", "--port", str(port), **settings) as told:
        yield told


def sign_in(name: str) -> list[list[Any]]:
    """Steps from the relay's page of sign-in through the provider's pages of sign-in and consent."""
    return [
        ["click", "a:has-text('Sign in with localhost')"],
        ["fill", "input[name=login]", name],
        ["fill", "input[name=password]", "any"],
        ["click", "button[type=submit]"],
        ["click", "button[type=submit]:has-text('Continue')"],
    ]


def test_people_sign_in_with_their_groups_rights_and_sign_out(tmp_path: Path) -> None:
    port, at = free_port(), f"http://localhost:{(provider_port := free_port())}"
    with provider(provider_port, f"http://127.0.0.1:{port}"), relay(tmp_path, port, at) as told:
        web = told["web_url"]
        turn_id = submitted(told["environ"], "--wait", "Hallo")
        seen = browse(
            ["new", {}],
            ["goto", f"{web}/turns/{turn_id}"],
            ["faults"],
            *sign_in("ada"),
            ["wait", ".pill"],  # the page that was asked for, without a click
            ["url"],
            ["click", "button:has-text('Replay')"],
            ["wait", "button:has-text('Cancel'), .pill"],
            ["goto", f"{web}/audit"],
            ["text", "main"],
            ["goto", f"{web}/overview"],
            ["text", "h1"],
            ["click", "button:has-text('Sign out')"],
            ["wait", "text=You are signed out here"],
            ["click", "a:has-text('too')"],
            ["click", "button:has-text('Yes')"],
            ["wait", "a:has-text('Sign in with')"],
            ["url"],
            ["new", {}],
            ["goto", f"{web}/overview"],
            *sign_in("ben"),
            ["wait", "h1:has-text('Turns')"],  # a user sees no overview
            ["count", "a[href='/audit']"],
            ["new", {"java_script_enabled": False}],
            ["goto", f"{web}/overview"],
            *sign_in("eve"),
            ["wait", "h1"],
            ["text", "[role=alert]"],
        )
        assert seen[2] == []
        assert seen[9] == f"{web}/turns/{turn_id}"
        assert "oidc:ada" in seen[13][0]
        assert seen[15][0].startswith("Overview")
        assert seen[21].startswith(f"{web}/sign-in")
        assert seen[30] == 0
        assert "none of your groups has access here" in seen[-1][0]
        checked = subprocess.run(turns("doctor"), env=told["environ"], capture_output=True, text=True)
        assert f"{at} signs people in" in checked.stdout


def test_keys_that_the_provider_exchanges_need_nothing_of_the_relay(tmp_path: Path) -> None:
    port, provider_port = free_port(), free_port()
    with relay(tmp_path, port, f"http://localhost:{provider_port}") as told:
        web = told["web_url"]
        for _ in range(2):  # each start of the provider makes its key
            with provider(provider_port, web):
                seen = browse(["new", {}], ["goto", f"{web}/turns"], *sign_in("ada"), ["wait", ".filter"], ["url"])
            assert seen[-1] == f"{web}/turns"
