"""Five behaviours of a model. Each knows what it means to say, and reacts to the words of the feedback alone."""

from collections.abc import Callable
from dataclasses import replace

from tests.lab.bench.economy import forms
from tests.lab.bench.economy.answers import TITLES, Answer, Section
from tests.lab.bench.economy.corpus import Case
from tests.lab.bench.economy.request import Request, read

#: A model's text, and whether it finished.
Said = tuple[str, bool]
#: From a case, a feedback and the number of the reply (from 1) to what the model says.
Agent = Callable[[Case, str, int], Said]

_TALK = {
    "de": "Ich habe alles ergänzt, wie gewünscht. Die Antwort ist jetzt vollständig und geprüft. ",
    "en": "I have added everything as you wished. The answer is complete and checked now. ",
}
_REFUSAL = {
    "de": "Das kann ich leider nicht tun. Bitte wende dich an die Betreuung des Projekts. ",
    "en": "I am sorry, but I cannot do that. Please turn to the project's maintainers. ",
}
_SUMMARY = {"de": "Wie oben beschrieben.", "en": "As described above."}
_OTHER_WORDS = (("heute", "derzeit"), ("bleibt", "bleibt weiterhin"), ("today", "at present"), ("stays", "remains"))


def obedient(case: Case, feedback: str, number: int) -> Said:
    """Sends just what is asked for in the frames that are asked for, and nothing else."""
    asked = read(feedback)
    if asked.quoted:
        return asked.quoted.rpartition("\n")[2] + rest(case, asked.quoted), True
    if asked.whole:
        return case.good.text(), True
    return "\n".join(framed(case.good, asked) or parts(case.good, asked)) + "\n", True


def chatty(case: Case, feedback: str, number: int) -> Said:
    """Sends what is asked for in its frames, with prose around them, in the forms in which models write it."""
    asked = read(feedback)
    if asked.quoted:
        return forms.going_on(asked.quoted, rest(case, asked.quoted), case.number), True
    if asked.whole:
        return forms.whole(case.good, case.number), True
    own = tuple(own_title(case.good, title) for title in asked.sections)
    named = [one for title, mine in zip(asked.sections, own, strict=True) if (one := _named(case.good, title, mine))]
    form = (case.number * 7 + case.size // 100 + number - 1) % 97
    return forms.some(case.good, framed(case.good, asked), asked.header, named, asked.marker, form), True


def stubborn(case: Case, feedback: str, number: int) -> Said:
    """Sends everything again, in slightly other words, whatever it is asked for."""
    good = case.good
    for old, new in _OTHER_WORDS:
        good = replace(good, sections=tuple((title, body.replace(old, new)) for title, body in good.sections))
    return good.text(), True


def forgetful(case: Case, feedback: str, number: int) -> Said:
    """Sends what is asked for, and drops or damages what it was not asked for."""
    damages = _DAMAGES if case.good.is_adr else _CHAT_DAMAGES
    # Every second model makes the same mistake each time, every other one a new mistake.
    turn = case.number // 2 + (number if case.number % 2 else 0)
    return damages[turn % len(damages)](case.good, read(feedback)) + "\n", True


def never(case: Case, feedback: str, number: int) -> Said:
    """Says the same as before; where it broke off, it breaks off again."""
    return case.first, case.complete


AGENTS: dict[str, Agent] = {
    "obedient, framed part": obedient,
    "obedient, natural forms": chatty,
    "stubborn": stubborn,
    "forgetful": forgetful,
    "never repairs": never,
}


def rest(case: Case, quoted: str) -> str:
    """What follows in the good answer behind the quoted lines; behind the break without them."""
    text, broken = case.good.text(), case.first
    end = broken.rfind(quoted) + len(quoted) if quoted and quoted in broken else len(broken)
    return text[end:]


def own_title(good: Answer, asked: str) -> str:
    """The title that the answer itself has for an asked section; empty when it has none."""
    for number, titles in enumerate(zip(*TITLES.values(), strict=True)):
        if asked.casefold() in {title.casefold() for title in titles}:
            return TITLES[good.lang][number]
    return next((title for title, _ in good.sections if title.casefold() == asked.casefold()), "")


def parts(good: Answer, asked: Request) -> list[str]:
    """The parts that are asked for, as they are asked for."""
    found = [good.head()] if asked.header and good.header else []
    bodies = dict(good.sections)
    owned = ((title, own_title(good, title)) for title in asked.sections)
    found += [f"## {title}\n\n{bodies[own]}" for title, own in owned if own in bodies]
    return [*found, good.marker] if asked.marker else found


def framed(good: Answer, asked: Request) -> list[str]:
    """The frames that the feedback shows, filled."""
    bodies = dict(good.sections)

    def fill(sketch: str) -> str:
        if sketch.startswith("---"):
            return good.head()
        if sketch.startswith("<!--"):
            return good.marker
        if sketch.startswith("#"):
            title = sketch.partition("\n")[0].strip("# ")
            return f"## {title}\n\n{bodies.get(own_title(good, title), '')}"
        key = sketch.partition(":")[0]
        return "\n".join(_key_lines(good.header, key))

    return [f"{tag}\n{fill(sketch)}\n</part>" for tag, sketch in asked.frames]


def _key_lines(header: str, key: str) -> list[str]:
    lines = header.split("\n")
    start = next((n for n, line in enumerate(lines) if line.startswith(f"{key}:")), len(lines))
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    return lines[start:end]


def _named(good: Answer, asked: str, own: str) -> forms.Named | None:
    body = dict(good.sections).get(own)
    return None if body is None else forms.Named(asked, own, body)


def _damaged(good: Answer, damage: Callable[[Section, bool], Section | None]) -> str:
    """The whole answer, each section damaged (told which is the last)."""
    last = len(good.sections) - 1
    kept = [damage(section, n == last) for n, section in enumerate(good.sections)]
    return replace(good, sections=tuple(one for one in kept if one)).text()


def _halved(body: str) -> str:
    cut = body.find("\n", len(body) // 2)
    return body[: cut if cut > 0 else len(body) // 2].rstrip()


def _last_dropped(good: Answer, _: Request) -> str:
    return _damaged(good, lambda section, last: None if last else section)


def _all_halved(good: Answer, _: Request) -> str:
    return _damaged(good, lambda section, _: (section[0], _halved(section[1])))


def _last_summed_up(good: Answer, _: Request) -> str:
    return _damaged(good, lambda section, last: (section[0], _SUMMARY[good.lang]) if last else section)


def _without_head(good: Answer, _: Request) -> str:
    return replace(good, header="", title="", intro="").text()


def _header_damaged(good: Answer, _: Request) -> str:
    broken = replace(good, header="\n".join(good.header.split("\n")[:2]))
    return _damaged(broken, lambda section, last: (section[0], _halved(section[1])) if last else section)


def _part_and_talk(good: Answer, asked: Request) -> str:
    sent = framed(good, asked) or parts(good, replace(asked, marker=True))
    return "\n\n".join([_TALK[good.lang] * (1 + len(good.text()) // 250), *sent])


def _refusal(good: Answer, _: Request) -> str:
    return f"{_REFUSAL[good.lang] * (1 + len(good.text()) // 250)}\n\n{good.marker}"


def _chat_halved(good: Answer, _: Request) -> str:
    return _damaged(good, lambda section, _: (section[0], _halved(section[1])))


def _chat_excuse(good: Answer, _: Request) -> str:
    said = {"de": "Entschuldigung, hier der Marker:", "en": "Sorry, here is the marker:"}[good.lang]
    return f"{said}\n\n{good.marker}"


_DAMAGES = (
    _last_dropped,
    _all_halved,
    _without_head,
    _header_damaged,
    _part_and_talk,
    _refusal,
    _last_summed_up,
)
_CHAT_DAMAGES = (_chat_halved, _chat_excuse, _refusal, _part_and_talk)
