"""Predictions of published training runs beside their measurements: seconds, peak memory, fits or fails.

    python benchmarks/published.py [--rows FILE.csv] [--json OUT.json] [--out benchmarks/results/published.md]
    python benchmarks/published.py --table notebooks/published/predictions.csv
    python benchmarks/published.py --source nanotron --every 10

The program also writes the errors by family of GPUs for the outputs of estimates (profiles/data/published), beside
the page of the default rows.

Every row of a table of published runs is predicted from its configuration alone. The page has the errors of each
source, the order of comparable settings, the largest errors, and the documented software of each source. With
`--source` or `--every` the program predicts a part of the rows, prints their errors by source, and writes no page.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from published_rows.comparison import Compared
from published_rows.families import errors_text, family_errors
from published_rows.page import error_lines, page, table_lines
from published_rows.prediction import predict
from published_rows.row import PublishedRun, read_rows
from report import arguments_of, show

from pipesched.profiles.io import ESTIMATE_ERRORS

ROWS = Path(__file__).parent / "data" / "published_runs.csv"
PAGE = Path(__file__).parent / "results" / "published.md"


def main() -> int:
    parser = arguments_of(__doc__)
    parser.set_defaults(out=PAGE)
    parser.add_argument("--rows", type=Path, default=ROWS, help="CSV file with the columns of the default table")
    parser.add_argument("--json", type=Path, help="write the prediction of each row here")
    parser.add_argument("--table", type=Path, help="write measured and predicted numbers of each row here (CSV)")
    parser.add_argument("--source", default="", help="first part of the names of the rows to predict, as nanotron")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="predict every N-th row")
    arguments = parser.parse_args()
    is_whole = not arguments.source and arguments.every == 1
    try:
        rows = read_rows(arguments.rows)
    except (OSError, ValueError) as error:
        parser.error(f"--rows: {error}")
    if arguments.every < 1:
        parser.error(f"--every: got {arguments.every}, expected at least 1; try --every 10")
    rows = [row for row in rows if row.id.startswith(arguments.source)][:: arguments.every]
    if not rows:
        got = f"{arguments.source!r}, no row of {arguments.rows.name}"
        parser.error(f"--source: got {got}, expected the first part of a row's name; try nanotron")
    begun_s = time.monotonic()
    predictions = [predict(row) for row in rows]
    taken_s = time.monotonic() - begun_s
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(prediction) for prediction in predictions], indent=1) + "\n")
    pairs = list(zip(rows, predictions, strict=True))
    compared = [Compared(row, prediction) for row, prediction in pairs if isinstance(row, PublishedRun)]
    if arguments.table:
        arguments.table.write_text("\n".join(table_lines(compared)) + "\n")
    unread = [prediction for row, prediction in pairs if not isinstance(row, PublishedRun)]
    if not is_whole:
        print(*error_lines("All rows", compared), sep="\n")
        return 0
    command = "published.py" if arguments.rows == ROWS else f"published.py --rows {arguments.rows.name}"
    show(page(compared, unread, command, taken_s), arguments.out)
    if arguments.rows == ROWS and arguments.out == PAGE:
        errors = family_errors([row for row in compared if not row.run.is_fitted])
        ESTIMATE_ERRORS.write_text(errors_text(errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
