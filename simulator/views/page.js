"use strict";
// What all parts of a page have in common: its data, its elements, and the note beside the pointer.

const page = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");

function element(tag, text, parent) {
  const node = document.createElement(tag);
  node.textContent = text;  // never HTML: names come from files
  parent.append(node);
  return node;
}

/** Show a title, and lines of a name and a value each, beside the pointer; null: nothing. */
function showTip(event, note) {
  tip.hidden = !note;
  if (!note) return;
  const [title, lines] = note;
  tip.replaceChildren();
  element("b", title, tip);
  const grid = element("div", "", tip);
  for (const [name, value] of lines) { element("span", name, grid); element("span", value, grid); }
  const beside = event.clientX + 16 + tip.offsetWidth < window.innerWidth;
  tip.style.left = `${Math.max(4, beside ? event.clientX + 16 : event.clientX - 12 - tip.offsetWidth)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 4))}px`;
}

document.getElementById("title").textContent = page.title;
const { names, rows } = page.figures;
for (const [name, ...values] of rows) {
  const card = element("div", "", document.getElementById("figures"));
  element("dt", name, card);
  values.forEach((value, run) => {
    const line = element("dd", value, card);
    if (names.length > 1) element("span", names[run], line);
  });
}
document.getElementById("figures").className = names.length > 1 ? "several" : "";
document.querySelector("#notes p").textContent = page.notes;
document.getElementById("notes").hidden = !page.notes;
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => part.open = true));
