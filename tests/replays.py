"""Replays a finished turn as a test's caller would."""

from api_client.client import TurnsClient
from api_client.turn_actions.replay import ReplayAction


async def replay_turn(client: TurnsClient, turn_id: str, *, model: str = "", prompt: str = "") -> str:
    """Submit a finished turn again and return the new turn's id. Raises the errors of ``ReplayAction.submit``."""
    return await ReplayAction(model=model, prompt=prompt).submit(client, await client.reader.read_turn(turn_id))
