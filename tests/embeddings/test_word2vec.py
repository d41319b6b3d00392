"""Word2Vec through gensim: reproducibility, similarity, and a missing package."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_settings import Word2VecSettings
from bertworks.embeddings.static_words import WordSettings
from bertworks.embeddings.word2vec import require_gensim, train_word2vec
from bertworks.embeddings.word_stream import WordStream, WordStreamWriter
from bertworks.errors import MissingDependencyError, SettingsError
from bertworks.text.document import Counts

PROGRAM = """
import hashlib, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_word2vec import table_hash
print(table_hash(Path({folder!r})))
"""


def stream_of(folder: Path) -> WordStream:
    """Words a0 to a9 only occur together, and so do b0 to b9."""
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    contexts = [
        " ".join(f"{'ab'[index % 2]}{word}" for word in generator.integers(10, size=12)) for index in range(600)
    ]
    with WordStreamWriter(folder / "ids", Counts()) as writer:
        writer.add(contexts)
        return writer.finish(WordSettings(min_count=1))


def train(folder: Path, settings: Word2VecSettings) -> StaticVectors:
    stream = stream_of(folder)
    remaining: list[int] = []
    table = train_word2vec(
        stream, settings, folder, lambda stage, done, total, unit: remaining.append(total - done)
    ).table
    assert remaining[-1] == 0, "all words of all epochs are processed"
    return StaticVectors(stream.words, table)


def table_hash(folder: Path) -> str:
    return hashlib.sha256(train(folder, Word2VecSettings(vector_size=8, epochs=2)).table.tobytes()).hexdigest()


@pytest.mark.parametrize("objective", ["skip-gram", "cbow"])
def test_words_with_similar_contexts_get_similar_vectors(tmp_path: Path, objective: str):
    vectors = train(tmp_path, Word2VecSettings(objective=objective, vector_size=8, window=2, epochs=30, sample=0.0))
    assert {neighbor.word[0] for neighbor in vectors.most_similar("a0", 9)} == {"a"}
    assert {neighbor.word[0] for neighbor in vectors.most_similar("b0", 9)} == {"b"}


def test_the_same_seed_gives_the_same_bits_in_another_process(tmp_path: Path):
    program = PROGRAM.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "other"))
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == table_hash(tmp_path / "here")


def test_another_seed_gives_other_vectors(tmp_path: Path):
    first, second = (train(tmp_path, Word2VecSettings(vector_size=8, epochs=1, seed=seed)) for seed in (0, 1))
    assert not np.array_equal(first.table, second.table)


def test_without_gensim_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bertworks\[vectors\]'"):
        require_gensim()


@pytest.mark.parametrize("setting", [{"objective": "glove"}, {"negative": 0}, {"learning_rate": 1e-6}, {"sample": 1.0}])
def test_invalid_settings_are_rejected_by_name(setting: dict):
    (name,) = setting
    with pytest.raises(SettingsError, match=name):
        Word2VecSettings(**setting)
