"""The call log of a run: in memory while the run lives, and in a file for a worker that adopts the run."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import fields, replace
from pathlib import Path

from worker.files.recording import CALLS
from worker.runners.answer_words import digests_in
from worker.runners.guard.call_listener import CallListener
from worker.runners.guard.call_texts import CallRequest
from worker.runners.guard.provider_reports import api_of, model_in
from worker.runners.pricing import Tokens, summed
from worker.runners.witnessed import MOST_CALLS, WENT_ON, Call, CallEnd, ObservedCalls, word_of

_NUMBER = "call"


class Record:
    """The model calls of one run, appended to the file ``path`` as they change. Thread-safe."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, Call | CallListener] = {}
        self._begun = self._since = self._left_out = 0
        self._sums: dict[str, Tokens] = {}
        self._path = path
        #: Failed calls that were not repeated yet: number -> request.
        self._unmet: dict[int, CallRequest] = {}
        self.failures = 0

    def begin(self, path: str) -> CallListener | None:
        """Start observing a call; None if the path is not a model call."""
        api = api_of(path)
        if api is None:
            return None
        call = Call(api=api, model=word_of(model_in(path)), started=time.time())
        with self._lock:
            listening = CallListener(call, self._begun, self._note, self._met_by)
            self._calls[self._begun] = listening
            self._begun += 1
            if len(self._calls) > MOST_CALLS:
                self._leave_out()
            self._write(listening.number, call)
        return listening

    def _leave_out(self) -> None:
        number, call = next(((n, c) for n, c in self._calls.items() if isinstance(c, Call)), (0, None))
        if call:
            del self._calls[number]
        if call and number >= self._since:
            self._left_out += 1
            self._sums = summed([(call.model, call.counted)], self._sums)

    def _note(self, listening: CallListener, call: Call) -> None:
        with self._lock:
            self._put(listening.number, call)
            if call.ended:
                self.failures = 0 if call.end in WENT_ON else self.failures + 1
            if call.ended and call.end not in WENT_ON:
                self._unmet[listening.number] = replace(listening.request, text="", end="")
            elif call.ended:
                self._excuse(listening)

    def _put(self, number: int, call: Call) -> None:
        if call.ended and number in self._calls:
            self._calls[number] = call
        self._write(number, call)

    def _met_by(self, listening: CallListener) -> None:
        with self._lock:
            for number in [each for each, earlier in self._unmet.items() if listening.request.repeats(earlier)]:
                self._meet(number)

    def _excuse(self, listening: CallListener) -> None:
        """Mark earlier failed calls whose text this call wrote again, although its request has other words."""
        for number in list(self._unmet):
            call = self._calls.get(number)
            if isinstance(call, Call) and (found := digests_in(call.digests, listening.text)):
                found -= digests_in(found, listening.request.text)
                left = tuple(digest for digest in call.digests if digest not in found)
                self._put(number, replace(call, digests=left)) if left else self._meet(number)

    def _meet(self, number: int) -> None:
        del self._unmet[number]
        if isinstance(call := self._calls.get(number), Call):
            self._put(number, replace(call, repeated=True))

    def _write(self, number: int, call: Call) -> None:
        if self._path:
            with contextlib.suppress(OSError), self._path.open("a", encoding="ascii") as lines:
                lines.write(json.dumps({_NUMBER: number, **call.to_dict()}) + "\n")

    def count(self) -> int:
        """Return how many calls have begun, for use as ``since`` in ``seen``."""
        with self._lock:
            self._since, self._left_out, self._sums = self._begun, 0, {}
            return self._begun

    def seen(self, since: int = 0) -> ObservedCalls:
        """Return the observed model calls, without the first ``since`` calls."""
        with self._lock:
            calls = [call for number, call in self._calls.items() if number >= since]
            found = [call if isinstance(call, Call) else call.so_far() for call in calls]
            return ObservedCalls(calls=found, left_out=self._left_out, sums=self._sums)


def path_of(directory: Path) -> Path:
    """Return the call log's path, next to a delivery's folder."""
    return directory.with_name(f"{directory.name}{CALLS}")


def adopted(directory: Path, since: int = 0) -> ObservedCalls | None:
    """Read the call log of a run whose worker died, without the first ``since`` calls."""
    return read(path_of(directory), since)


def read(path: Path, since: int = 0) -> ObservedCalls | None:
    """Read a call log, without the first ``since`` calls; None if it is missing."""
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return None
    names, calls = {field.name for field in fields(Call)}, dict[int, Call]()
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
            facts = json.loads(line)
            kept = {name: value for name, value in facts.items() if name in names}
            calls[int(facts[_NUMBER])] = Call(
                **(kept | {"end": CallEnd(kept["end"]), "digests": tuple(kept.get("digests", ()))})
            )
    found = [calls[number] for number in sorted(calls) if number >= since]
    earlier = found[:-MOST_CALLS]
    sums = summed([(call.model, call.counted) for call in earlier], {})
    return ObservedCalls(calls=found[-MOST_CALLS:], left_out=len(earlier), sums=sums)
