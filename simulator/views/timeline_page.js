"use strict";
// Reads the data of the page, and shows what the pointer, the keys and the boxes to tick ask for.

const colours = page.palette;
const [axis, chart] = ["axis", "chart"].map(id => document.getElementById(id));
const showIdle = document.getElementById("show-idle"), showPath = document.getElementById("show-path");
const marks = document.getElementById("marks");
const FONT = "12px system-ui, sans-serif", SMALL = "11px system-ui, sans-serif";
const AXIS = 26, LANE_GAP = 12, RIGHT = 76, MOST_TEXTS = 4000;
const LONG = 24;  // characters of a text that is not said again for each run

// ---------------------------------------------------------------- data: columns of differences become instants

function timed(columns) {
  const n = columns.width.length;
  const start = new Float64Array(n), end = new Float64Array(n), until = new Float64Array(n);
  for (let i = 0, at = 0, last = -Infinity; i < n; i++) {
    start[i] = at + columns.gap[i];
    at = end[i] = start[i] + columns.width[i];
    until[i] = last = Math.max(last, at);  // when all up to this one are over, for the bisection
  }
  return Object.assign(columns, { start, end, until });
}

function summed(differences) {
  let at = 0;
  return Float64Array.from(differences, difference => at += difference);
}

let numBoxes = 0;
for (const [index, row] of page.rows.entries()) {
  timed(row);
  row.index = index;
  row.first = numBoxes;
  numBoxes += row.width.length;
}
for (const run of page.runs) {
  Object.values(run.idle).forEach(timed);
  timed(run.path);
  for (const memory of run.memory) {
    memory.time = summed(memory.time);
    memory.bytes = memory.bytes.map(summed);
    memory.total = memory.time.map((_, i) => memory.bytes.reduce((sum, bytes) => sum + bytes[i], 0));
    memory.peak = memory.total.reduce((most, bytes) => Math.max(most, bytes), 0);
  }
}
const lastMicrobatch = page.rows.reduce((most, row) => row.microbatch.reduce((a, b) => Math.max(a, b), most), 0);
const digitsWide = Math.max(11, 2 + 7 * String(lastMicrobatch).length);  // of boxes of a width all have numbers or none
const paired = page.runs.length > 1 && !page.headings.length;
const lanes = page.runs.flatMap((run, index) => run.memory.map(memory => ({ ...memory, run: index })))
  .sort((a, b) => (paired ? a.device - b.device || a.run - b.run : a.run - b.run || a.device - b.device));
const LANE = lanes.length > 24 ? 34 : 54;
const mostHeld = Math.max(1, ...lanes.map(lane => lane.peak));  // a limit far above it is told, not drawn
const mostBytes = Math.max(mostHeld, ...lanes.map(lane => lane.limit ?? 0).filter(limit => limit < 2.5 * mostHeld));

/** The first index at which `values`, which ascend, is above `value`. */
function above(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

// ---------------------------------------------------------------- what people read

function unitOf(seconds) {
  return [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]].find(unit => seconds >= unit[0]) ?? [1, "s"];
}

function readable(ticks) {
  const seconds = ticks * page.tick_s, [size, name] = unitOf(Math.abs(seconds));
  const value = seconds / size;
  const isLarge = Math.abs(value) >= 1000;
  return `${isLarge ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(4))} ${name}`;
}

function readableBytes(bytes) {
  const [size, name] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [0, "B"]].find(unit => bytes >= unit[0]);
  return `${Number((bytes / (size || 1)).toPrecision(4))} ${name}`;
}

// ---------------------------------------------------------------- places

const view = { from: 0, to: page.end };
const rowPx = Math.min(34, Math.max(15, 620 / page.depth));
const rowsBottom = page.depth * rowPx + 8;
let height = rowsBottom;
lanes.forEach((lane, index) => {
  lane.isFirst = page.headings.length && lane.run !== lanes[index - 1]?.run;  // and has a heading above it
  lane.top = height + (lane.isFirst ? 34 : index ? LANE_GAP : 24);
  height = lane.top + LANE;
});
const faces = page.looks.map(look => [0, 0.8].map(share => mixed(look.colour, colours.idle, share)));  // and faint
let width = 0, left = 0;  // of the canvas, and of the names beside the rows [px]
let scale = 1, dots = 1;  // px per tick, dots of the screen per px
let isPrinted = false, marked = null, hovered = null;  // {stage or microbatch: number}; what the pointer is on

const x = ticks => left + (ticks - view.from) * scale;

function nameOf(row) {
  const ranks = page.rows.filter(other => other.run === row.run && other.device === row.device);
  return `rank ${row.rank}` + (ranks.length > 1 ? ` (dev ${row.device})` : "");
}
const rowNames = page.rows.map(nameOf);

function fitCanvases() {
  width = chart.parentElement.clientWidth;
  dots = Math.min(isPrinted ? 2 : window.devicePixelRatio || 1, 32000 / height, Math.sqrt(6e7 / (width * height)));
  for (const [canvas, own] of [[axis, AXIS], [chart, height]]) {
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round(own * dots);
    canvas.style.height = `${own}px`;
    canvas.getContext("2d").setTransform(dots, 0, 0, dots, 0, 0);
  }
  fitNarrow();
  const pen = chart.getContext("2d");
  pen.font = FONT;
  const names = [...rowNames, ...lanes.map(lane => `device ${lane.device}`)];
  left = 14 + Math.max(...names.map(name => pen.measureText(name).width));
  if (paired) left += 10 + Math.max(...page.runs.map(run => pen.measureText(run.name).width));
  left = Math.min(left, width / 3);
  redraw();
}

/** Show so many ticks from one instant on; never far beyond the ends, never less than a few ticks. */
function show(from, span) {
  span = Math.min(page.end, Math.max(page.end * 1e-7, span));
  view.from = Math.min(Math.max(from, -0.02 * span), page.end - 0.98 * span);
  if (span >= page.end) view.from = 0;
  view.to = view.from + span;
  redraw();
}

const zoom = (factor, at = (view.from + view.to) / 2) =>
  show(at - (at - view.from) * factor, (view.to - view.from) * factor);

// ---------------------------------------------------------------- what lies under the pointer

function hit(px, py) {
  const ticks = view.from + (px - left) / scale, near = 0.6 / scale;
  if (px < left || px > width - RIGHT) return null;
  const lane = lanes.find(candidate => py >= candidate.top && py <= candidate.top + LANE);
  if (lane) return { lane, ticks };
  const row = page.rows.find(candidate => py >= edges(candidate)[0] && py <= edges(candidate)[1]);
  if (!row) return null;
  const lower = py > row.y * rowPx ? 2 : 1;
  for (let i = above(row.until, ticks - near); i < row.width.length && row.start[i] <= ticks + near; i++)
    if (row.end[i] >= ticks - near && (!row.half[i] || row.half[i] === lower)) return { row, box: i };
  const idle = page.runs[row.run].idle[row.device], part = above(idle.until, ticks);
  return part < idle.width.length && idle.start[part] <= ticks ? { row, part } : null;
}

/** The parts of idle time that end where an instant is, the last first. */
function partsBefore(idle, instant) {
  const parts = [];
  let i = above(idle.start, instant) - 1;
  while (i >= 0 && idle.start[i] === instant) i--;
  for (let until = instant; i >= 0 && idle.end[i] === until; until = idle.start[i--]) parts.push(i);
  return parts;
}

function describe(target) {
  if (target.lane) return describeMemory(target);
  const { row, box, part } = target, idle = page.runs[row.run].idle[row.device];
  const lines = page.runs.length > 1 ? [["run", page.runs[row.run].name]] : [];
  if (box === undefined) {
    lines.push(["rank", row.rank], ["cause", causeOf(idle, part)], ...times(idle, part));
    const next = above(row.start, idle.start[part]);
    if (next < row.width.length) lines.push(["until", titleOf(row, next)], ...needed(row, next));
    return ["idle", lines];
  }
  lines.push(["rank", `${row.rank}, device ${row.device}`], ["stage", row.stage[box]]);
  if (row.microbatch[box] >= 0) lines.push(["micro-batch", row.microbatch[box]]);
  lines.push(...times(row, box), ...needed(row, box));
  const waits = partsBefore(idle, row.start[box]);
  if (waits.length) lines.push(["waited", readable(waits.reduce((total, i) => total + idle.width[i], 0))]);
  for (const i of waits.reverse()) lines.push(["", `${readable(idle.width[i])} ${causeOf(idle, i)}`]);
  if (isOnPath(row, box)) lines.push(["", "on the critical path"]);
  return [titleOf(row, box), lines];
}

function describeMemory({ lane, ticks }) {
  const i = above(lane.time, ticks) - 1, lines = page.runs.length > 1 ? [["run", page.runs[lane.run].name]] : [];
  lines.push(["at", readable(ticks)], ["held", i < 0 ? "nothing yet" : readableBytes(lane.total[i])]);
  const held = page.kinds.map(([kind], k) => [kind, i < 0 ? 0 : lane.bytes[k][i]]).filter(([, bytes]) => bytes);
  lines.push(...held.map(([kind, bytes]) => [kind, readableBytes(bytes)]));
  lines.push(["peak", readableBytes(lane.peak)]);
  if (lane.limit !== null) lines.push(["limit", readableBytes(lane.limit)]);
  return [`memory of device ${lane.device}`, lines];
}

const times = (spans, i) => [["start", spans.start], ["end", spans.end], ["takes", spans.width]]
  .map(([name, ticks]) => [name, readable(ticks[i])]);

function causeOf(idle, i) {
  const [name, , meaning] = page.causes[idle.cause[i]];
  return `${name}: ${meaning}`;
}

function titleOf(row, box) {
  const microbatch = row.microbatch[box] < 0 ? "" : `, micro-batch ${row.microbatch[box]}`;
  return `${page.looks[row.look[box]].name} of stage ${row.stage[box]}${microbatch}`;
}

function needed(row, box) {
  const maker = boxAt(row.after[box]);
  if (!maker) return [];
  const over = readable(maker.row.end[maker.box]);
  return [["needs", `${titleOf(maker.row, maker.box)}, of rank ${maker.row.rank}, over at ${over}`]];
}

function isOnPath(row, box) {
  const path = page.runs[row.run].path;
  for (let i = above(path.until, row.start[box]); i < path.width.length && path.start[i] < row.end[box]; i++)
    if (path.from[i] === row.rank && path.to[i] === row.rank && path.kind[i] !== "wait") return true;
  return false;
}

function inChart(event) {
  const bounds = chart.getBoundingClientRect();
  return [event.clientX - bounds.left, event.clientY - bounds.top];
}

function point(event) {
  hovered = hit(...inChart(event));
  showTip(event, hovered && describe(hovered));
  redraw();
}

// ---------------------------------------------------------------- pointer and keys

let drag = null;
chart.addEventListener("pointerdown", event => {
  if (event.button === 0) drag = { x: event.clientX, y: event.clientY, from: view.from, hasMoved: false };
});
chart.addEventListener("pointermove", event => { if (!drag) point(event); });
window.addEventListener("pointermove", event => {
  const moved = drag ? Math.hypot(event.clientX - drag.x, event.clientY - drag.y) : 0;
  if (!drag || (!drag.hasMoved && moved < 4)) return;
  drag.hasMoved = tip.hidden = true;
  chart.classList.add("panning");
  show(drag.from - (event.clientX - drag.x) / scale, view.to - view.from);
  window.scrollBy(0, -event.movementY);
});
window.addEventListener("pointerup", event => {
  if (drag && !drag.hasMoved) {
    const target = hit(...inChart(event)), key = marks.value;
    const value = target?.box === undefined ? -1 : target.row[key][target.box];
    mark(value < 0 || (marked?.key === key && marked.value === value) ? null : { key, value });
  }
  drag = null;
  chart.classList.remove("panning");
});
window.addEventListener("pointercancel", () => { drag = null; });
chart.addEventListener("pointerleave", () => { hovered = null; tip.hidden = true; redraw(); });
chart.addEventListener("wheel", event => {
  event.preventDefault();
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
    return show(view.from + (event.deltaX || event.deltaY) / scale, view.to - view.from);
  const turned = Math.max(-300, Math.min(300, event.deltaY * (event.deltaMode === 1 ? 30 : 1)));
  zoom(Math.exp(0.002 * turned), view.from + (inChart(event)[0] - left) / scale);
}, { passive: false });

function mark(target) {
  marked = target;
  redraw();
}

const keys = {
  ArrowLeft: () => show(view.from - 0.1 * (view.to - view.from), view.to - view.from),
  ArrowRight: () => show(view.from + 0.1 * (view.to - view.from), view.to - view.from),
  "+": () => zoom(0.7),
  "=": () => zoom(0.7),
  "-": () => zoom(1 / 0.7),
  "0": () => show(0, page.end),
  Home: () => show(0, page.end),
  Escape: () => mark(null),
};
document.addEventListener("keydown", event => {
  if (event.target === marks || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
for (const [id, key] of [["zoom-in", "+"], ["zoom-out", "-"], ["fit", "0"]])
  document.getElementById(id).addEventListener("click", keys[key]);

// ---------------------------------------------------------------- what stands around the chart

function legend() {
  const list = document.getElementById("legend");
  list.replaceChildren();
  const entry = (name, colour, isThin) => {
    const item = element("li", "", list);
    if (colour) Object.assign(element("i", "", item), { className: isThin ? "thin" : "" }).style.background = colour;
    item.append(name);
  };
  for (const [name, colour] of page.legend) entry(name, colour);
  if (page.has_lighter) entry("lighter: later stage");
  entry("idle", colours.idle);
  const causes = new Set(page.runs.flatMap(run => Object.values(run.idle).flatMap(idle => idle.cause)));
  for (const [i, [name, colour, meaning]] of page.causes.entries())
    if (showIdle.checked && causes.has(i)) entry(`${name}: ${meaning}`, colour, true);
  if (lanes.length) element("li", "", list).className = "break";
  for (const [kind, colour] of lanes.length ? page.kinds : []) entry(kind, colour, true);
  if (lanes.some(lane => lane.limit !== null)) entry("memory limit", colours.limit, true);
  redraw();
}

for (const [name, ...values] of page.table) {
  const line = element("tr", "", document.getElementById("table"));
  element("th", name, line);
  const isOnce = values[0].length > LONG && values.every(value => value === values[0]);  // one long text for all
  for (const value of isOnce ? [values[0]] : values) element("td", value, line).colSpan = isOnce ? values.length : 1;
}
showIdle.checked = page.has_idle;
showIdle.addEventListener("change", legend);
showPath.addEventListener("change", redraw);
window.addEventListener("resize", fitCanvases);
window.addEventListener("scroll", redraw, { passive: true });
for (const [name, value] of [["beforeprint", true], ["afterprint", false]])
  window.addEventListener(name, () => { isPrinted = value; fitCanvases(); draw(); });
legend();
fitCanvases();
if (page.from || page.to !== null) show(page.from, (page.to ?? page.end) - page.from);
draw();
