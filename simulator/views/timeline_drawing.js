"use strict";
// Draws what is visible of the chart: found by bisection, boxes narrower than a pixel together.

let isPending = false;
function redraw() {
  if (isPending) return;
  isPending = true;
  requestAnimationFrame(() => { isPending = false; draw(); });
}

let seen = [0, Infinity];  // the part of the canvas that the window shows [px]; print shows all
function draw() {
  scale = (width - left - RIGHT) / (view.to - view.from);
  drawAxis();
  const pen = chart.getContext("2d"), top = chart.getBoundingClientRect().top;
  seen = isPrinted ? [0, height] : [-top - 40, window.innerHeight - top + 40];
  pen.clearRect(0, 0, width, height);
  page.headings.forEach((y, run) => write(pen, page.runs[run].heading, left, y * rowPx, colours.ink, "bold " + FONT));
  pen.save();
  pen.beginPath();
  pen.rect(left - 1, 0, width - left - RIGHT + 3, height);
  pen.clip();
  const texts = drawRows(pen);
  if (texts.length <= MOST_TEXTS) {
    pen.font = SMALL;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (const [text, middle, y, ink] of texts) { pen.fillStyle = ink; pen.fillText(text, middle, y); }
  }
  if (showPath.checked) page.runs.forEach((run, index) => drawPath(pen, run, index));
  if (hovered && hovered.row) drawHover(pen);
  for (const lane of lanes) if (isSeen(lane.top, lane.top + LANE)) drawLane(pen, lane, lane.top);
  pen.restore();
  page.rows.forEach((row, index) => { if (isSeen(...edges(row))) drawNames(pen, row, rowNames[index]); });
  for (const lane of lanes) drawLaneNames(pen, lane, lane.top);
}

const edges = row => [(row.y - row.height / 2) * rowPx, (row.y + row.height / 2) * rowPx];
const isSeen = (top, bottom) => bottom >= seen[0] && top <= seen[1];

function write(pen, text, atX, y, ink, font = FONT, align = "left") {
  pen.font = font;
  pen.fillStyle = ink;
  pen.textAlign = align;
  pen.textBaseline = "middle";
  pen.fillText(text, atX, y);
}

function drawAxis() {
  const pen = axis.getContext("2d"), [size, unit] = unitOf(page.end * page.tick_s);
  const perPixel = 1 / scale, rough = 90 * perPixel * page.tick_s / size;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), ticks = step * size / page.tick_s;
  pen.clearRect(0, 0, width, AXIS);
  pen.fillStyle = colours.faint;
  pen.fillRect(left, AXIS - 1, width - left - RIGHT, 1);
  for (let k = Math.ceil(view.from / ticks); k * ticks <= view.to; k++) {
    pen.fillRect(Math.round(x(k * ticks)), AXIS - 6, 1, 5);
    write(pen, (k * step).toFixed(digits), x(k * ticks), AXIS - 14, colours.faint, SMALL, "center");
  }
  write(pen, unit, width - RIGHT + 22, AXIS - 14, colours.faint, SMALL);
}

// Rectangles wait until all of a layer are known and are painted colour by colour: to change the colour is dear. They
// begin and end between the dots of the screen, so that none is blurred, which is dear too.
const snap = px => Math.round(px * dots) / dots;

/** A colour moved towards another by a share, as a name and as the bits of a dot. */
function mixed(colour, other, share) {
  const parts = [1, 3, 5].map(place => [colour, other].map(text => parseInt(text.slice(place, place + 2), 16)));
  const [red, green, blue] = parts.map(([a, b]) => Math.round(a + (b - a) * share));
  return { name: `rgb(${red},${green},${blue})`, bits: (255 << 24 | blue << 16 | green << 8 | red) >>> 0 };
}

function put(layer, colour, x0, y, wide, tall) {
  const rectangles = layer.get(colour);
  if (rectangles) rectangles.push(x0, y, wide, tall); else layer.set(colour, [x0, y, wide, tall]);
}

function paint(pen, layer) {
  for (const [colour, parts] of layer) {
    pen.fillStyle = colour;
    for (let k = 0; k < parts.length; k += 4) pen.fillRect(parts[k], parts[k + 1], parts[k + 2], parts[k + 3]);
  }
}

/** Draw the rows that are seen; return their texts, which come on top of all. */
function drawRows(pen) {
  const idle = new Map(), causes = new Map(), boxes = new Map(), ends = new Map(), rows = [], texts = [];
  for (const row of page.rows) {
    const [top, bottom] = edges(row).map(snap), run = page.runs[row.run];
    if (!isSeen(top, bottom)) continue;
    put(idle, colours.idle, x(0), top, run.end * scale, bottom - top);
    const third = snap((bottom - top) / 3);
    if (showIdle.checked) putCauses(causes, run.idle[row.device], top + third, third);
    putBoxes(boxes, row, top, bottom - top, texts);
    rows.push([row, top, bottom - top]);
    put(ends, colours.ink, snap(x(run.end)), top - 2, 1.5, bottom - top + 4);
  }
  for (const layer of [idle, causes]) paint(pen, layer);
  paintNarrow(pen, rows);
  for (const layer of [boxes, ends]) paint(pen, layer);
  return texts;
}

/** Visible idle time, in a strip that is not taken for boxes; what is much narrower than a dot is left out. */
function putCauses(layer, idle, y, tall) {
  for (let i = above(idle.until, view.from); i < idle.width.length && idle.start[i] < view.to; i++) {
    if (idle.width[i] * scale * dots < 0.3) continue;
    const x0 = snap(x(idle.start[i]));
    put(layer, page.causes[idle.cause[i]][1], x0, y, Math.max(1 / dots, snap(x(idle.end[i])) - x0), tall);
  }
}

/** Visible boxes of a row: wide ones as rectangles, narrow ones dot by dot, as what fills most of the dot. */
function putBoxes(layer, row, top, high, texts) {
  const { start, end, look, half, microbatch } = row, n = start.length;
  const own = narrow.colours.subarray(row.index * narrow.wide, (row.index + 1) * narrow.wide);
  own.fill(0);
  narrow.filled.fill(0);
  for (let i = above(row.until, view.from); i < n && start[i] < view.to; i++) {
    const x0 = x(start[i]), x1 = x(end[i]), wide = x1 - x0;
    const faint = marked && row[marked.key][i] !== marked.value ? 1 : 0;
    if (wide * dots < 4) {
      const colour = faces[look[i]][faint].bits, stop = Math.min(narrow.wide, x1 * dots);
      for (let dot = Math.max(0, Math.floor(x0 * dots)); dot < stop; dot++) {
        const share = (Math.min(dot + 1, x1 * dots) - Math.max(dot, x0 * dots)) * (faint ? 1e-6 : 1);
        if (share > narrow.filled[dot]) { narrow.filled[dot] = share; own[dot] = colour; }
      }
      continue;
    }
    const tall = half[i] ? snap(high / 2) : high, y = half[i] === 2 ? top + tall : top, from = snap(x0);
    put(layer, faces[look[i]][faint].name, from, y, snap(x1) - from - 1 / dots, half[i] === 2 ? high - tall : tall);
    if (wide < digitsWide || tall < 9 || microbatch[i] < 0 || texts.length > MOST_TEXTS) continue;
    const middle = (Math.max(x0, left) + Math.min(x1, width - RIGHT)) / 2;
    const ink = page.looks[look[i]].dark && !faint ? colours.paper : colours.ink;
    texts.push([String(microbatch[i]), middle, y + tall / 2, ink]);
  }
}

// Narrow boxes, a line of dots for each row: to stretch a line is much quicker than to fill thousands of rectangles.
const narrow = { canvas: document.createElement("canvas"), wide: 0, image: null, colours: null, filled: null };

function fitNarrow() {
  const { canvas } = narrow, pen = canvas.getContext("2d");
  canvas.width = narrow.wide = chart.width;
  canvas.height = page.rows.length;
  narrow.image = pen.createImageData(canvas.width, canvas.height);
  narrow.colours = new Uint32Array(narrow.image.data.buffer);
  narrow.filled = new Float32Array(canvas.width);
}

function paintNarrow(pen, rows) {
  narrow.canvas.getContext("2d").putImageData(narrow.image, 0, 0);
  pen.imageSmoothingEnabled = false;
  for (const [row, top, high] of rows) pen.drawImage(narrow.canvas, 0, row.index, narrow.wide, 1, 0, top, width, high);
}

/** A thick line below what the path passes on a rank, a thin one for messages and from rank to rank, dots for waits. */
function drawPath(pen, run, index) {
  const path = run.path, bottoms = new Map(), drawn = new Map(), layer = new Map();
  for (const row of page.rows) if (row.run === index) bottoms.set(row.rank, snap(edges(row)[1]) - 3);
  const slopes = new Path2D(), waits = new Path2D();
  const hop = (rank, other, px) => {  // of several within a dot one
    const key = `${rank} ${other}`, [y0, y1] = [bottoms.get(rank), bottoms.get(other)];
    if (rank === other || drawn.get(key) === Math.floor(px)) return;
    drawn.set(key, Math.floor(px));
    put(layer, colours.ink, snap(px), Math.min(y0, y1), 1.5, Math.abs(y1 - y0) + 3);
  };
  for (let i = above(path.until, view.from); i < path.width.length && path.start[i] < view.to; i++) {
    const from = path.from[i], to = path.to[i], isWait = path.kind[i] === "wait";
    const x0 = x(path.start[i]), x1 = x(path.end[i]);
    if (from !== to && x1 - x0 < 2) hop(from, to, x0);
    else if (from !== to || isWait) {
      const lines = isWait ? waits : slopes;
      lines.moveTo(x0, bottoms.get(from) + 1.5);
      lines.lineTo(x1, bottoms.get(to) + 1.5);
    } else if (!(Math.floor(x1) <= drawn.get(from))) {
      drawn.set(from, Math.floor(x1));
      put(layer, colours.ink, snap(x0), bottoms.get(from), Math.max(1 / dots, snap(x1) - snap(x0)), 3);
    }
    if (i + 1 < path.width.length) hop(to, path.from[i + 1], x1);
  }
  paint(pen, layer);
  pen.strokeStyle = colours.ink;
  pen.lineWidth = 1.6;
  pen.stroke(slopes);
  pen.setLineDash([2, 3]);
  pen.stroke(waits);
  pen.setLineDash([]);
}

function line(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

/** Frame the box under the pointer and the box on another rank that it needed something of, and join them. */
function drawHover(pen) {
  const { row, box } = hovered, maker = box === undefined ? null : boxAt(row.after[box]);
  const frame = (own, i) => {
    const [top, bottom] = edges(own);
    pen.strokeRect(x(own.start[i]), top, Math.max(1, own.width[i] * scale), bottom - top);
  };
  pen.strokeStyle = colours.ink;
  pen.lineWidth = 1.6;
  if (box !== undefined) frame(row, box);
  if (!maker) return;
  frame(maker.row, maker.box);
  const isAbove = maker.row.y < row.y ? 1 : 0;
  line(pen, x(maker.row.end[maker.box]), edges(maker.row)[isAbove], x(row.start[box]), edges(row)[1 - isAbove]);
}

function boxAt(number) {
  if (number < 0) return null;
  const row = page.rows.findLast(row => row.first <= number);
  return { row, box: number - row.first };
}

function drawLane(pen, lane, top) {
  pen.fillStyle = colours.idle;
  pen.fillRect(x(0), top, page.runs[lane.run].end * scale, LANE);
  const high = bytes => snap(LANE * bytes / (1.08 * mostBytes)), n = lane.time.length, bottom = top + LANE;
  const steps = page.kinds.map(() => ({ from: 0, y: bottom })), layers = page.kinds.map(() => []);
  const step = (kind, px, y) => {  // from here on the kind, with those below it, is up to another height
    const { from, y: before } = steps[kind];
    if (y === before) return;
    if (before < bottom) layers[kind].push([from, before, px - from, bottom - before]);
    steps[kind] = { from: px, y };
  };
  let i = Math.max(0, above(lane.time, view.from) - 1);
  while (i < n && lane.time[i] <= view.to) {
    const px = snap(Math.max(left, x(lane.time[i])));
    let most = i;  // of the instants within a dot, that at which most is held
    while (++i < n && x(lane.time[i]) < px + 1 / dots) if (lane.total[i] > lane.total[most]) most = i;
    let held = 0;
    layers.forEach((_, kind) => step(kind, px, bottom - high(held += lane.bytes[kind][most])));
  }
  for (let kind = layers.length - 1; kind >= 0; kind--) {  // those on top first: each goes down to the bottom
    step(kind, snap(Math.min(width - RIGHT, x(page.runs[lane.run].end))), bottom);
    pen.fillStyle = page.kinds[kind][1];
    for (const rectangle of layers[kind]) pen.fillRect(...rectangle);
  }
  if (lane.limit === null || lane.limit > mostBytes) return;
  pen.strokeStyle = colours.limit;
  pen.lineWidth = 1.4;
  pen.setLineDash([5, 3]);
  line(pen, left, top + LANE - high(lane.limit), width - RIGHT, top + LANE - high(lane.limit));
  pen.setLineDash([]);
}

function drawNames(pen, row, name) {
  write(pen, row.busy, width - RIGHT + 8, row.y * rowPx, colours.faint, SMALL);
  if (!paired) write(pen, name, 4, row.y * rowPx, colours.ink);
  if (paired && row.run === 0) {
    const own = page.rows.filter(other => other.rank === row.rank);
    write(pen, name, 4, own.reduce((total, other) => total + other.y, 0) / own.length * rowPx, colours.ink);
  }
  if (paired) write(pen, page.runs[row.run].name, left - 8, row.y * rowPx, colours.faint, SMALL, "right");
}

function drawLaneNames(pen, lane, top) {
  write(pen, `device ${lane.device}`, 4, top + 10, colours.ink);
  if (paired) write(pen, page.runs[lane.run].name, 4, top + 26, colours.faint, SMALL);
  if (lane.isFirst) write(pen, `memory of ${page.runs[lane.run].name}`, left, top - 12, colours.ink, "bold " + FONT);
  write(pen, readableBytes(lane.peak), width - 2, top + 10, colours.faint, SMALL, "right");
  if (lane.limit === null) return;
  const ink = lane.peak > lane.limit ? colours.limit : colours.faint;
  write(pen, `of ${readableBytes(lane.limit)}`, width - 2, top + 25, ink, SMALL, "right");
}
