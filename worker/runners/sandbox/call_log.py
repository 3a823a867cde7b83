"""The call log of a run: in memory while the run lives, and in a file for a worker that adopts the run."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import fields, replace
from pathlib import Path

from worker.files.recording import CALLS
from worker.runners.observed_calls import MOST_CALLS, WENT_ON, ModelCall, ModelCallEnd, ObservedCalls, clean_word
from worker.runners.pricing import Tokens, sum_tokens
from worker.runners.sandbox.call_observer import CallObserver
from worker.runners.sandbox.call_texts import CallRequest
from worker.runners.sandbox.provider_reports import find_api, find_model
from worker.runners.word_digests import find_digests

_NUMBER = "call"


class CallLog:
    """Records the model calls of one run, in memory and in the file ``path``. Thread-safe."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, ModelCall | CallObserver] = {}
        self._begun = self._since = self._left_out = 0
        self._sums: dict[str, Tokens] = {}
        self._path = path
        #: Failed calls that were not repeated yet: number -> request.
        self._unmet: dict[int, CallRequest] = {}
        #: Failed calls that were repeated before the rest of their error had arrived.
        self._repeated = set[int]()
        self.failures = 0

    def observe_call(self, path: str) -> CallObserver | None:
        api = find_api(path)
        if api is None:
            return None
        call = ModelCall(api=api, model=clean_word(find_model(path)), started=time.time())
        with self._lock:
            listening = CallObserver(call, self._begun, self._update_call, self._mark_repeated_by)
            self._calls[self._begun] = listening
            self._begun += 1
            if len(self._calls) > MOST_CALLS:
                self._drop_oldest()
            self._append_line(listening.number, call)
        return listening

    def _drop_oldest(self) -> None:
        number, call = next(((n, c) for n, c in self._calls.items() if isinstance(c, ModelCall)), (0, None))
        if call:
            del self._calls[number]
        if call and number >= self._since:
            self._left_out += 1
            self._sums = sum_tokens([(call.model, call.counted_tokens)], self._sums)

    def _update_call(self, listening: CallObserver, call: ModelCall) -> None:
        with self._lock:
            repeated = listening.number in self._repeated
            self._store_call(listening.number, replace(call, repeated=True) if repeated else call)
            if call.ended:
                self.failures = 0 if call.end in WENT_ON else self.failures + 1
            # Agents may repeat a call as soon as they know that it failed, before its error has arrived whole.
            if call.end is ModelCallEnd.ERROR or (call.ended and call.end not in WENT_ON):
                if not repeated:
                    self._unmet[listening.number] = replace(listening.request, text="", end="")
            elif call.ended:
                self._mark_rewritten(listening)

    def _store_call(self, number: int, call: ModelCall) -> None:
        if call.ended and number in self._calls:
            self._calls[number] = call
        self._append_line(number, call)

    def _mark_repeated_by(self, listening: CallObserver) -> None:
        with self._lock:
            for number in [each for each, earlier in self._unmet.items() if listening.request.repeats_request(earlier)]:
                self._mark_repeated(number)

    def _mark_rewritten(self, listening: CallObserver) -> None:
        for number in list(self._unmet):
            call = self._calls.get(number)
            if isinstance(call, ModelCall) and (found := find_digests(call.digests, listening.text)):
                found -= find_digests(found, listening.request.text)
                left = tuple(digest for digest in call.digests if digest not in found)
                self._store_call(number, replace(call, digests=left)) if left else self._mark_repeated(number)

    def _mark_repeated(self, number: int) -> None:
        del self._unmet[number]
        if isinstance(call := self._calls.get(number), ModelCall):
            self._store_call(number, replace(call, repeated=True))
        else:
            self._repeated.add(number)

    def _append_line(self, number: int, call: ModelCall) -> None:
        if self._path:
            with contextlib.suppress(OSError), self._path.open("a", encoding="ascii") as lines:
                lines.write(json.dumps({_NUMBER: number, **call.to_dict()}) + "\n")

    def count_calls(self) -> int:
        """Return how many calls have begun so far, for use as ``since`` in ``observed_calls``."""
        with self._lock:
            self._since, self._left_out, self._sums = self._begun, 0, {}
            return self._begun

    def observed_calls(self, since: int = 0) -> ObservedCalls:
        """Return the model calls observed so far, without the first ``since`` calls."""
        with self._lock:
            calls = [call for number, call in self._calls.items() if number >= since]
            found = [call if isinstance(call, ModelCall) else call.current_call() for call in calls]
            return ObservedCalls(calls=found, left_out=self._left_out, sums=self._sums)


def call_log_path(directory: Path) -> Path:
    """Return the path of a run's call log, which lies next to the run's folder."""
    return directory.with_name(f"{directory.name}{CALLS}")


def read_adopted_calls(directory: Path, since: int = 0) -> ObservedCalls | None:
    """Return the logged model calls of a run whose worker died, without the first ``since`` calls."""
    return read_call_log(call_log_path(directory), since)


def read_call_log(path: Path, since: int = 0) -> ObservedCalls | None:
    """Return the model calls in a log file without the first ``since`` calls, or None if there is no file."""
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return None
    names, calls = {field.name for field in fields(ModelCall)}, dict[int, ModelCall]()
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
            facts = json.loads(line)
            kept = {name: value for name, value in facts.items() if name in names}
            calls[int(facts[_NUMBER])] = ModelCall(
                **(kept | {"end": ModelCallEnd(kept["end"]), "digests": tuple(kept.get("digests", ()))})
            )
    found = [calls[number] for number in sorted(calls) if number >= since]
    earlier = found[:-MOST_CALLS]
    sums = sum_tokens([(call.model, call.counted_tokens) for call in earlier], {})
    return ObservedCalls(calls=found[-MOST_CALLS:], left_out=len(earlier), sums=sums)
