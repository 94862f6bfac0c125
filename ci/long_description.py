"""Make the links of README.md absolute for a package index, and render what an index would show.

    python ci/long_description.py README.md REPOSITORY TAG       change README.md in place
    python ci/long_description.py --render SDIST PAGE.html       needs readme_renderer[md]

The second form fails if a link or picture of the page is relative: an index has no such file.
"""

from __future__ import annotations

import importlib
import re
import sys
import tarfile
from email import message_from_string
from pathlib import Path

# [text](target) and ![text](target); the texts of pictures in links may have brackets of their own.
_LINK = re.compile(
    r"(?P<mark>!?)(?P<text>\[(?:[^\[\]]|\[[^\[\]]*\]\([^()]*\))*\])\((?P<to>[^()\s]+)\)"
)
_TARGET = re.compile(r'(?:href|src)="([^"]*)"')


def absolute_links(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose relative links lead to the files of a tag in a repository."""

    def absolute(link: re.Match[str]) -> str:
        mark, inner, to = link["mark"], link["text"], link["to"]
        if not mark:
            inner = _LINK.sub(absolute, inner)
        if not is_absolute(to):
            # A page shows a file around it, a picture needs the file itself.
            kind = "raw" if mark else "blob"
            to = f"{repository.rstrip('/')}/{kind}/{tag}/{to}"
        return f"{mark}{inner}({to})"

    return _LINK.sub(absolute, text)


def is_absolute(target: str) -> bool:
    """Return whether a link needs no file beside the page; one to a heading of it does not."""
    return target.startswith(("https://", "http://", "mailto:", "#"))


def long_description(sdist: Path) -> str:
    """Return the long description that an sdist carries."""
    with tarfile.open(sdist) as archive:
        name = next(
            one for one in archive.getnames() if one.count("/") == 1 and one.endswith("PKG-INFO")
        )
        file = archive.extractfile(name)
        if file is None:
            raise ValueError(f"{sdist}: {name} is no file")
        with file:
            return str(message_from_string(file.read().decode()).get_payload())


def render(text: str) -> str:
    """Return the HTML that a package index shows for Markdown."""
    html = importlib.import_module("readme_renderer.markdown").render(text)
    if html is None:
        sys.exit("ordermq: the long description cannot be rendered")
    return str(html)


def main() -> None:
    if sys.argv[1:2] == ["--render"]:
        sdist, page = map(Path, sys.argv[2:])
        html = render(long_description(sdist))
        page.write_text(f'<!doctype html><meta charset="utf-8">\n{html}', encoding="utf-8")
        relative = [target for target in _TARGET.findall(html) if not is_absolute(target)]
        if relative:
            sys.exit(f"ordermq: relative links in the long description: {', '.join(relative)}")
        print(f"ordermq: {page.name}: {len(_TARGET.findall(html))} links, all absolute")
        return
    readme, repository, tag = sys.argv[1:]
    path = Path(readme)
    path.write_text(
        absolute_links(path.read_text(encoding="utf-8"), repository, tag), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
