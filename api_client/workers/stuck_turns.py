"""The monitor of turns that could run and do not."""

from __future__ import annotations

from collections.abc import Sequence

from api_client.workers.installation_state import Workers
from api_client.workers.monitor import Monitor, Trouble
from api_client.workers.reason import STUCK_SECONDS, is_notified


class StuckTurns(Monitor):
    """Reports turns that have waited for five minutes while something keeps them from running."""

    name, look_seconds = "stuck", 30.0

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def find_troubles(self) -> Sequence[Trouble]:
        """Return one problem, about the longest waiting turn, if turns have waited too long; otherwise nothing."""
        installation = await self._workers.read_state()
        waits = installation.at - installation.waiting_since if installation.waiting else 0.0
        causes = [a for a in installation.alerts if a.keeps_turns_waiting and not is_notified(a.check)]
        if not causes or not (installation.overdue or waits > STUCK_SECONDS):
            return []
        cause, turn_id = causes[0], installation.waiting[0].turn_id if installation.waiting else ""
        data: dict[str, str | int | float] = {
            "turns": len(installation.waiting) or installation.overdue,
            "seconds": round(waits),
            "cause": cause.check,
            "message": cause.message,
        }
        data |= {"turn_id": turn_id} if turn_id else {}
        subject = f"{cause.check} {turn_id or int(installation.at // 3600)}"
        return [Trouble(kind="queue.stuck", subject=subject, at=installation.at, page="/overview", data=data)]
