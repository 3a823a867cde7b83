"""Rule: an answer has no forbidden words and no secrets."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.decoded_text import decode_text
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.rules.secret_forms import FoundSecret, find_secrets, remove_secrets, still_contains_secrets
from worker.enforcement.validators.codes import choose_text

REMOVED = "[removed]"
#: Separators of a phrase's words: white space, marks of Markdown, a link's address, line ends within a quote.
_BLANKS = r"(?:[\s*_`\\\[]|\](?:\([^()\n]{0,300}\))?|(?<=\n)(?:> ?){0,9}[>#+-])+"


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


@dataclass(frozen=True, kw_only=True)
class ForbiddenRule(Rule):
    """Forbids certain words in an answer, regardless of case, and secrets in well-known forms."""

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
        """Return an issue for each forbidden word and each secret in the answer and the agent's files.

        The codes are FORBIDDEN_WORD, once per word, and SECRET_FOUND.
        """
        locale, issues = self.find_locale(context), []
        for file, text in {"": response, **(context.get("files") or {})}.items():
            ends = [found.start() for found in re.finditer("\n", text)]
            for word, line in self._find_words(text):
                issues.append(rule_issue("FORBIDDEN_WORD", locale, file=file, line=line, word=word))
            for secret in self._find_secrets(text):
                line = bisect_left(ends, secret.start) + 1
                issues.append(rule_issue("SECRET_FOUND", locale, file=file, line=line, what=secret.what))
        return issues

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Return the answer with every secret replaced by ``[removed]``, or None if that is impossible."""
        secrets = self._find_secrets(response)
        repaired = remove_secrets(response, REMOVED) if secrets else response
        return None if repaired == response or still_contains_secrets(secrets, repaired) else repaired

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        german, english = "Geheimnis entfernt: {}", "Secret removed: {}"
        kinds = dict.fromkeys(secret.what for secret in self._find_secrets(before))
        return [choose_text(self.find_locale(context), german, english).format(what) for what in kinds]

    def _find_words(self, text: str) -> Iterator[tuple[str, int]]:
        forms = [_fold(text), _fold(decode_text(text).text)] if self.words else []
        for word in self.words:
            phrase = _fold(word).split()
            ends = r"(?<!\w)" if phrase[0][0].isalnum() else "", r"(?!\w)" if phrase[-1][-1].isalnum() else ""
            pattern = re.compile(_BLANKS.join(map(re.escape, phrase)).join(ends))
            found = next(((form, match) for form in forms if (match := pattern.search(form))), None)
            if found:
                yield word, found[0].count("\n", 0, found[1].start()) + 1

    def _find_secrets(self, text: str) -> list[FoundSecret]:
        return find_secrets(text) if self.secrets else []
