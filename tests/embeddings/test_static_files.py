"""Files of word vectors: ours are read by gensim and theirs by us, to the bit; damaged ones are refused by line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gensim.models import KeyedVectors

from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import read_vectors, write_vectors
from bertworks.errors import FolderError, InputError, SettingsError

# Words with a line break and spaces that Python's own splitting would cut at.
WORDS = ("the", "北京", "naïve", "l\x85ine", "n°1", "-0.5")


@pytest.fixture
def vectors() -> StaticVectors:
    table = np.random.default_rng(0).standard_normal((len(WORDS), 5)).astype(np.float32)
    table[1, 2], table[2, 0] = 1e-30, 123456.789
    table[3] = np.frombuffer(b"\n \n    \n\n \n  \n   \n  ", dtype="<f4")  # bytes that look like spaces and line breaks
    return StaticVectors(WORDS, table, {"kind": "glove"})


def same(one: StaticVectors, other: StaticVectors) -> bool:
    return one.words == other.words and one.table.tobytes() == other.table.tobytes()


def plain(vectors: StaticVectors) -> StaticVectors:
    """Without the word whose inner break the formats do not write."""
    kept = [place for place, word in enumerate(vectors.words) if word != "l\x85ine"]
    return StaticVectors([vectors.words[place] for place in kept], vectors.table[kept])


def test_a_folder_comes_back_as_it_was(tmp_path: Path, vectors: StaticVectors):
    write_vectors(tmp_path / "v", vectors, "folder")
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == (
        ["bertworks.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    )
    found = read_vectors(tmp_path / "v")
    assert same(found, vectors)
    told = {name: fact for name, fact in found.metadata.items() if name != "versions"}
    assert told == {"kind": "glove", "words": 6, "width": 5}
    with pytest.raises(FolderError, match="already holds something"):
        write_vectors(tmp_path / "v", vectors, "folder")


@pytest.mark.parametrize("format", ["word2vec", "word2vec-binary", "glove"])
def test_every_format_keeps_every_bit(tmp_path: Path, vectors: StaticVectors, format: str):  # noqa: A002
    write_vectors(tmp_path / "v", plain(vectors), format)
    assert same(read_vectors(tmp_path / "v"), plain(vectors))


@pytest.mark.parametrize(
    ("format", "header"),
    [("word2vec", b""), ("word2vec-binary", b""), ("glove", b"5 5\n")],
)
def test_gensim_reads_what_we_write(tmp_path: Path, vectors: StaticVectors, format: str, header: bytes):  # noqa: A002
    write_vectors(tmp_path / "v", plain(vectors), format)
    # gensim's own `no_header` leaves files open, so that GloVe's lines get one here
    (tmp_path / "v").write_bytes(header + (tmp_path / "v").read_bytes())
    theirs = KeyedVectors.load_word2vec_format(str(tmp_path / "v"), binary=format == "word2vec-binary")
    assert tuple(theirs.index_to_key) == plain(vectors).words
    assert theirs.vectors.tobytes() == plain(vectors).table.tobytes()


@pytest.mark.parametrize("options", [{}, {"binary": True}, {"write_header": False}])
def test_we_read_what_gensim_writes(tmp_path: Path, vectors: StaticVectors, options: dict):
    theirs = KeyedVectors(vector_size=5)
    theirs.add_vectors(list(plain(vectors).words), plain(vectors).table)
    theirs.save_word2vec_format(str(tmp_path / "v"), **options)
    assert same(read_vectors(tmp_path / "v"), plain(vectors))


def test_a_packed_file_and_a_binary_one_without_line_breaks_are_read(tmp_path: Path, vectors: StaticVectors):
    rows = zip(plain(vectors).words, plain(vectors).table, strict=True)
    data = b"5 5\n" + b"".join(word.encode() + b" " + row.tobytes() for word, row in rows)
    (tmp_path / "v.bin.gz").write_bytes(gzip.compress(data))
    assert same(read_vectors(tmp_path / "v.bin.gz"), plain(vectors))


def test_words_with_spaces_in_files_of_others_are_read_and_repeated_ones_counted(tmp_path: Path):
    (tmp_path / "glove.txt").write_text("a 1 2\n. . . 3 4\na 5 6\nb 7 8\n")
    found = read_vectors(tmp_path / "glove.txt")
    assert found.words == ("a", ". . .", "b")
    assert found.table.tolist() == [[1, 2], [3, 4], [7, 8]]
    assert found.metadata["counts"] == {"words left out: met before": 1}
    with pytest.raises(InputError, match=r"word 2, '. . .', is empty or holds a space, which word2vec cannot write"):
        write_vectors(tmp_path / "v", found, "word2vec")


def test_a_long_file_without_a_first_line_is_read_in_blocks(tmp_path: Path):
    lines = [f"w{number} {number} 0.5" for number in range(10_000)]
    (tmp_path / "glove.txt").write_text("\n".join(lines) + "\n")
    found = read_vectors(tmp_path / "glove.txt")
    assert found.words[-1] == "w9999"
    assert found.table[:, 0].tolist() == list(range(10_000))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "v is empty"),
        (b"word\n", "line 1: no numbers behind the word"),
        (b"a 1 2\nb 3\n", "line 2: not a word and 2 numbers"),
        (b"a 1 2\nb 3 x\n", "line 2: not a word and 2 numbers"),
        (b"2 2\na 1 2\n", "ends after 1 of 2 words"),
        (b"1 2\na 1 2\nb 3 4\n", "line 3: the first line promised 1 words"),
        (b"2 2\na \0\0\0\0\0\0\0\0\nb \0\0\0\0", "ends in word 2 of 2"),
        (b"9 2\na \0\0\0\0\0\0\0\0\n", "has no word 2 of 9"),
        (b"a 1 nan\n", "the vector of 'a' is not finite"),
        (b"999999999999 999999999\na 1\n", "too many"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path, data: bytes, said: str):
    (tmp_path / "v").write_bytes(data)
    with pytest.raises(InputError, match=said):
        read_vectors(tmp_path / "v")


def shorten(folder: Path) -> None:
    told = json.loads((folder / "tokenizer.json").read_text())
    del told["model"]["vocab"]["naïve"]
    (folder / "tokenizer.json").write_text(json.dumps(told))


def spoil(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no")


def unfinished(folder: Path) -> None:
    (folder / "config.json").unlink()


def a_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (shorten, "5 words"),
        (spoil, "damaged"),
        (unfinished, "not yet, a folder of word vectors"),
        (a_model, "holds no"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, vectors: StaticVectors, harm: Callable[[Path], None], said: str):
    write_vectors(tmp_path / "v", vectors, "folder")
    harm(tmp_path / "v")
    with pytest.raises(FolderError, match=said):
        read_vectors(tmp_path / "v")


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path, vectors: StaticVectors):
    with pytest.raises(SettingsError, match="folder, word2vec, word2vec-binary, glove"):
        write_vectors(tmp_path / "v", vectors, "pickle")
