"""The audit log's entry in the navigation."""

from __future__ import annotations

from api_client.resources.resource import ResourcePage

PAGES = (ResourcePage(address="/audit", title="Audit", position=2, template=""),)
