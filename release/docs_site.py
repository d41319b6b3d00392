"""The site: docs/ and the package in, HTML pages in two languages out, searchable without a network.

`make docs` runs it: python release/docs_site.py build/site. It fails on broken links, on public names without
documentation, and on pages that would load anything from another host.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from docs_reference import pages, undocumented
from notebook_pages import notebook_page

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "build" / "docs"  # docs_dir of mkdocs.yml
# Pages of the site from files outside docs/.
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
_ENGLISH_ONLY = '!!! note "本页只有英文版。"'
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
# What a browser loads by itself when it opens a page; links that a reader clicks are not among them.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video|embed|track)\b[^>]*?\bsrc=["']?(?P<src>[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|prefetch|preconnect|icon|manifest|modulepreload)\b)"""
    r"""[^>]*?\bhref=["']?(?P<href>[^"'\s>]+)|\burl\(\s*["']?(?P<url>[^"')\s]+)|@import\s+["'](?P<rule>[^"']+)"""
)


def main(output: Path) -> int:
    """Build the site; print what is wrong and return the exit code."""
    lacking = undocumented()
    if lacking:
        print("docs: public, but not documented:", *lacking, sep="\n  ", file=sys.stderr)
        return 1
    stage(SOURCES)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(output.resolve())]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        return 1
    split_search_index(output)
    foreign = foreign_resources(output)
    if foreign:
        print("docs: pages that load something from another host:", *foreign, sep="\n  ", file=sys.stderr)
        return 1
    print(f"{output}: {len(list(output.rglob('*.html')))} pages; open {output / 'index.html'}")
    return 0


def stage(folder: Path) -> None:
    """Write the Markdown sources of all pages: docs/, the reference, the tutorials and a list of the decisions."""
    shutil.rmtree(folder, ignore_errors=True)
    docs = ROOT / "docs"
    shutil.copytree(docs, folder, ignore=shutil.ignore_patterns("*.ipynb", ".ipynb_checkpoints"))
    for page in folder.rglob("*.md"):
        page.write_text(site_links(page.read_text(encoding="utf-8"), page.parent, folder), encoding="utf-8")
    for name, page_name in ROOT_PAGES.items():
        if (ROOT / name).exists():
            text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
            (folder / page_name).write_text(site_links(text, folder, folder), encoding="utf-8")
    generated = {**pages(), "decisions/index.md": decisions_page(docs / "decisions")}
    for notebook in sorted(docs.rglob("*.ipynb")):
        page = notebook.relative_to(docs)
        generated[page.with_suffix(".md").as_posix()] = notebook_page(notebook)
        generated[page.with_suffix(".zh.md").as_posix()] = notebook_page(notebook, "zh")
    for path, text in generated.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    for page in [page for page in folder.rglob("*.md") if not page.name.endswith(".zh.md")]:
        chinese = page.with_suffix(".zh.md")
        if not chinese.exists():
            chinese.write_text(english_only(page.read_text(encoding="utf-8")), encoding="utf-8")


def english_only(text: str) -> str:
    """Return a page without translation for the Chinese site: below its title it says in Chinese that it is English."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{_ENGLISH_ONLY}\n{rest}"


def site_links(text: str, place: Path, folder: Path) -> str:
    """Return a page whose links lead to pages of the site; links to other files of the repository become text."""

    def site_link(match: re.Match[str]) -> str:
        target = match["target"].removeprefix("../") if match["target"].startswith("../") else match["target"]
        if target in ROOT_PAGES:
            return f"[{match['text']}]({'../' * len(place.relative_to(folder).parts)}{ROOT_PAGES[target]})"
        if match["target"] == "decisions":
            return f"[{match['text']}](decisions/index.md)"
        is_inside = "://" in match["target"] or folder in (place / match["target"]).resolve().parents
        return match[0] if is_inside and target != "LICENSE" else match["text"]

    return _LINK.sub(site_link, text)


def decisions_page(folder: Path) -> str:
    """Return the list of all decisions by their titles."""
    lines = ["# Decisions", "", "Each with its reason and what was measured.", ""]
    for path in sorted(folder.glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").split("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def split_search_index(site: Path) -> None:
    """Give the Chinese pages a search index of their own, so that a search finds the pages of its language.

    A page finds its index, and the pages in it, from the `base` of its settings. Opened from disk, it reads the script.
    """
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    prefix = "zh/"
    chinese = [page for page in index["docs"] if page["location"].startswith(prefix)]
    english = [page for page in index["docs"] if not page["location"].startswith(prefix)]
    chinese = [{**page, "location": page["location"].removeprefix(prefix)} for page in chinese]
    for folder, docs in ((site, english), (site / "zh", chinese)):
        text = json.dumps({**index, "docs": docs}, ensure_ascii=False, separators=(",", ":"))
        (folder / "search").mkdir(exist_ok=True)
        (folder / "search" / "search_index.json").write_text(text, encoding="utf-8")
        (folder / "search" / "search_index.js").write_text(f"var __index = {text}", encoding="utf-8")
    for page in (site / "zh").rglob("*.html"):
        base = "../" * (len(page.relative_to(site / "zh").parts) - 1) or "."
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(r'"base": "[^"]*"', f'"base": "{base.rstrip("/")}"', text, count=1), encoding="utf-8")


def foreign_resources(site: Path) -> list[str]:
    """Return each page and style sheet with an address on another host that a browser would load."""
    files = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css")]
    return [f"{path.relative_to(site)}: {address}" for path in files for address in _foreign(path.read_text("utf-8"))]


def _foreign(text: str) -> Iterator[str]:
    for match in _LOADED.finditer(text):
        address = next(group for group in match.groups() if group)
        if re.match(r"(?:https?:)?//", address):
            yield address


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
