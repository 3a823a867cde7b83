"""Rules on the words of an answer (forbidden ones, its length, patterns), and on JSON in it."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from api_client.contract.issues import ValidationIssue
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.part import fence_part
from worker.enforcement.documents.splice import strip_marker
from worker.enforcement.rules.rule import Rule, option, rule_issue
from worker.enforcement.rules.secret_forms import SECRETS, decoded, key_material, secrets_in
from worker.enforcement.validators.codes import words

# Words that must not be said, and secrets that must not be shown.

REMOVED = "[removed]"


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
        """Put ``[removed]`` in the place of every secret; words are the agent's to choose.

        None where that would leave a part of a private key, which nothing marks as a secret any more.
        """
        repaired = response
        for pattern in SECRETS.values() if self.secrets else ():
            repaired = pattern.sub(REMOVED, repaired)
        left = decoded(repaired)
        stays = repaired == response or any(line in left for line in key_material(response))
        return None if stays else repaired

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
        return secrets_in(text) if self.secrets else iter(())


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


# Finds the JSON of an answer: a fenced block, or the whole answer.

WHERE = ("fence", "whole", "any")
#: A longer text is not read as JSON, in characters.
MAX_CHARS = 1_000_000


class JsonBlock(NamedTuple):
    """A JSON value, the line of the answer where it begins, from 1, and the name of its block (or empty)."""

    value: Any
    line: int
    part: str


def read_json(response: str, where: str, locale: str) -> JsonBlock | ValidationIssue:
    """The answer's JSON, or the issue that says why it has no such text.

    ``where`` is ``fence`` (the last closed ```json fence), ``whole`` (the answer without its marker), or ``any``: the
    fence where there is one, else the whole.
    """
    out, part = parse(response).out, ""
    fences = [fence for fence in out.fences if fence.closed and fence.info.split(" ")[0].lower() == "json"]
    if where != "whole" and fences:
        text, line = "\n".join(out.lines[fences[-1].start + 1 : fences[-1].end - 1]), fences[-1].start + 2
        part = fence_part("json", len(fences))
    elif where == "fence":
        how = words(locale, "Schreibe das JSON in einen ```json-Block", "Write the JSON in a ```json block")
        return rule_issue("NO_JSON", locale, part=fence_part("json", 1), how=how)
    else:
        text, line = strip_marker(response).strip(), 1
        part = "" if where == "whole" or text[:1] in ("{", "[") else fence_part("json", 1)
    try:
        if len(text) > MAX_CHARS:
            raise ValueError(f"more than {MAX_CHARS} characters")
        return JsonBlock(json.loads(text), line, part)
    except (ValueError, RecursionError) as error:
        at, said = (error.lineno - 1, error.msg) if isinstance(error, json.JSONDecodeError) else (0, str(error))
        values = {"language": "JSON", "problem": said or type(error).__name__}
        issue = rule_issue("CODE_DOES_NOT_PARSE", locale, line=line + at, part=part, **values)
        return replace(issue, shortens=not part)  # the answer is to be the value, and nothing else


def mismatch(found: JsonBlock, locale: str, place: str, problem: str) -> ValidationIssue:
    """JSON_MISMATCH at a place of the JSON; where that is the whole answer, the next one may be as short as it is."""
    issue = rule_issue("JSON_MISMATCH", locale, line=found.line, part=found.part, place=place, problem=problem)
    return replace(issue, shortens=not found.part)


def check_where(where: str) -> None:
    """Refuse a place that does not exist. Raises ``ValueError``: ``where`` is not one of ``WHERE``."""
    if where not in WHERE:
        raise ValueError(f"where must be one of {', '.join(WHERE)}, not {where!r}")


# The answer's JSON fits a JSON Schema.

#: Problems that are reported of one answer; more of them help nobody.
MOST = 10


@dataclass(frozen=True, kw_only=True)
class JsonSchema(Rule):
    """Validates by the ``jsonschema`` package. A reference to another document is not followed: it is an error."""

    kind: ClassVar[str] = "json_schema"

    schema: Mapping[str, Any] = field(default_factory=dict, metadata={"what": "The JSON Schema (draft 2020-12)."})
    where: str = option("any", "Where the JSON is: fence, whole or any.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_where(self.where)
        if not self.schema:
            raise ValueError("schema is empty")
        import jsonschema

        try:
            jsonschema.Draft202012Validator.check_schema(self.schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"schema: {error.json_path}: {error.message}") from None

    @cached_property
    def _validator(self) -> Any:
        import jsonschema
        from referencing import Registry

        return jsonschema.Draft202012Validator(self.schema, registry=Registry())

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """NO_JSON, CODE_DOES_NOT_PARSE, or JSON_MISMATCH for each place that does not fit."""
        locale = self.words_in(context)
        found = read_json(response, self.where, locale)
        if isinstance(found, ValidationIssue):
            return [found]
        problems = sorted(self._validator.iter_errors(found.value), key=lambda problem: list(map(str, problem.path)))
        return [mismatch(found, locale, problem.json_path, problem.message) for problem in problems[:MOST]]


# The answer's JSON is accepted by a pydantic model.


@dataclass(frozen=True, kw_only=True)
class PydanticModel(Rule):
    """Imports the model when it first judges. The package must be installed where workers run."""

    kind: ClassVar[str] = "pydantic_model"

    model: str = option("", "The model's import path, such as mypackage.plans:Plan.")
    where: str = option("any", "Where the JSON is: fence, whole or any.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_where(self.where)
        module, colon, name = self.model.partition(":")
        if not (colon and module and name.isidentifier()):
            raise ValueError(f"model must be an import path such as mypackage.plans:Plan, not {self.model!r}")

    @cached_property
    def _model(self) -> Any:
        module, _, name = self.model.partition(":")
        model = getattr(import_module(module), name)
        if not hasattr(model, "model_validate"):
            raise TypeError(f"{self.model} is not a pydantic model")
        return model

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """NO_JSON, CODE_DOES_NOT_PARSE, or JSON_MISMATCH for each field that the model refuses.

        Raises:
            ImportError, AttributeError, TypeError: the model cannot be loaded (``examine``: VALIDATOR_ERROR).
        """
        from pydantic import ValidationError

        locale, model = self.words_in(context), self._model
        found = read_json(response, self.where, locale)
        if isinstance(found, ValidationIssue):
            return [found]
        try:
            model.model_validate(found.value)
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[:MOST]
            return [mismatch(found, locale, _place(one["loc"]), one["msg"]) for one in wrong]
        return []


def _place(path: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
