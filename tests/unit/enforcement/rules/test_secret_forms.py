"""No piece of a token stays in an answer that the rule ``forbidden`` repaired and lets pass, however it was written."""

import base64
import html
import json
import random
import re
import string
from collections.abc import Callable

import pytest

from tests.unit.enforcement.rules.test_private_keys import KEYS, body
from worker.enforcement import repair_answer, run_validators
from worker.enforcement.rules.forbidden import ForbiddenRule

RULE = ForbiddenRule(locale="en")
_DICE, _ALPHABET = random.Random(46), string.ascii_letters + string.digits


def letters(count: int) -> str:
    """Letters with a digit at the end: on a line of its own, a rest without digits and capitals is a word."""
    return "".join(_DICE.choice(_ALPHABET) for _ in range(count - 1)) + "7"


TOKENS = {
    "AWS": "AKIA" + letters(16).upper(),
    "GitHub": "ghp_" + letters(36),
    "GitHub PAT": f"github_pat_{letters(22)}_{letters(40)}",
    "GitLab": "glpat-" + letters(20),
    "Google": "AIza" + letters(35),
    "Slack": f"xoxb-123456789012-{letters(24)}",
    "Stripe": "sk_live_" + letters(24),
    "API": "sk-ant-api03-" + letters(90),
    "JWT": f"eyJhbGciOiJIUzI1NiJ9.eyJ{letters(120)}.{letters(43)}",
}


def within(between: str) -> Callable[[str], str]:
    """Break a secret in two."""
    return lambda text: text[: len(text) // 2] + between + text[len(text) // 2 :]


def code(form: str, first: int = 9999) -> Callable[[str], str]:
    return lambda text: "".join(form.format(ord(char)) for char in text[:first]) + text[first:]


def wrapped(width: int, before: str = "") -> Callable[[str], str]:
    return lambda text: "\n".join(before + text[at : at + width] for at in range(0, len(text), width))


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "zero width space": within("\u200b"),
    "zero width space everywhere": "\u200b".join,
    "soft hyphen": within("\u00ad"),
    "word joiner": within("\u2060"),
    "byte order mark": within("\ufeff"),
    "entities": code("&#{};"),
    "hex entities": code("&#x{:x};"),
    "first letter an entity": code("&#{};", 1),
    "entities twice": code("&amp;#{};"),
    "zero width entity": within("&#8203;"),
    "soft hyphen entity": within("&shy;"),
    "wbr": within("<wbr>"),
    "spans": within("</span><span>"),
    "JSON escapes": code("\\u{:04x}"),
    "first letter a JSON escape": code("\\u{:04x}", 1),
    "JavaScript escapes": code("\\u{{{:x}}}", 3),
    "long escapes": code("\\U{:08x}", 3),
    "hex escapes": code("\\x{:02x}"),
    "octal escapes": code("\\{:03o}", 3),
    "URL": code("%{:02X}"),
    "URL twice": code("%25{:02X}"),
    "Markdown escapes": lambda text: re.sub(r"([_.+=-])", r"\\\1", text),
    "full width": lambda text: "".join(chr(ord(char) + 0xFEE0) if char != "\n" else char for char in text),
    "code": "`{}`".format,
    "bold": "**{}**".format,
    "two lines": within("\n"),
    "two lines of a quote": within("\n> "),
    "two indented lines": within("\n    "),
    "two lines, CRLF": within("\r\n"),
    "two lines, backslash": within("\\\n"),
    "two lines, br": within("<br>\n"),
    "br": within("<br>"),
    "strings in a row": within('"\n    "'),
    "strings added": within('" + "'),
    "strings added, two lines": within('" +\n  "'),
    "quoted printable": within("=\n"),
    "lines of 30": wrapped(30),
    "quoted lines of 40": wrapped(40, "> "),
    "JSON": lambda text: json.dumps({"key": text}),
    "JSON in JSON": lambda text: json.dumps(json.dumps({"key": text})),
    "YAML": lambda text: "key: >-\n  " + within("\n  ")(text),
    "table": "| key | {} |".format,
    "address": "https://example.org/?token={}".format,
    "user in an address": "https://anna:{}@example.org/".format,
    "HTML": lambda text: f"<pre>{html.escape(text)}</pre>",
    "comment": "<!-- {} -->".format,
    "diff": "+key = {}".format,
    "twice": "{0}\n\n{0}".format,
    "in a list, twice": "- {0}\n- {0}".format,
}
CASES = [(kind, form) for kind in TOKENS for form in FORMS]


def shown(text: str) -> str:
    """Letters and digits of a text as a browser or a parser of strings shows them."""
    for _ in range(3):
        text = html.unescape(text)
        escapes = r"\\+u\{?([0-9a-f]{2,4})\}?|\\+U([0-9a-f]{8})|\\+x([0-9a-f]{2})|%([0-9a-f]{2})"
        text = re.sub(escapes, lambda found: chr(int("".join(filter(None, found.groups())), 16)), text)
    text = re.sub(r"<[^<>]{1,80}>", "", text)
    text = "".join(chr(ord(char) - 0xFEE0) if 0xFF01 <= ord(char) <= 0xFF5E else char for char in text)
    return re.sub(r"[^A-Za-z0-9]", "", text)


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_no_piece_of_a_token_stays(kind: str, form: str) -> None:
    secret = TOKENS[kind]
    answer = f"Use this token:\n\n{FORMS[form](secret)}\n\nThen restart the server.\n"
    found = run_validators(answer, [RULE])
    assert {issue.code for issue in found} == {"SECRET_FOUND"}
    assert secret not in "".join(issue.message + issue.fix_hint for issue in found)
    repaired = repair_answer(answer, [RULE])
    assert repaired.accepted
    assert repaired.text.startswith("Use this token:\n")
    assert repaired.text.endswith("\n\nThen restart the server.\n")
    tail = shown(secret)[-24:]
    assert not any(tail[at : at + 8] in shown(repaired.text) for at in range(len(tail) - 7))


KEY_FORMS: dict[str, Callable[[list[str]], str]] = {
    "no first line, quote": lambda lines: "\n".join(f"> {line}" for line in lines[1:]),
    "no first line, JSON": lambda lines: json.dumps("\n".join(lines[1:])),
    "no first line, indented": lambda lines: "\n".join(f"    {line}" for line in lines[1:]),
    "its last lines": lambda lines: "\n".join(lines[6:]),
    "words in the middle": lambda lines: "\n".join([*lines[:5], "(and so on)", *lines[5:]]),
    "words behind the first line": lambda lines: "\n".join([lines[0], "Here it comes:", "", *lines[1:]]),
    "short lines": lambda lines: "\n".join([lines[0], wrapped(12)("".join(lines[1:-1])), lines[-1]]),
    "code in each line": lambda lines: "\n".join(f"`{line}`" for line in lines),
    "a row of a table each": lambda lines: "\n".join(f"| {at} | {line} | x |" for at, line in enumerate(lines)),
    "em dashes": lambda lines: "\n".join(lines).replace("-----", "—"),
    "lines of 30": lambda lines: wrapped(30)("\n".join(lines)),
    "quoted lines of 20": lambda lines: wrapped(20, "> ")("\n".join(lines)),
}


@pytest.mark.parametrize("form", KEY_FORMS)
@pytest.mark.parametrize("kind", KEYS)
def test_no_line_of_a_key_stays_in_a_text_that_passes_as_repaired(kind: str, form: str) -> None:
    lines = KEYS[kind].splitlines()
    answer = f"Use this key:\n\n{KEY_FORMS[form](lines)}\n\nThen restart the server.\n"
    repaired = repair_answer(answer, [RULE])
    left = shown(repaired.text)
    pieces = {shown(line)[at : at + 16] for line in lines[1:-1] if ":" not in line for at in range(0, 40, 8)}
    assert not (repaired.fixed_issues and repaired.accepted and any(len(one) == 16 and one in left for one in pieces))
    if form not in {"lines of 30", "quoted lines of 20"}:
        assert repaired.fixed_issues


JWK = {"kty": "RSA", "n": letters(342), "e": "AQAB"} | {key: letters(171) for key in ("d", "p", "q", "dp", "dq", "qi")}


@pytest.mark.parametrize(
    "written",
    [
        *(json.dumps(JWK), json.dumps(JWK, indent=2), json.dumps(json.dumps({"keys": [JWK]})), repr(JWK)),
        *(html.escape(json.dumps(JWK)), "> " + json.dumps(JWK, indent=2).replace("\n", "\n> ")),
    ],
)
def test_no_private_part_of_a_json_web_key_stays(written: str) -> None:
    repaired = repair_answer(f"The key:\n\n{written}\n\nKeep it safe.\n", [RULE])
    assert repaired.accepted
    assert JWK["n"] in repaired.text
    assert not any(JWK[key] in repaired.text for key in ("d", "p", "q", "dp", "dq", "qi"))


@pytest.mark.parametrize("before", ["", "{", "{ ", '{"key": "'])
@pytest.mark.parametrize("kind", KEYS)
def test_a_key_anywhere_in_a_text_in_base64_is_found(kind: str, before: str) -> None:
    coded = base64.b64encode(f"{before}{KEYS[kind]}".encode()).decode()
    repaired = repair_answer(f"Set `KEY={coded}`.\n", [RULE])
    assert repaired.accepted
    assert coded[-40:] not in repaired.text


def test_the_rest_of_a_token_in_two_strings_may_be_capitals_alone() -> None:
    [found] = run_validators('key = "AKIA' + 'IOSFODNN7E" +\n    "XAMPLQ"', [RULE])
    assert found.code == "SECRET_FOUND"


@pytest.mark.parametrize(
    "text",
    [
        f"Checksum of the archive: {base64.b64encode(b'0123456789abcdef0123456789abcdef').decode()}",
        "The task-management-system-of-the-year reads AKIA as a prefix, and sk-based names too.",
        "A token begins with `ghp_`, `glpat-` or `xoxb-`, and a JWT with `eyJ`.",
        f"data:image/png;base64,{body(9, b'P').replace(chr(10), '')}",
        *(
            f"postgres://user:{word}@localhost/db"
            for word in ("password1", "<password1>", "${DB_PW1}", "s3cret", "****")
        ),
        "https://example.org:8443/a1b2c3d4e5@home and ssh://git@example.org/x and docker://a:5000/b@sha256:0a1b2c3d4e",
        '{"d": "M10 20L30", "p": "short", "kty": "RSA", "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFb"}',
        "SK is a country code; PrivateKey = none; the webhook is at /api/webhooks/1 and ?sig=abc.",
        "Use ski-lift-station-number-4711 for the sketch-based-drawing-2026 view.",
    ],
)
def test_words_that_only_look_like_secrets_stay(text: str) -> None:
    assert run_validators(text, [RULE]) == []


WORDS = ForbiddenRule(words=("Projekt Adler", "Straße", "naïve", "<script>", "foo_bar"), secrets=False)


@pytest.mark.parametrize(
    "text",
    [
        *(f"Projekt{blank}Adler" for blank in ("\n", "\r\n", "  ", "\t", "\u00a0", "\u202f", "\u3000", "\u2028")),
        *(f"Projekt{blank}Adler" for blank in ("&nbsp;", "&#160;", "&#xA0;", "<br>", "<br/>\n", "%20", "\\\n", "  \n")),
        *(
            "> Projekt\n> Adler",
            "> > Projekt\n> > Adler",
            "- Projekt\n  Adler",
            '"Projekt\\nAdler"',
            "Pro\u200bjekt Adler",
        ),
        *("Pro\u00adjekt Adler", "**Projekt** Adler", "`Projekt` `Adler`", "[Projekt](x) Adler", "Projekt [Adler](x)"),
        *("<i>Pro</i>jekt Adler", "&#80;rojekt Adler", "\\u0050rojekt Adler", "PROJEKT ADLER", "Ｐｒｏｊｅｋｔ Adler"),
        *("STRASSE", "nai\u0308ve", "<script>alert(1)</script>", "foo\\_bar"),
    ],
)
def test_a_forbidden_phrase_is_found_however_it_is_written(text: str) -> None:
    found = WORDS.validate(f"A line.\n{text} and more", {})
    assert [(issue.code, issue.line) for issue in found] == [("FORBIDDEN_WORD", 2)]


def test_other_words_are_not_forbidden() -> None:
    for text in ("Projekte Adler", "Projekt. Adler", "Projekt mit Adler", "Adler Projekt", "Pro jekt Adler", "script"):
        assert WORDS.validate(text, {}) == []
