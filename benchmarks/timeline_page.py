"""The frames per second of a page of Timelines while it is panned, in a browser without a window.

    python benchmarks/timeline_page.py [--ranks 32] [--microbatches 1600] [--out benchmarks/results/timeline_page.md]

The benchmark needs chromium (apt-get install chromium). The page draws the boxes of 1F1B, two per rank and micro-batch,
with memory, idle time by cause and the critical path. There is no graphics card: the browser's own processes paint
every pixel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from signal import SIGKILL
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from report import arguments_of, provenance, show

import pipesched

PARTS = (1.0, 0.3, 0.1, 0.01)
"""Visible parts of the makespan during the panning."""
DRIVE = """
(async () => {
  const nextFrame = () => new Promise(requestAnimationFrame), results = [];
  for (const what of ["rows", "rows, causes, path", "memory"]) for (const part of PARTS) {
    showIdle.checked = showPath.checked = what.includes("path");
    window.scrollTo(0, what === "memory" ? lanes[0].top : 0);
    show(0.3 * page.end * (1 - part), page.end * part);
    for (let k = 0; k < 5; k++) await nextFrame();
    const draws = [], begun = performance.now(), seconds = 3000;
    let frames = 0;
    while (performance.now() - begun < seconds) {
      view.from += 0.004 * (view.to - view.from) * (frames % 60 < 30 ? 1 : -1);
      view.to = view.from + page.end * part;
      const before = performance.now();
      draw();
      draws.push(performance.now() - before);
      await nextFrame();
      frames++;
    }
    results.push({ part, what, rate: 1000 * frames / (performance.now() - begun), draws });
  }
  await fetch("/results", { method: "POST", body: JSON.stringify(results) });
})();
"""


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--microbatches", type=int, default=1600)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    costs = pipesched.DeviceCost(0.001, 0.002, weight_bytes=10**6, saved_bytes=10**6, output_bytes=10**6)
    counts = {"num_ranks": arguments.ranks, "num_microbatches": arguments.microbatches}
    result = pipesched.simulate(pipesched.build("1f1b", **counts), costs)
    with TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        begun_s = time.perf_counter()
        pipesched.gantt(result).save(path)
        written_s = time.perf_counter() - begun_s
        rows = frames_of(path, Path(folder))
        size = path.stat().st_size
    boxes = 2 * arguments.ranks * arguments.microbatches
    command = f"--ranks {arguments.ranks} --microbatches {arguments.microbatches}"
    show(report(command, load, boxes, size, written_s, rows), arguments.out)


def report(
    command: str, load: float, boxes: int, size: int, written_s: float, rows: list[dict[str, Any]]
) -> Iterator[str]:
    """Yield the lines of the report."""
    yield "# A page of Timelines, panned"
    yield ""
    yield from provenance(f"timeline_page.py {command}", load, "chromium without a graphics card, 1400 x 900")
    yield f"{boxes:,} boxes with memory: {size / 1e6:.1f} MB, written in {written_s:.0f} s after the simulation."
    yield ""
    yield "| shown of the makespan | content in view | frames per second | a drawing, median | slowest of 20 |"
    yield "|---|---|---|---|---|"
    for row in rows:
        draws = sorted(row["draws"])
        cells = (f"{row['part']:.1%}", row["what"], f"{row['rate']:.0f}")
        yield f"| {' | '.join(cells)} | {median(draws):.1f} ms | {draws[len(draws) * 19 // 20]:.1f} ms |"


def frames_of(path: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the browser's measurement at each part of the makespan."""
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("timeline_page.py: got no chromium, expected it; try apt-get install chromium")
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text(encoding="utf-8"))
    script = DRIVE.replace("PARTS", json.dumps(PARTS))
    driven = text.replace("</body>", f"<script>{script}</script></body>").encode()
    results: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(driven)

        def do_POST(self) -> None:
            results.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing for each request."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900")
        address = f"http://127.0.0.1:{server.server_port}/"
        profile = f"--user-data-dir={folder / 'browser'}"
        process = subprocess.Popen(
            [browser, *options, profile, "--remote-debugging-port=0", address],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while not results:
                server.handle_request()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)
            process.wait()
    return results


if __name__ == "__main__":
    main()
