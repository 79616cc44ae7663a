"""What Sphinx reads to build the site, from the top of the repository: ``make docs``."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from docs import site_pages

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = html_title = "pipesched"
author = "the pipesched authors"
project_copyright = author
release = version_of("pipesched")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "benchmarks/**.md", "notebooks/*", "*.md", "profiles/data/pipedream/README.md"]
exclude_patterns = [".*", "build", "out", "pipesched", "tests"]
source_suffix = {".md": "markdown", ".ipynb": "notebook"}
suppress_warnings = ["misc.highlighting_failure"]  # tables of CSV, and what commands print
smartquotes = False  # options have two dashes

myst_heading_anchors = 4
default_role = "code"
nitpicky = True
# names of other projects, for whose pages there is no network, and what is private
nitpick_ignore_regex = [("py:.*", r"(?!pipesched\.).*|.*\._\w+")]

napoleon_use_ivar = True
napoleon_custom_sections = [("Settings", "params_style")]
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True}
maximum_signature_line_length = 80
add_module_names = False

html_theme = "furo"
html_extra_path = ["start"]
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Add the pages that are made while the site is built."""
    app.add_source_parser(site_pages.NotebookParser)
    app.connect("autodoc-process-docstring", site_pages.keep_drawings, priority=400)  # before napoleon's
    app.connect("source-read", site_pages.have_one_title)
    app.connect("source-read", site_pages.add_generated)
