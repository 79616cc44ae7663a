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
  seen = window.matchMedia("print").matches ? [0, height] : [-top - 40, window.innerHeight - top + 40];
  pen.clearRect(0, 0, width, height);
  page.headings.forEach((y, run) => write(pen, page.runs[run].heading, left, y * rowPx, colours.ink, "bold " + FONT));
  pen.save();
  pen.beginPath();
  pen.rect(left - 1, 0, width - left - RIGHT + 3, height);
  pen.clip();
  const texts = [];
  for (const row of page.rows) if (isSeen(...edges(row))) drawRow(pen, row, texts);
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
  write(pen, unit, width - RIGHT + 8, AXIS - 14, colours.faint, SMALL);
}

function drawRow(pen, row, texts) {
  const [top, bottom] = edges(row), run = page.runs[row.run];
  pen.fillStyle = colours.idle;
  pen.fillRect(x(0), top, run.end * scale, bottom - top);
  if (showIdle.checked) drawSpans(pen, run.idle[row.device], top, bottom - top, page.causes, "cause", STRIP);
  drawBoxes(pen, row, top, bottom - top, texts);
  pen.fillStyle = colours.ink;
  pen.fillRect(Math.round(x(run.end)), top - 2, 1.5, bottom - top + 4);
}

/** Draw what is visible of idle time, in a strip that is not taken for boxes; what lies within a pixel is skipped. */
function drawSpans(pen, spans, top, high, looks, key, share) {
  const kinds = spans[key], y = top + high * (1 - share) / 2;
  for (let i = above(spans.until, view.from), last = -Infinity; i < spans.width.length && spans.start[i] < view.to; i++) {
    const x0 = x(spans.start[i]), x1 = x(spans.end[i]);
    if (x1 <= last) continue;
    pen.fillStyle = looks[kinds[i]][1];
    pen.fillRect(x0, y, Math.max(0.7, x1 - x0), high * share);
    last = Math.max(x1, Math.floor(x0) + 1);
  }
}

/** Draw the visible boxes of a row: those narrower than a pixel together, as the longest of them is coloured. */
function drawBoxes(pen, row, top, high, texts) {
  const { start, end, look, half, microbatch } = row, n = start.length;
  const batches = new Map();  // colour -> rectangles: a change of colour is dear
  const put = (kind, isFaded, x0, x1, y, tall) => {
    const key = 2 * kind + isFaded;
    if (!batches.has(key)) batches.set(key, []);
    batches.get(key).push(x0, y, x1 - x0, tall);
  };
  let pixel = NaN, longest = 0, kind = 0, faded = 0, runX = NaN, runEnd = NaN, runKey = -1;
  const flushRun = () => { if (runKey >= 0) put(runKey >> 1, runKey & 1, runX, runEnd, top, high); runKey = -1; };
  const flushPixel = () => {
    if (pixel !== pixel) return;
    const key = 2 * kind + faded;
    if (key !== runKey || runEnd !== pixel) { flushRun(); runX = pixel; runKey = key; }
    runEnd = pixel + 1;
    pixel = NaN;
  };
  for (let i = above(row.until, view.from); i < n && start[i] < view.to; i++) {
    const x0 = x(start[i]), x1 = x(end[i]), isFaded = marked && !isMarked(row, i) ? 1 : 0;
    if (x1 - x0 < 1) {
      if (Math.floor(x0) !== pixel) { flushPixel(); pixel = Math.floor(x0); longest = 0; faded = 1; }
      if (isFaded < faded || (isFaded === faded && x1 - x0 > longest)) { longest = x1 - x0; kind = look[i]; faded = isFaded; }
      continue;
    }
    flushPixel();
    flushRun();
    const tall = half[i] ? high / 2 : high, y = half[i] === 2 ? top + tall : top, seam = x1 - x0 > 3 ? 0.6 : 0;
    put(look[i], isFaded, x0, x1 - seam, y, tall - (half[i] ? 0.5 : 0));
    const text = microbatch[i] < 0 ? "" : String(microbatch[i]);
    if (text && x1 - x0 > 5 + 6.6 * text.length && tall >= 9 && texts.length <= MOST_TEXTS) {
      const middle = (Math.max(x0, left) + Math.min(x1, width - RIGHT)) / 2;
      texts.push([text, middle, y + tall / 2, page.looks[look[i]].dark && !isFaded ? colours.paper : colours.ink]);
    }
  }
  flushPixel();
  flushRun();
  for (const [key, rectangles] of batches) {
    pen.fillStyle = page.looks[key >> 1].colour;
    pen.globalAlpha = key & 1 ? 0.2 : 1;
    for (let k = 0; k < rectangles.length; k += 4) pen.fillRect(rectangles[k], rectangles[k + 1], rectangles[k + 2], rectangles[k + 3]);
  }
  pen.globalAlpha = 1;
}

const isMarked = (row, i) => row[marked.key][i] === marked.value;

function drawPath(pen, run, index) {
  const path = run.path, byRank = new Map(page.rows.filter(row => row.run === index).map(row => [row.rank, row]));
  pen.strokeStyle = pen.fillStyle = colours.ink;
  pen.lineWidth = 1.6;
  for (let i = above(path.until, view.from); i < path.width.length && path.start[i] < view.to; i++) {
    const a = byRank.get(path.from[i]), b = byRank.get(path.to[i]);
    const [x0, x1] = [x(path.start[i]), x(path.end[i])], y0 = edges(a)[1] - 1.5, y1 = edges(b)[1] - 1.5;
    pen.setLineDash(path.kind[i] === "wait" ? [2, 3] : []);
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.lineWidth = a === b && path.kind[i] !== "wait" ? 3.5 : 1.6;
    pen.stroke();
    const next = path.from[i + 1];
    if (next !== undefined && next !== path.to[i]) line(pen, x1, y1, x1, edges(byRank.get(next))[1] - 1.5);
  }
  pen.setLineDash([]);
}

function line(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

/** Frame the box under the pointer, and draw a line from the box on another rank that it needed something of. */
function drawHover(pen) {
  const { row, box } = hovered, [top, bottom] = edges(row);
  if (box === undefined) return;
  pen.strokeStyle = colours.ink;
  pen.lineWidth = 1.6;
  pen.strokeRect(x(row.start[box]), top, Math.max(1, row.width[box] * scale), bottom - top);
  const maker = boxAt(row.after[box]);
  if (maker) {
    const y0 = maker.row.y < row.y ? edges(maker.row)[1] : edges(maker.row)[0];
    line(pen, x(maker.row.end[maker.box]), y0, x(row.start[box]), maker.row.y < row.y ? top : bottom);
    pen.strokeRect(x(maker.row.start[maker.box]), edges(maker.row)[0], Math.max(1, maker.row.width[maker.box] * scale), bottom - top);
  }
}

function boxAt(number) {
  if (number < 0) return null;
  const row = page.rows.findLast(row => row.first <= number);
  return { row, box: number - row.first };
}

function drawLane(pen, lane, top) {
  pen.fillStyle = colours.idle;
  pen.fillRect(x(0), top, page.runs[lane.run].end * scale, LANE);
  const high = bytes => LANE * bytes / (1.08 * mostBytes), n = lane.time.length;
  for (let i = Math.max(0, above(lane.time, view.from) - 1); i < n && lane.time[i] <= view.to; i++) {
    const x0 = Math.round(Math.max(left, x(lane.time[i])));
    let most = i;  // of the instants within a pixel, that at which most is held
    while (i + 1 < n && x(lane.time[i + 1]) < x0 + 1) if (lane.total[++i] > lane.total[most]) most = i;
    const x1 = Math.round(Math.min(width - RIGHT, x(i + 1 < n ? lane.time[i + 1] : page.runs[lane.run].end)));
    for (let kind = 0, y = top + LANE; kind < page.kinds.length; kind++) {
      const tall = high(lane.bytes[kind][most]);
      pen.fillStyle = page.kinds[kind][1];
      pen.fillRect(x0, y -= tall, Math.max(1, x1 - x0), tall);
    }
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
  if (lane.limit !== null) write(pen, `of ${readableBytes(lane.limit)}`, width - 2, top + 25, colours.limit, SMALL, "right");
}
