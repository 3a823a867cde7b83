// Refreshes pages with live data, copies ids, and opens a palette of pages, commands and turns by "/". Without this
// script, pages do not refresh, a click selects an id, and the list of turns has the search.
"use strict";

const LONGEST_WAIT = 60000;
let failures = 0;

function seconds() {
  return Number(document.body.dataset.refresh || 0);
}

function busy() {
  const focused = document.activeElement;
  return document.hidden || document.querySelector("dialog[open]") || String(getSelection()) !== "" || (focused && ["INPUT", "SELECT", "TEXTAREA"].includes(focused.tagName));
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

const MOST_FOUND = 8;
const palette = document.getElementById("palette");
const opener = document.querySelector("button.find");
let entries = [];
let chosen = 0;
let searching = new AbortController();

// List the pages, saved views and buttons of this page that the person may use.
function commands() {
  const links = document.querySelectorAll("header nav a, main .head a, main .head button:not(.copy)");
  const kind = (link) => (link.closest("header") ? "go to" : link.closest("nav")?.getAttribute("aria-label").toLowerCase() || "do");
  return [...links].map((link) => ({ name: link.textContent.trim(), kind: kind(link), open: () => link.click() }));
}

function matches(name, text) {
  return text.toLowerCase().split(/\s+/).every((word) => name.toLowerCase().includes(word));
}

function show(found) {
  entries = found;
  chosen = 0;
  const list = document.getElementById("found");
  list.replaceChildren(...found.map(({ name, kind }, place) => {
    const item = document.createElement("li");
    item.id = "found-" + place;
    item.setAttribute("role", "option");
    item.append(Object.assign(document.createElement("span"), { textContent: name }), Object.assign(document.createElement("span"), { className: "quiet", textContent: kind }));
    item.addEventListener("click", () => take(place));
    return item;
  }));
  choose(0);
}

function choose(place) {
  const items = [...document.getElementById("found").children];
  chosen = Math.max(0, Math.min(place, items.length - 1));
  items.forEach((item, number) => item.setAttribute("aria-selected", String(number === chosen)));
  if (items.length) items[chosen].scrollIntoView({ block: "nearest" });
  palette.querySelector("input").setAttribute("aria-activedescendant", items.length ? "found-" + chosen : "");
}

function take(place) {
  palette.close(); // ends the search too
  entries[place].open();
}

async function search(text) {
  searching.abort();
  searching = new AbortController();
  const known = commands().filter(({ name }) => matches(name, text));
  const address = "/turns?text=" + encodeURIComponent(text);
  const all = { name: "All turns with “" + text + "”", kind: "search", open: () => { location.href = address; } };
  show(text ? [...known, all] : known);
  if (text.length < 2) return;
  const { signal } = searching;
  await new Promise((resolve) => setTimeout(resolve, 120));
  if (signal.aborted) return;
  const rows = [];
  try {
    let next = address;
    while (next && rows.length < MOST_FOUND) { // a page ends after a moment, with the place where the next one goes on
      const answer = await fetch(next, { signal });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const path = new URL(answer.url).pathname;
      for (const row of page.querySelectorAll(".turns tbody tr")) {
        const link = row.querySelector(".ask");
        rows.push({ name: link.textContent, kind: row.querySelector(".pill").textContent, open: () => { location.href = link.getAttribute("href"); } });
      }
      if (answer.ok && path !== "/turns") rows.push({ name: page.querySelector("h1").textContent, kind: "turn", open: () => { location.href = path; } });
      if (signal.aborted) return;
      const place = chosen;
      show([...known, ...rows.slice(0, MOST_FOUND), all]);
      choose(Math.min(place, known.length));
      next = page.querySelector("a[rel=next]")?.getAttribute("href");
    }
  } catch { // aborted by the next letter, or no connection: the list of turns says which
  }
}

function openPalette() {
  const input = palette.querySelector("input");
  input.value = "";
  show(commands());
  palette.showModal();
  input.focus();
}

// Move the focus to the next or previous turn of the page.
function step(by) {
  const turns = [...document.querySelectorAll("main a.ask")];
  const place = turns.indexOf(document.activeElement);
  const next = turns[place < 0 ? (by > 0 ? 0 : turns.length - 1) : place + by];
  if (next) next.focus();
}

if (palette) {
  opener.hidden = false;
  opener.addEventListener("click", openPalette);
  palette.addEventListener("close", () => searching.abort());
  palette.querySelector("input").addEventListener("input", (event) => search(event.target.value.trim()));
  palette.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) choose(chosen + by);
    else if (event.key === "Enter" && entries.length) take(chosen);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) || palette.open;
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") openPalette();
    else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else return;
    event.preventDefault();
  });
}
