"""A browser that does what it is told. Runs in an environment of its own, which has playwright.

    python look.py < steps.json > seen.json

A step is a list: ["new", {options of a context}], ["goto", address], ["click", selector], ["fill", selector, text],
["press", key], ["type", text], ["wait", selector, state], ["text", selector], ["count", selector], ["eval", script],
["url"], ["shot", file, full page], ["faults"] (what axe finds that keeps people from using the page),
["problems"] (what the console and failed requests said so far).
Seen is what each step answered; a step that fails ends it all.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

#: `make browser` fetched it.
AXE = Path(os.environ["AXE"])
CHROMIUM = {
    "executable_path": "/usr/bin/chromium",
    "args": ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"],
}


class Visitor:
    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._page: Page | None = None
        self._problems: list[str] = []

    def do(self, name: str, *arguments: Any) -> Any:  # noqa: C901 one line per kind of step
        if name == "new":
            self._page = self._browser.new_context(**arguments[0]).new_page()
            self._page.on("console", lambda said: self._note(said.type, said.text))
            self._page.on("pageerror", lambda error: self._note("error", str(error)))
            self._page.on("request", lambda request: self._note("request", request.url))
            return None
        assert self._page
        page = self._page
        match name, arguments:
            case "goto", [address]:
                answer = page.goto(address)
                return answer.status if answer else None
            case "click", [selector]:
                page.locator(selector).first.click()
            case "fill", [selector, text]:
                page.locator(selector).first.fill(text)
            case "press", [key]:
                page.keyboard.press(key)
            case "type", [text]:
                page.keyboard.type(text)
            case "wait", [selector, *state]:
                page.locator(selector).first.wait_for(timeout=30_000, state=next(iter(state), "visible"))
            case "text", [selector]:
                return page.locator(selector).all_inner_texts()
            case "count", [selector]:
                return page.locator(selector).count()
            case "eval", [script]:
                return page.evaluate(script)
            case "url", []:
                return page.url
            case "shot", [file, full]:
                page.screenshot(path=file, full_page=full)
                Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)  # a third of the size
            case "faults", []:
                page.evaluate(AXE.read_text())
                found = page.evaluate("axe.run()")["violations"]
                return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]
            case "problems", []:
                return self._problems
            case _:
                raise ValueError(name)
        return None

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self._problems.append(f"{kind}: {text}")
        elif kind == "request" and not text.startswith(("http://127.0.0.1", "data:", "blob:")):
            self._problems.append(f"request: {text}")


def main() -> None:
    steps = json.load(sys.stdin)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        visitor = Visitor(browser)
        seen = [visitor.do(*step) for step in steps]
        browser.close()
    json.dump(seen, sys.stdout, ensure_ascii=False)


main()
