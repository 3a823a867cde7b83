"""Drives the page of a real Open WebUI as a user would. Runs in Open WebUI's own environment, which has playwright.

    python drive.py ADDRESS FOLDER < questions.json > seen.json

A question is {"text", "name", "stop_after" (seconds), "regenerate" (bool), "go_on" (bool)}. What was seen of each: the
texts that stood on the page one after the other, status lines included, and the messages as they are stored.
Screenshots go to the folder.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

CHROMIUM = {
    "executable_path": "/usr/bin/chromium",
    "args": ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
}
PATIENCE_SECONDS = 60


class Visitor:
    """Somebody at the page."""

    def __init__(self, page: Page, address: str, folder: Path) -> None:
        self.page, self.address, self.folder = page, address, folder
        self.token = self._call("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask in a new chat, and watch until the answer has ended."""
        self.page.goto(self.address)
        box = self.page.locator("#chat-input")
        box.wait_for(timeout=PATIENCE_SECONDS * 1000)
        self._close_dialogs()
        box.click()
        self.page.keyboard.type(question["text"])
        self.page.keyboard.press("Enter")
        seen = self._watch(question)
        if question.get("regenerate"):
            self.page.get_by_label("Regenerate").last.click()
            self.page.get_by_text("Try Again").last.click()
            time.sleep(1)
            seen["again"] = self._watch({**question, "stop_after": 0, "name": question["name"] + "-again"})
        if question.get("go_on"):
            self.page.get_by_label("Continue Response").last.click()
            time.sleep(1)
            seen["again"] = self._watch({**question, "name": question["name"] + "-again"})
        chat_id = self.page.url.rsplit("/", 1)[-1]
        self.page.reload()
        self.page.locator(".chat-assistant").last.wait_for(timeout=PATIENCE_SECONDS * 1000)
        time.sleep(1)
        seen["after_reload"] = self._text()
        self.page.screenshot(path=self.folder / f"{question['name']}-reload.png")
        seen["stored"] = self._stored(chat_id)
        return seen

    def _close_dialogs(self) -> None:
        for name in ("Okay, Let's Go!", "Close"):
            button = self.page.get_by_role("button", name=name)
            if button.count():
                button.first.click()
                time.sleep(0.3)

    def _watch(self, question: dict[str, Any]) -> dict[str, Any]:
        texts: list[str] = []
        began, idle_since = time.monotonic(), 0.0
        stop_after = question.get("stop_after", 0)
        while time.monotonic() - began < PATIENCE_SECONDS:
            text = self._text()
            if not texts or texts[-1] != text:
                texts.append(text)
                self.page.screenshot(path=self.folder / f"{question['name']}-{len(texts):03}.png")
            running = self.page.get_by_label("Stop").count() > 0
            if running and stop_after and time.monotonic() - began > stop_after:
                self.page.get_by_label("Stop").first.click()
                stop_after = 0
            if running or not text:
                idle_since = 0.0
            elif not idle_since:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > 1.5:
                break
            time.sleep(0.1)
        return {"texts": texts}

    def _text(self) -> str:
        found = self.page.locator(".chat-assistant")
        return str(found.last.inner_text()).strip() if found.count() else ""

    def _stored(self, chat_id: str) -> Any:
        chat = self._call(f"/api/v1/chats/{chat_id}")["chat"]
        messages = chat["history"]["messages"]
        names = ("content", "error", "statusHistory", "done", "childrenIds", "role", "output")
        return {"title": chat["title"], "messages": [{n: m.get(n) for n in names} for m in messages.values()]}

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
        page = browser.new_page(viewport={"width": 900, "height": 700})
        visitor = Visitor(page, address, folder)
        seen = {question["name"]: visitor.ask(question) for question in questions}
        browser.close()
    json.dump(seen, sys.stdout, ensure_ascii=False, indent=1)


main()
