"""Build steps of the documentation's site: pages made of files beside docs/, and links to code.

mkdocs calls these functions (mkdocs.yml). The pages in docs/ are written to be read in a checkout,
where a link may lead to a test or a source file; the site has no such files.
"""

from __future__ import annotations

import json
import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Files of the project that are pages of the site, and their names there.
PAGES = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh-CN.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_EXAMPLES = "examples.md"
# The language of each file of examples/ that the site shows, by ending or name.
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".conf": "properties", "Dockerfile": "docker"}
_CODE = re.compile(r"`([^`\n]+)`")
_TAG = re.compile(r"(<[^>]*>)")
_PAGE_NAME = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")
_CJK = "\u3000-\u30ff\u3400-\u9fff\uff00-\uffef"
_CHINESE_BREAK = re.compile(rf"(?<=[{_CJK}])\n *(?=[{_CJK}])")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)((?: \"[^\"]*\")?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose text lies elsewhere."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=_moved((ROOT / source).read_text())))
    files.append(File.generated(config, _EXAMPLES, content=_examples()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make plain text of links that leave the site, and show the pipes of code in tables."""
    folder = posixpath.dirname(page.file.src_uri)

    def resolved(found: re.Match[str]) -> str:
        text, target, _ = found.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found[0]
        place = posixpath.normpath(posixpath.join(folder, path))
        if not place.startswith(".."):
            return found[0]
        outside = place.removeprefix("../")
        if outside in PAGES:
            return f"[{text}]({posixpath.relpath(PAGES[outside], folder)}{hash_}{anchor})"
        if outside.startswith("examples/"):
            name = posixpath.basename(outside)
            return f"[{text}]({posixpath.relpath(_EXAMPLES, folder)}#{_anchor(name)})"
        return text

    text = _LINK.sub(resolved, _with_pipes(markdown))
    return joined_chinese(text) if page.file.src_uri.startswith("zh-CN") else text


def joined_chinese(markdown: str) -> str:
    """Return the text without the line breaks between Chinese characters, which show as blanks."""
    parts = markdown.split("```")
    # Every other part is code, which keeps its lines.
    parts[::2] = [_CHINESE_BREAK.sub("", part) for part in parts[::2]]
    return "```".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links of the pages that docstrings name, as `docs/order.md#failures`."""
    if not page.file.src_uri.startswith("api/"):
        return html
    return linked_pages(html)


def linked_pages(html: str) -> str:
    """Return the HTML of a page in api/ with links in place of the names of pages."""

    def link(found: re.Match[str]) -> str:
        name, anchor = found[1], found[2] or ""
        return f'<a href="../{name}.html{anchor}">{name.rpartition("/")[2]}</a>'

    # In attributes of tags the names stay as they are.
    return "".join(
        part if part.startswith("<") else _PAGE_NAME.sub(link, part) for part in _TAG.split(html)
    )


def _with_pipes(markdown: str) -> str:
    """Return the text with `a \\| b` of its tables written so that Python-Markdown shows a pipe.

    GitHub takes the backslash away; Python-Markdown shows it where it stands in code.
    """

    # Every piece of code is matched: a pipe between two of them is in none.
    def shown(found: re.Match[str]) -> str:
        if "\\|" not in found[1]:
            return found[0]
        text = escape(found[1].replace("\\|", "|")).replace("|", "&#124;")
        return f"<code>{text}</code>"

    lines = markdown.split("\n")
    return "\n".join(_CODE.sub(shown, line) if line.startswith("|") else line for line in lines)


def _moved(text: str) -> str:
    """Return the text of a page at the top of the project, as one in docs/."""

    def moved(found: re.Match[str]) -> str:
        text, target, title = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        place = target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
        return f"[{text}]({place}{title})"

    return _LINK.sub(moved, text)


def _examples() -> str:
    parts = ["# Examples\n\nWhole programs of the folder `examples`.\n"]
    for path in sorted((ROOT / "examples").rglob("*")):
        language = _LANGUAGES.get(path.suffix or path.name)
        if path.suffix == ".ipynb":
            parts.append(f"## {path.name}\n\n{_notebook(path)}")
        elif language is not None and path.is_file():
            parts.append(f"## {path.name}\n\n```{language}\n{path.read_text()}```\n")
    return "\n".join(parts)


def _notebook(path: Path) -> str:
    """Return the cells of a notebook as Markdown, without what they printed and without titles."""
    cells = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        code = f"```python\n{text}\n```"
        cells.append(code if cell["cell_type"] == "code" else text.lstrip("# "))
    return "\n\n".join(cells) + "\n"


def _anchor(name: str) -> str:
    return re.sub(r"[^\w -]", "", name).lower().replace(" ", "-")


def on_config(config: MkDocsConfig) -> Any:
    """Let the API pages import the package of this checkout."""
    config.plugins["mkdocstrings"].config.handlers.setdefault("python", {}).setdefault(
        "paths", [str(ROOT)]
    )
    return config
