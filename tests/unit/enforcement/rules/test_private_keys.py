"""No form of a private key stays in an answer that the rule ``forbidden`` lets pass."""

import base64
import html
import json
import random
from collections.abc import Callable

import pytest

from worker.enforcement import repair_answer, run_validators
from worker.enforcement.rules.decoded_text import decode_text
from worker.enforcement.rules.forbidden import REMOVED, ForbiddenRule

RULE = ForbiddenRule(locale="en")


def body(seed: int = 1, head: bytes = b"\x30\x82\x04\xa4\x02\x01\x00\x02\x82\x01\x01\x00", size: int = 1100) -> str:
    """Base64 in lines of 64, as of a key."""
    text = base64.b64encode(head + random.Random(seed).randbytes(size)).decode()
    return "\n".join(text[at : at + 64] for at in range(0, len(text), 64))


def pem(kind: str = "PRIVATE KEY", lines: str = "", headers: str = "") -> str:
    return f"-----BEGIN {kind}-----\n{headers}{lines or body()}\n-----END {kind}-----"


PEM = pem()
ENCRYPTED = pem("RSA PRIVATE KEY", body(head=b""), "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,9F1B2C3D4E5F\n\n")
PGP = pem("PGP PRIVATE KEY BLOCK", body(head=b"\x95\x01") + "\n=a1B2", "Version: GnuPG v2\n\n")


def each(before: str, after: str = "") -> Callable[[str], str]:
    return lambda text: "\n".join(f"{before}{line}{after}" for line in text.splitlines())


WRAPS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "indented": each("    "),
    "JSON": lambda text: json.dumps({"private_key": text + "\n", "client_id": "1"}),
    "JSON in JSON": lambda text: json.dumps({"env": json.dumps({"key": text})}),
    "JSON, slashes escaped": lambda text: json.dumps({"key": text}).replace("/", "\\/"),
    "JSON, all escaped": lambda text: "".join(f"\\u{ord(c):04x}" if c in "+/=-\n" else c for c in text),
    ".env": lambda text: "KEY=" + json.dumps(text).replace('"', "'"),
    "Python string": lambda text: "key = (\n" + "\n".join(f'    "{line}\\n"' for line in text.splitlines()) + "\n)",
    "Java string": lambda text: " +\n".join(f'"{line}\\n"' for line in text.splitlines()),
    "quote": each("> "),
    "quote in a quote": each("> > "),
    "table": lambda text: f"| key | {'<br>'.join(text.splitlines())} |",
    "table, <br/>": lambda text: f"| key | {'<br />'.join(text.splitlines())} |",
    "HTML": lambda text: f"<pre><code>{html.escape(text)}</code></pre>",
    "HTML paragraphs": each('<p class="key">', "</p>"),
    "HTML, all escaped": lambda text: "".join(f"&#{ord(c)};" if c in "+/=-\n" else c for c in text),
    "numbered": lambda text: "\n".join(f"{n}: {line}" for n, line in enumerate(text.splitlines(), 1)),
    "numbered by cat -n": lambda text: "\n".join(f"{n:6}\t{line}" for n, line in enumerate(text.splitlines(), 1)),
    "numbered list": lambda text: "\n".join(f"{n}. {line}" for n, line in enumerate(text.splitlines(), 1)),
    "diff +": each("+"),
    "diff -": each("-"),
    "list": each("- "),
    "list of code": each("- `", "`"),
    "blank lines": lambda text: text.replace("\n", "\n\n"),
    "one line": lambda text: text.replace("\n", " "),
    "YAML block": lambda text: "tls:\n  key: |\n" + each("    ")(text),
    "YAML string": lambda text: f"key: {json.dumps(text)}",
    "Kubernetes secret": lambda text: f"data:\n  tls.key: {base64.b64encode(text.encode()).decode()}",
    "address": lambda text: text.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D").replace("\n", "%0A"),
    "comment": each("# "),
    "bold": each("**", "**"),
    "no end": lambda text: text.rpartition("\n")[0],
    "no end, JSON": lambda text: json.dumps(text.rpartition("\n")[0])[:-1],
    "no end, quote": lambda text: each("> ")(text.rpartition("\n")[0]),
    "no first line": lambda text: text.partition("\n")[2],
    "body alone": lambda text: "\n".join(text.splitlines()[1:-1]),
}
KEYS = {"PKCS8": PEM, "RSA": pem("RSA PRIVATE KEY", body(2)), "EC": pem("EC PRIVATE KEY", body(3)), "PGP": PGP}
KEYS |= {"encrypted": ENCRYPTED, "OpenSSH": pem("OPENSSH PRIVATE KEY", body(4, b"openssh-key-v1\0\0\0\0\4none"))}
CASES = [(kind, form) for kind in KEYS for form in WRAPS if kind in {"PKCS8", "OpenSSH"} or "body" not in form]
CASES = [(k, f) for k, f in CASES if not (k in {"PGP", "encrypted"} and f == "no first line")]


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_a_private_key_is_removed_whole_or_the_answer_is_rejected(kind: str, form: str) -> None:
    answer = f"Use this key:\n\n{WRAPS[form](KEYS[kind])}\n\nThen restart the server.\n"
    assert [issue.code for issue in run_validators(answer, [RULE])][:1] == ["SECRET_FOUND"]
    found = repair_answer(answer, [RULE])
    assert found.text.startswith("Use this key:")
    assert found.text.endswith("Then restart the server.\n")
    if found.accepted:
        left = decode_text(found.text).text
        assert REMOVED in left
        lines = KEYS[kind].splitlines()[1:-1]
        shown = {line for line in lines if len(line) > 5 and ":" not in line and line[:40] in left}
        assert not shown


def test_usual_forms_are_repaired_and_not_only_rejected() -> None:
    repaired = {(kind, form) for kind, form in CASES if repair_answer(WRAPS[form](KEYS[kind]), [RULE]).accepted}
    assert {form for _, form in set(CASES) - repaired} <= ESCAPED | {"no end, JSON", "no end", "no end, quote"}
    assert {form for kind, form in repaired if kind == "PKCS8"} >= set(WRAPS) - ESCAPED


#: Their first line is escaped too, or in pieces: the agent is asked again.
ESCAPED = {"HTML, all escaped", "JSON, all escaped"}


@pytest.mark.parametrize(
    "text",
    [
        "A file begins with `-----BEGIN PRIVATE KEY-----` and ends with `-----END PRIVATE KEY-----`, as tls.md says.",
        "Look for -----BEGIN RSA PRIVATE KEY----- in /etc/ssl/private/server1.example.org.key first.",
    ],
)
def test_prose_about_keys_keeps_its_words(text: str) -> None:
    found = repair_answer(text, [RULE])
    assert found.accepted
    assert found.text.split()[-3:] == text.split()[-3:]


@pytest.mark.parametrize(
    "text",
    [
        pem("CERTIFICATE", body(5, b"\x30\x82\x04\xa4\x30\x82\x03\x8c\xa0\x03\x02\x01")),
        pem("PUBLIC KEY", body(6, b"\x30\x82\x01\x22\x30\x0d\x06\x09")),
        f"data: {base64.b64encode(pem('CERTIFICATE', body(7, b'0')).encode()).decode()}",
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC7v1 anna@example.org",
        "sha256: 3a7bd3e2360a3d29eea436fcfb7e44c735d117c42d1c1835420b6b9942dd4f1b",
    ],
)
def test_what_is_public_is_no_secret(text: str) -> None:
    assert run_validators(text, [RULE]) == []
