"""The static files of all pages."""

from __future__ import annotations

from starlette.responses import Response

from api_client.web.errors import ApiError
from api_client.web.pages.rendering import ASSETS, VERSION, page_router, redirect

router = page_router()


@router.get("/favicon.ico")
async def send_icon() -> Response:
    """Redirect browsers that ask for ``/favicon.ico`` to the icon's real address."""
    return redirect(f"/assets/{VERSION}/icon.svg")


@router.get("/assets/{version}/{name}")
async def send_asset(version: str, name: str) -> Response:
    """Serve a static file that browsers may cache forever, because its address changes with its content."""
    if name not in ASSETS:
        raise ApiError(404, "there is nothing at this address", code="not_found")
    media_type, content = ASSETS[name]
    return Response(content, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})
