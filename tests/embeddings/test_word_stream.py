"""Words become numbers on disk: the most frequent first, rare ones left out and counted, stretches kept apart."""

import hashlib
from pathlib import Path

import pytest

from bertworks.embeddings.static_words import WordSettings
from bertworks.embeddings.word_stream import WordStream, WordStreamWriter
from bertworks.errors import InputError
from bertworks.text.document import Counts

TEXT = ["b a c a", "a b d", "e b a"]


def stream_of(
    folder: Path, text: list[str], settings: WordSettings = WordSettings(min_count=2), **limits: int
) -> tuple[WordStream, Counts]:
    counts = Counts()
    with WordStreamWriter(folder / "ids", counts, **limits) as writer:
        for context in text:
            writer.add([context])
        return writer.finish(settings), counts


def test_words_are_numbered_by_frequency_and_rare_ones_are_left_out(tmp_path: Path):
    stream, counts = stream_of(tmp_path, TEXT)
    assert stream.words == ("a", "b")
    assert stream.counts.tolist() == [4, 3]
    assert [chunk.tolist() for chunk in stream.chunks()] == [[1, 0, 0, -1, 0, 1, -1, 1, 0, -1]]
    assert counts == {"words left out: too rare for a vector": 3}
    assert (stream.num_words, stream.num_contexts) == (7, 3)
    assert stream.sha256 == hashlib.sha256(b"b a c a\na b d\ne b a\n").hexdigest()


def test_of_equally_frequent_words_the_text_decides(tmp_path: Path):
    stream, _ = stream_of(tmp_path, ["z y z y x x"], WordSettings(min_count=1))
    assert stream.words == ("x", "y", "z")
    stream, counts = stream_of(tmp_path, ["z y z y x x"], WordSettings(min_count=1, max_words=2))
    assert stream.words == ("x", "y")
    assert counts.total() == 2


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_chunks_of_any_size_hold_the_same(tmp_path: Path, size: int):
    stream, _ = stream_of(tmp_path, TEXT)
    joined = [number for chunk in stream.chunks(size) for number in chunk.tolist()]
    assert joined == [1, 0, 0, -1, 0, 1, -1, 1, 0, -1]


def test_stretches_come_back_as_words_and_are_cut_where_they_are_too_long(tmp_path: Path):
    stream, _ = stream_of(tmp_path, TEXT)
    assert list(stream.contexts(10)) == [["b", "a", "a"], ["a", "b"], ["b", "a"]]
    assert list(stream.contexts(2)) == [["b", "a"], ["a"], ["a", "b"], ["b", "a"]]


def test_above_the_limit_the_rarest_words_are_forgotten_and_counted(tmp_path: Path):
    text = ["a a a b b b", "c d e f", "a b", "g h i c"]
    stream, counts = stream_of(tmp_path, text, WordSettings(min_count=1), num_distinct=4)
    assert stream.words[:2] == ("a", "b")
    assert stream.counts[:2].tolist() == [4, 4]
    # c to f were forgotten together; of the second round g, h, i and c likewise
    assert counts["words left out: too many different ones"] == 8
    numbers = [number for chunk in stream.chunks() for number in chunk.tolist()]
    assert numbers == [0, 0, 0, 1, 1, 1, -1, -1, 0, 1, -1, -1]


def test_text_without_a_frequent_word_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no word occurs 5 times or more among 3 different ones"):
        stream_of(tmp_path, ["a b c"], WordSettings(min_count=5))
