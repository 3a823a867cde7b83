"""Drives the page of a real Open WebUI as a user would. Runs in Open WebUI's own environment, which has playwright.

    python drive.py ADDRESS FOLDER < questions.json > seen.json

A question is {"text", "name"}, and what the user does besides asking it: "temporary" (asks in a temporary chat), "once"
(a text on the page) with "do" ("stop", "reload" or "second-tab"), and "then" ("regenerate", "continue" or "edit") when
the answer has ended, "edited" being the other text; "image" is a file that is attached, and only the page's word on it
is seen. What was seen of each: the texts that stood on the page one after
the other, status lines included, and the messages as they are stored. Screenshots go to the folder.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

CHROMIUM = {
    "executable_path": "/usr/bin/chromium",
    "args": ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
}
PATIENCE_SECONDS = 60
_TICK_SECONDS = 0.1


class Visitor:
    """Somebody at the page."""

    def __init__(self, page: Page, address: str, folder: Path) -> None:
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        self.page, self.address, self.folder = page, address, folder
        self.token = self._call("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask in a new chat, do what is to be done, and watch until the answer has ended."""
        name, temporary = question["name"], question.get("temporary", False)
        self.page.goto(self.address + "/?temporary-chat=true" * temporary)
        box = self.page.locator("#chat-input")
        box.wait_for()
        self._close_dialogs()
        if image := question.get("image"):
            return {"toast": self._attach(image, question["text"])}
        box.click()
        self.page.keyboard.type(question["text"])
        self.page.keyboard.press("Enter")
        seen = self._watch(name, question.get("once", ""), question.get("do", ""))
        if then := question.get("then"):
            before = self._ids()
            self._then(then, question)
            if then != "continue":  # which goes on in the same message
                self._until(lambda: self._ids() != before)
            seen["again"] = self._watch(f"{name}-again", other_than=self._text())
        if temporary:
            return seen
        chat_id = self._chat_id()
        self.page.reload()
        self._until(lambda: self._ended() and self._text())
        seen["after_reload"] = self._text()
        self.page.screenshot(path=self.folder / f"{name}-reload.png")
        seen["stored"] = self._stored(chat_id)
        return seen

    def _attach(self, image: str, text: str) -> str:
        """Attach an image and ask; returns what the page says to that."""
        self.page.locator("input[type=file]").first.set_input_files(image)
        self.page.locator("#chat-input").click()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")
        toast = self.page.locator("[data-sonner-toast]").last
        toast.wait_for()
        self.page.screenshot(path=self.folder / "image.png")
        return str(toast.inner_text())

    def _then(self, then: str, question: dict[str, Any]) -> None:
        if then == "regenerate":
            self.page.get_by_label("Regenerate").last.click()
            self.page.get_by_text("Try Again").last.click()
        elif then == "continue":
            self.page.get_by_label("Continue Response").last.click()
        else:
            self.page.locator(".chat-user").last.hover()
            self.page.get_by_label("Edit").first.click()
            box = self.page.locator("[id^=message-edit-]")
            box.locator("visible=true").last.click()
            self.page.keyboard.press("Control+A")
            self.page.keyboard.type(question["edited"])
            self.page.locator("#confirm-edit-message-button").click()

    def _close_dialogs(self) -> None:
        for name in ("Okay, Let's Go!", "Close"):
            button = self.page.get_by_role("button", name=name)
            if button.count():
                button.first.click()
                button.first.wait_for(state="hidden")

    def _watch(self, name: str, once: str = "", do: str = "", other_than: str | None = None) -> dict[str, Any]:
        """Look until the answer has ended; at the first sight of ``once`` do something. Raises when it never ends."""
        seen: dict[str, Any] = {"texts": []}
        texts: list[str] = seen["texts"]
        other: Visitor | None = None

        def look() -> bool:
            nonlocal once, other
            text = self._text()
            if new := not texts or texts[-1] != text:
                texts.append(text)
                self.page.screenshot(path=self.folder / f"{name}-{len(texts):03}.png")
            if once and once in text:
                if other := self._do(do):
                    other._until(lambda: once in other._text())
                    seen["second_tab"] = [other._text()]
                once = ""
            return bool(text) and not new and not once and text != other_than and self._ended()

        self._until(look)
        if other:
            seen["second_tab"] += other._watch(f"{name}-second-tab")["texts"]
            other.page.close()
        return seen

    def _do(self, do: str) -> Visitor | None:
        if do == "stop":
            self.page.get_by_label("Stop").first.click()
        elif do == "reload":
            self.page.reload()
        elif do == "second-tab":
            second = Visitor(self.page.context.new_page(), self.address, self.folder)
            second.page.goto(self.page.url)
            second.page.locator(".chat-assistant").last.wait_for()
            return second
        return None

    def _until(self, true: Callable[[], Any]) -> None:
        ends = time.monotonic() + PATIENCE_SECONDS
        while not true():
            if time.monotonic() > ends:
                self.page.screenshot(path=self.folder / "gave-up.png")
                raise TimeoutError(f"not within {PATIENCE_SECONDS} s; on the page: {self._text()!r}")
            self.page.wait_for_timeout(_TICK_SECONDS * 1000)

    def _ended(self) -> bool:
        """Nothing is running: the page offers no Stop but Regenerate, and every message that is stored is done."""
        if self.page.get_by_label("Stop").count() or not self.page.get_by_label("Regenerate").count():
            return False
        chat_id = self._chat_id()
        return not chat_id or all(message["done"] for message in self._answers(chat_id))

    def _text(self) -> str:
        found = self.page.locator(".chat-assistant")
        return str(found.last.inner_text()).strip() if found.count() else ""

    def _ids(self) -> list[Any]:
        """Which messages the page shows."""
        found: list[Any] = self.page.locator("[id^=message-]").evaluate_all("all => all.map(one => one.id)")
        return found

    def _chat_id(self) -> str:
        """The chat's id, when it is one that is stored."""
        before, _, chat_id = self.page.url.partition("?")[0].rpartition("/c/")
        return chat_id if before else ""

    def _answers(self, chat_id: str) -> list[Any]:
        return [message for message in self._stored(chat_id)["messages"] if message["role"] == "assistant"]

    def _stored(self, chat_id: str) -> Any:
        chat = self._call(f"/api/v1/chats/{chat_id}")["chat"]
        messages = chat["history"]["messages"]
        names = ("content", "error", "statusHistory", "done", "childrenIds", "role", "output")
        return {"title": chat["title"], "messages": [{n: m.get(n) for n in names} for m in messages.values()]}

    def chats(self) -> int:
        """How many chats are stored."""
        return len(self._call("/api/v1/chats/"))

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {getattr(self, 'token', '')}"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.address + path, data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)


def main() -> None:
    address, folder = sys.argv[1], Path(sys.argv[2])
    questions = json.load(sys.stdin)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        page = browser.new_context(viewport={"width": 900, "height": 700}).new_page()
        visitor = Visitor(page, address, folder)
        seen: dict[str, Any] = {question["name"]: visitor.ask(question) for question in questions}
        seen["chats"] = visitor.chats()
        browser.close()
    json.dump(seen, sys.stdout, ensure_ascii=False, indent=1)


main()
