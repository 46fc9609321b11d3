#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The site of docs/: a preprocessor of mdBook, and a check of what it wrote.

site.py supports RENDERER      (mdBook asks this) yes
site.py                        the preprocessor: reads a book from standard input, and writes it with the site's links
site.py check FOLDER PAGES     every link of the pages in FOLDER leads to a file and an anchor there, every page of PAGES
                               (docs/) is one of them, and paths below deploy/ in their code are those of a checkout

A page links to files of the repository that are not on the site. If Cargo.toml has a `repository`, these links lead
there; otherwise only their text remains. README.md becomes the first page.
"""

import html.parser
import json
import pathlib
import posixpath
import re
import sys
import tomllib
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?P<start>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<target>[^()\s]+)\)")
# paths, but no URLs
DEPLOY = re.compile(r"(?<![\w./:-])[\w./-]*\bdeploy/[\w./-]*")
CODE = re.compile(r"^```.*?^```[^\n]*$|`[^`\n]+`", re.M | re.S)


def moved(target: str, folder: str, repository: str | None) -> str | None:
    """The target of a link on the site, for a page in a folder of the repository. None if it has none."""
    if re.match(r"[a-z]+:|#", target):
        return target
    path, mark, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(folder, path))
    if path.startswith("docs/") and (ROOT / path).is_file() and path != "docs/SUMMARY.md":
        page = re.sub(r"(^|/)README\.md$", r"\1index.md", path.removeprefix("docs/"))
    elif path == "README.md":
        page = "index.md"
    else:
        return f"{repository.rstrip('/')}/blob/main/{path}{mark}{anchor}" if repository else None
    here = "" if folder == "." else folder.removeprefix("docs").lstrip("/")
    return posixpath.relpath(page, here or ".") + mark + anchor


def rewrite(text: str, folder: str, repository: str | None) -> str:
    def replace(match: re.Match[str]) -> str:
        target = moved(match["target"], folder, repository)
        return match["start"][1:-1] if target is None else f"{match['start']}({target})"

    # links in code are examples
    parts, at = [], 0
    for code in CODE.finditer(text):
        # but a link may have code in its text
        parts.append((text[at : code.start()], code[0]))
        at = code.end()
    hidden = "".join(f"{before}\0{number}\0" for number, (before, _) in enumerate(parts)) + text[at:]
    done = LINK.sub(replace, hidden)
    return re.sub("\0(\\d+)\0", lambda match: parts[int(match[1])][1], done)


def chapters(items: list) -> list[dict]:
    found = [item["Chapter"] for item in items if isinstance(item, dict) and "Chapter" in item]
    return found + [sub for chapter in found for sub in chapters(chapter["sub_items"])]


def preprocess() -> None:
    _, book = json.load(sys.stdin)
    repository = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"].get("repository")
    for chapter in chapters(book["items"]):
        if chapter["path"] is None:
            continue
        source = posixpath.normpath(posixpath.join("docs", chapter["source_path"]))
        if source == "README.md":
            chapter["path"] = "index.md"
        chapter["content"] = rewrite(chapter["content"], posixpath.dirname(source) or ".", repository)
    json.dump(book, sys.stdout)


class Page(html.parser.HTMLParser):
    """Links and anchors of a page, and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name == "href" and tag == "a":
                self.links.append(value or "")
            elif name == "src" or (name == "href" and tag == "link"):
                self.loads.append(value or "")


def check(site: pathlib.Path, docs: pathlib.Path) -> list[str]:
    pages = {path.relative_to(site).as_posix(): Page(path.read_text()) for path in site.rglob("*.html")}
    wrong = []
    for page in docs.rglob("*.md"):
        for code in CODE.finditer(page.read_text()):
            for path in DEPLOY.findall(code[0]):
                if not path.removeprefix("./").startswith("deploy/") or not (ROOT / path).exists():
                    wrong.append(f"{page} has the path {path}, which a checkout lacks")
        name = page.relative_to(docs).with_suffix(".html").as_posix().replace("README.html", "index.html")
        if page.name != "SUMMARY.md" and name not in pages:
            wrong.append(f"{name} is missing")
    count = 0
    for name, page in pages.items():
        # the page for missing files is served below any path
        if name == "404.html":
            continue
        wrong += [f"{name} loads {target} from elsewhere" for target in page.loads if re.match(r"(https?:)?//", target)]
        for target in page.links + page.loads:
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            to = posixpath.join(posixpath.dirname(name), urllib.parse.unquote(path))
            to = posixpath.normpath(to) if path else name
            count += 1
            if not (site / to).is_file():
                wrong.append(f"{name} links to {target}, which the site lacks")
            elif anchor and to in pages and urllib.parse.unquote(anchor) not in pages[to].anchors:
                wrong.append(f"{name} links to {target}, and {to} has no such anchor")
    index = next(site.glob("searchindex*.js")).read_text()
    for name in pages:
        if name not in ("404.html", "print.html", "toc.html") and f"{name}#" not in index:
            wrong.append(f"{name} cannot be found by the search")
    print(f"site: {len(pages)} pages, {count} links")
    return wrong


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    if sys.argv[1:2] == ["check"]:
        sys.exit("\n".join(check(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))) or None)
    preprocess()
