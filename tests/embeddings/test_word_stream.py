"""Word streams: ids by frequency, rare words left out and counted, contexts kept separate."""

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


def test_word_ids_are_sorted_by_frequency_and_rare_words_are_left_out(tmp_path: Path):
    stream, counts = stream_of(tmp_path, TEXT)
    assert stream.words == ("a", "b")
    assert stream.counts.tolist() == [4, 3]
    assert [chunk.tolist() for chunk in stream.chunks()] == [[1, 0, 0, -1, 0, 1, -1, 1, 0, -1]]
    assert counts == {"words left out: too rare for a vector": 3}
    assert (stream.num_words, stream.num_contexts) == (7, 3)
    assert stream.sha256 == hashlib.sha256(b"b a c a\na b d\ne b a\n").hexdigest()


def test_equally_frequent_words_are_sorted(tmp_path: Path):
    stream, _ = stream_of(tmp_path, ["z y z y x x"], WordSettings(min_count=1))
    assert stream.words == ("x", "y", "z")
    stream, counts = stream_of(tmp_path, ["z y z y x x"], WordSettings(min_count=1, max_words=2))
    assert stream.words == ("x", "y")
    assert counts.total() == 2


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_chunk_size_does_not_change_the_ids(tmp_path: Path, size: int):
    stream, _ = stream_of(tmp_path, TEXT)
    ids = [word_id for chunk in stream.chunks(size) for word_id in chunk.tolist()]
    assert ids == [1, 0, 0, -1, 0, 1, -1, 1, 0, -1]


def test_contexts_are_lists_of_words_split_at_max_words(tmp_path: Path):
    stream, _ = stream_of(tmp_path, TEXT)
    assert list(stream.contexts(10)) == [["b", "a", "a"], ["a", "b"], ["b", "a"]]
    assert list(stream.contexts(2)) == [["b", "a"], ["a"], ["a", "b"], ["b", "a"]]


def test_above_the_limit_the_rarest_words_are_left_out_and_counted(tmp_path: Path):
    text = ["a a a b b b", "c d e f", "a b", "g h i c"]
    stream, counts = stream_of(tmp_path, text, WordSettings(min_count=1), num_distinct=4)
    assert stream.words[:2] == ("a", "b")
    assert stream.counts[:2].tolist() == [4, 4]
    # c to f are left out together; so are g, h, i and c in the second round
    assert counts["words left out: too many distinct words"] == 8
    ids = [word_id for chunk in stream.chunks() for word_id in chunk.tolist()]
    assert ids == [0, 0, 0, 1, 1, 1, -1, -1, 0, 1, -1, -1]


def test_text_without_a_frequent_word_is_rejected(tmp_path: Path):
    with pytest.raises(InputError, match="none of the 3 distinct words occurs 5 times or more"):
        stream_of(tmp_path, ["a b c"], WordSettings(min_count=5))
