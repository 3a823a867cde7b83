"""Patterns of well-known secrets, also escaped, quoted, numbered or written as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping

_BEGIN = r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
_INSIDE = r"(?:(?!-----(?:BEGIN|END) )[\s\S])"
#: A line of a key, and the separators of two lines.
_LINE = r"(?=[A-Za-z+/=]{0,60}[0-9])[A-Za-z0-9+/=]{16,}"
_BETWEEN = r"(?:[^A-Za-z0-9+/=]|(?:\d{1,6}|n|r|br|p|li|td|tr|div|span|code|pre|gt|quot)(?![A-Za-z0-9+/=])){0,60}"
_LINES = rf"(?:{_BETWEEN}{_LINE}){{0,400}}(?:{_BETWEEN}[A-Za-z0-9+/]{{1,15}}={{1,2}}(?![A-Za-z0-9]))?"
#: A key without its first line: DER prefixes, an OpenSSH key, and a whole PEM file in base64.
_BODIES = (
    r"(?:MII[A-Z][A-Za-z0-9+/]{2}IBA[AD]|MH[cQ]CAQEE|MI[A-Z][A-Za-z0-9+/]AgEAM|MC4CAQAwBQYDK2V|b3BlbnNzaC1rZXktdjE"
    r"|LS0tLS1CRUdJTi[A-Za-z0-9+/]{1,24}(?:UFJJVkFURSBLRV|BSSVZBVEUgS0V|QUklWQVRFIEtFW))[A-Za-z0-9+/]{20,}=*"
)

#: Each pattern follows literals that every secret of its kind has, since these are found faster. Every quantifier is
#: bounded and follows a literal, so that time stays linear.
_SECRETS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "private key": (
        ("-----BEGIN ", "MI", "MH", "MC4CAQ", "b3BlbnNza", "LS0tLS1CRU"),
        rf"{_BEGIN}(?:(?={_INSIDE}{{0,400}}?{_LINE}){_INSIDE}{{0,16384}}-----END [A-Z0-9 ]{{0,40}}-----|{_LINES})"
        rf"|{_BODIES}{_LINES}",
    ),
    "AWS access key": (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "GitHub token": (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b",
    ),
    "GitLab token": (("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20,64}"),
    "Google API key": (("AIza",), r"\bAIza[0-9A-Za-z_-]{35}"),
    "Slack token": (("xox",), r"\bxox[abeoprs]-[0-9A-Za-z-]{10,250}"),
    "Stripe key": (("k_live_",), r"\b[rs]k_live_[0-9A-Za-z]{16,128}"),
    "API key": (("sk-",), r"\bsk-[A-Za-z0-9_-]{20,250}"),
    "JSON web token": (("eyJ",), r"\beyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,1000}"),
}
SECRETS = {what: re.compile(pattern) for what, (_, pattern) in _SECRETS.items()}
_KEY_LINES = re.compile(rf"{_BEGIN}({_INSIDE}{{0,16384}})|({_BODIES}{_LINES})")
_CODED = re.compile(r"\\+u00([0-9A-Fa-f]{2})|\\+x([0-9A-Fa-f]{2})|%([0-9A-Fa-f]{2})|<[^<>\n]{1,80}>|(\\+[nrt])|\\+")


def decode_text(text: str) -> str:
    """Return the text without tags, and with the escapes of JSON, Python, URLs and HTML decoded."""
    return _CODED.sub(_decode_match, html.unescape(text))


def _decode_match(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    return chr(int(code, 16)) if code else "\n" if found[4] or found[0][0] == "<" else ""


def find_secrets(text: str) -> Iterator[tuple[str, int]]:
    """Yield the kind and the position of each secret in a text.

    The position is 0 if only the decoded text shows the secret.
    """
    plain = decode_text(text)
    for what, pattern in SECRETS.items():
        if any(sign in text or sign in plain for sign in _SECRETS[what][0]):
            places = [found.start() for found in pattern.finditer(text)]
            for place in places or ([0] if pattern.search(plain) else []):
                yield what, place


def find_key_lines(text: str) -> list[str]:
    """Return the lines of private keys that a text contains, also in escaped form."""
    bodies = (found[1] or found[2] or "" for found in _KEY_LINES.finditer(decode_text(text)))
    return [line for body in bodies for line in re.findall(_LINE, body) if not line.islower()]
