"""What a model reads in a feedback: which parts are asked for, where to go on, or that all is asked for again."""

import re
from dataclasses import dataclass

_ONLY = re.compile(r"[^\n]*\b(?:nur|only)\b[^\n]*", re.IGNORECASE)
_SECTION = re.compile(r"##\s+([^'\"`´»“”:,\n]+)")
_GO_ON = re.compile(
    r"\b(?:setze|fahre|schreibe?)\b[^\n]{0,200}\b(?:fort|weiter)\b|\b(?:go on|continue)\b", re.IGNORECASE
)
_QUOTED = re.compile(r"^> ?(.*)$", re.MULTILINE)
_FRAME = re.compile(r"^(<part id=\"[\w-]+\">)\n(.*?)\n</part>$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: parts (then ``whole`` is false), the rest of the answer, or everything.

    Attributes:
        sections: titles as the feedback writes them.
        frames: opening tag and sketch of each frame that the feedback shows.
        quoted: the last lines of the text so far, when the model shall go on behind them, and begin with the last one.
    """

    marker: bool = False
    header: bool = False
    sections: tuple[str, ...] = ()
    quoted: str = ""
    frames: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        return not (self.marker or self.header or self.sections or self.quoted)


def read(feedback: str) -> Request:
    """Read a feedback as a model would: by its words."""
    quoted = "\n".join(_QUOTED.findall(feedback))
    if quoted.strip() and _GO_ON.search(feedback):
        return Request(quoted=quoted)
    # Messages may hold the word too; the request stands last.
    asked = [line for line in _ONLY.findall(feedback) if "Send only" in line or "dabei nur" in line]
    if not asked:
        return Request()
    said = asked[-1]
    header = any(word in said for word in ("YAML", "Header", "header", "files", "Pfad", "path"))
    titles = tuple(title.strip() for title in _SECTION.findall(said))
    return Request("STEP" in said, header, titles, frames=tuple(_FRAME.findall(feedback)))
