"use strict";
// The part of a page that a search has found: its table, which a click on a column sorts, and its heat maps.

const MOST_CHARACTERS = 48;  // of a cell in one line
const UNITS = { ns: 1e-9, us: 1e-6, ms: 1e-3, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };

/** The number that a cell begins with, in the unit that follows it; null where it begins with none. */
function amount(text) {
  const match = /^([-+]?(?:\d{1,3}(?:,\d{3})+(?![,\d])|\d+)(?:\.\d+)?(?:e[-+]?\d+)?) ?([A-Za-z]*)/.exec(text);
  return match && Number(match[1].replaceAll(",", "")) * (UNITS[match[2]] ?? 1);
}

function inOrder(a, b) {
  const [x, y] = [amount(a), amount(b)];
  if (x === null || y === null) return (x === null) - (y === null) || a.localeCompare(b);
  return x - y || a.localeCompare(b, "en", { numeric: true });
}

function fillTable({ columns, rows }) {
  const table = document.querySelector("#candidates table"), body = document.createElement("tbody");
  const head = element("tr", "", element("thead", "", table));
  const lines = rows.map((cells, index) => {
    const line = document.createElement("tr");
    for (const cell of cells) {
      const node = element("td", cell, line);
      if (cell.length > MOST_CHARACTERS) node.className = "long";
    }
    if (page.search.best === index) line.className = "best";
    return [cells, line];
  });
  body.append(...lines.map(([, line]) => line));
  table.append(body);
  columns.forEach((name, column) => {
    const header = element("th", "", head), button = element("button", name || "#", header);
    button.addEventListener("click", () => {
      const isDown = header.getAttribute("aria-sort") === "ascending";
      for (const other of head.children) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      lines.sort(([a], [b]) => (isDown ? -1 : 1) * inOrder(a[column], b[column]));
      body.append(...lines.map(([, line]) => line));
    });
  });
}

function addMap({ title, names, columns, rows, cells }) {
  const table = element("table", "", document.getElementById("maps"));
  element("caption", title, table);
  cells.forEach((row, index) => {
    const line = element("tr", "", table);
    element("th", rows[index], line);
    for (const cell of row) {
      const node = element("td", cell?.text ?? "", line);
      if (!cell) continue;
      node.style.backgroundColor = cell.colour;
      node.className = [cell.is_dark && "dark", cell.fits || "unfit", cell.is_best && "best"].filter(Boolean).join(" ");
      node.addEventListener("pointermove", event => showTip(event, [cell.name, cell.lines]));
      node.addEventListener("pointerleave", event => showTip(event, null));
    }
  });
  const foot = element("tr", "", table);
  element("th", "", foot);
  for (const column of columns) element("th", column, foot);
  for (const [way, name] of [["across", names[0]], ["upwards", names[1]]])
    element("p", `${way}: ${name}`, table.createCaption());
  const known = cells.flat().filter(Boolean);
  if (known.some(cell => cell.is_best)) element("p", "framed: the chosen setting", table.createCaption());
  if (known.some(cell => !cell.fits)) element("p", "hatched: does not fit", table.createCaption());
}

fillTable(page.search);
page.search.maps.forEach(addMap);
document.getElementById("found").textContent = page.search.found;
document.getElementById("best").textContent = page.search.heading;
if (page.search.picture) {
  const picture = document.getElementById("picture");
  [picture.src, picture.alt, picture.hidden] = [page.search.picture, page.search.picture_says, false];
}
