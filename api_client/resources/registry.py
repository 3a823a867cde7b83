"""Collects the resources and pages that the modules of this package declare."""

from __future__ import annotations

from itertools import chain
from typing import Any

from api_client.contract.package_parts import collect_parts
from api_client.resources.resource import Resource, ResourcePage

_PACKAGE = "api_client.resources"
RESOURCES: tuple[Resource[Any], ...] = tuple(chain.from_iterable(collect_parts(_PACKAGE, "RESOURCES")))
_FOUND: list[ResourcePage] = [*chain.from_iterable(collect_parts(_PACKAGE, "PAGES"))]
PAGES = tuple(sorted(_FOUND, key=lambda page: page.position))
