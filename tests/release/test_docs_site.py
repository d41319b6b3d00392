"""The site: links stay inside it, and no page loads anything from another host."""

import json
from pathlib import Path

from docs_site import ROOT, decisions_page, english_only, foreign_resources, site_links, split_search_index


def test_links_to_files_outside_the_site_become_text(tmp_path: Path):
    text = "[code](../tests/test_x.py), [license](LICENSE), [page](page.md#a), [web](https://example.org/x)"
    assert site_links(text, tmp_path, tmp_path) == "code, license, [page](page.md#a), [web](https://example.org/x)"


def test_links_to_root_pages_lead_to_their_copies(tmp_path: Path):
    assert site_links("[c](../CONTRIBUTING.md)", tmp_path, tmp_path) == "[c](contributing.md)"
    assert site_links("[c](../CHANGELOG.md)", tmp_path / "family", tmp_path) == "[c](../changelog.md)"


def test_every_decision_is_listed_by_its_title():
    folder = ROOT / "docs" / "decisions"
    page = decisions_page(folder)
    assert page.count("\n- [") == len(list(folder.glob("*.md")))
    assert "](01-own-wordpiece.md)" in page


def test_resources_of_other_hosts_are_found_and_links_are_not(tmp_path: Path):
    (tmp_path / "page.html").write_text(
        '<a href="https://example.org">link</a><script src="assets/a.js"></script><img src="//cdn.example.org/b.png">'
        '<link rel="canonical" href="https://example.org/"><link href="https://fonts.example.org/c" rel="stylesheet">'
    )
    (tmp_path / "style.css").write_text(
        "a { background: url(data:image/png;base64,AA) } @import 'http://example.org/d';"
    )
    assert foreign_resources(tmp_path) == [
        "page.html: //cdn.example.org/b.png",
        "page.html: https://fonts.example.org/c",
        "style.css: http://example.org/d",
    ]


def test_a_page_without_translation_says_so_in_chinese_below_its_title():
    assert english_only("# Results\n\nScores.\n") == '# Results\n\n!!! note "本页只有英文版。"\n\nScores.\n'


def test_each_language_has_its_own_search_index(tmp_path: Path):
    (tmp_path / "search").mkdir()
    (tmp_path / "zh" / "guides").mkdir(parents=True)
    (tmp_path / "zh" / "index.html").write_text('{"base": "..", "x": "../a.js"}')
    (tmp_path / "zh" / "guides" / "a.html").write_text('{"base": "../.."}')
    docs = [{"location": "a.html#b", "title": "B"}, {"location": "zh/a.html#b", "title": "乙"}]
    (tmp_path / "search" / "search_index.json").write_text(json.dumps({"config": {"lang": ["en"]}, "docs": docs}))
    split_search_index(tmp_path)
    english, chinese = (
        json.loads((tmp_path / folder / "search_index.json").read_text("utf-8")) for folder in ("search", "zh/search")
    )
    assert english == {"config": {"lang": ["en"]}, "docs": docs[:1]}
    assert chinese["docs"] == [{"location": "a.html#b", "title": "乙"}]
    script = (tmp_path / "zh" / "search" / "search_index.js").read_text("utf-8")
    assert json.loads(script.removeprefix("var __index = ")) == chinese
    assert (tmp_path / "zh" / "index.html").read_text() == '{"base": ".", "x": "../a.js"}'
    assert (tmp_path / "zh" / "guides" / "a.html").read_text() == '{"base": ".."}'
