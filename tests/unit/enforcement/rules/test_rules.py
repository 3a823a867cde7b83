"""The corners of each rule; docs/rules/ has the common cases."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.growth import assert_linear
from worker.enforcement import run_validators
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.function_words import _LANGUAGES, FUNCTION_WORDS
from worker.enforcement.repair import repair_answer
from worker.enforcement.rules import (
    CitationsRule,
    CodeBlocksRule,
    ForbiddenRule,
    JsonSchemaRule,
    LanguageRule,
    LengthRule,
    LinksRule,
    PydanticModelRule,
    RegexRule,
    Rule,
    StructureRule,
)
from worker.enforcement.rules.secret_forms import _TOKENS, find_secrets

MARKER = "\n\n<!-- STEP: done -->"
GERMAN = "Der Cache steht vor der Suche und wird nicht gefüllt, wenn der Index sich nicht geändert hat. "
ENGLISH = "The cache is in front of the search, and it is filled when the index has changed. "


def codes(rule: Rule, answer: str, **context: Any) -> list[str]:
    return [issue.code for issue in rule.validate(answer, context)]


#: Addresses that a reader or its browser completes: each leads to evil.test.
WITHOUT_SCHEME = (
    "![p](//evil.test/p.png)",
    "[x](</\\/evil.test/x>)",
    "[x](&#47;&#47;evil.test)",
    "[x](/\\evil.test)",
    "[x](https:evil.test/x)",
    "[x](HTTPS:/evil.test/x)",
    "[x](/&#9;/evil.test/x)",
    "Look at [e].\n\n[e]: //evil.test/e",
    "[e]:\n  <//evil.test/e>",
    '<img src="//evil.test/p.png">',
    "<img alt=x\n  src = //evil.test/p.png>",
    "<a href='//evil.test'>x</a>",
    '<div style="background:url(//evil.test/p.png)">x</div>',
    "<//evil.test/p.png>",
)


@pytest.mark.parametrize(
    ("rule", "answer", "expected"),
    [
        (LengthRule(max_chars=5), "12345" + MARKER, []),
        (LengthRule(max_chars=5), "123456", ["ANSWER_OVER_LENGTH"]),
        (LengthRule(min_words=2, max_words=3), "one", ["ANSWER_TOO_SHORT"]),
        (LengthRule(max_words=3), "one two three four", ["ANSWER_OVER_LENGTH"]),
        (RegexRule(must=("^b$",)), "a\nb\nc", []),
        (RegexRule(must_not=("(?i)todo",)), "all done, TODO: rest", ["PATTERN_FOUND"]),
        (ForbiddenRule(words=("cat",)), "concatenate", []),
        (ForbiddenRule(words=("cat",)), "the Cat.", ["FORBIDDEN_WORD"]),
        (ForbiddenRule(words=("c++",)), "in C++ only", ["FORBIDDEN_WORD"]),
        *[
            (ForbiddenRule(words=("Projekt Adler",)), f"Das {said} beginnt.", ["FORBIDDEN_WORD"])
            for said in (
                "Projekt Adler",
                "Projekt\nAdler",
                "projekt  adler",
                "Projekt\u00a0Adler",
                "Projekt\u202fAdler",
                "Projekt&nbsp;Adler",
                "Projekt<br>Adler",
                "*Projekt* **Adler**",
                "Projekt\n> Adler",
                "Projekt \u200bAdler",
                "Projekt\r\n  Adler",
            )
        ],
        (ForbiddenRule(words=("Projekt Adler",)), "Projekt und Adler, ProjektAdler, Projekt-Adler", []),
        (ForbiddenRule(), "AKIA is how such keys begin", []),
        (LinksRule(), "`https://a.example/x` and <https://b.example>", []),
        (LinksRule(), "```\nhttp://a.example\n```", []),
        (LinksRule(), "http://a.example", ["LINK_NOT_ALLOWED"]),
        (LinksRule(hosts=("a.example",)), "https://A.EXAMPLE:443/x", []),
        (LinksRule(hosts=("a.example",)), "https://a.example.evil.test/", ["LINK_NOT_ALLOWED"]),
        (LinksRule(hosts=("a.example",)), "https://a.example@evil.test/", ["LINK_NOT_ALLOWED"]),
        (LinksRule(hosts=("*.a.example",)), "https://evila.example/", ["LINK_NOT_ALLOWED"]),
        (LinksRule(hosts=("a.example",)), "https://[::1/", ["LINK_NOT_ALLOWED"]),
        (LinksRule(), "[x](javascript:alert(1))", ["LINK_NOT_ALLOWED"]),
        *((LinksRule(hosts=("a.example",)), text, ["LINK_NOT_ALLOWED"]) for text in WITHOUT_SCHEME),
        *((LinksRule(hosts=("a.example",)), text.replace("evil.test", "a.example"), []) for text in WITHOUT_SCHEME),
        (LinksRule(hosts=("a.example",)), "`a = b // c`, a // comment, 3 //4, src=left.png, [x](/y) and [x](y//z)", []),
        (LinksRule(), "![p](//evil.test/p.png)", []),
        (LinksRule(hosts=("a.example",)), "Read www.evil.test/page first.", ["LINK_NOT_ALLOWED"]),
        (LanguageRule(expect="de"), ENGLISH * 2, ["WRONG_LANGUAGE"]),
        (LanguageRule(expect="de"), GERMAN * 2, []),
        (LanguageRule(expect="de"), GERMAN * 2 + ENGLISH * 2, []),
        (LanguageRule(expect="de"), "Redis, Celery, Flower", []),
        (LanguageRule(expect="de"), f"```\n{ENGLISH * 9}\n```", []),
        (CodeBlocksRule(), "```python\nprint(\n", []),
        (CodeBlocksRule(), "```python\nx = \n...\n```", []),
        (CodeBlocksRule(), "```json\n{'a': 1}\n```", ["CODE_DOES_NOT_PARSE"]),
        (CodeBlocksRule(), "```yml\na: [1\n```", ["CODE_DOES_NOT_PARSE"]),
        (CodeBlocksRule(), "```yaml\na: !!python/object:os.system x\n```", []),
        (CodeBlocksRule(), "- point\n\n  ```python\n  if x:\n      y = 1\n  ```", []),
        (CodeBlocksRule(), f"```yaml\n{'[' * 199_000}\n```", ["CODE_DOES_NOT_PARSE"]),
        (CodeBlocksRule(), f"```yaml\n{'- ' * 99_000}\n```", ["CODE_DOES_NOT_PARSE"]),
        (CodeBlocksRule(), f"```yaml\n{'[' * 90}{']' * 90}\n```", []),
        (CodeBlocksRule(languages=("json",)), "```python\ndef f(:\n```", []),
        (StructureRule(sections=("Kontext|Context",)), "## 1. **Context**:\n\nx", []),
        (StructureRule(sections=("Kontext",)), "### Kontext\n\nx", ["MISSING_SECTION"]),
        (StructureRule(sections=("Kontext",), level=0), "### Kontext\n\nx", []),
        (StructureRule(sections=("Kontext",)), "## Kontext\n\n## Ende\n\nx", ["EMPTY_SECTION"]),
        (StructureRule(sections=("Kontext",), filled=False), "## Kontext\n", []),
        (StructureRule(sections=("Kontext",)), "```\n## Kontext\n\nx\n```", ["MISSING_SECTION"]),
        (JsonSchemaRule(schema={"type": "object"}), "{}" + MARKER, []),
        (JsonSchemaRule(schema={"type": "object"}, where="fence"), "{}", ["NO_JSON"]),
        (JsonSchemaRule(schema={"type": "object"}), "```json\n{\n```", ["CODE_DOES_NOT_PARSE"]),
        (JsonSchemaRule(schema={"type": "object"}), "[" * 100_000, ["CODE_DOES_NOT_PARSE"]),
    ],
)
def test_a_rule_decides_its_corners(rule: Rule, answer: str, expected: list[str]) -> None:
    assert codes(rule, answer) == expected


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: LengthRule(min_chars=5, max_chars=3), "min_chars is above max_chars"),
        (lambda: LengthRule(max_words=-1), "must not be negative"),
        (lambda: RegexRule(), "at least one pattern"),
        (lambda: RegexRule(must=("(",)), "is not valid"),
        (lambda: ForbiddenRule(secrets=False), "nothing is left"),
        (lambda: LinksRule(hosts=("https://a.example",)), "is not a host"),
        (lambda: LinksRule(schemes=()), "no link could be right"),
        (lambda: LanguageRule(expect="xx"), "expect must be one of"),
        (lambda: CodeBlocksRule(languages=("cobol",)), "cobol"),
        (lambda: StructureRule(), "at least one section"),
        (lambda: StructureRule(preset="x"), "preset must be one of"),
        (lambda: JsonSchemaRule(), "schema is empty"),
        (lambda: JsonSchemaRule(schema={"type": "thing"}), "schema: "),
        (lambda: JsonSchemaRule(schema={"type": "object"}, where="there"), "where must be one of"),
        (lambda: PydanticModelRule(model="mypackage"), "import path"),
    ],
)
def test_an_option_that_cannot_work_is_refused(made: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made()


def test_a_secret_is_removed_and_never_quoted() -> None:
    key = "sk-" + "a1B2" * 8
    rule = ForbiddenRule(name="no_secrets", locale="en")
    (issue,) = rule.validate(f"Use {key}.", {})
    assert key not in issue.message + issue.fix_hint
    repaired = repair_answer(f"Use {key}.", [rule], {"locale": "en"})
    assert repaired.text.startswith("Use [removed].")
    assert "Secret removed: API key" in " ".join(repaired.changes)


def test_a_secret_in_an_agents_file_is_found_with_its_line() -> None:
    (issue,) = ForbiddenRule().validate("fine", {"files": {"notes.md": "one\nAKIAABCDEFGHIJKLMNOP\n"}})
    assert (issue.file, issue.line) == ("notes.md", 2)


def test_citations_look_at_lines_and_at_the_agents_own_files(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/app.py").write_text("a\nb\nc\n")
    rule = CitationsRule(root=tmp_path)
    assert codes(rule, "src/app.py:3 and src/app.py#L1-L3 and `src/app.py`") == []
    assert codes(rule, "src/app.py:2-4") == ["CITED_LINES_NOT_FOUND"]
    assert codes(rule, "`output/ADR-1.md`", files={"ADR-1.md": "x"}) == []
    assert codes(rule, "see src/ap.py:1") == ["CITED_FILE_NOT_FOUND"]
    assert "src/app.py" in rule.validate("see src/ap.py:1", {})[0].fix_hint
    assert codes(rule, "../../etc/passwd.txt:1") == []
    assert codes(rule, "at 10:30, host.example:8080, v1.2:3") == []
    assert codes(CitationsRule(root=tmp_path, paths=False), "`src/nope.py`") == []


def test_a_model_that_cannot_be_imported_is_an_issue_of_its_own() -> None:
    rule = PydanticModelRule(model="nowhere.at_all:Plan")
    assert [issue.code for issue in run_validators("{}", [rule])] == ["VALIDATOR_ERROR"]


def test_a_schema_reaches_no_other_document() -> None:
    rule = JsonSchemaRule(schema={"$ref": "https://example.org/schema.json"})
    assert [issue.code for issue in run_validators("{}", [rule])] == ["VALIDATOR_ERROR"]


def test_every_word_belongs_to_one_language() -> None:
    assert len(_LANGUAGES) == sum(map(len, FUNCTION_WORDS.values()))


def test_each_kind_of_secret_is_found_by_its_sign() -> None:
    assert {"private key", *_TOKENS} == SHOWN.keys()
    for what, shown in SHOWN.items():
        assert [[secret.what for secret in find_secrets(text)] for text in shown] == [[what]] * len(shown)


KEY = "a1B2" * 30
SHOWN = {
    "private key": [
        "-----BEGIN RSA PRIVATE KEY-----\nabc",
        "-----BEGIN PRIVATE KEY-----",
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nabc",
        f"PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 1\n{KEY[:64]}\nPrivate-MAC: {'0a' * 32}",
    ],
    "AWS access key": ["AKIAABCDEFGHIJKLMNOP", "ASIAABCDEFGHIJKLMNOP"],
    "GitHub token": [*(f"gh{letter}_{KEY}" for letter in "pousr"), f"github_pat_{KEY}"],
    "GitLab token": [f"gl{kind}-{KEY[:40]}" for kind in ("pat", "rt", "dt", "cbt", "ptt", "soat")],
    "Google API key": [f"AIza{KEY[:35]}"],
    "Slack token": [f"xox{letter}-{KEY}" for letter in "abeoprs"],
    "Stripe key": [f"{letter}k_live_{KEY}" for letter in "rs"],
    "API key": [
        *(f"{sign}{KEY}" for sign in ("sk-", "sk-proj-", "hvs.", "pypi-AgE")),
        *(f"npm_{KEY[:36]}", f"hf_{KEY[:34]}", f"gsk_{KEY[:52]}", f"GOCSPX-{KEY[:28]}", f"SG.{KEY[:22]}.{KEY[:43]}"),
        *(f"dop_v1_{'0a' * 32}", f"dapi{'0a' * 16}", f"AGE-SECRET-KEY-1{'A1' * 29}"),
        *(f"doo_v1_{'0a' * 32}", f"hvb.{KEY}", f"ya29.{KEY}", f"xapp-1-{KEY}", f"dp.pt.{KEY[:43]}"),
        *(f"shp{kind}_{'0a' * 16}" for kind in ("at", "ca", "pa", "ss")),
        *(
            f"pul-{'0a' * 20}",
            f"PMAK-{'0a' * 12}-{'0a' * 17}",
            f"lin_api_{KEY[:40]}",
            f"ATATT3{KEY}",
            f"figd_{KEY[:40]}",
        ),
        *(f"whsec_{KEY[:32]}", f"NRAK-{'A1' * 13}B", f"tskey-auth-{KEY[:16]}-{KEY[:32]}", f"sntrys_eyJ{KEY}"),
        *(f"sntryu_{'0a' * 32}", f"rubygems_{'0a' * 24}", f"ntn_{KEY[:46]}", f"r8_{KEY[:37]}", f"pplx-{KEY[:48]}"),
        *(f"xai-{KEY[:80]}", f"glsa_{KEY[:32]}_{'0a' * 4}", f"dckr_pat_{KEY[:27]}", f"nfp_{KEY[:40]}"),
        *(f"sbp_{'0a' * 20}", f"sq0atp-{KEY[:22]}", f"sq0csp-{KEY[:43]}", f"nsec1{'a1' * 29}", f"xprv{KEY[:107]}"),
        f"ops_eyJ{KEY * 3}",
    ],
    "secret of a cloud account": [
        f"AccountKey={KEY[:86]}==",
        *(
            f"{name}{KEY[:40]}"
            for name in ("aws_secret_access_key = ", '"SecretAccessKey": "', "AWS_SECRET_ACCESS_KEY=")
        ),
        f"https://hooks.slack.com/services/T01234567/B01234567/{KEY[:24]}",
        f"https://discord.com/api/webhooks/123456789012345678/{KEY[:68]}",
        *(f"SharedAccessKey={KEY[:43]}=", f"?sv=1&sig={KEY[:43]}%3D", f"{KEY[:3]}8Q~{KEY[:34]}"),
        f"{KEY[:14]}.atlasv1.{KEY[:67]}",
    ],
    "Twilio key": [f"SK{'0a' * 16}", f"TWILIO_AUTH_TOKEN={'0a' * 16}", f'twilioAuthToken: "{KEY[:32]}"'],
    "Telegram token": [f"123456789:AA{KEY[:33]}"],
    "WireGuard key": [f"{name} = {KEY[:43]}=" for name in ("PrivateKey", "PresharedKey")],
    "JSON web key": [
        *(
            f'{{"kty": "EC", "d": "{KEY[:43]}"}}',
            f'{{"kty":"oct","k":"{KEY[:43]}"}}',
            f'{{"k":"{KEY[:43]}","kty":"oct"}}',
        ),
        f"{{'kty': 'OKP', 'd': '{KEY[:43]}'}}",
    ],
    "password in an address": [
        *(f"postgres://app:{KEY[:12]}@db:5432/x", f"redis://:{KEY[:16]}@cache", f"https://anna:9-{KEY[:8]}%40@x.org/"),
    ],
    "JSON web token": [f"eyJ{KEY}.eyJ{KEY}.{KEY}"],
}


LINEAR = [
    CitationsRule(root=Path("/nonexistent")),
    CodeBlocksRule(),
    ForbiddenRule(words=("foo",)),
    LanguageRule(),
    LengthRule(max_words=3),
    LinksRule(hosts=("a.example",)),
    StructureRule(preset="adr-madr"),
]
KILLERS = [
    "https://",
    "a.b/",
    "x.py:1 ",
    "`a/b.c` ",
    "sk-",
    "eyJ",
    "-----BEGIN ",
    "## a\n",
    "```\n",
    "<",
    "](data:",
    "der the ",
]


@pytest.mark.long
@pytest.mark.parametrize("killer", KILLERS)
@pytest.mark.parametrize("rule", LINEAR, ids=lambda rule: rule.kind)
def test_twice_the_text_takes_about_twice_the_time(rule: Rule, killer: str) -> None:
    texts = {size: killer * (size * 60_000 // len(killer)) for size in (1, 2)}

    def once(size: int) -> None:
        parse_document.cache_clear()
        rule.validate(texts[size], {})

    assert_linear(once)


ALL = [*LINEAR, JsonSchemaRule(schema={"type": "object"}), RegexRule(must=("x",))]
PIECES = [
    "```python\n",
    "```json\n",
    "```\n",
    "{",
    "## Kontext\n",
    "https://",
    "a.py:3",
    "`a/b.py`",
    "\n",
    "\0",
    "\ud800",
    "sk-",
    "{}",
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=10), max_size=20).map("".join))
def test_no_text_makes_a_rule_raise(text: str) -> None:
    assert "VALIDATOR_ERROR" not in [issue.code for issue in run_validators(text, ALL)]


@pytest.mark.parametrize(("locale", "said"), [("en", "written in English"), ("de", "auf Englisch geschrieben")])
def test_languages_are_named_in_the_language_of_the_message(locale: str, said: str) -> None:
    [found] = LanguageRule(expect="de").validate(ENGLISH * 2, {"locale": locale})
    assert said in found.message
    assert ("German" if locale == "en" else "Deutsch") in (found.fix_hint or "")
