"""Word vectors as a model folder: text is cut into their words, known ones keep their vectors, others are zeros."""

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
    ("words", "text", "cut"),
    [
        (("the", "café", "naive"), "The Café, naïve!", ["the", "café", "[UNK]", "[UNK]", "[UNK]"]),
        (("the", "Paris"), "The Paris the", ["[UNK]", "Paris", "the"]),  # a capital letter in a word: they count
        (("北京", "天气", "好"), "北京天气很好", ["北京", "天气", "[UNK]", "好"]),
        (("北", "京"), "北京", ["北", "京"]),  # no word of several characters: jieba is not asked
        (("3", "4"), "3.4", ["3", "[UNK]", "4"]),
    ],
)
def test_text_is_cut_into_the_words_that_have_vectors(words: tuple[str, ...], text: str, cut: list[str]):
    tokenizer = build_tokenizer(vectors_with(*words))
    assert [tokenizer.tokens[number] for number in tokenizer.tokenize(text).input_ids] == cut


def test_a_folder_is_a_model_whose_words_are_the_vectors(tmp_path: Path):
    vectors = vectors_with("the", "dog", "barks", "loud")
    write_vectors(tmp_path / "v", vectors, "folder")
    model = load(tmp_path / "v")
    assert (model.encoder.config.model_type, model.encoder.config.num_hidden_layers) == ("static", 0)
    assert model.encoder.token_embeddings.weight[:5].abs().max() == 0, "special pieces and unknown words"
    (found,) = model.encode(["The dog barks softly"])
    # the mean of all six places: [CLS], three words, an unknown one, [SEP]
    np.testing.assert_allclose(found, vectors.vectors(["the", "dog", "barks"]).sum(axis=0) / 6, rtol=1e-5)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "v")
    assert theirs("The dog barks softly")["input_ids"] == list(model.tokenizer.encode("The dog barks softly").input_ids)


def test_who_looks_words_up_does_not_wait_for_torch(tmp_path: Path):
    write_vectors(tmp_path / "v", vectors_with("the", "dog"), "folder")
    code = (
        "import sys; from pathlib import Path; from bertworks.embeddings.static_files import read_vectors; "
        f"print(len(read_vectors(Path({str(tmp_path / 'v')!r}))), 'torch' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "2 False"


def test_a_word_like_a_special_piece_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"piece '\[UNK\]' appears twice"):
        write_vectors(tmp_path / "v", vectors_with("the", "[UNK]"), "folder")
    assert not (tmp_path / "v").exists()


def test_a_long_way_round_changes_nothing(tmp_path: Path):
    vectors = vectors_with("the", "北京", "naïve", "n°1")
    write_vectors(tmp_path / "v", vectors, "folder")
    write_vectors(tmp_path / "v.txt", read_vectors(tmp_path / "v"), "glove")
    write_vectors(tmp_path / "w", read_vectors(tmp_path / "v.txt"), "folder")
    found = read_vectors(tmp_path / "w")
    assert found.words == vectors.words
    assert found.table.tobytes() == vectors.table.tobytes()
