"""Static vectors as a model folder: text is tokenized into their words; other words are zeros."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_files import read_vectors, write_vectors
from bertworks.embeddings.static_model import build_tokenizer
from bertworks.errors import InputError
from bertworks.inference.model import load


def vectors_with(*words: str) -> StaticVectors:
    table = np.random.default_rng(1).standard_normal((len(words), 4)).astype(np.float32)
    return StaticVectors(words, table)


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (("the", "café", "naive"), "The Café, naïve!", ["the", "café", "[UNK]", "[UNK]", "[UNK]"]),
        (("the", "Paris"), "The Paris the", ["[UNK]", "Paris", "the"]),  # cased, since a word has an upper-case letter
        (("北京", "天气", "好"), "北京天气很好", ["北京", "天气", "[UNK]", "好"]),
        (("北", "京"), "北京", ["北", "京"]),  # no word of several characters: without jieba
        (("3", "4"), "3.4", ["3", "[UNK]", "4"]),
    ],
)
def test_text_is_tokenized_into_the_words_with_vectors(words: tuple[str, ...], text: str, expected: list[str]):
    tokenizer = build_tokenizer(vectors_with(*words))
    assert [tokenizer.tokens[token_id] for token_id in tokenizer.tokenize(text).input_ids] == expected


def test_a_vectors_folder_loads_as_a_model(tmp_path: Path):
    vectors = vectors_with("the", "dog", "barks", "loud")
    write_vectors(tmp_path / "v", vectors, "folder")
    model = load(tmp_path / "v")
    assert (model.encoder.config.model_type, model.encoder.config.num_hidden_layers) == ("static", 0)
    assert model.encoder.token_embeddings.weight[:5].abs().max() == 0, "special tokens and unknown words"
    (vector,) = model.encode(["The dog barks softly"])
    # the mean of all six positions: [CLS], three words, an unknown one, [SEP]
    np.testing.assert_allclose(vector, vectors.vectors(["the", "dog", "barks"]).sum(axis=0) / 6, rtol=1e-5)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "v")
    assert theirs("The dog barks softly")["input_ids"] == list(model.tokenizer.encode("The dog barks softly").input_ids)


def test_reading_vectors_does_not_import_torch(tmp_path: Path):
    write_vectors(tmp_path / "v", vectors_with("the", "dog"), "folder")
    code = (
        "import sys; from pathlib import Path; from bertworks.embeddings.static_files import read_vectors; "
        f"print(len(read_vectors(Path({str(tmp_path / 'v')!r}))), 'torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "2 False"


def test_a_word_equal_to_a_special_token_is_rejected(tmp_path: Path):
    with pytest.raises(InputError, match=r"token '\[UNK\]' appears twice"):
        write_vectors(tmp_path / "v", vectors_with("the", "[UNK]"), "folder")
    assert not (tmp_path / "v").exists()


def test_vectors_round_trip_through_folder_and_glove(tmp_path: Path):
    vectors = vectors_with("the", "北京", "naïve", "n°1")
    write_vectors(tmp_path / "v", vectors, "folder")
    write_vectors(tmp_path / "v.txt", read_vectors(tmp_path / "v"), "glove")
    write_vectors(tmp_path / "w", read_vectors(tmp_path / "v.txt"), "folder")
    loaded = read_vectors(tmp_path / "w")
    assert loaded.words == vectors.words
    assert loaded.table.tobytes() == vectors.table.tobytes()
