"""Duplicates: the first copy in source order stays, long lines repeated too often stay once, in bounded memory."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numbered_corpus import KEEP_ALL

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.corpus import deduplication as duplicates
from bertworks.corpus.deduplication import drops_of_unit, find_duplicates, lines_of, write_fingerprints
from bertworks.corpus.text_shard import read_text
from bertworks.corpus.units import PrepareSettings
from bertworks.text.document import Document
from bertworks.text.sources import ReadSettings, TextSource

LONG = "This licence notice stands at the foot of every page of the whole archive.\n"
CHINESE = "本网站所有内容均受版权保护，未经许可不得以任何方式转载。\n"
SHORT = "Yes.\n"

Drops = list[tuple[set[int], set[tuple[int, int]]]]


def drops(folder: Path, units: Sequence[Sequence[Sequence[str]]], max_repeats: int = 3) -> Drops:
    """What each unit is to drop; a unit is documents, a document is sentences."""
    folder.mkdir(exist_ok=True)
    paths = []
    for number, unit in enumerate(units):
        documents = [Document(tuple(sentences), "hand") for sentences in unit]
        paths.append(folder / f"{number:06d}.fingerprints.npy")
        write_fingerprints(paths[-1], documents, [document.text for document in documents])
    find_duplicates(paths, folder, max_repeats)
    return [drops_of_unit(folder, number) for number in range(len(units))]


def test_of_equal_documents_the_first_in_source_order_stays(tmp_path: Path) -> None:
    a, b, c = ["One. ", "Two.\n"], ["Three.\n"], ["Four.\n"]
    found = drops(tmp_path, [[a, b], [c, a], [b, a, a]])
    assert found == [(set(), set()), ({1}, set()), ({0, 1, 2}, set())]


def test_documents_that_differ_in_one_space_are_different(tmp_path: Path) -> None:
    assert drops(tmp_path, [[["One. ", "Two.\n"], ["One.", "Two.\n"], ["One.\n", "Two.\n"]]]) == [(set(), set())]


def pages(line: str, num_pages: int) -> list[list[str]]:
    """Documents of their own that all end with one line."""
    return [[f"Page {number} has something to say.\n", line] for number in range(num_pages)]


@pytest.mark.parametrize("line", [LONG, CHINESE])
def test_a_long_line_that_is_repeated_too_often_stays_once(tmp_path: Path, line: str) -> None:
    assert drops(tmp_path, [pages(line, 4)]) == [(set(), {(1, 1), (2, 1), (3, 1)})]


def test_a_long_line_within_the_allowed_number_stays_everywhere(tmp_path: Path) -> None:
    assert drops(tmp_path, [pages(LONG, 3)]) == [(set(), set())]


def test_with_zero_all_repeats_stay(tmp_path: Path) -> None:
    assert drops(tmp_path, [pages(LONG, 30)], max_repeats=0) == [(set(), set())]


def test_a_short_line_stays_however_often_it_is_said(tmp_path: Path) -> None:
    assert drops(tmp_path, [pages(SHORT, 50)]) == [(set(), set())]


def test_a_line_is_counted_over_units_and_within_one_document(tmp_path: Path) -> None:
    found = drops(tmp_path, [[["Start.\n", LONG, LONG]], [[LONG, "Middle.\n", LONG]]])
    assert found == [(set(), {(0, 2)}), (set(), {(0, 0), (0, 2)})]


def test_a_line_is_the_same_whether_it_ends_its_document_or_not(tmp_path: Path) -> None:
    copies = [[LONG, f"{number}.\n"] for number in range(3)] + [["Last.\n", LONG.rstrip()]]
    assert drops(tmp_path, [copies]) == [(set(), {(1, 0), (2, 0), (3, 1)})]


def test_lines_are_runs_of_sentences_up_to_a_line_break() -> None:
    document = Document(("One. ", "Two.\n", "Three.\n", "四。", "五。\n"), "hand")
    expected = [(0, 2, "One. Two.\n"), (2, 3, "Three.\n"), (3, 5, "四。五。\n")]
    assert list(lines_of(document)) == expected


def many_units() -> list[list[list[str]]]:
    generator = np.random.default_rng(0)
    return [
        [[f"Document {number} of the pile.\n", *([LONG] if number % 3 == 0 else [])] for number in row]
        for row in generator.integers(0, 60, size=(40, 8)).tolist()
    ]


def test_comparing_range_by_range_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = drops(tmp_path / "at-once", many_units())
    monkeypatch.setattr(duplicates, "_MAX_COMPARED", 10)
    by_range = drops(tmp_path / "by-range", many_units())
    assert len(list((tmp_path / "at-once").glob("drops-*"))) == 1
    assert len(list((tmp_path / "by-range").glob("drops-*"))) >= 32
    assert by_range == at_once
    # Of 320 documents 60 are different; each of the others is dropped.
    assert sum(len(documents) for documents, _ in at_once) == 320 - len({str(d) for u in many_units() for d in u})


def test_more_units_than_files_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    expected = drops(tmp_path / "usual", many_units())
    resource.setrlimit(resource.RLIMIT_NOFILE, (35, hard))
    try:
        found = drops(tmp_path / "few", many_units())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == expected


def test_no_units_and_empty_units_have_nothing_to_drop(tmp_path: Path) -> None:
    assert drops(tmp_path / "none", []) == []
    assert drops(tmp_path / "empty", [[], [["One.\n"]], []]) == [(set(), set())] * 3


# Through a whole preparation.


def write_sources(folder: Path) -> list[TextSource]:
    generator = np.random.default_rng(1)
    for name in ("a.txt", "b.txt"):
        documents = [
            f"w{number} w1 w2 is a line.\n{LONG if number % 4 == 0 else ''}w{number} ends."
            for number in generator.integers(0, 90, size=100).tolist()
        ]
        (folder / name).write_text("\n\n".join(documents) + "\n")
    return [TextSource(str(folder / "a.txt")), TextSource(str(folder / "b.txt"))]


def texts_of(folder: Path) -> list[tuple[str, str]]:
    manifest = json.loads((folder / "manifest.json").read_text())
    return [(p.document.text, p.split) for shard in manifest["shards"] for p in read_text(folder / shard["file"])]


def prepared(tmp_path: Path, vocabulary: Path, name: str, block_bytes: int, workers: int = 1) -> Path:
    request = PrepareRequest(
        tuple(write_sources(tmp_path)),
        vocabulary,
        tmp_path / name,
        PrepareSettings(held_out_ratio=0.2, max_repeats=3, clean=KEEP_ALL),
        ReadSettings(lines="sentences", block_bytes=block_bytes),
    )
    return prepare(request, workers=workers)


def test_the_outcome_depends_neither_on_block_size_nor_on_the_number_of_workers(
    tmp_path: Path, vocabulary: Path
) -> None:
    large = texts_of(prepared(tmp_path, vocabulary, "large", 2**22))
    small = texts_of(prepared(tmp_path, vocabulary, "small", 700))
    shared = texts_of(prepared(tmp_path, vocabulary, "shared", 700, workers=2))
    assert large == small == shared
    assert len(large) == len({text for text, _ in large})
    assert sum(LONG in text for text, _ in large) == 1


def test_everything_that_was_dropped_is_counted(tmp_path: Path, vocabulary: Path) -> None:
    folder = prepared(tmp_path, vocabulary, "corpus", 700)
    manifest = json.loads((folder / "manifest.json").read_text())
    counts = manifest["counts"]
    dropped = sum(count for name, count in counts.items() if name.startswith("documents dropped"))
    assert counts["documents read"] == 200
    assert manifest["documents"] == 200 - dropped == len(texts_of(folder))
    assert counts["documents dropped: duplicate"] == dropped > 50
    kept_numbers = {text.split()[0] for text, _ in texts_of(folder)}
    num_notices = sum(int(word[1:]) % 4 == 0 for word in kept_numbers)
    assert counts["lines dropped: repeated many times"] == num_notices - 1
    assert counts["characters dropped: repeated many times"] == (num_notices - 1) * len(LONG)
