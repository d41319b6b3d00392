"""GloVe: an epoch equals the published algorithm pair by pair, and the same seed gives the same bits."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bertworks.embeddings.cooccurrence import PairCounter, Rounds, ShuffledPairs
from bertworks.embeddings.glove import Glove, train_glove
from bertworks.embeddings.static import StaticVectors
from bertworks.embeddings.static_settings import GloveSettings
from bertworks.embeddings.static_words import WordSettings
from bertworks.embeddings.word_stream import WordStream, WordStreamWriter
from bertworks.errors import SettingsError
from bertworks.text.document import Counts

SMALL = GloveSettings(vector_size=8, window=3, epochs=3, memory_mb=1)


def check_progress(stage: str, done: int, total: int, unit: str) -> None:
    assert 0 <= done <= total


def stream_of(folder: Path, contexts: list[str]) -> WordStream:
    folder.mkdir(exist_ok=True)
    with WordStreamWriter(folder / "ids", Counts()) as writer:
        writer.add(contexts)
        return writer.finish(WordSettings(min_count=1))


def two_clusters() -> list[str]:
    """Words a0 to a9 mostly occur together, and so do b0 to b9; 20% are from the other cluster."""
    generator = np.random.default_rng(0)
    contexts = [np.where(generator.random(12) < 0.2, 1 - index % 2, index % 2) for index in range(400)]
    return [" ".join(f"{'ab'[cluster]}{generator.integers(10)}" for cluster in context) for context in contexts]


class Expected(NamedTuple):
    table: npt.NDArray[np.float64]
    cost: float


def update_pair_by_pair(glove: Glove, rounds: Rounds, settings: GloveSettings) -> Expected:
    """The published algorithm: AdaGrad on one pair after another, as in the released tool."""
    size, learning_rate = settings.vector_size, settings.learning_rate
    values = [side[:, 0].double().numpy().copy() for side in (glove._words, glove._contexts)]
    vectors, biases = [side[:, :size] for side in values], [values[0][:, size].copy(), values[1][:, size + 1].copy()]
    squares, bias_squares = [np.ones_like(side) for side in vectors], [np.ones_like(side) for side in biases]
    cost = 0.0
    for first, second, count in zip(rounds.firsts, rounds.seconds, rounds.counts.astype(np.float64), strict=True):
        rows = (first, second)
        pair = [side[row].copy() for side, row in zip(vectors, rows, strict=True)]
        error = pair[0] @ pair[1] + biases[0][first] + biases[1][second] - np.log(count)
        gradient = min(1.0, count / settings.x_max) ** settings.alpha * error
        cost += 0.5 * gradient * error
        for side, row in enumerate(rows):
            step = learning_rate * gradient * pair[1 - side]
            vectors[side][row] -= step / np.sqrt(squares[side][row])
            squares[side][row] += step**2
            biases[side][row] -= learning_rate * gradient / np.sqrt(bias_squares[side][row])
            bias_squares[side][row] += (learning_rate * gradient) ** 2
    return Expected(vectors[0] + vectors[1], cost)


def pairs_of(stream: WordStream, window: int, folder: Path) -> ShuffledPairs:
    counter = PairCounter(len(stream.words), window, folder, 10**6)
    for chunk in stream.chunks():
        counter.add(chunk)
    return ShuffledPairs(counter.iter_sorted(), len(stream.words), 1, folder, np.random.default_rng(0))


def test_a_vectorized_round_equals_updates_pair_by_pair(tmp_path: Path):
    settings = GloveSettings(vector_size=5, x_max=10.0, alpha=0.75, learning_rate=0.3)
    stream = stream_of(tmp_path, two_clusters()[:60])
    glove = Glove(len(stream.words), settings)
    (rounds,) = pairs_of(stream, 5, tmp_path).epoch(np.random.default_rng(1))
    assert len(rounds.ends) <= len(stream.words)
    expected = update_pair_by_pair(glove, rounds, settings)
    (reported,) = glove.train_rounds(rounds)
    assert reported[0] == len(rounds.counts)
    assert reported[1] == pytest.approx(expected.cost, rel=1e-4)
    np.testing.assert_allclose(glove.table(), expected.table, rtol=1e-3, atol=1e-4)


def test_rounds_converge_like_pairs_in_any_order(tmp_path: Path):
    settings = GloveSettings(vector_size=6, x_max=10.0)
    stream = stream_of(tmp_path, two_clusters())
    pairs, generator = pairs_of(stream, 5, tmp_path), np.random.default_rng(1)
    ours, theirs = Glove(len(stream.words), settings), Glove(len(stream.words), settings)
    for _ in range(20):
        (rounds,) = pairs.epoch(generator)
        cost = sum(part for _, part in ours.train_rounds(rounds))
        order = generator.permutation(len(rounds.counts))
        single_rounds = np.arange(1, len(order) + 1)  # one round per pair
        shuffled = Rounds(rounds.firsts[order], rounds.seconds[order], rounds.counts[order], single_rounds)
        expected = sum(part for _, part in theirs.train_rounds(shuffled))
    assert cost == pytest.approx(expected, rel=0.1)
    similarity, expected_similarity = (glove.table() @ glove.table().T for glove in (ours, theirs))
    assert np.corrcoef(similarity.ravel(), expected_similarity.ravel())[0, 1] > 0.9


def test_only_words_of_a_round_are_updated():
    glove = Glove(5, GloveSettings(vector_size=4))
    table_before = glove.table().copy()
    ids = np.array([0, 3], dtype=np.int32)
    list(glove.train_rounds(Rounds(ids, ids[::-1].copy(), np.array([7.0, 7.0], dtype=np.float32), np.array([2]))))
    changed = (glove.table() != table_before).any(axis=1)
    assert changed.tolist() == [True, False, False, True, False]


def test_words_with_similar_contexts_get_similar_vectors(tmp_path: Path):
    settings = GloveSettings(vector_size=8, window=5, epochs=60, x_max=10, memory_mb=1)
    stream = stream_of(tmp_path, two_clusters())
    trained = train_glove(stream, settings, tmp_path, check_progress)
    costs = trained.metadata["costs"]
    assert costs[-1] < 0.2 * costs[0]
    vectors = StaticVectors(stream.words, trained.table)
    assert {neighbor.word[0] for neighbor in vectors.most_similar("a0", 9)} == {"a"}
    assert {neighbor.word[0] for neighbor in vectors.most_similar("b0", 9)} == {"b"}


def test_the_same_seed_gives_the_same_bits_whatever_the_threads(tmp_path: Path):
    stream = stream_of(tmp_path, two_clusters())
    tables = []
    for threads, seed in ((1, 0), (1, 0), (2, 0), (1, 1)):
        settings = GloveSettings(vector_size=8, window=3, epochs=3, memory_mb=1, seed=seed, threads=threads)
        tables.append(train_glove(stream, settings, tmp_path, check_progress).table.tobytes())
    assert tables[0] == tables[1] == tables[2]
    assert tables[0] != tables[3]


def test_training_restores_the_number_of_threads(tmp_path: Path):
    table_before = torch.get_num_threads()
    train_glove(stream_of(tmp_path, two_clusters()), SMALL, tmp_path, check_progress)
    assert torch.get_num_threads() == table_before


@pytest.mark.parametrize(
    "setting", [{"vector_size": 0}, {"learning_rate": 0.0}, {"alpha": 2.0}, {"x_max": float("inf")}]
)
def test_invalid_settings_are_rejected_by_name(setting: dict):
    (name,) = setting
    with pytest.raises(SettingsError, match=name):
        GloveSettings(**setting)
