"""Adds pages of the repository outside `docs` to the site, and fixes links to them.

Links are written so that they work in the repository: `../../SECURITY.md`, or a folder. The site
has every page of `docs`, the documents in `DOCUMENTS`, and everything that those link to,
recursively. A Markdown file becomes a page; any other file is copied. `mkdocs.yml` refers to this
file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP = Path(__file__).resolve().parents[1]
DOCUMENTS = {
    "README.md": "overview.md",
    "ARCHITECTURE.md": "architecture.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.DOTALL | re.MULTILINE)

log = get_plugin_logger("repository")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents, and the files that pages link to."""
    for document in DOCUMENTS:
        files.append(_file(document, config))
    todo = [file for file in files if file.is_documentation_page()]
    while todo:
        page = todo.pop()
        for target in _targets(page.content_string, _path(page.src_uri)):
            if files.get_file_from_path(_uri(target)) is None:
                files.append(_file(target, config))
                if target.endswith(".md"):
                    todo.append(files.src_uris[_uri(target)])
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns repository links into links of the site."""
    here = _path(page.file.src_uri)

    def site(match: re.Match[str]) -> str:
        target = _target(match[1], here)
        if target is None:
            log.warning(f"{here}: there is no `{match[1]}`")
            return match[1]
        return posixpath.relpath(_uri(target), posixpath.dirname(page.file.src_uri) or ".")

    return _outside_of_code(markdown, lambda text: LINK.sub(site, text))


def _targets(markdown: str, here: str) -> Iterator[str]:
    found: list[str] = []
    _outside_of_code(markdown, lambda text: found.extend(LINK.findall(text)) or text)
    for link in found:
        target = _target(link, here)
        if target is not None:
            yield target


def _target(link: str, here: str) -> str | None:
    """The file that a link in the repository refers to; for a folder, its README."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    if (TOP / path).is_dir():
        path = f"{path}/README.md"
    return path if (TOP / path).is_file() and not path.startswith("..") else None


def _file(path: str, config: MkDocsConfig) -> File:
    return File.generated(config, _uri(path), abs_src_path=str(TOP / path))


def _uri(path: str) -> str:
    """The URI of a repository file on the site."""
    return DOCUMENTS.get(path) or path.removeprefix("docs/")


def _path(uri: str) -> str:
    """The repository file behind a URI of the site."""
    documents = {uri: path for path, uri in DOCUMENTS.items()}
    return documents.get(uri) or (f"docs/{uri}" if (TOP / "docs" / uri).exists() else uri)


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*pieces, change(markdown[end:])])
