"""Files of word vectors: parity with gensim in both directions, bit for bit; malformed files are rejected by line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage import forget_hashes
from gensim.models import KeyedVectors
from safetensors.numpy import load_file, save_file

import bertworks
from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import read_vectors, write_vectors
from bertworks.errors import FolderError, InputError, SettingsError

# Words with a line break and spaces at which Python's split() would split.
WORDS = ("the", "北京", "naïve", "l\x85ine", "n°1", "-0.5")


@pytest.fixture
def vectors() -> StaticVectors:
    table = np.random.default_rng(0).standard_normal((len(WORDS), 5)).astype(np.float32)
    table[1, 2], table[2, 0] = 1e-30, 123456.789
    table[3] = np.frombuffer(b"\n \n    \n\n \n  \n   \n  ", dtype="<f4")  # bytes of spaces and newlines
    return StaticVectors(WORDS, table, {"kind": "glove"})


def is_equal(first: StaticVectors, second: StaticVectors) -> bool:
    return first.words == second.words and first.table.tobytes() == second.table.tobytes()


def without_line_break(vectors: StaticVectors) -> StaticVectors:
    """Without the word with a line break, which the other formats cannot represent."""
    rows = [row for row, word in enumerate(vectors.words) if word != "l\x85ine"]
    return StaticVectors([vectors.words[row] for row in rows], vectors.table[rows])


def test_a_folder_round_trips(tmp_path: Path, vectors: StaticVectors):
    write_vectors(tmp_path / "v", vectors, "folder")
    assert sorted(path.name for path in (tmp_path / "v").iterdir()) == (
        ["README.md", "bertworks.json", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    )
    loaded = read_vectors(tmp_path / "v")
    assert is_equal(loaded, vectors)
    metadata = {name: value for name, value in loaded.metadata.items() if name != "versions"}
    assert metadata == {"kind": "glove", "words": 6, "vector_size": 5}
    with pytest.raises(FolderError, match="is not empty"):
        write_vectors(tmp_path / "v", vectors, "folder")


def test_a_folder_with_the_older_name_of_the_table_is_read(tmp_path: Path, vectors: StaticVectors):
    write_vectors(tmp_path / "v", vectors, "folder")
    expected = bertworks.load(tmp_path / "v").encode("the")
    weights = tmp_path / "v" / "model.safetensors"
    save_file({"static.token_embeddings.weight": load_file(weights)["embedding.weight"]}, weights)
    forget_hashes(tmp_path / "v")
    assert is_equal(read_vectors(tmp_path / "v"), vectors)
    np.testing.assert_allclose(bertworks.load(tmp_path / "v").encode("the"), expected)


@pytest.mark.parametrize("format", ["word2vec", "word2vec-binary", "glove"])
def test_every_format_round_trips_bit_for_bit(tmp_path: Path, vectors: StaticVectors, format: str):  # noqa: A002
    write_vectors(tmp_path / "v", without_line_break(vectors), format)
    assert is_equal(read_vectors(tmp_path / "v"), without_line_break(vectors))


@pytest.mark.parametrize(
    ("format", "header"),
    [("word2vec", b""), ("word2vec-binary", b""), ("glove", b"5 5\n")],
)
def test_gensim_reads_what_we_write(tmp_path: Path, vectors: StaticVectors, format: str, header: bytes):  # noqa: A002
    write_vectors(tmp_path / "v", without_line_break(vectors), format)
    # gensim's `no_header` leaves files open, so a header is added to the GloVe file
    (tmp_path / "v").write_bytes(header + (tmp_path / "v").read_bytes())
    theirs = KeyedVectors.load_word2vec_format(str(tmp_path / "v"), binary=format == "word2vec-binary")
    assert tuple(theirs.index_to_key) == without_line_break(vectors).words
    assert theirs.vectors.tobytes() == without_line_break(vectors).table.tobytes()


@pytest.mark.parametrize("options", [{}, {"binary": True}, {"write_header": False}])
def test_we_read_what_gensim_writes(tmp_path: Path, vectors: StaticVectors, options: dict):
    theirs = KeyedVectors(vector_size=5)
    theirs.add_vectors(list(without_line_break(vectors).words), without_line_break(vectors).table)
    theirs.save_word2vec_format(str(tmp_path / "v"), **options)
    assert is_equal(read_vectors(tmp_path / "v"), without_line_break(vectors))


def test_a_compressed_binary_file_without_newlines_is_read(tmp_path: Path, vectors: StaticVectors):
    rows = zip(without_line_break(vectors).words, without_line_break(vectors).table, strict=True)
    data = b"5 5\n" + b"".join(word.encode() + b" " + row.tobytes() for word, row in rows)
    (tmp_path / "v.bin.gz").write_bytes(gzip.compress(data))
    assert is_equal(read_vectors(tmp_path / "v.bin.gz"), without_line_break(vectors))


def test_words_with_spaces_are_read_and_duplicates_counted(tmp_path: Path):
    (tmp_path / "glove.txt").write_text("a 1 2\n. . . 3 4\na 5 6\nb 7 8\n")
    loaded = read_vectors(tmp_path / "glove.txt")
    assert loaded.words == ("a", ". . .", "b")
    assert loaded.table.tolist() == [[1, 2], [3, 4], [7, 8]]
    assert loaded.metadata["counts"] == {"words left out: duplicates": 1}
    with pytest.raises(
        InputError, match=r"word 2, '. . .', is empty or contains white space, which word2vec cannot represent"
    ):
        write_vectors(tmp_path / "v", loaded, "word2vec")


def test_a_long_glove_file_is_read_in_blocks(tmp_path: Path):
    lines = [f"w{number} {number} 0.5" for number in range(10_000)]
    (tmp_path / "glove.txt").write_text("\n".join(lines) + "\n")
    loaded = read_vectors(tmp_path / "glove.txt")
    assert loaded.words[-1] == "w9999"
    assert loaded.table[:, 0].tolist() == list(range(10_000))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "v is empty"),
        (b"word\n", "line 1: no numbers after the word"),
        (b"a 1 2\nb 3\n", "line 2: not a word and 2 numbers"),
        (b"a 1 2\nb 3 x\n", "line 2: not a word and 2 numbers"),
        (b"2 2\na 1 2\n", "ends after 1 of 2 words"),
        (b"1 2\na 1 2\nb 3 4\n", "line 3: the header states 1 words"),
        (b"2 2\na \0\0\0\0\0\0\0\0\nb \0\0\0\0", "ends in word 2 of 2"),
        (b"9 2\na \0\0\0\0\0\0\0\0\n", "lacks word 2 of 9"),
        (b"a 1 nan\n", "the vector of 'a' is not finite"),
        (b"999999999999 999999999\na 1\n", "too many"),
    ],
)
def test_a_malformed_file_is_rejected_with_line_or_word(tmp_path: Path, data: bytes, message: str):
    (tmp_path / "v").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_vectors(tmp_path / "v")


def remove_a_word(folder: Path) -> None:
    metadata = json.loads((folder / "tokenizer.json").read_text())
    del metadata["model"]["vocab"]["naïve"]
    (folder / "tokenizer.json").write_text(json.dumps(metadata))


def overwrite_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no")


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def change_model_type(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_a_word, "5 words"),
        (overwrite_weights, "damaged"),
        (remove_config, "not yet, a folder of word vectors"),
        (change_model_type, "contains no word vectors"),
    ],
)
def test_a_damaged_folder_is_rejected(
    tmp_path: Path, vectors: StaticVectors, damage: Callable[[Path], None], message: str
):
    write_vectors(tmp_path / "v", vectors, "folder")
    damage(tmp_path / "v")
    forget_hashes(tmp_path / "v")
    with pytest.raises(FolderError, match=message):
        read_vectors(tmp_path / "v")


def test_an_unknown_format_is_rejected_with_the_valid_ones(tmp_path: Path, vectors: StaticVectors):
    with pytest.raises(SettingsError, match="folder, word2vec, word2vec-binary, glove"):
        write_vectors(tmp_path / "v", vectors, "pickle")
