"""Answers background requests of chat interfaces (title, tags, follow-up questions) without a turn or a model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from starlette.datastructures import Headers

TITLE_CHARS, _WORD_CHARS, _READ_CHARS = 50, 30, 2_000

#: A shorter first sentence is joined with the next one: "Ja. Und warum?"
_LEAST_WORDS, _LEAST_CHARS = 4, 15
_FENCE = re.compile(r"```[^\n]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_IMAGE_OR_LINK = re.compile(r"!?\[([^\[\]\n]{0,200})\]\([^()\s]{0,500}\)")
_URL = re.compile(r"https?://\S+")
_MARKUP = re.compile(r"<[^<>\n]{0,200}>|[*`>|~\[\]]+|(?<!\w)_+|_+(?!\w)|(?<!\w)#+(?=\s)")
_QUOTED = re.compile(r"[\"'«„“‚]([^\"'«»„“”‚‘]{1,200})[\"'»“”‘]")
_LIST_MARK = re.compile(r"\A(?:[-*+•]|\d{1,3}[.)])\s+")
_GREETING = re.compile(
    r"(?:hallo|hi|hey|hello|moin|servus|guten (?:morgen|tag|abend)|good (?:morning|afternoon|evening)"
    r"|dear \w+|liebe[sr]? \w+)"
    r"(?: (?:zusammen|alle|team|there|all|everyone|\w{2,12}))?\s{0,3}(?:[,!.:;–-]|\n|\Z)\s*",
    re.IGNORECASE,
)

_END = re.compile(r"[.!?…؟۔।]+[\"'»”)]{0,2}(?=\s|\Z)|[。！？]+[」』”]{0,2}|\n+")
#: Characters without a width that shape words of Persian and Indic scripts, and join emoji.
_JOINERS = "\u200c\u200d"

#: Abbreviations whose dot does not end a sentence.
_ABBREVIATIONS = frozenset({
    "abb", "abs", "art", "bspw", "bzw", "ca", "dr", "evtl", "fig", "fr", "ggf", "hr", "inkl", "kap", "max", "min",
    "mio", "mr", "mrd", "mrs", "ms", "nr", "no", "prof", "st", "str", "vgl", "vs", "zzgl", "approx", "ltd", "inc",
    "sog",
})  # fmt: skip


def make_title(text: str) -> str:
    """Return a short title for a user's message: its first sentence, or its first line of code."""
    read = text[:_READ_CHARS]
    plain = _MARKUP.sub(" ", _URL.sub(" ", _IMAGE_OR_LINK.sub(r"\1", _FENCE.sub("\n", read)))).strip()
    return _shorten_line(_find_first_sentence(plain)) or _shorten_line(_find_first_line(read))


def _find_first_sentence(text: str) -> str:
    lines = (_LIST_MARK.sub("", line.strip(), count=1) for line in text.splitlines())
    text = "\n".join(line for line in lines if line)
    for _ in range(2):
        greeting = _GREETING.match(text)
        text = (text[greeting.end() :] if greeting else "") or text
    for end in _END.finditer(text):
        before = text[: end.start()]
        if _is_sentence_end(before, end[0], text[end.end() :].lstrip()):
            return before
    return text


def _is_sentence_end(before: str, mark: str, after: str) -> bool:
    words = before.split()
    if not words or (len(words) < _LEAST_WORDS and len(before) < _LEAST_CHARS and after):
        return False
    if mark[0] == "\n":
        return not before.endswith((":", ","))
    if mark[0] != "." or not after:
        return True
    last = words[-1].strip("(\"'„“«»").lower()
    short = len(last.rpartition(".")[2]) == 1 or last.isdecimal() or last in _ABBREVIATIONS
    return not short and not after[0].islower()


def _find_first_line(text: str) -> str:
    inside = next((body for body in _FENCE.findall(text) if body.strip()), text)
    line = next((line.strip() for line in inside.splitlines() if line.strip()), "")
    return re.sub(r"https?://(?:www\.)?", "", _MARKUP.sub("", line) if inside is text else line)


def _shorten_line(sentence: str) -> str:
    words = " ".join(sentence.split())
    clean = "".join(letter for letter in words if letter.isprintable() or letter in _JOINERS)
    clean = clean.strip(f" ,;:-–{_JOINERS}")
    clean = quoted[1] if (quoted := _QUOTED.fullmatch(clean)) else clean
    if len(clean) <= TITLE_CHARS:
        return clean
    cut = clean[: TITLE_CHARS - 1]
    head, _, tail = cut.rpartition(" ")
    return f"{(head if head and len(tail) < _WORD_CHARS else cut).rstrip(f' ,;:-{_JOINERS}')}…"


TASK_HEADER = "x-owui-task"

#: Beginning of a prompt -> kind. Administrators can change prompts, so the header takes precedence.
_PROMPTS = {
    "### Task:\nGenerate a concise title": "title_generation",
    "### Task:\nGenerate a concise, 3-5 word title": "title_generation",
    "### Task:\nGenerate 1-3 broad tags": "tags_generation",
    "### Task:\nPredict 3-5 useful messages": "follow_up_generation",
    "### Task:\nSuggest 3-5 relevant follow-up": "follow_up_generation",
    "### Task:\nAnalyze the chat history to determine": "query_generation",
    "### Task:\nYou are an autocompletion system": "autocomplete_generation",
    "### Task:\nGenerate a detailed prompt": "image_prompt_generation",
    "Your task is to reflect the speaker": "emoji_generation",
    "You have been provided with a set of responses": "moa_response_generation",
    "Provide a concise, 5-word-or-less title for the conversation": "librechat_title",
}

MAX_CONVERSATION_CHARS = 32_768
_SPEAKER = re.compile(r"^(USER|ASSISTANT): ?", re.MULTILINE)

#: Quotes that Open WebUI puts around each model's answer.
_QUOTES = '"""'

#: Tag -> words that suggest it.
_TAGS = {
    "Architecture": r"\bADRs?\b|architekt|architect|entscheidung|\bdecision",
    "Programming": r"\bcode\b|python|javascript|funktion|\bbug\b|\btests?\b|refactor|\bAPI\b",
    "Data": r"datenbank|database|\bSQL\b|tabelle|redis|postgres",
    "Operations": r"server|deploy|docker|kubernetes|betrieb|monitoring",
}

_MAX_TAGS = 3


def detect_task(headers: Headers, messages: tuple[dict[str, str], ...]) -> str:
    """Return the kind of a background request, such as ``title_generation``, or '' for a user's message.

    The header ``X-Owui-Task`` decides if it is present; otherwise the beginning of the prompt does.
    """
    if TASK_HEADER in headers:
        return headers[TASK_HEADER].strip()
    if len(messages) != 1 or headers.get("x-owui-message-id"):
        return ""
    text = messages[0]["content"].lstrip()
    for start, kind in _PROMPTS.items():
        if text.startswith(start):
            return kind
    return ""


def answer_task(kind: str, messages: tuple[dict[str, str], ...]) -> str:
    """Return a built-in answer to a chat client's request for a title, tags or the like, or '' for an unknown kind."""
    answer = _ANSWER_MAKERS.get(kind)
    return answer(messages[-1]["content"]) if answer else ""


def _read_history(prompt: str) -> str:
    _, begins, rest = prompt.partition("<chat_history>")
    history, ends, _ = rest.partition("</chat_history>")
    return history.removeprefix("\n").removesuffix("\n") if begins and ends else ""


def _user_messages(history: str) -> list[str]:
    parts = _SPEAKER.split(history)
    said = zip(parts[1::2], parts[2::2], strict=False)
    return [text for who, raw in said if who == "USER" and (text := raw.strip())]


def _first_user_messages(prompt: str) -> list[str]:
    return _user_messages(_read_history(prompt)[:MAX_CONVERSATION_CHARS])


def _last_user_message(prompt: str) -> str:
    history = _read_history(prompt)
    said = _user_messages(history[-MAX_CONVERSATION_CHARS:])
    return (
        said[-1] if said else history[-MAX_CONVERSATION_CHARS:].strip() if len(history) > MAX_CONVERSATION_CHARS else ""
    )


def _answer_title(prompt: str) -> str:
    return _to_json(
        "title", next((title for text in _first_user_messages(prompt) if (title := make_title(text))), "Chat")
    )


def _answer_librechat_title(prompt: str) -> str:
    """Return a chat title as plain text, because LibreChat shows the whole answer as the title."""
    asked = prompt.partition("Conversation:\nUser: ")[2].partition("\nAI: ")[0]
    return make_title(asked) or "Chat"


def _answer_tags(prompt: str) -> str:
    said = "\n".join(_first_user_messages(prompt))
    found = [tag for tag, words in _TAGS.items() if re.search(words, said, re.IGNORECASE)]
    return _to_json("tags", found[:_MAX_TAGS] or ["General"])


def _answer_image(prompt: str) -> str:
    return _to_json("prompt", _last_user_message(prompt))


def _answer_queries(prompt: str) -> str:
    said = make_title(_last_user_message(prompt))
    return _to_json("queries", [said] if said else [])


def _answer_merge(prompt: str) -> str:
    """Return the longest of several models' answers, because merging them would require a model."""
    responses = prompt.partition("Responses from models:")[2]
    begins, ends = responses.find(_QUOTES), responses.rfind(_QUOTES)
    if ends - begins < len(_QUOTES):
        return ""
    return max(responses[begins + len(_QUOTES) : ends].split(f"{_QUOTES}\n\n{_QUOTES}"), key=len)


def _to_json(name: str, value: object) -> str:
    return json.dumps({name: value}, ensure_ascii=False)


_ANSWER_MAKERS: dict[str, Callable[[str], str]] = {
    "title_generation": _answer_title,
    "tags_generation": _answer_tags,
    "follow_up_generation": lambda _: _to_json("follow_ups", []),
    "query_generation": _answer_queries,
    "autocomplete_generation": lambda _: _to_json("text", ""),
    "image_prompt_generation": _answer_image,
    "emoji_generation": lambda _: "💬",
    "moa_response_generation": _answer_merge,
    "librechat_title": _answer_librechat_title,
    "function_calling": lambda _: _to_json("tool_calls", []),
}
