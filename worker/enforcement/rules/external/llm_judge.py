"""A model accepts the answer: any model of the settings, by criteria in plain words."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from worker.enforcement.codes import clip
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.external.model_verdict import LONGEST, Verdict, prompt, read_verdict
from worker.enforcement.external.services import CannotRun, Question, services, spend
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option

#: Verdicts that a process keeps: the same answer is judged several times while it is repaired.
KEPT = 1_000
#: A longer answer is not judged, in characters.
MAX_CHARS = 120_000


class _Verdicts:
    """Verdicts by the hash of what was judged; the oldest go first."""

    def __init__(self) -> None:
        self._by_hash: OrderedDict[str, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Verdict | None:
        with self._lock:
            if (found := self._by_hash.get(key)) is not None:
                self._by_hash.move_to_end(key)
            return found

    def put(self, key: str, verdict: Verdict) -> None:
        with self._lock:
            self._by_hash[key] = verdict
            while len(self._by_hash) > KEPT:
                self._by_hash.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._by_hash.clear()


verdicts = _Verdicts()


@dataclass(frozen=True, kw_only=True)
class LlmJudge(Rule):
    """Asks once for each text; a verdict of another form does not count. Its use counts in the turn's budget."""

    kind: ClassVar[str] = "llm_judge"
    reaches_out: ClassVar[bool] = True

    model: str = option("", "A model of the settings (HELIX_MODELS), best a small one.")
    criteria: str = option("", "What an answer must meet, in plain words.")
    seconds: int = option(60, "Time for the verdict, in seconds.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise ValueError("model must name a model of the settings")
        if not self.criteria.strip():
            raise ValueError("criteria must say what an answer must meet")
        if not 1 <= self.seconds <= 600:
            raise ValueError(f"seconds must be 1 to 600, not {self.seconds}")

    @property
    def patience(self) -> float:  # type: ignore[override]
        """Seconds that the verdict may take."""
        return float(self.seconds)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """JUDGE_REJECTED for each error of the verdict.

        Raises:
            CannotRun: the model gave no verdict in time, or one that is not of the form (``examine``: VALIDATOR_ERROR).
        """
        locale = self.words_in(context)
        verdict = self._verdict(strip_marker(response).strip(), str(context.get("prompt", "")), locale)
        return [_issue(error, locale) for error in verdict.errors]

    def _verdict(self, answer: str, question: str, locale: str) -> Verdict:
        if len(answer) > MAX_CHARS:
            raise CannotRun(f"the answer has more than {MAX_CHARS} characters")
        english = locale.lower().startswith("en")
        judged = json.dumps([self.model, self.criteria, english, question, answer])
        key = hashlib.sha256(judged.encode("utf-8", "surrogatepass")).hexdigest()
        if (known := verdicts.get(key)) is not None:
            return known
        nonce = secrets.token_hex(8)
        asked = prompt(self.criteria, answer, nonce, question=question, english=english)
        reply = services().ask(Question(model=self.model, prompt=asked, seconds=self.seconds))
        spend(reply.spent)
        verdict = read_verdict(reply.text, nonce)
        verdicts.put(key, verdict)
        return verdict


def _issue(error: str, locale: str) -> ValidationIssue:
    """An issue with all of the judge's words: they are what the agent needs."""
    made = rule_issue("JUDGE_REJECTED", locale)
    return replace(made, message=f"{made.message}: {clip(error, LONGEST)}")
