"""What Open WebUI 0.12.4 makes of a stream: the text on its page, the status lines, the error. Written after its
observed behaviour, so that a test can look at the page after every frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reader:
    parts: list[str] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    status: list[str] = field(default_factory=list)
    error: str = ""
    seen: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts) + self.content

    def read(self, payloads: Iterable[Any]) -> Reader:
        for payload in payloads:
            if str(payload.get("type", "")).startswith("response."):
                self._frame(payload)
            else:
                self._chunk(payload)
            if not self.seen or self.seen[-1] != self.text:
                self.seen.append(self.text)
        return self

    def _frame(self, frame: dict[str, Any]) -> None:
        match frame["type"].removeprefix("response."):
            case "output_item.added":
                assert (frame["output_index"], frame["item"]["content"]) == (0, [])
            case "content_part.added":
                self.parts.append(frame["part"]["text"])
            case "output_text.delta":
                self.parts[frame["content_index"]] += frame["delta"]
            case "output_text.done":
                self.parts[frame["content_index"]] = frame["text"]
            case "output_item.done":
                self.parts = [part["text"] for part in frame["item"]["content"]]
            case "completed":
                [item] = frame["response"]["output"]
                self.completed = [part["text"] for part in item["content"]]
            case other:
                raise AssertionError(other)

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.error = chunk["error"]["message"]
            return
        if "event" in chunk:
            self.status.append(chunk["event"]["data"]["description"])
        delta = chunk["choices"][0]["delta"]
        self.content += delta.get("content", "")
        self.reasoning += delta.get("reasoning_content", "")
