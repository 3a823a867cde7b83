"""Words that must not be said, and secrets that must not be shown."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from api_client.contract.issues.issue import ValidationIssue
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.validators.codes import words

REMOVED = "[removed]"

#: How well-known secrets look. Every quantifier is bounded and begins behind a literal, so that time stays linear.
SECRETS: Mapping[str, re.Pattern[str]] = {
    "private key": re.compile(
        r"-----BEGIN (?:[A-Z]{1,12} ){0,2}PRIVATE KEY-----[A-Za-z0-9+/=\s]{0,8192}(?:-----END[A-Z ]{0,40}-----)?"
    ),
    "AWS access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b"),
    "GitLab token": re.compile(r"\bglpat-[A-Za-z0-9_-]{20,64}"),
    "Google API key": re.compile(r"\bAIza[0-9A-Za-z_-]{35}"),
    "Slack token": re.compile(r"\bxox[abeoprs]-[0-9A-Za-z-]{10,250}"),
    "Stripe key": re.compile(r"\b[rs]k_live_[0-9A-Za-z]{16,128}"),
    "API key": re.compile(r"\bsk-[A-Za-z0-9_-]{20,250}"),
    "JSON web token": re.compile(r"\beyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,1000}"),
}
#: What is in every secret of a kind: looked for first, because that takes a fraction of the pattern's time.
_SIGNS: Mapping[str, tuple[str, ...]] = {
    "private key": ("-----BEGIN ",),
    "AWS access key": ("AKIA", "ASIA"),
    "GitHub token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "GitLab token": ("glpat-",),
    "Google API key": ("AIza",),
    "Slack token": ("xox",),
    "Stripe key": ("k_live_",),
    "API key": ("sk-",),
    "JSON web token": ("eyJ",),
}


@dataclass(frozen=True, kw_only=True)
class Forbidden(Rule):
    """Looks for whole words in any letter case, and for well-known forms of secrets."""

    kind: ClassVar[str] = "forbidden"
    bounded: ClassVar[bool] = True
    mends_files: ClassVar[bool] = True

    words: tuple[str, ...] = option((), "Words and phrases that must not be in the answer, in any letter case.")
    secrets: bool = option(True, "Also look for private keys, and for keys and tokens of well-known services.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.words or self.secrets):
            raise ValueError("words is empty and secrets is off: nothing is left to look for")
        if not all(word.strip() for word in self.words):
            raise ValueError("words holds an empty word")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """FORBIDDEN_WORD once for each word, SECRET_FOUND for each secret, in the answer and in the agent's files."""
        locale, issues = self.words_in(context), []
        for file, text in {"": response, **(context.get("files") or {})}.items():
            ends = [found.start() for found in re.finditer("\n", text)]
            for word, found in self._said(text):
                line = bisect_left(ends, found) + 1
                issues.append(rule_issue("FORBIDDEN_WORD", locale, file=file, line=line, word=word))
            for what, found in self._shown(text):
                line = bisect_left(ends, found) + 1
                issues.append(rule_issue("SECRET_FOUND", locale, file=file, line=line, what=what))
        return issues

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Put ``[removed]`` in the place of every secret; words are the agent's to choose."""
        repaired = response
        for pattern in SECRETS.values() if self.secrets else ():
            repaired = pattern.sub(REMOVED, repaired)
        return None if repaired == response else repaired

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """Which kinds of secrets were removed."""
        german, english = "Geheimnis entfernt: {}", "Secret removed: {}"
        kinds = dict.fromkeys(what for what, _ in self._shown(before))
        return [words(self.words_in(context), german, english).format(what) for what in kinds]

    def _said(self, text: str) -> Iterator[tuple[str, int]]:
        for word in self.words:
            if found := re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE):
                yield word, found.start()

    def _shown(self, text: str) -> Iterator[tuple[str, int]]:
        for what, pattern in SECRETS.items() if self.secrets else ():
            if any(sign in text for sign in _SIGNS[what]):
                for found in pattern.finditer(text):
                    yield what, found.start()
