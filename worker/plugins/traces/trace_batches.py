"""Sends traces in batches. If the receiver is away, they are sent later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError, TurnNotFound
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.tracing.trace_spans import Span, build_spans

Tree = tuple[Turn, list[Span]]
Send = Callable[[Sequence[Tree]], bool]

BATCH = 50
#: Providers by runner, as named in OpenTelemetry's conventions.
_PROVIDERS = {"claude_cli": "anthropic", "openai_http": "openai", "codex": "openai", "acp:gemini": "gcp.gemini"}


class ReceiverUnavailableError(HelixError):
    """Raised when the receiver of traces does not answer or accepts nothing. The traces are sent later."""

    code = "traces_not_taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """The numbers of turns and spans that the receiver accepted, and the turns that it refused."""

    turns: int = 0
    spans: int = 0
    refused: tuple[str, ...] = ()


async def send_next_batch(client: TurnsClient, send: Send) -> SendResult | None:
    """Send the traces of the next batch of finished turns. Return None if no turn is waiting.

    ``send`` runs in a thread. Raises ``ReceiverUnavailableError`` if the receiver accepted nothing; the same turns come
    again.
    """
    batch = await client.untraced.next_batch(BATCH)
    if batch is None:
        return None
    providers = find_providers(client.settings)
    found = [await _build_tree(client, turn_id, providers) for turn_id in batch.turn_ids]
    trees = [tree for tree in found if tree is not None]
    taken = trees
    if trees and not await asyncio.to_thread(send, trees):
        # An accepted empty request means that one of the turns is unreadable: send them one by one.
        if not await asyncio.to_thread(send, []):
            raise ReceiverUnavailableError(
                "the receiver of traces takes nothing; see OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS and its log"
            )
        taken = [tree for tree in trees if await asyncio.to_thread(send, [tree])]
    await client.untraced.confirm_batch(batch)
    there = {turn.turn_id for turn, _ in taken}
    refused = tuple(turn.turn_id for turn, _ in trees if turn.turn_id not in there)
    return SendResult(turns=len(taken), spans=sum(len(spans) for _, spans in taken), refused=refused)


def find_providers(settings: Settings) -> dict[str, str]:
    """Return the provider name of each model, for the span attribute ``gen_ai.provider.name``."""
    return {model: _find_provider(spec, settings.for_model(model)) for model, spec in settings.models.items()}


def _find_provider(spec: str, settings: Settings) -> str:
    runner, _, option = spec.partition(":")
    agent = f"{runner}:{option.partition(':')[0]}"
    asks = runner != "scripted" and settings.openai_url
    return _PROVIDERS.get(agent) or _PROVIDERS.get(runner) or ("openai" if asks else runner)


async def _build_tree(client: TurnsClient, turn_id: str, providers: Mapping[str, str]) -> Tree | None:
    try:
        turn = await client.reader.read_turn(turn_id)
        return turn, build_spans(turn, await client.reader.read_events(turn_id), providers)
    except TurnNotFound:
        return None
