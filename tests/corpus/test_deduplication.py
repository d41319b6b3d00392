"""Deduplication: the first copy in source order is kept, as is the first of a long line that is repeated too often."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numbered_corpus import KEEP_ALL

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.corpus import deduplication
from bertworks.corpus.deduplication import drops_of_unit, find_duplicates, lines_of, write_fingerprints
from bertworks.corpus.text_shard import read_text
from bertworks.corpus.units import PrepareSettings
from bertworks.text.document import Document
from bertworks.text.sources import ReadSettings, TextSource

LONG = "This licence notice stands at the foot of every page of the whole archive.\n"
CHINESE = "本网站所有内容均受版权保护，未经许可不得以任何方式转载。\n"
SHORT = "Yes.\n"

Drops = list[tuple[set[int], set[tuple[int, int]]]]


def find_drops(folder: Path, units: Sequence[Sequence[Sequence[str]]], max_repeats: int = 3) -> Drops:
    """What to drop from each unit; a unit is a list of documents, a document a list of sentences."""
    folder.mkdir(exist_ok=True)
    paths = []
    for number, unit in enumerate(units):
        documents = [Document(tuple(sentences), "hand") for sentences in unit]
        paths.append(folder / f"{number:06d}.fingerprints.npy")
        write_fingerprints(paths[-1], documents, [document.text for document in documents])
    find_duplicates(paths, folder, max_repeats)
    return [drops_of_unit(folder, number) for number in range(len(units))]


def test_first_of_equal_documents_in_source_order_is_kept(tmp_path: Path) -> None:
    a, b, c = ["One. ", "Two.\n"], ["Three.\n"], ["Four.\n"]
    drops = find_drops(tmp_path, [[a, b], [c, a], [b, a, a]])
    assert drops == [(set(), set()), ({1}, set()), ({0, 1, 2}, set())]


def test_documents_that_differ_in_one_space_are_different(tmp_path: Path) -> None:
    assert find_drops(tmp_path, [[["One. ", "Two.\n"], ["One.", "Two.\n"], ["One.\n", "Two.\n"]]]) == [(set(), set())]


def pages(line: str, num_pages: int) -> list[list[str]]:
    """Different documents that all end with the same line."""
    return [[f"Page {number} has something to say.\n", line] for number in range(num_pages)]


@pytest.mark.parametrize("line", [LONG, CHINESE])
def test_long_line_repeated_too_often_is_kept_once(tmp_path: Path, line: str) -> None:
    assert find_drops(tmp_path, [pages(line, 4)]) == [(set(), {(1, 1), (2, 1), (3, 1)})]


def test_long_line_repeated_at_most_max_repeats_times_is_kept(tmp_path: Path) -> None:
    assert find_drops(tmp_path, [pages(LONG, 3)]) == [(set(), set())]


def test_max_repeats_zero_keeps_all_lines(tmp_path: Path) -> None:
    assert find_drops(tmp_path, [pages(LONG, 30)], max_repeats=0) == [(set(), set())]


def test_short_lines_are_always_kept(tmp_path: Path) -> None:
    assert find_drops(tmp_path, [pages(SHORT, 50)]) == [(set(), set())]


def test_lines_are_counted_across_units_and_within_a_document(tmp_path: Path) -> None:
    drops = find_drops(tmp_path, [[["Start.\n", LONG, LONG]], [[LONG, "Middle.\n", LONG]]])
    assert drops == [(set(), {(0, 2)}), (set(), {(0, 0), (0, 2)})]


def test_trailing_line_break_does_not_distinguish_lines(tmp_path: Path) -> None:
    copies = [[LONG, f"{number}.\n"] for number in range(3)] + [["Last.\n", LONG.rstrip()]]
    assert find_drops(tmp_path, [copies]) == [(set(), {(1, 0), (2, 0), (3, 1)})]


def test_lines_are_sentences_up_to_a_line_break() -> None:
    document = Document(("One. ", "Two.\n", "Three.\n", "四。", "五。\n"), "hand")
    expected = [(0, 2, "One. Two.\n"), (2, 3, "Three.\n"), (3, 5, "四。五。\n")]
    assert list(lines_of(document)) == expected


def many_units() -> list[list[list[str]]]:
    generator = np.random.default_rng(0)
    return [
        [[f"Document {number} of the pile.\n", *([LONG] if number % 3 == 0 else [])] for number in numbers]
        for numbers in generator.integers(0, 60, size=(40, 8)).tolist()
    ]


def test_comparison_rangeds_has_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    single = find_drops(tmp_path / "single", many_units())
    monkeypatch.setattr(deduplication, "_MAX_COMPARED", 10)
    ranged = find_drops(tmp_path / "ranged", many_units())
    assert len(list((tmp_path / "single").glob("drops-*"))) == 1
    assert len(list((tmp_path / "ranged").glob("drops-*"))) >= 32
    assert ranged == single
    # 60 of the 320 documents are distinct; the others are dropped.
    assert sum(len(documents) for documents, _ in single) == 320 - len({str(d) for u in many_units() for d in u})


def test_more_units_than_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    expected = find_drops(tmp_path / "usual", many_units())
    highest = max(
        int(path.name) for path in Path("/proc/self/fd").iterdir()
    )  # of this process, whatever other tests left open
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    try:
        drops = find_drops(tmp_path / "few", many_units())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert drops == expected


def test_empty_units_have_nothing_to_drop(tmp_path: Path) -> None:
    assert find_drops(tmp_path / "none", []) == []
    assert find_drops(tmp_path / "empty", [[], [["One.\n"]], []]) == [(set(), set())] * 3


# In a whole preparation.


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
    files = [folder / shard["file"] for shard in manifest["shards"]]
    return [(document.text, split) for file in files for document, split in read_text(file)]


def prepare_corpus(tmp_path: Path, vocabulary: Path, name: str, block_bytes: int, workers: int = 1) -> Path:
    request = PrepareRequest(
        sources=tuple(write_sources(tmp_path)),
        vocabulary=vocabulary,
        output=tmp_path / name,
        settings=PrepareSettings(held_out_ratio=0.2, max_repeats=3, clean=KEEP_ALL),
        read_settings=ReadSettings(lines="sentences", block_bytes=block_bytes),
    )
    return prepare(request, workers=workers)


def test_result_depends_neither_on_block_size_nor_on_workers(tmp_path: Path, vocabulary: Path) -> None:
    large = texts_of(prepare_corpus(tmp_path, vocabulary, "large", 2**22))
    small = texts_of(prepare_corpus(tmp_path, vocabulary, "small", 700))
    parallel = texts_of(prepare_corpus(tmp_path, vocabulary, "parallel", 700, workers=2))
    assert large == small == parallel
    assert len(large) == len({text for text, _ in large})
    assert sum(LONG in text for text, _ in large) == 1


def test_dropped_documents_and_lines_are_counted(tmp_path: Path, vocabulary: Path) -> None:
    folder = prepare_corpus(tmp_path, vocabulary, "corpus", 700)
    manifest = json.loads((folder / "manifest.json").read_text())
    counts = manifest["counts"]
    num_dropped = sum(count for name, count in counts.items() if name.startswith("documents dropped"))
    assert counts["documents read"] == 200
    assert manifest["documents"] == 200 - num_dropped == len(texts_of(folder))
    assert counts["documents dropped: duplicate"] == num_dropped > 50
    first_words = {text.split()[0] for text, _ in texts_of(folder)}
    num_notices = sum(int(word[1:]) % 4 == 0 for word in first_words)
    assert counts["lines dropped: repeated many times"] == num_notices - 1
    assert counts["characters dropped: repeated many times"] == (num_notices - 1) * len(LONG)
