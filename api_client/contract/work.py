"""Kinds of work: what a turn is for, as every process sees it. One half of the port *Work*.

The other half, what a worker does, is ``worker.turns.work``. docs/ARCHITECTURE.md says how to add a kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from api_client.contract.errors import BadRequest
from api_client.contract.installed_work import installed_kinds
from api_client.contract.tasks import RETRY, RUN, TaskDeclaration
from api_client.contract.turn import TurnRequest


class WorkKind:
    """A kind of work. The defaults hold for a message of a chat; another kind overrides what differs.

    Attributes:
        name: how requests, policy files and traces name it.
        tasks: Celery tasks that it adds to the kernel's.
        first, again: the tasks that its turns begin with, and that run its agent once more.
        in_session: its agent works in the session's folder, with the session's template, files and kept process.
        answers_in_text: its result is what its agent says, which validators judge; else the files in its ``folder``.
        waits_long: turns before it may take long, so its deadline counts from its first claim.
        hands_on: where its attempts have failed, another model or a person is asked, whatever its policy says;
            hands_on_incomplete: also when its last run did not finish.
        has_fixed_codes: all validators and codes of its issues may be labels of metrics.
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
        """Refuse a request whose data can never work. Raises ``BadRequest``, or another error of the contract."""

    def locate_folder(self, request: TurnRequest) -> PurePosixPath | None:
        """Return the folder of its files, relative to HELIX_ROOT; None for the session's."""
        return None

    def describe(self, request: TurnRequest) -> str:
        """Return what the turn is about, for people: behind the kind's name, where that is not a chat."""
        return request.prompt

    def repeat(self, request: TurnRequest) -> TurnRequest:
        """Return the request that does the same work again."""
        return request

    def count_judged(self, decision: str) -> Mapping[str, int]:
        """Return the counters of a judged result besides the kernel's."""
        return {}


class UnknownWork(WorkKind):
    """A kind that is not installed here: its turns are shown, and neither submitted nor carried out."""

    name = "unknown"
    in_session = answers_in_text = False

    def check(self, request: TurnRequest) -> None:
        """Raise ``BadRequest``."""
        raise BadRequest(f"no kind of work {request.work[:80]!r} is installed here", param="work")


CHAT, UNKNOWN = WorkKind(), UnknownWork()


def find_work(request: TurnRequest) -> WorkKind:
    """Return the kind of a request's work; ``UNKNOWN`` where it is not installed here."""
    kind = installed_kinds().get(request.work) if request.work else CHAT
    return kind if isinstance(kind, WorkKind) else UNKNOWN
