"""Each format: documents and counts of a small file written by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertworks.errors import InputError, MissingDependencyError
from bertworks.text.document import Counts, RawDocument
from bertworks.text.formats.markdown import plain_text
from bertworks.text.formats.wiki_markup import prose
from bertworks.text.formats.wikitext import detokenize
from bertworks.text.sources import ReadSettings, TextSource, blocks, read


def read_all(path: Path | str, settings: ReadSettings | None = None) -> tuple[list[RawDocument], Counts]:
    counts = Counts()
    units = blocks([TextSource(str(path))], settings or ReadSettings())
    return [document for block in units for document in read(block, counts)], counts


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_plain_text_documents_are_separated_by_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "notes.txt", "\nOne line\nand more words\r\n \nTwo\n\n\n\nThree words here\n")
    documents, counts = read_all(path)
    assert documents == [
        RawDocument("One line\nand more words", "notes.txt:2", "paragraphs"),
        RawDocument("Two", "notes.txt:5", "paragraphs"),
        RawDocument("Three words here", "notes.txt:9", "paragraphs"),
    ]
    assert not counts


def test_wrapped_text_documents_are_separated_by_two_empty_lines(tmp_path: Path) -> None:
    chapter = (
        "It was a bright cold day in April and the clocks were all\n"
        "striking thirteen while he slipped quickly through the big\n"
        "doors.\n\n"
        "The hallway smelt of boiled cabbage and of very old mats of\n"
        "rag, and at one end of it a coloured poster was on the wall.\n"
    )
    documents, _ = read_all(write(tmp_path / "book.txt", chapter + "\n\n" + chapter))
    assert documents == [
        RawDocument(chapter.strip(), "book.txt:1", "wrapped"),
        RawDocument(chapter.strip(), "book.txt:9", "wrapped"),
    ]


def test_lines_setting_overrides_detection(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "One line\nand more\n")
    assert read_all(path, ReadSettings(lines="sentences"))[0][0].lines == "sentences"


MARKDOWN = """---
title: A page
---
# Heading

A _fine_ day with **bold *and* words**, `code` and [a link](http://x.y/z_(1)) to
snake_case_name.

Second
------

![A cat](cat.png) sat. <!-- hidden
words --> A\\*star, 3 * 4 * 5.<br>

```python
# not a heading
```

| a | b |
|---|---|
| 1 | 2 |

> Quoted words.

- one
- two

***

[1]: http://x.y
~~~
open code
"""


def test_markdown_keeps_running_text_and_counts_what_it_drops(tmp_path: Path) -> None:
    documents, counts = read_all(write(tmp_path / "page.md", MARKDOWN))
    text = (
        "A fine day with bold and words, code and a link to\nsnake_case_name.\n\n"
        "A cat sat.  A*star, 3 * 4 * 5.\n\nQuoted words.\n\none\n\ntwo"
    )
    assert documents == [RawDocument(text, "page.md", "wrapped")]
    assert counts == {
        "front matter dropped": 1,
        "headings dropped": 2,
        "HTML comments dropped": 1,
        "code blocks dropped": 2,
        "tables dropped": 1,
        "link targets dropped": 1,
    }


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("__init__ and _it_", "init and it"),
        ("a_b_c stays", "a_b_c stays"),
        ("**A**: b", "A: b"),
        ("*x* * y", "x * y"),
        ("``a ` b``", "a ` b"),
        ("[t][ref] and [^1]note", "t and note"),
        ("#hashtag stays", "#hashtag stays"),
        ("fish &amp; chips", "fish & chips"),
        ("-------", ""),
        ("_never closed", "_never closed"),
    ],
)
def test_markdown_markup_is_removed(markup: str, text: str) -> None:
    assert plain_text(markup, Counts()) == text


WIKITEXT = (
    " \n = First Page = \n \n It is 5 % <unk> , he said . \n \n = = Part = = \n \n More text . \n"
    " = Second = \n \n Text @-@ two . \n"
)


def test_wikitext_is_detected_and_yields_one_document_per_article(tmp_path: Path) -> None:
    documents, counts = read_all(write(tmp_path / "wiki.txt", WIKITEXT))
    assert documents == [
        RawDocument("It is 5% —, he said.\nMore text.", "wiki.txt#First Page", "paragraphs"),
        RawDocument("Text-two.", "wiki.txt#Second", "paragraphs"),
    ]
    assert counts == {"headings dropped": 3, "unknown words replaced by a dash": 1}


@pytest.mark.parametrize(
    ("tokenized", "text"),
    [
        (" 1 @,@ 000 ( 24 in ) , 0 @.@ 5 ", " 1,000 (24 in), 0.5 "),
        (' in " lobster red " on ', ' in "lobster red" on '),
        (' the " Long ( A ) " , do n\'t ', ' the "Long (A)", don\'t '),
        (" York 's two clubs ' loan ", " York's two clubs' loan "),
        (" Luke O 'Neill 1914 – 18 – a war ", " Luke O'Neill 1914–18 – a war "),
        (" and / or $ 5 ", " and/or $5 "),
    ],
)
def test_wikitext_is_detokenized(tokenized: str, text: str) -> None:
    assert detokenize(tokenized) == text


def test_json_lines_yields_one_field_per_line(tmp_path: Path) -> None:
    lines = [{"body": "Ein\nText"}, {"body": None}, {"body": " "}, {"body": "二"}]
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps(one) for one in lines) + '\n\n{"body": "a\\ud800b"}\n')
    documents, counts = read_all(path, ReadSettings(field="body"))
    assert documents == [
        RawDocument("Ein\nText", "a.jsonl:1"),
        RawDocument("二", "a.jsonl:4"),
        RawDocument("a\ufffdb", "a.jsonl:6"),
    ]
    assert counts == {"records skipped: no text": 2, "characters replaced: half of a surrogate pair": 1}


def test_invalid_json_line_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n\n{"text": "b"\n')
    with pytest.raises(InputError, match=r"^a\.jsonl, line 3: not a JSON object"):
        read_all(path)


def test_invalid_json_line_in_a_later_block_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n' * 99 + "[1]\n" + '{"text": "b"}\n' * 20)
    with pytest.raises(InputError, match=r"^a\.jsonl, line 100: a list, not an object"):
        read_all(path, ReadSettings(block_bytes=100))


def test_missing_json_field_is_an_error_with_the_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n{"body": 1, "id": 2}\n')
    with pytest.raises(InputError, match=r"^a\.jsonl, line 2: no field 'text'; the line has 'body', 'id'"):
        read_all(path)


def test_csv_reads_quoted_newlines_and_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufeffid,text\n1,"two\nlines, ""q"""\n2,5" pipe\n3,\n')
    documents, counts = read_all(path)
    assert documents == [RawDocument('two\nlines, "q"', "a.csv:2"), RawDocument('5" pipe', "a.csv:4")]
    assert counts == {"records skipped: no text": 1}


@pytest.mark.parametrize("block_bytes", [8, 20, 50, 1000])
def test_csv_is_split_only_between_records(tmp_path: Path, block_bytes: int) -> None:
    rows = [f'{number},"line one\nline, ""two"" of {number}"' for number in range(30)]
    path = write(tmp_path / "a.csv", "id,text\n" + "\n".join(rows) + "\n")
    documents, _ = read_all(path, ReadSettings(block_bytes=block_bytes))
    assert [one.text for one in documents] == [f'line one\nline, "two" of {number}' for number in range(30)]
    assert [one.source for one in documents] == [f"a.csv:{2 * number + 2}" for number in range(30)]


def test_unclosed_csv_quote_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'id,text\n1,fine\n2,"open\n3,more\n')
    with pytest.raises(InputError, match=r"^a\.csv, line 3: a quote is opened and never closed"):
        read_all(path)


def test_tsv_quotes_are_literal(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'id\ttext\n1\t"Yes", she said\n2\t"No\n')
    assert [one.text for one in read_all(path)[0]] == ['"Yes", she said', '"No']


def test_short_tsv_row_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "id\ttext\n1\ta\n2\n")
    with pytest.raises(InputError, match=r"^a\.tsv, line 3: 1 columns, but 'text' is column 2"):
        read_all(path)


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t")])
def test_missing_column_is_an_error_with_the_columns(tmp_path: Path, name: str, delimiter: str) -> None:
    path = write(tmp_path / name, f"id{delimiter}body\n1{delimiter}a\n")
    with pytest.raises(InputError, match=r"line 1: no column 'text'; the columns are 'id', 'body'"):
        blocks([TextSource(str(path))], ReadSettings())


def test_parquet_reads_a_column_by_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", None, "two\r\nlines", "三"], "n": [1, 2, 3, 4]}), path, row_group_size=2)
    documents, counts = read_all(path, ReadSettings(block_bytes=1))
    assert documents == [
        RawDocument("one", "a.parquet:1"),
        RawDocument("two\nlines", "a.parquet:3"),
        RawDocument("三", "a.parquet:4"),
    ]
    assert counts == {"records skipped: no text": 1}
    assert len(list(blocks([TextSource(str(path))], ReadSettings(block_bytes=1)))) == 2
    with pytest.raises(InputError, match=r"a\.parquet: no column 'body'; the columns are 'text', 'n'"):
        blocks([TextSource(str(path))], ReadSettings(field="body"))
    with pytest.raises(InputError, match="column 'n' holds int64, not text"):
        blocks([TextSource(str(path))], ReadSettings(field="n"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertworks\[parquet\]'"):
        blocks([TextSource(str(path))], ReadSettings())


def page(title: str, text: str, namespace: int = 0) -> str:
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    <revision>\n"
        f'      <text bytes="9" xml:space="preserve">{text}</text>\n    </revision>\n  </page>\n'
    )


DUMP_PAGES = (
    page("A &amp; B", "'''A''' is a [[thing|object]].&lt;ref&gt;x&lt;/ref&gt;\n\n== H ==\n* item\nMore."),
    page("Talk:A", "Chat.", 1),
    page("C", "#REDIRECT [[A]]"),
    page("D", "{{stub}}"),
    page("E", "Last &amp;nbsp; words."),
)
DUMP = "<mediawiki>\n  <siteinfo/>\n" + "".join(DUMP_PAGES) + "</mediawiki>\n"


def test_wikipedia_dump_yields_the_prose_of_articles(tmp_path: Path) -> None:
    documents, counts = read_all(write(tmp_path / "d.xml", DUMP))
    assert documents == [
        RawDocument("A is a object.\nMore.", "d.xml#A & B"),
        RawDocument("Last words.", "d.xml#E"),
    ]
    assert counts == {
        "wiki notes and formulas dropped": 1,
        "wiki headings dropped": 1,
        "wiki list lines dropped": 1,
        "wiki templates and tables dropped": 1,
        "wiki pages skipped: not an article": 1,
        "wiki pages skipped: redirect": 1,
        "wiki pages skipped: no running text": 1,
    }


def test_truncated_dump_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "d.xml", DUMP[: DUMP.rindex("</text>")])
    with pytest.raises(InputError, match=r"d\.xml ends inside a page"):
        read_all(path)


def test_other_xml_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "d.xml", "<root>words</root>")
    with pytest.raises(InputError, match="not a MediaWiki dump"):
        blocks([TextSource(str(path))], ReadSettings())


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a {{b|{{c|{{d}}}}|e}} f", "a f"),
        ("{| class=x\n| {{a}} || {|\n| b\n|}\n|}\nText.", "Text."),
        ("x {{never closed\nNext line.", "x\nNext line."),
        ("[[File:a.jpg|thumb|A [[cat|big cat]] here]]Text", "Text"),
        ("[[Category:Cats]][[fr:Chat]][[:Category:Dogs]]", "Category:Dogs"),
        ("[http://a.b the page] and [http://c.d]", "the page and"),
        ("'''''Bold''''' it''s'' &lt;b&gt;", "Bold its <b>"),
        ("Paris ({{IPA|x}}; ''old'') and ( {{x}} ) is", "Paris (old) and is"),
        ("{{convert|5|km|mi}} of {{lang|fr|mot}}{{snd}}so", "5 km of mot – so"),
        ("-{zh-hans:网络; zh-hant:網路}-很好", "网络很好"),
        ("a<ref name=x/> b<ref>c</ref> <math>x</math> d", "a b d"),
        ("; list\n: indented\n# 1\nProse.\n pre\n__TOC__", "Prose."),
        ("<nowiki>kept</nowiki> a<br/>b", "kept a\nb"),
        ("[[File:a.jpg|thumb]] Text.\n{{box}} More.\na<br> b\n pre", "Text.\nMore.\na\nb"),
        ("{{nowrap|1=a=b}} of {{nowrap|x=1}}{{circa|lk=yes}} 1500", "a=b of c. 1500"),
        ("see [[CSI: Miami]] [[zh-yue:x]]", "see CSI: Miami"),
    ],
)
def test_wiki_markup_is_reduced_to_prose(markup: str, text: str) -> None:
    assert prose(markup, Counts()) == text


@pytest.mark.parametrize("name", ["a.txt", "a.md", "wiki.txt", "a.xml"])
def test_counts_have_no_zeros(tmp_path: Path, name: str) -> None:
    _, counts = read_all(write(tmp_path / name, DUMP if name == "a.xml" else "Some words [here] | there.\n"))
    assert all(counts.values())
