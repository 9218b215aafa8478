"""What mkdocs needs to know of a repository whose first documents lie beside docs/, not in it (see mkdocs.yml).

They become pages of the site, and links between them and the pages in docs/ are turned to where each lies there. Links
are written for readers of the repository; a link to a file that is no page stays a name.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "README.zh.md": "readme.zh.md",
}
_HOME = {page: name for name, page in BESIDE.items() if name != "README.md"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the documents beside docs/ as pages."""
    for page, name in _HOME.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Turn the links of a page, those in code left alone."""
    source = page.file.src_uri
    folder = posixpath.dirname(_HOME.get(source, f"docs/{source}"))

    def turned(link: re.Match[str]) -> str:
        mark, words, target, anchor = link[1], link[2], link[3], link[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        path = BESIDE.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(path) is None and (ROOT / folder / target).exists():
            return words
        return f"{mark}[{words}]({posixpath.relpath(path, posixpath.dirname(source) or '.')}{anchor})"

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(turned, part) for part in parts)
