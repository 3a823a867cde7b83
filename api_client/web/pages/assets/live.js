// Refreshes pages with live data and copies ids. Without this script, pages do not refresh, and a click selects an id.
"use strict";

const LONGEST_WAIT = 60000;
let failures = 0;

function seconds() {
  return Number(document.body.dataset.refresh || 0);
}

function busy() {
  const focused = document.activeElement;
  return document.hidden || String(getSelection()) !== "" || (focused && ["INPUT", "SELECT", "TEXTAREA"].includes(focused.tagName));
}

// Find the elements that match `element` in tag, href, name and value.
function kin(root, element) {
  const same = (other) => ["href", "name", "value"].every((one) => other.getAttribute(one) === element.getAttribute(one));
  return [...root.querySelectorAll(element.tagName)].filter(same);
}

async function refresh() {
  const answer = await fetch(location.href, { redirect: "error" });
  if (!answer.ok) throw new Error(answer.status);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = document.getElementById("main");
  const next = fresh.getElementById("main");
  for (const details of main.querySelectorAll("details[id]")) {
    const same = next.querySelector("#" + CSS.escape(details.id));
    if (same) same.open = details.open;
  }
  const focused = main.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && kin(main, focused).indexOf(focused);
  main.replaceWith(next);
  const again = focused && ((focused.id && document.getElementById(focused.id)) || kin(next, focused)[place]);
  if (again) again.focus({ preventScroll: true });
  document.body.dataset.refresh = fresh.body.dataset.refresh;
  document.title = fresh.title;
}

async function tick() {
  const sign = document.querySelector(".live");
  if (!busy()) {
    try {
      await refresh();
      failures = 0;
    } catch {
      failures += 1;
    }
  }
  if (sign) {
    sign.hidden = seconds() === 0;
    sign.classList.toggle("away", failures > 0);
    sign.textContent = failures ? "no connection" : "live";
  }
  if (seconds()) setTimeout(tick, Math.min(seconds() * 1000 * 2 ** failures, LONGEST_WAIT));
}

if (seconds()) {
  const sign = document.querySelector(".live");
  if (sign) sign.hidden = false;
  setTimeout(tick, seconds() * 1000);
}

async function copy(button) {
  const id = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(id.textContent);
    button.textContent = "Copied";
  } catch { // browsers give pages no clipboard without TLS
    getSelection().selectAllChildren(id);
    button.textContent = "Selected: press Ctrl+C";
  }
}

document.documentElement.classList.add("scripted");
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copy(button);
});
