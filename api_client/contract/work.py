"""Kinds of work that turns can do: the half of the port that every process needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from api_client.contract.errors import BadRequest
from api_client.contract.installed_work import installed_kinds
from api_client.contract.tasks import RETRY, RUN, TaskDeclaration
from api_client.contract.turn import TurnRequest


class WorkKind:
    """A kind of work that turns do. The base class describes chat messages, and subclasses override what differs.

    Attributes:
        tasks: Celery tasks that it adds to the kernel's.
        first, again: tasks that begin its turns, and that run its agent once more.
        in_session: the agent works in the session's folder, with the session's template, files and kept process.
        answers_in_text: the result is the agent's text, which validators check; otherwise the files in its ``folder``.
        waits_long: earlier turns may take long, so the deadline counts from the first lease.
        hands_on: handed on after the last attempt, whatever its policy says; hands_on_incomplete: also if the last run
            did not finish.
        has_fixed_codes: all validators and issue codes may be labels of metrics.
    """

    name = "chat"
    tasks: Mapping[str, TaskDeclaration] = {}
    first = RUN
    again = RETRY
    in_session = True
    answers_in_text = True
    waits_long = False
    hands_on = False
    hands_on_incomplete = False
    has_fixed_codes = False

    def check(self, request: TurnRequest) -> None:
        """Check that a request is valid for this kind of work. Raises ``BadRequest`` or another ``HelixError``."""

    def locate_folder(self, request: TurnRequest) -> PurePosixPath | None:
        """Return the folder for the work's files, relative to HELIX_ROOT, or None for the session's folder."""
        return None

    def describe_request(self, request: TurnRequest) -> str:
        """Return a short description of the turn for people."""
        return request.prompt

    def detach_request(self, request: TurnRequest) -> TurnRequest:
        """Return the request without its links to other turns, for an independent turn with the same work."""
        return request

    def count_validated(self, decision: str) -> Mapping[str, int]:
        """Return additional counter increments for a checked result, by counter name."""
        return {}


class UnknownWork(WorkKind):
    """Stands for an uninstalled kind of work, whose turns can be shown, but neither submitted nor run."""

    name = "unknown"
    in_session = answers_in_text = False

    def check(self, request: TurnRequest) -> None:
        """Refuse every request by raising ``BadRequest``."""
        raise BadRequest(f"no kind of work {request.work[:80]!r} is installed here", param="work")


CHAT, UNKNOWN = WorkKind(), UnknownWork()


def find_work(request: TurnRequest) -> WorkKind:
    """Return the kind of work that a request asks for, or ``UNKNOWN`` if that kind is not installed."""
    kind = installed_kinds().get(request.work) if request.work else CHAT
    return kind if isinstance(kind, WorkKind) else UNKNOWN
