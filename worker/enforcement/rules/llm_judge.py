"""Rule: a configured model accepts the answer by criteria in plain words."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from api_client.contract.word_tables import load_word_table
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.validators.codes import clip_text
from worker.enforcement.validators.services import CannotRun, ModelPrompt, get_services, record_cost

#: Verdicts cached per process: the same answer is validated several times during repair.
KEPT = 1_000
MAX_CHARS = 120_000


#: Most errors taken from a verdict, and their longest length.
MOST_ERRORS, LONGEST = 10, 500
MAX_REPLY = 100_000

_PROMPT = str(load_word_table(__file__)["judge"]["en"])


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    """A model's verdict on an answer. ``errors`` is empty only if the model accepts the answer."""

    success: bool
    errors: tuple[str, ...] = ()


class _VerdictCache:
    """Caches models' verdicts by a hash of the judged content, and drops the least recently used verdicts."""

    def __init__(self) -> None:
        self._by_hash: OrderedDict[str, JudgeVerdict] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> JudgeVerdict | None:
        with self._lock:
            if (found := self._by_hash.get(key)) is not None:
                self._by_hash.move_to_end(key)
            return found

    def put(self, key: str, verdict: JudgeVerdict) -> None:
        with self._lock:
            self._by_hash[key] = verdict
            while len(self._by_hash) > KEPT:
                self._by_hash.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._by_hash.clear()


verdicts = _VerdictCache()


@dataclass(frozen=True, kw_only=True)
class LlmJudgeRule(Rule):
    """Asks a model to judge the answer by criteria in plain language, and charges the cost to the turn."""

    kind: ClassVar[str] = "llm_judge"
    needs_services: ClassVar[bool] = True

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
        """Return the time limit for the model's verdict, in seconds."""
        return float(self.seconds)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Ask the model to judge the answer. Return an issue for each error in the verdict. Raises ``CannotRun``."""
        locale = self.find_locale(context)
        verdict = self._find_verdict(strip_marker(response).strip(), str(context.get("prompt", "")), locale)
        return [_rejection_issue(error, locale) for error in verdict.errors]

    def _find_verdict(self, answer: str, question: str, locale: str) -> JudgeVerdict:
        if len(answer) > MAX_CHARS:
            raise CannotRun(f"the answer has more than {MAX_CHARS} characters")
        english = locale.lower().startswith("en")
        judged = json.dumps([self.model, self.criteria, english, question, answer])
        key = hashlib.sha256(judged.encode("utf-8", "surrogatepass")).hexdigest()
        if (known := verdicts.get(key)) is not None:
            return known
        nonce = secrets.token_hex(8)
        asked = build_prompt(self.criteria, answer, nonce, question=question, english=english)
        reply = get_services().ask_model(ModelPrompt(model=self.model, prompt=asked, seconds=self.seconds))
        record_cost(reply.spent)
        verdict = read_verdict(reply.text, nonce)
        verdicts.put(key, verdict)
        return verdict


def _rejection_issue(error: str, locale: str) -> ValidationIssue:
    made = rule_issue("JUDGE_REJECTED", locale)
    return replace(made, message=f"{made.message}: {clip_text(error, LONGEST)}")


def build_prompt(criteria: str, answer: str, nonce: str, *, question: str = "", english: bool = True) -> str:
    """Return the prompt that asks a model to judge an answer by the criteria. Its reply must repeat the ``nonce``."""
    form = json.dumps({"nonce": nonce, "success": False, "errors": ["..."]})
    return _PROMPT.format(
        criteria=criteria.strip(),
        question=_fence_text(question or "(not known)"),
        answer=_fence_text(answer),
        language="English" if english else "German",
        form=form,
    )


def read_verdict(reply: str, nonce: str) -> JudgeVerdict:
    """Parse the reply of a judging model and return its verdict. The reply must be one JSON object with the nonce.

    Raises ``CannotRun`` for any other reply.
    """
    data = _parse_object(reply)
    if other := sorted(map(str, set(data) - {"nonce", "success", "errors"})):
        raise CannotRun(f"the verdict has keys that were not asked for: {', '.join(other)}")
    if not isinstance(data.get("nonce"), str) or not compare_digest(data["nonce"].encode(), nonce.encode()):
        raise CannotRun("the verdict does not repeat the nonce, so it is not the judge's")
    success, errors = data.get("success"), data.get("errors", [])
    if not isinstance(success, bool):
        raise CannotRun("the verdict's 'success' must be true or false")
    if not isinstance(errors, list) or not all(isinstance(each, str) for each in errors):
        raise CannotRun("the verdict's 'errors' must be a list of texts")
    said = tuple(each.strip()[:LONGEST] for each in errors if each.strip())[:MOST_ERRORS]
    if success == bool(said):
        raise CannotRun("the verdict accepts and names errors" if success else "the verdict rejects and names no error")
    return JudgeVerdict(success, said)


def _parse_object(reply: str) -> dict[str, Any]:
    text = reply.strip()
    if len(text) > MAX_REPLY:
        raise CannotRun(f"the judge's reply has more than {MAX_REPLY} characters")
    if fenced := re.fullmatch(r"```(?:json)?[ \t]*\n(.*)\n```", text, re.DOTALL):
        text = fenced[1]
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise CannotRun("the judge's reply is not one JSON object") from None
    if not isinstance(data, dict):
        raise CannotRun("the judge's reply is not one JSON object")
    return data


def _fence_text(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"
