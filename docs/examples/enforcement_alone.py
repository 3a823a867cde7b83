"""Enforcement in one process: an agent that forgets its step marker is asked again (ADR-038's API)."""

import asyncio
from dataclasses import dataclass

from worker.enforcement import ResponseEnforcer, StepMarkerValidator


@dataclass
class Ran:
    """What a run of the agent returns: its text, and whether it ended well."""

    stdout: str
    success: bool = True


class ForgetfulAgent:
    """Represents your agent. It needs two methods; replace their bodies by calls of your model."""

    async def run_session(self, *, session_id: str, prompt: str, **options: object) -> Ran:
        return Ran("Invoices are in the archive.")

    async def continue_session(self, *, session_id: str, prompt: str, **options: object) -> Ran:
        print("asked again:", prompt.splitlines()[0])
        return Ran("<!-- STEP: what -->")  # the missing part is enough: it is put into the answer


async def main() -> None:
    enforcer = ResponseEnforcer(ForgetfulAgent(), max_retries=2, validators=[StepMarkerValidator()])
    result = await enforcer.run_with_enforcement(session_id="session-1", prompt="Where is the invoice?")
    print("accepted" if result else [issue.code for issue in result.issues], "after", result.attempts, "attempts")
    print(result.response)


asyncio.run(main())
