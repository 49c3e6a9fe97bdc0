"""Hooks of mkdocs: README is the first page, and links to the repository's other files lead to copies of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    text = (ROOT / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=text.replace('src="docs/', 'src="')))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to folders lead nowhere, as a site has none."""
    folder = ROOT if page.file.src_uri == "index.md" else ROOT / "docs"

    def linked(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = (folder / target.partition("#")[0]).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return f"[{text}]({target.removeprefix('docs/')})"
        if path.is_dir():
            return text
        if not path.is_file():
            return found[0]  # mkdocs complains
        address = f"files/{path.relative_to(ROOT)}.txt"
        if files.get_file_from_path(address) is None:
            files.append(File.generated(config, address, content=path.read_text()))
        return f"[{text}]({address})"

    return LINK.sub(linked, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Docstrings have Sphinx's roles, which editors know."""
    return re.sub(r":\w+:(?=<code)", "", html)
