"""Rules on the words of an answer: forbidden ones, its length, patterns."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from api_client.contract.issues import ValidationIssue
from worker.enforcement.documents.splice import strip_marker
from worker.enforcement.rules.rule import Rule, option, rule_issue
from worker.enforcement.validators.codes import words

# Words that must not be said, and secrets that must not be shown.

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


# The answer is neither too short nor too long.


@dataclass(frozen=True, kw_only=True)
class Length(Rule):
    """Counts characters and words of the answer without its step marker."""

    kind: ClassVar[str] = "length"
    bounded: ClassVar[bool] = True

    min_chars: int = option(0, "The fewest characters that are accepted.")
    max_chars: int = option(0, "The most characters that are accepted; 0 for no bound.")
    min_words: int = option(0, "The fewest words that are accepted.")
    max_words: int = option(0, "The most words that are accepted; 0 for no bound.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for least, most in (("min_chars", "max_chars"), ("min_words", "max_words")):
            bounds = getattr(self, least), getattr(self, most)
            if min(bounds) < 0:
                raise ValueError(f"{least} and {most} must not be negative")
            if bounds[1] and bounds[0] > bounds[1]:
                raise ValueError(f"{least} is above {most}")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """ANSWER_TOO_SHORT or ANSWER_OVER_LENGTH, by characters and by words."""
        locale, text = self.words_in(context), strip_marker(response).strip()
        characters, said = words(locale, "Zeichen", "characters"), words(locale, "Wörter", "words")
        counts = [(len(text), self.min_chars, self.max_chars, characters)]
        if self.min_words or self.max_words:
            counts.append((len(text.split()), self.min_words, self.max_words, said))
        issues = []
        for count, least, most, unit in counts:
            if count < least:
                issues.append(rule_issue("ANSWER_TOO_SHORT", locale, count=count, bound=least, unit=unit))
            elif most and count > most:
                issues.append(rule_issue("ANSWER_OVER_LENGTH", locale, count=count, bound=most, unit=unit))
        return issues


# The answer has what some patterns describe, and has not what others do.

#: A pattern of a whole answer that is one value: held at both ends, without a label and without "anything" in it.
_VALUE = re.compile(r"(?:\(\?[a-z]+\))?(?:\^|\\A)(?:(?!\.[*+]|: |\n)(?:\\.|[^\\]))*(?:\$|\\Z)\Z")


@dataclass(frozen=True, kw_only=True)
class Regex(Rule):
    """Searches by Python's regular expressions; ``(?i)`` and other flags are in the pattern.

    Python's engine may take exponential time over a pattern such as ``(a+)+$``: so the rule is not ``bounded``, and
    works in a child process that is ended when its time is over (``worker.enforcement.child``).
    """

    kind: ClassVar[str] = "regex"

    must: tuple[str, ...] = option((), "Patterns that the answer must match somewhere.")
    must_not: tuple[str, ...] = option((), "Patterns that must match nowhere in the answer.")
    describe: str = option("", "What the patterns mean, in words for the agent; else it reads the pattern itself.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.must or self.must_not):
            raise ValueError("must or must_not needs at least one pattern")
        for pattern in (*self.must, *self.must_not):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"the pattern {pattern!r} is not valid: {error}") from None

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """PATTERN_MISSING for each pattern without a match, PATTERN_FOUND with the line of the first match."""
        locale = self.words_in(context)
        issues = [
            replace(
                rule_issue("PATTERN_MISSING", locale, pattern=self.describe or pattern),
                shortens=_VALUE.match(pattern) is not None,
            )
            for pattern in self.must
            if not re.search(pattern, response, re.MULTILINE)
        ]
        for pattern in self.must_not:
            if found := re.search(pattern, response, re.MULTILINE):
                line = response.count("\n", 0, found.start()) + 1
                issues.append(rule_issue("PATTERN_FOUND", locale, line=line, pattern=self.describe or pattern))
        return issues
