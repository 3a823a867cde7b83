"""The broken answers: 16 kinds of fault, German and English, six sizes, and eight mixed ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.lab.bench.economy.answers import REQUIRED, TITLES, Answer, adr, chat

SIZES = (300, 700, 1500, 4000, 9000, 20_000)
LANGS = ("de", "en")


@dataclass(frozen=True, slots=True)
class Case:
    """A broken answer.

    Attributes:
        good: what the model means to say. first: what it says at first. complete: whether it finished.
        missing: how many characters of the good answer really lack, or are wrong.
        small: only marker, field, header or path is wrong.
    """

    number: int
    kind: str
    size: int
    good: Answer
    first: str
    missing: int
    complete: bool = True
    small: bool = False

    @property
    def name(self) -> str:
        return f"{self.number:03} {self.kind} {self.good.lang} {self.size}"


#: A fault: the broken text, and how many characters of the good one really lack.
Broken = tuple[str, int]


def _marker_missing(good: Answer, _: Random) -> Broken:
    return replace(good, marker="").text(), len(good.marker)


def _marker_invalid(good: Answer, _: Random) -> Broken:
    return replace(good, marker="<!-- STEP: discussing -->").text(), len(good.marker)


def _marker_in_code(good: Answer, random: Random) -> Broken:
    shown = random.choice((f"`{good.marker}`", f"```html\n{good.marker}\n```"))
    return replace(good, marker=shown).text(), len(good.marker)


def _header_missing(good: Answer, _: Random) -> Broken:
    return replace(good, header="").text(), len(good.head())


def _field_missing(good: Answer, random: Random) -> Broken:
    lines = good.header.split("\n")
    field = random.randrange(1, 3)  # title or status: an ADR is known by its adr_id
    return _with_header(good, [line for n, line in enumerate(lines) if n != field]), len(lines[field]) + 1


def _field_empty(good: Answer, random: Random) -> Broken:
    lines = good.header.split("\n")
    field = random.randrange(3)
    wrong = [line.partition(":")[0] + ': ""' if n == field else line for n, line in enumerate(lines)]
    return _with_header(good, wrong), len(lines[field])


def _header_unclosed(good: Answer, _: Random) -> Broken:
    return good.text().replace(good.head(), f"---\n{good.header}", 1), len("\n---")


def _header_invalid(good: Answer, random: Random) -> Broken:
    lines = good.header.split("\n")
    wrong = random.choice(("title: [Cache", 'title: "Cache', "title: Cache: vor: der Suche"))
    return _with_header(good, [lines[0], wrong, *lines[2:]]), len(lines[1])


def _section_missing(good: Answer, random: Random) -> Broken:
    title = TITLES[good.lang][random.choice(REQUIRED)]
    return good.without(title).text(), len(good.section(title))


def _section_empty(good: Answer, random: Random) -> Broken:
    title = TITLES[good.lang][random.choice(REQUIRED)]
    return good.with_body(title, "").text().replace("\n\n\n\n", "\n\n"), len(dict(good.sections)[title])


def _two_missing(good: Answer, random: Random) -> Broken:
    titles = [TITLES[good.lang][n] for n in random.sample(REQUIRED, 2)]
    return good.without(*titles).text(), sum(len(good.section(title)) for title in titles)


def _path_missing(good: Answer, _: Random) -> Broken:
    return _other_path(good, "src/search/indx.py")


def _path_outside(good: Answer, random: Random) -> Broken:
    return _other_path(good, random.choice(("../../etc/passwd", "/etc/passwd", "~/notes.md")))


def _warnings_only(good: Answer, random: Random) -> Broken:
    if random.random() < 0.5:
        return good.text() + "Noch etwas.\n", 0
    return good.text().replace("\n\n## ", "\n\n<!-- STEP: why -->\n\n## ", 1), 0


def _incomplete(good: Answer, random: Random) -> Broken:
    text = good.text()
    cut = random.randrange(len(text) * 3 // 10, len(text) * 19 // 20)
    return text[:cut], len(text) - cut


def _marker_and_section(good: Answer, random: Random) -> Broken:
    text, missing = _section_missing(good, random)
    return text.replace(good.marker, "").rstrip() + "\n", missing + len(good.marker)


def _marker_and_header(good: Answer, _: Random) -> Broken:
    return replace(good, header="", marker="").text(), len(good.marker) + len(good.head())


def _with_header(good: Answer, lines: list[str]) -> str:
    return replace(good, header="\n".join(lines)).text()


def _other_path(good: Answer, path: str) -> Broken:
    return good.text().replace("src/search/index.py", path, 1), len("src/search/index.py")


#: Kind, fault, how the good answer is made, whether it is small.
_KINDS: tuple[tuple[str, Callable[[Answer, Random], Broken], Callable[[int, str, int], Answer], bool], ...] = (
    ("marker_missing", _marker_missing, adr, True),
    ("marker_invalid", _marker_invalid, adr, True),
    ("marker_in_code", _marker_in_code, adr, True),
    ("header_missing", _header_missing, adr, True),
    ("field_missing", _field_missing, adr, True),
    ("field_empty", _field_empty, adr, True),
    ("header_unclosed", _header_unclosed, adr, True),
    ("header_invalid", _header_invalid, adr, True),
    ("section_missing", _section_missing, adr, False),
    ("section_empty", _section_empty, adr, False),
    ("two_missing", _two_missing, adr, False),
    ("path_missing", _path_missing, adr, True),
    ("path_outside", _path_outside, adr, True),
    ("warnings_only", _warnings_only, adr, False),
    ("chat_marker", _marker_missing, chat, True),
    ("incomplete", _incomplete, adr, False),
)
_MIXED = (
    ("marker_and_section", _marker_and_section, adr, False, 4000),
    ("marker_and_header", _marker_and_header, adr, True, 1500),
    ("chat_incomplete", _incomplete, chat, False, 700),
    ("chat_incomplete", _incomplete, chat, False, 9000),
)


def cases() -> Iterator[Case]:
    plan = [(*kind, size, lang) for kind in _KINDS for size in SIZES for lang in LANGS]
    plan += [(*mixed, lang) for mixed in _MIXED for lang in LANGS]
    for number, (kind, fault, make, small, size, lang) in enumerate(plan, 1):
        good = make(number, lang, size)
        first, missing = fault(good, Random(number))
        complete = "incomplete" not in kind
        yield Case(number, kind, size, good, first, missing, complete=complete, small=small)
