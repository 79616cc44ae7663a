"""A browser without a window, for tests of pages: what a page has become, and what it said on its console."""

import re
import shutil

import pytest

from tests.processes import run

NAMES = ("chromium", "chromium-browser", "google-chrome")


def opened(page, folder, script=None):
    """Return the elements of a page, as text, and the lines of its console.

    Args:
        page: The file.
        folder: Where the browser keeps its profile, and the page with a script.
        script: Runs at the end of the page, which then has to do without its rule that allows no other scripts.
    """
    browser = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    if browser is None:
        pytest.skip(f"got no browser, expected {' or '.join(NAMES)}; try apt-get install chromium")
    if script is not None:
        text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
        page = folder / "driven.html"
        page.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900", "--enable-logging=stderr")
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update")
    end = (f"--user-data-dir={folder / 'browser'}", "--dump-dom")
    answer = run([browser, *options, *quiet, *end, page.as_uri()])
    assert "</html>" in answer.stdout, answer.stderr
    return answer.stdout, re.findall(r'CONSOLE[:(].*?"(.*)", source', answer.stderr)
