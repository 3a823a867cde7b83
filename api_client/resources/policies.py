"""The entry of flow versions and policies in the navigation."""

from __future__ import annotations

from api_client.resources.resource import ResourcePage

PAGES = (ResourcePage(address="/policies", title="Policies", position=4, template=""),)
