"""Well-known secrets in a text, also escaped, quoted, numbered, broken over lines or written as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from worker.enforcement.rules.decoded_text import DecodedText, decode_text

_DASHES = "[-\u2010-\u2015]"
_KIND = r"(?:[A-Z0-9]{1,12}\s){0,3}PRIVATE\s{1,2}KEY(?:\sBLOCK)?"
_BEGIN = rf"{_DASHES}{{1,6}}\s?BEGIN\s{_KIND}\s?{_DASHES}{{1,6}}"
_INSIDE = rf"(?:(?!{_DASHES}{{2}}\s?(?:BEGIN|END)\s)[\s\S])"
#: A line of a key, and the separators of two lines.
_LINE = r"(?=[A-Za-z+/=]{0,60}[0-9])[A-Za-z0-9+/=]{16,}"
_BETWEEN = r"(?:[^A-Za-z0-9+/=]|(?:\d{1,6}|n|r|br|p|li|td|tr|div|span|code|pre|gt|quot)(?![A-Za-z0-9+/=])){0,60}"
#: The rest of a line that was broken, alone on its own line: digits or capitals inside, so no word.
_REST = (
    r"(?=[A-Za-z]{0,14}[0-9+/]|[A-Za-z]{0,14}[a-z0-9][A-Z])[A-Za-z0-9+/_.-]{2,40}(?=[\"'`]{0,2}[ \t\r]{0,4}(?:\n|\Z))"
)
_LINES = (
    rf"(?:{_BETWEEN}{_LINE}|\s{{0,4}}\n[^\w\n]{{0,20}}{_REST}){{0,800}}"
    rf"(?:{_BETWEEN}[A-Za-z0-9+/]{{1,15}}={{1,2}}(?![A-Za-z0-9]))?"
)
#: Text between the first and the last line of a key that is not a sentence.
_NO_PROSE = rf"(?:(?![a-z]{{2,}} [a-z]{{2,}}|{_DASHES}{{2}}\s?(?:BEGIN|END)\s)[\s\S]){{24,16384}}"
#: A key without its first line: DER prefixes, an OpenSSH key, and a whole PEM file in base64.
_BODIES = (
    r"(?:MII[A-Z][A-Za-z0-9+/]{2}IBA[AD]|MH[cQ]CAQEE|MI[A-Z][A-Za-z0-9+/]AgEAM|MC4CAQAwBQYDK2V|b3BlbnNzaC1rZXktdjE"
    r"|(?:LS0tLS1CRUdJTi|0tLS0tQkVHSU4g|tLS0tLUJFR0lOI)[A-Za-z0-9+/]{0,24}"
    r"(?:UFJJVkFURSBLRV|BSSVZBVEUgS0V|QUklWQVRFIEtFW))[A-Za-z0-9+/]{20,}=*"
)
#: "Proc-Type: 4,ENCRYPTED" and its kind, before the first line.
_HEADERS = rf"(?:[^A-Za-z0-9]{{0,40}}[A-Z][A-Za-z-]{{2,20}}: [^\n]{{0,100}}){{1,6}}(?={_BETWEEN}{_LINE})"
_KEY = re.compile(
    rf"{_BEGIN}(?:(?:(?={_INSIDE}{{0,400}}?{_LINE}){_INSIDE}{{0,16384}}|{_NO_PROSE})"
    rf"{_DASHES}{{1,6}}\s?END\s[A-Z0-9 ]{{0,40}}{_DASHES}{{1,6}}|(?:{_HEADERS})?{_LINES})|{_BODIES}{_LINES}"
    rf"|Private-Lines:\s{_LINES}(?:{_BETWEEN}Private-MAC:\s[0-9a-f]{{40,64}})?"
)
_KEY_END = re.compile(rf"{_DASHES}{{1,6}}\s?END\s{_KIND}\s?{_DASHES}{{1,6}}")
_KEY_LINE = re.compile(_LINE + r"|[A-Za-z0-9+/]{1,15}={1,2}(?![A-Za-z0-9])|=[A-Za-z0-9+/]{4}(?![A-Za-z0-9+/=])")
_KEY_GAP, _KEY_BEGIN = re.compile(_BETWEEN), re.compile(rf"{_BEGIN}{_INSIDE}{{0,16384}}")
_KEY_SIGNS = (
    "PRIVATE",
    "Private-Lines",
    "MI",
    "MH",
    "MC4CAQ",
    "b3BlbnNza",
    "LS0tLS1CRU",
    "0tLS0tQkVHSU4",
    "tLS0tLUJFR0lO",
)
#: Most characters between the first and the last line of a key.
_MOST_INSIDE = 16_384

#: Keys of services: what each begins with, and the rest of it.
_KEYS = {
    "sk-": r"[A-Za-z0-9_-]{20,250}",
    "npm_": r"[A-Za-z0-9]{36}",
    "hf_": r"[A-Za-z0-9]{34}",
    "gsk_": r"[A-Za-z0-9]{52}",
    "dop_v1_": r"[a-f0-9]{64}",
    "doo_v1_": r"[a-f0-9]{64}",
    "dapi": r"[a-f0-9]{32}",
    "hvs.": r"[A-Za-z0-9_-]{24,250}",
    "hvb.": r"[A-Za-z0-9_-]{100,250}",
    "SG.": r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "GOCSPX-": r"[A-Za-z0-9_-]{28}",
    "ya29.": r"[A-Za-z0-9_-]{40,250}",
    "pypi-AgE": r"[A-Za-z0-9_-]{50,250}",
    "AGE-SECRET-KEY-1": r"[A-Z0-9]{58}",
    "xapp-": r"[0-9]-[0-9A-Za-z-]{20,250}",
    "shpat_": r"[A-Fa-f0-9]{32}",
    "shpca_": r"[A-Fa-f0-9]{32}",
    "shppa_": r"[A-Fa-f0-9]{32}",
    "shpss_": r"[A-Fa-f0-9]{32}",
    "dp.pt.": r"[A-Za-z0-9]{40,44}",
    "pul-": r"[a-f0-9]{40}",
    "PMAK-": r"[a-f0-9]{24}-[a-f0-9]{34}",
    "lin_api_": r"[A-Za-z0-9]{40}",
    "ATATT3": r"[A-Za-z0-9_=-]{100,250}",
    "figd_": r"[A-Za-z0-9_-]{40}",
    "whsec_": r"[A-Za-z0-9+/]{32,64}",
    "NRAK-": r"[A-Z0-9]{27}",
    "tskey-": r"(?:auth|api|client)-[A-Za-z0-9]{8,20}-[A-Za-z0-9]{20,40}",
    "sntrys_": r"eyJ[A-Za-z0-9+/=_-]{60,400}",
    "sntryu_": r"[a-f0-9]{64}",
    "rubygems_": r"[a-f0-9]{48}",
    "ntn_": r"[A-Za-z0-9]{46}",
    "r8_": r"[A-Za-z0-9]{37}",
    "pplx-": r"[A-Za-z0-9]{48}",
    "xai-": r"[A-Za-z0-9]{80}",
    "glsa_": r"[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}",
    "dckr_pat_": r"[A-Za-z0-9_-]{27}",
    "nfp_": r"[A-Za-z0-9]{36,40}",
    "sbp_": r"[a-f0-9]{40}",
    "sq0atp-": r"[A-Za-z0-9_-]{22}",
    "sq0csp-": r"[A-Za-z0-9_-]{43}",
    "nsec1": r"[a-z0-9]{58}",
    "xprv": r"[1-9A-HJ-NP-Za-km-z]{100,112}",
    "ops_eyJ": r"[A-Za-z0-9+/=_-]{250,2000}",
}
#: Words of documents that show how an address with a password looks.
_EXAMPLE = r"(?i:pass|pwd|secret|change|example|your|dummy|test|xxx|token)"
#: Each pattern follows literals that every secret of its kind has, and every quantifier is bounded, so that time stays
#: linear.
_TOKENS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "AWS access key": (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "GitHub token": (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b",
    ),
    "GitLab token": (
        ("glpat-", "glrt-", "gldt-", "glcbt-", "glptt-", "glsoat-"),
        r"\bgl(?:pat|rt|dt|cbt|ptt|soat)-[A-Za-z0-9_-]{20,64}",
    ),
    "Google API key": (("AIza",), r"\bAIza[0-9A-Za-z_-]{35}"),
    "Slack token": (("xox",), r"\bxox[abeoprs]-[0-9A-Za-z-]{10,250}"),
    "Stripe key": (("k_live_",), r"\b[rs]k_live_[0-9A-Za-z]{16,128}"),
    "API key": (tuple(_KEYS), rf"\b(?:{'|'.join(re.escape(sign) + rest for sign, rest in _KEYS.items())})"),
    "secret of a cloud account": (
        (
            *("AccountKey=", "AccessKey=", "ecret_access_key", "ECRET_ACCESS_KEY", "ecretAccessKey", "&sig=", "?sig="),
            *("hooks.slack.com/", "/api/webhooks/", "Q~", ".atlasv1."),
        ),
        r"AccountKey=[A-Za-z0-9+/]{86}==|SharedAccessKey=[A-Za-z0-9+/]{43}=|[?&]sig=[A-Za-z0-9+/]{43}=|(?i:ecret_?access_?key)[\"'`\s:=]{1,9}[A-Za-z0-9/+]{40}\b"
        r"|hooks\.slack\.com/services/T\w{7,12}/B\w{7,12}/[A-Za-z0-9]{20,32}"
        r"|discord(?:app)?\.com/api/webhooks/\d{17,20}/[A-Za-z0-9_-]{60,80}"
        r"|(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}|\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}",
    ),
    "Twilio key": (
        ("SK", "wilio", "WILIO"),
        r"\bSK[0-9a-f]{32}\b|(?i:twilio[a-z_-]{0,20}(?:token|secret))[\"'`\s:=]{1,9}[A-Za-z0-9]{32}\b",
    ),
    "Telegram token": ((":AA",), r"\b\d{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"),
    "WireGuard key": (("PrivateKey", "PresharedKey"), r"\bPr(?:ivate|eshared)Key\s{0,4}=\s{0,4}[A-Za-z0-9+/]{43}="),
    "JSON web key": (
        ('"d"', "'d'", '"oct"'),
        r"([\"'])(?:d|p|q|dp|dq|qi)\1\s{0,4}:\s{0,4}\1(?=[a-z0-9_-]{0,60}[A-Z])(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{43,1400}\1"
        r'|"kty"\s{0,4}:\s{0,4}"oct"[^{}]{0,400}"k"\s{0,4}:\s{0,4}"[A-Za-z0-9_-]{22,700}"'
        r'|"k"\s{0,4}:\s{0,4}"[A-Za-z0-9_-]{22,700}"[^{}]{0,400}"kty"\s{0,4}:\s{0,4}"oct"',
    ),
    "password in an address": (
        ("://",),
        r"(?<=://)[^\s:/@\"'<>`(){}\[\]]{0,64}:(?=[^\s/@]{0,99}[0-9])(?=[^\s/@]{0,99}[A-Za-z])"
        rf"(?![^\s/@]{{0,99}}{_EXAMPLE})[^\s:/\"'<>`$*|\\(){{}}\[\]]{{8,128}}@(?=[A-Za-z0-9\[])",
    ),
    "JSON web token": (("eyJ",), r"\beyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,1000}"),
}
_PATTERNS = {what: re.compile(pattern) for what, (_, pattern) in _TOKENS.items()}
#: A break within a token: a line end, or two strings next to each other. Prose has no digits.
_BREAK = re.compile(
    r"(?<=[A-Za-z0-9_.-]{4})(?:[\"'`]\s{0,20}[+&.\\]?\s{0,20}[\"'`]|[\"'`+&.=\\ ]{0,4}\r?\n[ \t>|+*#\"'`-]{0,20})"
    rf"(?!{'|'.join(re.escape(sign) for signs, _ in _TOKENS.values() for sign in signs if len(sign) > 3)})"
    rf"(?:(?=[A-Za-z_.-]{{0,60}}[0-9])(?=[0-9_.-]{{0,60}}[A-Za-z])(?=[A-Za-z0-9_.-]{{8}})|(?={_REST}|[A-Z]{{2,16}}[\"'`]))"
)
#: A removed secret's parts of this length are searched for again.
_RUN = re.compile(r"[A-Za-z0-9+/_]{12,}")
_MIXED = re.compile(r"(?=.*[0-9])(?=.*[A-Z])(?=.*[a-z])")
#: Characters next to a key that may hold parts which no pattern matches.
_NEAR = 60


class FoundSecret(NamedTuple):
    """A secret in a text, with its kind, its position, and the decoded pieces that must be removed."""

    what: str
    pieces: list[str]
    start: int
    end: int


def find_secrets(text: str) -> list[FoundSecret]:
    """Return all secrets in a text. Secrets of the same kind are in order of position."""
    plain = decode_text(text)
    found = [_found("private key", plain, *span, near=_NEAR) for span in _find_keys(plain.text)]
    kinds = [what for what, (signs, _) in _TOKENS.items() if any(sign in plain.text for sign in signs)]
    joined = plain.substitute(_BREAK, lambda _: "") if kinds else plain
    for form in (plain, joined)[: 1 + (joined is not plain)]:
        for what in kinds:
            found += [_found(what, form, *each.span()) for each in _PATTERNS[what].finditer(form.text)]
    return list({secret[2:]: secret for secret in found}.values())


def _found(what: str, plain: DecodedText, start: int, end: int, near: int = 0) -> FoundSecret:
    pieces = [run for run in _RUN.findall(plain.text, start, end) if not run.islower()]
    around = (plain.text[max(start - near, 0) : start], plain.text[end : end + near])
    pieces += [run for text in around for run in _RUN.findall(text) if _MIXED.match(run)]
    return FoundSecret(what, pieces, *plain.find_source(start, end))


def _find_keys(text: str) -> Iterator[tuple[int, int]]:
    if not any(sign in text for sign in _KEY_SIGNS):
        return
    found = [each.span() for each in _KEY.finditer(text)]
    yield from found
    past, at = 0, 0
    for last in _KEY_END.finditer(text):  # keys whose first line is missing
        while at < len(found) and found[at][1] <= last.start():
            past, at = found[at][1], at + 1
        first, begin = last.start(), max(past, last.start() - _MOST_INSIDE)
        for line in reversed(list(_KEY_LINE.finditer(text, begin, first))):
            if not _KEY_GAP.fullmatch(text, line.end(), first):
                break
            first = line.start()
        if first < last.start() and (at == len(found) or found[at][0] >= last.end()):
            yield first, last.end()
        past = last.end()


def remove_secrets(text: str, mark: str) -> str:
    pieces, done = list[str](), 0
    for start, end in sorted(secret[2:] for secret in find_secrets(text)):
        if start >= done:
            pieces += (text[done:start], mark)
        done = max(done, end)
    return "".join((*pieces, text[done:]))


def still_contains_secrets(secrets: list[FoundSecret], text: str) -> bool:
    """Return True if a text contains any secret, or a fragment of the given ``secrets``, even if it is encoded."""
    plain = decode_text(text)
    left = plain.substitute(_BREAK, lambda _: "").text
    runs = {run for secret in secrets for run in secret.pieces}
    known = set(_RUN.findall(plain.text)) | set(_RUN.findall(left))
    return not runs.isdisjoint(known) or any(run in left for run in list(runs)[:100]) or bool(find_secrets(text))
