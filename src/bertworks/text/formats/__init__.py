"""FORMATS: the name of a file format -> its Format. A new format is one file and one line here."""

from __future__ import annotations

from bertworks.text.formats.delimited import CSV, TSV
from bertworks.text.formats.format import Format
from bertworks.text.formats.json_lines import JSON_LINES
from bertworks.text.formats.markdown import MARKDOWN
from bertworks.text.formats.parquet import PARQUET
from bertworks.text.formats.plain import PLAIN
from bertworks.text.formats.wikipedia import WIKIPEDIA
from bertworks.text.formats.wikitext import WIKITEXT

FORMATS: dict[str, Format] = {
    format_.name: format_ for format_ in (PLAIN, MARKDOWN, WIKITEXT, JSON_LINES, CSV, TSV, PARQUET, WIKIPEDIA)
}
