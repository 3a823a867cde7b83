"""Rules that ask the machine: a program of the operator, a model that judges."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any, ClassVar, NamedTuple

from api_client.contract.declared import table_beside
from api_client.contract.issues import Severity, ValidationIssue
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.splice import strip_marker
from worker.enforcement.rules.rule import Rule, option, rule_issue
from worker.enforcement.validators.codes import CannotRun, JudgingProgram, Question, clip, services, spend

# A program accepts the answer: by its exit code, with the lines that it names.

#: What compilers and linters print: ``answer.md:12:3: error: words``; also without a file or a column.
_LINE = re.compile(
    r"^(?:(?P<file>[\w./@+-]{1,200}):)?(?P<line>\d{1,7})(?::\d{1,5})?:?\s+(?:(?P<kind>error|warning|note)\b:?\s*)?(?P<said>\S.*)$",
    re.IGNORECASE,
)
#: Issues that one answer gets from one program; fenced blocks that are handed to it, each in a separate run.
MOST_ISSUES, BLOCKS = 20, 20


class _Text(NamedTuple):
    """The text for the program: a text, and the line of the answer before its first."""

    text: str
    before: int


@dataclass(frozen=True, kw_only=True)
class CommandRule(Rule):
    """Runs in the box, in a folder with the answer and the agent's files; the answer is on standard input too.

    docs/security.md says what the box keeps out.
    """

    kind: ClassVar[str] = "command"
    reaches_out: ClassVar[bool] = True

    command: tuple[str, ...] = option((), "Program and arguments, such as [vale, --output=line, answer.md]; no shell.")
    fence: str = option("", "Judge each closed fenced block of this language instead of the whole answer.")
    file: str = option("answer.md", "The file that holds the answer, or the block.")
    accepts: tuple[int, ...] = option((0,), "Exit codes that accept.")
    seconds: int = option(30, "Time for one run, in seconds.")
    memory_mb: int = option(1024, "Memory of each of its processes, in MiB.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.command or not self.command[0]:
            raise ValueError("command must name a program")
        if not 1 <= self.seconds <= 600:
            raise ValueError(f"seconds must be 1 to 600, not {self.seconds}")
        if not 16 <= self.memory_mb <= 65_536:
            raise ValueError(f"memory_mb must be 16 to 65536, not {self.memory_mb}")
        if not self.accepts:
            raise ValueError("accepts must name at least one exit code")
        if not re.fullmatch(r"[\w.-]{1,100}", self.file) or self.file.startswith("."):
            raise ValueError(f"file must be a plain file name, not {self.file!r}")

    @property
    def patience(self) -> float:  # type: ignore[override]
        """Seconds that all of its runs may take together."""
        return float(self.seconds)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """COMMAND_FOUND for each line that the program names, else COMMAND_REJECTED, where its exit code rejects.

        Raises:
            CannotRun: it was ended before it finished (``examine``: VALIDATOR_ERROR).
        """
        issues: list[ValidationIssue] = []
        written = {
            f"output/{name.removeprefix('output/')}": text for name, text in (context.get("files") or {}).items()
        }
        for text, before in self._texts(response):
            ended = services().run(
                JudgingProgram(
                    argv=self.command,
                    files={**written, self.file: text},
                    stdin=text,
                    seconds=self.seconds,
                    memory_mb=self.memory_mb,
                )
            )
            if ended.code not in self.accepts:
                issues += self._issues(ended.code, ended.lines, before, self.words_in(context))
        return issues[:MOST_ISSUES]

    def _texts(self, response: str) -> Iterator[_Text]:
        if not self.fence:
            yield _Text(strip_marker(response), 0)
            return
        found = [block for block in parse(response).out.blocks() if block.language == self.fence.lower()]
        for block in found[:BLOCKS]:
            yield _Text(block.text, block.line)

    def _issues(self, code: int, lines: tuple[str, ...], before: int, locale: str) -> list[ValidationIssue]:
        found = []
        for each in lines:
            if not (said := _LINE.match(each)) or (said["file"] or self.file).removeprefix("./") != self.file:
                continue
            weight = Severity.ERROR if (said["kind"] or "error").lower() == "error" else Severity.WARNING
            values = {"program": self.command[0], "problem": said["said"]}
            issue = rule_issue("COMMAND_FOUND", locale, line=before + int(said["line"]), **values)
            found.append(replace(issue, severity=weight))
        if any(issue.is_error for issue in found):
            return found
        last = next((each.strip() for each in reversed(lines) if each.strip()), "")
        values = {"program": self.command[0], "code": str(code), "problem": f": {last}" if last else ""}
        return [*found, rule_issue("COMMAND_REJECTED", locale, line=before, **values)]


# A model accepts the answer: any model of the settings, by criteria in plain words.

#: Verdicts that a process keeps: the same answer is judged several times while it is repaired.
KEPT = 1_000
#: A longer answer is not judged, in characters.
MAX_CHARS = 120_000


#: Errors that are kept, and how long each may be, in characters.
MOST_ERRORS, LONGEST = 10, 500
#: A longer reply is not read, in characters.
MAX_REPLY = 100_000

_PROMPT = str(table_beside(__file__)["judge"]["en"])


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    """A valid verdict; ``errors`` is never empty unless ``success``."""

    success: bool
    errors: tuple[str, ...] = ()


class _Verdicts:
    """Verdicts by the hash of what was judged; the oldest go first."""

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

    def _verdict(self, answer: str, question: str, locale: str) -> JudgeVerdict:
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


def prompt(criteria: str, answer: str, nonce: str, *, question: str = "", english: bool = True) -> str:
    """Return what the judge is asked. The nonce is nowhere else: no text in the answer can know it."""
    form = json.dumps({"nonce": nonce, "success": False, "errors": ["..."]})
    return _PROMPT.format(
        criteria=criteria.strip(),
        question=_fenced(question or "(not known)"),
        answer=_fenced(answer),
        language="English" if english else "German",
        form=form,
    )


def read_verdict(reply: str, nonce: str) -> JudgeVerdict:
    """The verdict in a judge's reply: one JSON object, alone or in a fence, with the keys of the form and no other.

    Raises:
        CannotRun: the reply has no verdict of this form; says why.
    """
    data = _object(reply)
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


def _object(reply: str) -> dict[str, Any]:
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


def _fenced(text: str) -> str:
    """A text as a code block that nothing in it can end."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"
