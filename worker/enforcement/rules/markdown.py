"""Rules on the Markdown of an answer: code blocks, citations, links, structure, language."""

from __future__ import annotations

import ast
import json
import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import yaml

from api_client.contract.issues import ValidationIssue
from worker.enforcement.documents.document import FUNCTION_WORDS, content, most, parse, word_counts
from worker.enforcement.documents.outline import Block, Heading, lines_of
from worker.enforcement.documents.part import fence_part, key, plain, section_part
from worker.enforcement.rules.rule import Rule, option, rule_issue
from worker.enforcement.validators.codes import CannotRun, JudgingProgram, services, words
from worker.enforcement.validators.paths import PathTarget, Root

# Parse fenced code in the language that its fence names. Runs nothing.

#: A longer block is not parsed, in characters: parsers of foreign text are bounded.
MAX_BLOCK = 200_000
#: The YAML parser's time grows with the square of the depth: 200,000 open brackets would take it minutes.
DEEPEST = 100
#: Lines that mark an excerpt.
_LEFT_OUT = frozenset({"...", "…", "# ...", "# …"})
SHELL = "shell"
#: Python 3.11 reads an f-string in the square of its length; so long a text may hold one that matters.
LONG = 16_384
_F_STRING = re.compile(r"(?i)(?<!\w)(?:f|fr|rf)[\"']")
#: A string, which stays, or a comma before a closing bracket.
_TRAILING = re.compile(r'("(?:[^"\\\n]|\\.)*"?)|,(?=\s*[\]}])')


#: Reads each file and goes on; the outer shell's own exit code says nothing about the scripts.
_CHECK = 'for each; do bash --norc -n "./$each"; done; exit 0'
_SAID = re.compile(r"^(?:\./)?(\d+)\.sh: line (\d+): (.*)$")
_SHELL_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class CodeBlocks(Rule):
    """Parses each closed fence of a known language, and skips excerpts: blocks with an ellipsis line (``...``)."""

    kind: ClassVar[str] = "code"

    languages: tuple[str, ...] = option(
        ("python", "json", "yaml"), "Languages whose blocks must parse: python, json, yaml, shell."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [language for language in self.languages if language not in (*_PARSERS, SHELL)]
        if unknown:
            raise ValueError(f"languages: {', '.join(unknown)} is not one of {', '.join((*_PARSERS, SHELL))}")

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """False for shell: a program reads it."""
        return SHELL not in self.languages

    def bounded_on(self, texts: Iterable[str]) -> bool:
        """False where Python may take the square of a long f-string's length, too."""
        slow = "python" in self.languages and any(len(text) > LONG and _F_STRING.search(text) for text in texts)
        return self.bounded and not slow

    @property
    def reaches_out(self) -> bool:  # type: ignore[override]
        """True with shell."""
        return SHELL in self.languages

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """CODE_DOES_NOT_PARSE with the line in the answer.

        Raises:
            CannotRun: shell is asked for, and there is no box or no bash (``examine``: VALIDATOR_ERROR).
        """
        found = [block for block in parse(response).out.blocks() if block.language in self.languages and _whole(block)]
        wrong = {}
        for place, block in enumerate(found):
            if block.language != SHELL and (problem := _PARSERS[block.language](block.text)):
                wrong[place] = problem
        scripts = [place for place, block in enumerate(found) if block.language == SHELL]
        for number, line, said in _shell_problems([found[place].text for place in scripts]) if scripts else ():
            wrong[scripts[number]] = line, said
        locale = self.words_in(context)
        return [
            rule_issue(
                "CODE_DOES_NOT_PARSE",
                locale,
                line=found[place].line + line,
                part=fence_part(found[place].language, found[place].number),
                language=found[place].language,
                problem=said,
            )
            for place, (line, said) in sorted(wrong.items())
        ]

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Remove trailing commas from JSON blocks that parse without them."""
        lines = response.split("\n")
        for block in parse(response).out.blocks():
            if block.language != "json" or "json" not in self.languages or not _whole(block) or not _json(block.text):
                continue
            # Commas before a closing bracket; strings keep theirs.
            repaired = _TRAILING.sub(lambda found: found[1] or "", block.text)
            if not _json(repaired):
                own = lines[block.line : block.line + len(block.text.split("\n")) - 1]
                for place, (before, shown, after) in enumerate(
                    zip(own, block.text.split("\n"), repaired.split("\n"), strict=False)
                ):
                    if shown != after:
                        lines[block.line + place] = before[: len(before) - len(shown)] + after
        after = "\n".join(lines)
        return None if after == response else after

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """Say that commas were removed."""
        return [words(self.words_in(context), "Überzählige Kommas im JSON entfernt", "Trailing commas in JSON removed")]


def _whole(block: Block) -> bool:
    return len(block.text) <= MAX_BLOCK and not any(line.strip() in _LEFT_OUT for line in block.text.split("\n"))


Problem = tuple[int, str]  # line within the block, from 1, and words


def _python(block: str) -> Problem | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(block)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return 1, str(error) or type(error).__name__
    return None


def _json(block: str) -> Problem | None:
    try:
        json.loads(block)
    except json.JSONDecodeError as error:
        return error.lineno, error.msg
    except (ValueError, RecursionError) as error:
        return 1, str(error) or type(error).__name__
    return None


def _yaml(block: str) -> Problem | None:
    try:
        depth = 0
        for event in yaml.parse(block, yaml.SafeLoader):  # events alone: no alias is followed, nothing is built
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                return (event.start_mark.line + 1 if event.start_mark else 1), "nested too deeply"
    except yaml.MarkedYAMLError as error:
        return (error.problem_mark.line + 1 if error.problem_mark else 1), error.problem or "not YAML"
    except (yaml.YAMLError, RecursionError) as error:
        return 1, str(error) or type(error).__name__
    return None


_PARSERS: Mapping[str, Callable[[str], Problem | None]] = {"python": _python, "json": _json, "yaml": _yaml}


def _shell_problems(scripts: Sequence[str]) -> list[tuple[int, int, str]]:
    """The first problem of each script that does not parse: its place in ``scripts``, its line, and words.

    Raises:
        CannotRun: there is no box or no bash here.
    """
    names = [f"{number}.sh" for number in range(len(scripts))]
    ended = services().run(
        JudgingProgram(
            argv=["bash", "-c", _CHECK, "bash", *names],
            files=dict(zip(names, scripts, strict=True)),
            seconds=_SHELL_SECONDS,
        )
    )
    if ended.code:
        raise CannotRun(f"bash ended with {ended.code}: {(ended.lines or ('',))[-1]}")
    found: dict[int, tuple[int, int, str]] = {}
    for line in ended.lines:
        if said := _SAID.match(line):
            found.setdefault(int(said[1]), (int(said[1]), int(said[2]), said[3]))
    return list(found.values())


# Files and lines that an answer cites are there: ``src/app.py:12-20``.

#: A path with an ending and, behind it, a line or a range: ``a.py:3``, ``a.py:3-9``, ``a.py#L3-L9``. Of two paths
#: without a line only those in back quotes that hold a slash are taken: other words look like files too often.
_CITED = re.compile(
    r"(?<![\w/.:-])([\w.-]{1,80}(?:/[\w.-]{1,80}){0,20}\.[A-Za-z]\w{0,9})(?::|#L)(\d{1,7})(?:(?:-L?|–)(\d{1,7}))?(?![\w:/])"
)
_QUOTED = re.compile(r"`([\w.-]{1,80}(?:/[\w.-]{1,80}){1,20}\.[A-Za-z]\w{0,9})`")
#: Files whose lines are counted are at most so large, in bytes; the lines of others count as right.
MAX_BYTES = 8 * 1024 * 1024
#: Citations that are looked up in one answer.
MAX_CITED = 500


class Cited(NamedTuple):
    """A file that an answer names: the path, the lines it cites as it writes them, and the line of the answer.

    ``last`` is the last of these lines, 0 for none; ``real``: the range begins at line 1 or later and runs forward.
    """

    path: str
    lines: str
    last: int
    real: bool
    line: int


@dataclass(frozen=True, kw_only=True)
class Citations(Rule):
    """Looks up every cited file below the root and never outside it. Fenced code is left out."""

    kind: ClassVar[str] = "citations"

    paths: bool = option(True, "Also judge paths in back quotes that name no line.")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """CITED_FILE_NOT_FOUND and CITED_LINES_NOT_FOUND; the agent's own files of this turn count as there."""
        locale, root, issues = self.words_in(context), Root.at(self.root), []
        written = {name.removeprefix("output/") for name in context.get("files") or {}}
        seen: set[tuple[str, str]] = set()
        for cited in _cited(response, lines_only=not self.paths):
            if cited.path.removeprefix("output/") in written or (cited.path, cited.lines) in seen:
                continue
            seen.add((cited.path, cited.lines))
            if len(seen) > MAX_CITED:
                break
            kind = root.find(cited.path)
            if kind is PathTarget.MISSING and "/" in cited.path:  # host.example:8080 is not a file
                near = root.suggest(cited.path)
                values = {"path": cited.path, "suggestion": f": {near}?" if near else ""}
                issues.append(rule_issue("CITED_FILE_NOT_FOUND", locale, line=cited.line, **values))
            elif kind is PathTarget.FILE and cited.lines:
                count = _lines(Path(root.real) / cited.path)
                if count is not None and (cited.last > count or not cited.real):
                    lines: dict[str, Any] = {"path": cited.path, "lines": cited.lines, "count": count}
                    issues.append(rule_issue("CITED_LINES_NOT_FOUND", locale, line=cited.line, **lines))
        return issues


def _cited(text: str, *, lines_only: bool) -> Iterator[Cited]:
    out = parse(text).out
    hidden = lines_of(out.code, out.headers)
    for number, line in enumerate(out.lines):
        if number in hidden or "." not in line:
            continue
        for found in _CITED.finditer(line):
            first, last = int(found[2]), int(found[3] or found[2])
            shown = f"{first}-{last}" if found[3] else str(first)
            yield Cited(found[1], shown, max(first, last), 1 <= first <= last, number + 1)
        for found in () if lines_only else _QUOTED.finditer(line):
            yield Cited(found[1], "", 0, True, number + 1)


def _lines(path: Path) -> int | None:
    """Return how many lines a file has; None when it is too large or cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


# The answer is written in the language that the rule wants.

_TAGS = ("de", "en", "es", "fr", "it", "nl")
_NAMES = {
    "de": dict(
        zip(_TAGS, ("Deutsch", "Englisch", "Spanisch", "Französisch", "Italienisch", "Niederländisch"), strict=True)
    ),
    "en": dict(zip(_TAGS, ("German", "English", "Spanish", "French", "Italian", "Dutch"), strict=True)),
}
#: How much more often the found language's words must stand there than the wanted language's.
_CLEARLY = 1.5


@dataclass(frozen=True, kw_only=True)
class Language(Rule):
    """Counts function words in the prose outside code; what is too short to tell is accepted."""

    kind: ClassVar[str] = "language"
    bounded: ClassVar[bool] = True

    expect: str = option("de", "The language: de, en, es, fr, it or nl.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expect not in FUNCTION_WORDS:
            raise ValueError(f"expect must be one of {', '.join(FUNCTION_WORDS)}, not {self.expect!r}")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """WRONG_LANGUAGE when another language is clearly more likely."""
        counts = word_counts(response)
        found = most(counts)
        if found in ("", self.expect) or counts[found] < _CLEARLY * counts[self.expect]:
            return []
        locale = self.words_in(context)
        names = _NAMES.get(locale, _NAMES["en"])
        return [rule_issue("WRONG_LANGUAGE", locale, wanted=names[self.expect], found=names[found])]


# Links lead only where they may. Nothing is opened: the rule reads addresses, it needs no network.

_URL = re.compile(r"\b([a-z][a-z0-9+.-]{1,15})://[^\s<>\"'`\])}]{1,2000}", re.IGNORECASE)
#: What a browser completes by itself: ``www.`` becomes a link, and a place that names an address may hold any form.
_WWW = re.compile(r"(?<![\w/@.:-])www\.[^\s<>\"'`\])}]{1,2000}", re.IGNORECASE)
_PLACES = re.compile(
    r"(?:\]\(\s{0,8}<?|^[ \t>]{0,20}\[[^\]\n]{1,200}\]:\s{0,8}<?|\burl\(\s{0,8}[\"']?"
    r"|\b(?:src|srcset|href|poster|data|action|formaction|background|cite)\s{0,8}=\s{0,8}[\"']?\s{0,8}|<(?=[/\\]{2}))"
    r"([^\s<>\"'`)]{1,2000})",
    re.IGNORECASE | re.MULTILINE,
)
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
#: Schemes of links without ``//`` that run or carry something, and those that browsers read without it.
_BARE = re.compile(r"(?:javascript|data|vbscript|file):", re.IGNORECASE)
_SHORT = re.compile(r"(https?|ftp|wss?):[/\\]{0,9}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class LinksRule(Rule):
    """Judges addresses outside fenced code: in Markdown links, in angle brackets, and bare."""

    kind: ClassVar[str] = "links"
    bounded: ClassVar[bool] = True

    hosts: tuple[str, ...] = option((), "Hosts that links may lead to; `*.example.org` means every host below it.")
    schemes: tuple[str, ...] = option(("https",), "Schemes that links may have.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.schemes:
            raise ValueError("schemes is empty: no link could be right")
        for host in self.hosts:
            if not host.removeprefix("*.") or "/" in host or "*" in host.removeprefix("*."):
                raise ValueError(f"hosts: {host!r} is not a host such as docs.example.org or *.example.org")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """LINK_NOT_ALLOWED for each address whose scheme or host is not allowed; an empty ``hosts`` allows all."""
        locale = self.words_in(context)
        allowed = ", ".join(self.hosts) or ", ".join(self.schemes)
        return [
            rule_issue("LINK_NOT_ALLOWED", locale, line=line, url=url, allowed=allowed)
            for line, url in _links(response)
            if not self._allows(url)
        ]

    def _allows(self, url: str) -> bool:
        scheme, _, rest = url.replace("\\", "/").partition(":") if not url.startswith("//") else ("", "", url)
        if scheme and scheme.lower() not in self.schemes:
            return False
        if not self.hosts:
            return True
        try:
            host = (urlsplit(f"x:{rest}").hostname or "").rstrip(".")
        except ValueError:  # an address that nobody can follow
            return False
        return any(
            host.endswith(allowed[1:].lower()) if allowed.startswith("*.") else host == allowed.lower()
            for allowed in self.hosts
        )


def _links(text: str) -> Iterator[tuple[int, str]]:
    """The addresses outside fences, with their lines, from 1."""
    out = parse(text).out
    fenced = lines_of(out.code)
    shown = "\n".join("" if number in fenced else line for number, line in enumerate(out.lines))
    ends = [found.start() for found in re.finditer("\n", shown)]
    found = [(each.start(), each[0].rstrip(".,;:!?")) for each in _URL.finditer(shown)]
    found += [(each.start(), f"//{each[0].rstrip('.,;:!?')}") for each in _WWW.finditer(shown)]
    for each in _PLACES.finditer(shown):
        if url := _completed(each[1]):
            found.append((each.start(1), url))
    for place, url in sorted(found):
        yield bisect_left(ends, place) + 1, url


def _completed(written: str) -> str:
    """Read an address without or with disguised scheme or slashes as a browser does; empty for another one.

    Entities and Markdown's escapes are read, control characters fall out, and a backslash is a slash (WHATWG URL).
    """
    for read in (unescape(written), unescape(_ESCAPED.sub(r"\1", written))):
        url = "".join(char for char in read if char > " ").replace("\\", "/")
        if url.startswith("//"):
            return "//" + url.lstrip("/")
        if _BARE.match(url):
            return url
        if (short := _SHORT.match(url)) and not _URL.match(written):
            return f"{short[1]}://{url[short.end() :]}"
    return ""


# The answer has the sections of a template.

#: Templates by name. ``|`` is between names of the same section.
PRESETS: Mapping[str, tuple[str, ...]] = {
    "adr-madr": ("Context and Problem Statement|Kontext und Problemstellung", "Considered Options|Optionen",
                 "Decision Outcome|Entscheidung"),
    "adr-nygard": ("Status", "Context|Kontext", "Decision|Entscheidung", "Consequences|Konsequenzen"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Structure(Rule):
    """Compares headings without their mark-up, numbers and letter case."""

    kind: ClassVar[str] = "structure"
    bounded: ClassVar[bool] = True

    preset: str = option("", "A template by name: adr-madr or adr-nygard.")
    sections: tuple[str, ...] = option((), "Headings that must be there; `Context|Kontext` names one section twice.")
    level: int = option(2, "The level of these headings; 0 for any.")
    filled: bool = option(True, "A section must have content besides its heading.")
    ordered: bool = option(False, "The sections must be in the template's order.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset and self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, not {self.preset!r}")
        if not (self.preset or self.sections):
            raise ValueError("preset or sections must name at least one section")
        if not 0 <= self.level <= 6:
            raise ValueError(f"level must be 0 to 6, not {self.level}")
        if not all(name.strip() for section in self.wanted for name in section.split("|")):
            raise ValueError("sections holds an empty name")

    @property
    def wanted(self) -> tuple[str, ...]:
        """The sections of the preset, then those of the option."""
        return (*PRESETS.get(self.preset, ()), *self.sections)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """MISSING_SECTION and EMPTY_SECTION for each section, SECTION_ORDER for the first that comes too late."""
        locale, out = self.words_in(context), parse(response).out
        issues, places = [], []
        ends = out.section_ends()
        for section in self.wanted:
            names = {key(name) for name in section.split("|")}
            found = [
                (heading, end)
                for heading, end in zip(out.headings, ends, strict=True)
                if heading.top and (not self.level or heading.level == self.level) and key(heading.title) in names
            ]
            shown = f"{'#' * (self.level or 2)} {section.partition('|')[0]}"
            # Code puts a missing section in at the level of its neighbours: for another level the agent is asked.
            part = section_part(section.partition("|")[0]) if found or self.level in (0, 2) else ""
            if not found:
                issues.append(rule_issue("MISSING_SECTION", locale, part=part, section=shown))
                continue
            first = found[0][0]
            places.append(first)
            if self.filled and not any(any(True for _ in content(out, one.line + 1, end)) for one, end in found):
                issues.append(rule_issue("EMPTY_SECTION", locale, line=first.line + 1, part=part, section=shown))
        if self.ordered:
            issues += self._order(places, locale)
        return issues

    def _order(self, places: list[Heading], locale: str) -> list[ValidationIssue]:
        for before, here in pairwise(places):
            if here.line < before.line:
                order = " → ".join(section.partition("|")[0] for section in self.wanted)
                values = {"section": plain(before.title), "order": order}
                return [rule_issue("SECTION_ORDER", locale, line=before.line + 1, **values)]
        return []
