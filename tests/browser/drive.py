"""Drives the page of a real Open WebUI as users would. Runs in Open WebUI's own environment, which has playwright.

    python drive.py ADDRESS FOLDER < questions.json > seen.json

A question is {"text", "name"} and what goes with it:

- "user": {"email", "password"} signs in at the page first; without it Open WebUI asks for no login.
- "models": the chat's models; "temporary": a temporary chat; "image": a file that is attached.
- "once", a text on the page, with "do": "look", "stop", "reload", "second-tab", "run", which runs "command", or
  "answer": a person for each button in "press" follows the link of that text; then "command" runs, and all press at the
  same time, with "late" when the link asks nobody any more. "answered" is what each of them reads then.
- "images": how many images the answer has; "drawn" has the width of each in pixels, once all are drawn, and "linked"
  the text and the address of each link to a file.
- "then", when the answer has ended: "regenerate", "continue", "edit" (to "edited"), "say" ("more") or "merge".
- "marks", name to a pattern: "seconds" says how long after Enter each stood in the last answer.
- "refused": Open WebUI itself refuses the image, so that nothing is asked; only its words are seen.

A long answer waits in its middle, and a first draft at its end, for the file FOLDER/gate. It is made when what is done
"once" has been done, or the answer has ended: so nothing has to be done fast.

What was seen of each: the texts that stood on the page one after the other, status lines included, and the messages as
they are stored. Screenshots go to the folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

CHROMIUM = {
    "executable_path": "/usr/bin/chromium",
    "args": ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
}
PATIENCE_SECONDS = 180
_TICK_SECONDS = 0.1
#: Notes in the page, from the next Enter on, when each pattern is first found in the last answer.
_OBSERVE = """marks => {
  const seen = window.seen = {};
  let began = 0;
  document.addEventListener("keydown", pressed => {
    if (pressed.key === "Enter" && !began) began = performance.now();
  }, true);
  new MutationObserver(() => {
    const text = [...document.querySelectorAll(".chat-assistant")].at(-1)?.innerText ?? "";
    for (const [name, pattern] of Object.entries(marks))
      if (began && !(name in seen) && new RegExp(pattern).test(text)) seen[name] = (performance.now() - began) / 1000;
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


class Visitor:
    def __init__(self, page: Page, address: str, folder: Path, user: dict[str, str] | None = None) -> None:
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        self.page, self.address, self.folder, self.user = page, address, folder, user
        self.gate = folder / "gate"
        self.token = ""
        self.token = self._call("/api/v1/auths/signin", user or {"email": "", "password": ""})["token"]

    def sign_in(self) -> None:
        """Sign in at the page, where there are users."""
        if not self.user:
            return
        self.page.goto(f"{self.address}/auth")
        self.page.locator("#email").fill(self.user["email"])
        self.page.locator("#password").fill(self.user["password"])
        self.page.keyboard.press("Enter")
        self.page.locator("#chat-input").wait_for()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask in a new chat, do what is to be done, and watch until the answer has ended."""
        name, temporary = question["name"], question.get("temporary", False)
        self.gate.unlink(missing_ok=True)
        wanted = {"temporary-chat": "true"} if temporary else {}
        if models := question.get("models"):
            wanted["models"] = ",".join(models)
        self.page.goto(f"{self.address}/?{urllib.parse.urlencode(wanted)}")
        self.page.locator("#chat-input").wait_for()
        self._close_dialogs()
        if image := question.get("image"):
            toast = self._attach(image)
            if question.get("refused"):
                self._picture(name)
                return {"toast": toast}
        if marks := question.get("marks"):
            self.page.evaluate(_OBSERVE, marks)
        self._say(question["text"])
        seen = self._watch(name, question)
        self.gate.touch()
        if marks:
            seen["seconds"] = self.page.evaluate("window.seen")
        if then := question.get("then"):
            seen |= self._then(then, question, name)
        if temporary:
            return seen
        chat_id = self._chat_id()
        self.page.reload()
        self._until(lambda: self._ended() and self._text())
        seen["after_reload"] = self._text()
        self.page.locator(".chat-user").first.scroll_into_view_if_needed()
        self._picture(f"{name}-reload")
        if images := question.get("images"):
            seen["drawn"] = self._until(lambda: self._drawn(images))
            links = self.page.locator(".chat-assistant a[href*='/files/']")
            seen["linked"] = links.evaluate_all("all => all.map(one => [one.innerText, one.href])")
        seen["shows_usage"] = bool(self.page.locator("[id^=info-]").count())
        if question.get("tags"):
            seen["tags"] = self._until(lambda: [tag["name"] for tag in self._call(f"/api/v1/chats/{chat_id}/tags")])
        seen["stored"] = self._stored(chat_id)
        return seen

    def _say(self, text: str) -> None:
        self.page.locator("#chat-input").click()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def _attach(self, image: str) -> str:
        """Attach a file; returns what Open WebUI says against it, '' when it takes it."""
        self.page.locator("input[type=file]").first.set_input_files(image)
        attached, toast = self.page.locator("form img"), self.page.locator("[data-sonner-toast]")
        attached.or_(toast).first.wait_for()
        return "" if attached.count() else str(toast.last.inner_text())

    def _drawn(self, images: int) -> list[int]:
        """The widths of the answer's images; none while one of them is not drawn."""
        widths: list[int] = self.page.locator(".chat-assistant img[src*='/files/']").evaluate_all(
            "all => all.map(one => one.complete ? one.naturalWidth : 0)"
        )
        return widths if len(widths) == images and all(widths) else []

    def _answer(self, question: dict[str, Any]) -> list[str]:
        """What people read who followed a link of the chat and pressed their buttons there."""
        address = str(self.page.locator(".chat-assistant a", has_text=question["once"]).last.get_attribute("href"))
        people = [(self._stranger(address), button) for button in question["press"]]
        if command := question.get("command"):
            self._run(command)
        while question.get("late"):
            page = self._stranger(address)
            over = page.locator("[role=status]").count()
            page.context.close()
            if over:
                break
            self.page.wait_for_timeout(1000)
        for page, button in people:
            page.screenshot(path=self.folder / f"answer-{button}.png")
            for found in page.locator("button", has_text=button).all():  # none where it came too late
                found.evaluate("button => setTimeout(() => button.click(), 200)")
        said = [str(page.locator("[role=status]").inner_text()) for page, _ in people]
        for page, _ in people:
            page.context.close()
        return said

    def _stranger(self, address: str) -> Page:
        """A page of somebody whom nobody here knows, at an address."""
        browser = self.page.context.browser
        assert browser
        page = browser.new_context().new_page()
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.goto(address)
        return page

    def _picture(self, name: str) -> None:
        self.page.screenshot(path=self.folder / f"{name}.png")

    def _then(self, then: str, question: dict[str, Any], name: str) -> dict[str, Any]:
        """Do what follows on the answer; returns what was seen of that."""
        before, text = self._ids(), self._text()
        if then == "merge":
            self.page.get_by_label("Merge Responses").last.click()
            chat_id = self._chat_id()
            return {"merged": self._until(lambda: self._merged(chat_id))}
        if then == "say":
            self._say(question["more"])
        else:
            self._press(then, question)
        if then == "continue":  # which goes on in the same message
            return {"again": self._watch(f"{name}-again", {}, other_than=text)}
        self._until(lambda: self._ids() != before)
        return {"again": self._watch(f"{name}-again", {})}

    def _press(self, then: str, question: dict[str, Any]) -> None:
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
            button = self.page.get_by_role("button", name=name, exact=True)
            if button.count():
                button.first.click()
                button.first.wait_for(state="hidden")

    def _watch(self, name: str, question: dict[str, Any], other_than: str | None = None) -> dict[str, Any]:
        """Look until the answer has ended; at the first sight of ``once`` do something. Raises when it never ends."""
        seen: dict[str, Any] = {"texts": []}
        once = question.get("once", "")
        texts: list[str] = seen["texts"]
        other: Visitor | None = None

        def look() -> bool:
            nonlocal once, other
            # The status line may have the words of the link before the link is there.
            may = question.get("do") != "answer" or self.page.locator(".chat-assistant a", has_text=once).count()
            text = self._text()
            if new := not texts or texts[-1] != text:
                texts.append(text)
                self._picture(f"{name}-{len(texts):03}")
            if once and may and once in text:
                if question["do"] == "answer":
                    seen["answered"] = self._answer(question)
                elif other := self._do(question):
                    other._until(lambda: once in other._text())
                    seen["second_tab"] = [other._text()]
                if question["do"] != "stop":  # until the page has stopped
                    self.gate.touch()
                once = ""
            return bool(text) and not new and not once and text != other_than and self._ended()

        self._until(look)
        if other:
            seen["second_tab"] += other._watch(f"{name}-second-tab", {})["texts"]
            other.page.close()
        return seen

    def _do(self, question: dict[str, Any]) -> Visitor | None:
        do = question["do"]
        if do == "run":
            self._run(question["command"])
        elif do == "stop":
            self.page.get_by_label("Stop").first.click()
        elif do == "reload":
            self.page.reload()
        elif do == "second-tab":
            second = Visitor(self.page.context.new_page(), self.address, self.folder, self.user)
            second.page.goto(self.page.url)
            second.page.locator(".chat-assistant").last.wait_for()
            return second
        return None

    @staticmethod
    def _run(command: list[str]) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def _until(self, true: Callable[[], Any]) -> Any:
        ends = time.monotonic() + PATIENCE_SECONDS
        while not (answer := true()):
            if time.monotonic() > ends:
                self._picture("gave-up")
                raise TimeoutError(f"not within {PATIENCE_SECONDS} s; on the page: {self._text()!r}")
            self.page.wait_for_timeout(_TICK_SECONDS * 1000)
        return answer

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
        answers = self.page.locator("[id^=message-]:has(.chat-assistant)")
        found: list[Any] = answers.evaluate_all("all => all.map(one => one.id)")
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
        names = ("content", "error", "statusHistory", "done", "role", "model", "usage", "merged")
        return {"title": chat["title"], "messages": [{n: m.get(n) for n in names} for m in messages.values()]}

    def _merged(self, chat_id: str) -> str:
        """The text that several models' answers were merged into, once it is stored."""
        texts = [(message["merged"] or {}).get("content", "") for message in self._stored(chat_id)["messages"]]
        return next(filter(None, texts), "")

    def chats(self) -> int:
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
        visitors: dict[str, Visitor] = {}
        seen: dict[str, Any] = {}
        for question in questions:
            user = question.get("user")
            name = user["email"] if user else ""
            if name not in visitors:
                page = browser.new_context(viewport={"width": 900, "height": 700}).new_page()
                visitors[name] = Visitor(page, address, folder, user)
                visitors[name].sign_in()
            seen[question["name"]] = visitors[name].ask(question)
        chats = {name: visitor.chats() for name, visitor in visitors.items()}
        seen["chats"] = chats.get("", chats)
        browser.close()
    json.dump(seen, sys.stdout, ensure_ascii=False, indent=1)


main()
