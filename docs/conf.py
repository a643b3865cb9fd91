"""Sphinx's settings for the site: the repository's Markdown as it stands, and a page for each file that it links to.

`scripts/docs build` builds it; the checkout is Sphinx's source folder. Three things differ from what a forge shows: a
link to a file or folder of code leads to a page of the site, README.md, the guide and the examples get a table of
contents, and a notebook is a page of its text and code.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "mnist-cuda"
copyright = "the mnist-cuda authors"
extensions = ["myst_parser", "sphinx-mathjax-offline"]
root_doc = "README"
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
include_patterns = ["*.md", "docs/**.md", "examples/*.md", "examples/*.ipynb", "native/**.md"]
exclude_patterns = [".*", "build*", "dist", "runs", "sweeps", "tests"]
nitpicky = True
highlight_language = "text"
pygments_dark_style = "github-dark"
myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "code": None}
html_theme = "furo"
html_title = "mnist-cuda"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_use_index = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a7f37", "color-brand-content": "#1a7f37"},
    "dark_css_variables": {"color-brand-primary": "#3fb950", "color-brand-content": "#3fb950"},
}

CONTENTS = {  # below a page: a heading and its pages; a page that is in none of them is a warning
    "README": {
        "Learn": ["docs/guide/README", "docs/one-step", "docs/judge", "docs/teachers"],
        "Use": [
            *(
                "docs/install",
                "docs/commands",
                "docs/data",
                "docs/scripting",
                "docs/platforms",
                "examples/README",
                "docs/api",
            ),
            *("docs/operators", "docs/ranks", "docs/wheels"),
        ],
        "Understand": [
            *("docs/network", "native/README", "docs/ladder", "docs/emulator", "docs/debugging", "docs/fused"),
            *("native/gpu/kernels/fused/README", "docs/glossary"),
        ],
        "Compare and check": [
            *(
                "docs/benchmarks",
                "docs/peers",
                "docs/cards",
                "docs/mnist-99",
                "docs/trust",
                "docs/records/README",
                "docs/records/checks/README",
            ),
            *("docs/records/mutations/README", "docs/records/transcripts/README"),
        ],
        "The project": ["CONTRIBUTING", "CHANGELOG"],
    },
    "examples/README": {"": ["examples/start", "examples/kernels", "examples/seeds"]},
    "docs/guide/README": {
        "": [f"docs/guide/{path.stem}" for path in sorted((ROOT / "docs" / "guide").glob("[0-9]*.md"))]
    },
}
LINK = re.compile(r"(?<!!)(\[[^][]*\])\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
LARGEST = 250_000  # bytes of a file that is shown
linked: set[Path] = set()


def code_page(path: Path) -> str:
    """The name of the page of a file or folder."""
    return posixpath.join("code", path.relative_to(ROOT).as_posix())


def shown(path: Path) -> bool:
    """Whether it is text that a page can hold."""
    return path.stat().st_size <= LARGEST and b"\0" not in path.read_bytes()[:1000]


def as_markdown(notebook: str) -> str:
    """The cells of a notebook; those of code in the language that the first line says."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        language = "cuda" if text.startswith("%%judge") else "ipython"
        parts.append(text if cell["cell_type"] == "markdown" else f"```{language}\n{text}\n```")
    return "\n\n".join([*parts, "*This page is a notebook, without what its cells print.*"])


def adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to code become code:PATH, which `resolve` finishes; the contents follow the text."""
    folder = (ROOT / page).parent
    if app.env.doc2path(page).suffix == ".ipynb":
        source[0] = as_markdown(source[0])

    def adapted(link: re.Match[str]) -> str:
        words, name, line = link.groups()
        target = (folder / name).resolve()
        if not target.exists() or target.suffix in {".md", ".ipynb", ".svg", ".png"}:
            return link[0]  # a page, a picture, or a mistake of which Sphinx warns
        linked.add(target)
        return f"{words}(code:{target.relative_to(ROOT).as_posix()}{line or ''})"

    source[0] = LINK.sub(adapted, source[0])
    for heading, pages in CONTENTS.get(page, {}).items():
        caption = f":caption: {heading}\n" if heading else ""
        source[0] += f"\n```{{toctree}}\n:hidden:\n{caption}\n" + "".join(f"/{name}\n" for name in pages) + "```\n"


def resolve(app: Sphinx, document: nodes.document, page: str) -> None:
    """code:PATH becomes the address of that file's page."""
    for link in document.findall(nodes.reference):
        path, _, line = link.get("refuri", "").partition("#")
        if path.startswith("code:"):
            target = code_page(ROOT / path.removeprefix("code:"))
            link["refuri"] = app.builder.get_relative_uri(page, target) + (f"#{line}" if line else "")
            link["internal"] = True


def numbered(path: Path) -> str:
    """The file as HTML, each line with an anchor, L1 and so on."""
    text = path.read_text()
    try:
        lexer = get_lexer_for_filename(path.name)
        if path.suffix in {".json", ".csv"}:
            raise ClassNotFound("records are shown as they are")
        text = highlight(text, lexer, HtmlFormatter(nowrap=True))
    except ClassNotFound:
        text = escape(text)
    lines = "\n".join(
        f'<a class="line" id="L{n}" href="#L{n}">{n:4}</a> {line}' for n, line in enumerate(text.splitlines(), 1)
    )
    return f'<div class="highlight source"><pre>{lines}\n</pre></div>'


def code_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that a page links to, and for each folder, with those of its files."""
    folders = {path for path in linked if path.is_dir()}
    inside = {
        folder: [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
        for folder in folders
    }
    files = {path for path in linked if path.is_file()}.union(*inside.values())
    for path in sorted(files | folders):
        name = path.relative_to(ROOT).as_posix()
        if path in folders:
            rows = [
                f'<li><a href="{app.builder.get_relative_uri(code_page(path), code_page(file))}">'
                f"{escape(file.relative_to(path).as_posix())}</a></li>"
                if shown(file)
                else f"<li>{escape(file.relative_to(path).as_posix())}</li>"
                for file in inside[path]
            ]
            body = f"<ul>{''.join(rows)}</ul>"
        elif shown(path):
            body = numbered(path)
        else:
            raise ValueError(f"a page links to {name}, which is no text of at most {LARGEST} bytes")
        yield code_page(path), {"title": name, "body": f"<h1>{escape(name)}</h1>\n{body}"}, "page.html"


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.connect("source-read", adapt)
    app.connect("doctree-resolved", resolve)
    app.connect("html-collect-pages", code_pages)
