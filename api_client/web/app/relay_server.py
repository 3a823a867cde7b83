"""The relay: ``create_app`` makes the application, also for tests; ``serve_relay`` is for ``turns run relay``."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket as socket_options
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import chain
from socket import socket
from types import FrameType

import structlog
import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

import api_client
from api_client.api_keys import ApiKeyring, make_token
from api_client.client import TurnsClient
from api_client.contract.errors import HelixError, SettingsError, StoreUnavailable
from api_client.contract.package_parts import collect_parts
from api_client.contract.settings import Settings
from api_client.contract.settings.setting_faults import reject_faulty_settings
from api_client.contract.settings.store_addresses import is_loopback
from api_client.oidc.provider import OidcProvider
from api_client.watcher import TroubleWatcher
from api_client.web.app.client_connection import HEAD_BYTES, ClientConnection
from api_client.web.app.middleware import ForwardedHeaders, RequestMiddleware
from api_client.web.errors import ApiError, bad_request, convert_error, internal_error, printable_text
from api_client.web.identity.access import CountInProgress, requires_key
from api_client.web.language import error_language, localize_error
from api_client.web.pages import decisions, overview, provider_sign_in, sign_in, static_files, turn, turn_list
from api_client.web.pages.rendering import error_page
from api_client.web.relay.relay import BundleBuilder, CurrentRelay, Relay, get_relay
from api_client.web.relay.turn_readers import TurnReaders
from api_client.web.routes import turn_files
from api_client.web.wire import JSONResponse

log = structlog.get_logger(__name__)

#: Addresses that clients ask for whose base URL lacks ``/v1``.
_WITHOUT_VERSION = frozenset({"/chat/completions", "/responses", "/models"})

#: Seconds that a stop waits for open streams, and readiness for the store and for a worker's reply to a probe.
SHUTDOWN_SECONDS = 5
READY_SECONDS = 1.5
CLAIM_SECONDS = 3.0
#: Longest wait of the event loop for a thread that parses a large body, in seconds.
SWITCH_SECONDS = 0.0005

health_router = APIRouter()


@health_router.get("/healthz", response_model=None)
async def report_liveness() -> Response:
    return JSONResponse({"status": "ok"})


@health_router.get("/readyz", response_model=None)
async def report_readiness(relay: CurrentRelay) -> Response:
    """Report whether the store accepts writes and whether a worker responds to a probe message.

    A store that refuses is reported with its reason and fix; ``why`` lists codes of problems even if all is well.
    """
    try:
        async with asyncio.timeout(READY_SECONDS):
            await relay.client.prober.check_writable()
        claimed = await relay.client.prober.is_ready(CLAIM_SECONDS)
    except StoreUnavailable as error:
        why = error.refusal
        said = {"code": why.word, "message": why.message, "fix": why.fix, "why": ["store"]} if why else {}
        return JSONResponse({"status": "unavailable", **said}, 503)
    except TimeoutError:
        return JSONResponse({"status": "unavailable"}, 503)
    known: dict[str, object] = {}
    with suppress(StoreUnavailable, TimeoutError):  # codes only: the words are for operators
        async with asyncio.timeout(READY_SECONDS):
            known = {"why": list(found)} if (found := await relay.client.workers.read_faults()) else {}
    if not claimed:
        return JSONResponse({"status": "no_worker"} | known, 503)
    stale = {"policy": "a policy file cannot be used: see `turns doctor`"} if relay.client.policies.problems else {}
    return JSONResponse({"status": "ok"} | stale | known)


def create_app(settings: Settings, client: TurnsClient | None = None, pack: BundleBuilder | None = None) -> FastAPI:
    """Create the relay's web application, which closes ``client`` at shutdown.

    Without ``pack``, pages offer no bug reports. Raises ``SettingsError`` for an unusable store, file of keys or
    policy file.
    """
    client = client or TurnsClient(settings)
    client.policies.check_files()
    client.prompts.check_templates()
    readers = TurnReaders(client, settings.stop_grace_seconds)
    relay = Relay(settings, client, readers, ApiKeyring(settings.keys_path), OidcProvider(settings), pack)

    @asynccontextmanager
    async def run_lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(TroubleWatcher(client.monitors, client.reporters).run())
        yield
        watching.cancel()
        relay.readers.close()
        await relay.client.close()

    app = FastAPI(
        title="helix-turns",
        version=api_client.__version__,
        lifespan=run_lifespan,
        docs_url=None,  # both pages would load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.relay = relay
    app.include_router(health_router)
    for router in collect_parts("api_client.web.routes", "router"):
        app.include_router(router, dependencies=[CountInProgress])
    app.include_router(turn_files.signed_router)
    more = (collect_parts(f"api_client.web.pages.{package}", "router") for package in ("page_parts", "operators"))
    pages = [page.router for page in (overview, static_files, sign_in, provider_sign_in, turn_list, turn, decisions)]
    for router in (*pages, *chain.from_iterable(more)):
        app.include_router(router)
    app.add_middleware(RequestMiddleware, locale=settings.locale)
    app.add_middleware(ForwardedHeaders, trusted_hosts=list(settings.trusted_proxies))
    for kind in (ApiError, HelixError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer_error)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    default = get_relay(request).settings.locale
    answer = _to_api_error(error, request, error_language(request, default))
    answer.message = localize_error(answer, request, default)
    seeks_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/")
    if answer.status in {403, 404} and seeks_page:
        return error_page(answer)
    return JSONResponse(answer.to_body(), answer.status, answer.headers)


def _to_api_error(error: Exception, request: Request, locale: str) -> ApiError:
    match error:
        case ApiError():
            return error
        case HelixError():
            why = {"reason": error.reason} if isinstance(error, StoreUnavailable) else {}
            log.info("request.refused", error=type(error).__name__, **why)
            answer = convert_error(error, locale)
            answer.turn_ids = error.turn_ids
            return answer
        case HTTPException(status_code=404):
            hint = "; a client's base URL ends with /v1" if request.url.path in _WITHOUT_VERSION else ""
            return ApiError(404, f"there is nothing at this address{hint}", code="not_found")
        case HTTPException(status_code=405):
            message = f"{printable_text(request.method, 20)} is not allowed at this address"
            headers = {"allow": ", ".join(_allowed_methods(request))}
            return ApiError(405, message, code="method_not_allowed", headers=headers)
        case HTTPException():
            return ApiError(error.status_code, printable_text(str(error.detail)), code="http_error")
        case RequestValidationError():
            first = next(iter(error.errors()), {"loc": ("a parameter",), "msg": "is not valid"})
            name, said = str(first["loc"][-1]), str(first["msg"]).replace("Input should be", "must be")
            return bad_request(f"{name}: {said}", param=name, code="invalid_parameter")
    return internal_error(locale)


def _allowed_methods(request: Request) -> Iterator[str]:
    """Yield the HTTP methods that some route serves at the address of a request (RFC 9110, section 10.2.1)."""
    for method in ("GET", "POST", "DELETE"):
        asked = {**request.scope, "method": method}
        if any(route.matches(asked)[0] is Match.FULL for route in request.app.routes):
            yield from ("GET", "HEAD") if method == "GET" else (method,)


class _Server(uvicorn.Server):
    """A uvicorn server for the relay that logs its addresses, ends open streams on exit and drops stuck clients."""

    def __init__(self, config: uvicorn.Config, stuck_seconds: float) -> None:
        super().__init__(config)
        self._stuck_seconds = stuck_seconds

    async def startup(self, sockets: list[socket] | None = None) -> None:
        self._loop, self._exit_event = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)
        for server in self.servers if self.started else ():
            for listener in server.sockets:
                if hasattr(socket_options, "TCP_USER_TIMEOUT"):
                    # Accepted connections inherit the option: the kernel resets a connection that nobody reads for this
                    # long.
                    stuck = int(self._stuck_seconds * 1000)
                    listener.setsockopt(socket_options.IPPROTO_TCP, socket_options.TCP_USER_TIMEOUT, stuck)
                log.info("relay.listening", address=str(listener.getsockname()))

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._exit_event.wait(), 1.0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        app = self.config.app
        if self.started and isinstance(app, FastAPI):
            for event in (app.state.relay.stopping, self._exit_event):
                self._loop.call_soon_threadsafe(event.set)


def serve_relay(settings: Settings, host: str, port: int, pack_bundle: BundleBuilder | None = None) -> None:
    """Run the relay in this process until SIGTERM or SIGINT, which end open streams with an error.

    ``pack_bundle`` packs the bug reports that pages offer; without it, they offer none.
    Raises ``SettingsError`` as ``create_app``, or if others can reach the address without a key; ``SystemExit`` if the
    address is taken.
    """
    reject_faulty_settings(settings)
    app = create_app(settings, pack=pack_bundle)
    if not requires_key(app.state.relay) and not is_loopback(host):
        problem = "set HELIX_API_KEYS, or make a key with `turns keys create NAME`, to listen beyond this machine"
        raise SettingsError([f"--host {host}: {problem}"])
    if not requires_key(app.state.relay):
        make_token(settings.token_path)
    trusted = ForwardedHeaders(app, list(settings.trusted_proxies)).trusted_hosts  # type: ignore[arg-type]
    config = uvicorn.Config(
        app,
        http=ClientConnection.with_limits(settings.max_connections, trusted),
        h11_max_incomplete_event_size=HEAD_BYTES,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # create_app adds them
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    # Each stream needs two open files, to reader and store; the soft limit is often 1,024.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # "unlimited" is more than some systems allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # objects that exist now are permanent, so the collector may skip them
    _Server(config, settings.stuck_reader_seconds).run()
