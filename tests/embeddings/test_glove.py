"""GloVe: an epoch equals the published algorithm written out pair by pair, and the same seed gives the same bits."""

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


def silent(stage: str, done: int, total: int, unit: str) -> None:
    assert 0 <= done <= total


def stream_of(folder: Path, contexts: list[str]) -> WordStream:
    folder.mkdir(exist_ok=True)
    with WordStreamWriter(folder / "ids", Counts()) as writer:
        writer.add(contexts)
        return writer.finish(WordSettings(min_count=1))


def two_worlds() -> list[str]:
    """Words a0 to a9 mostly meet each other, and so do b0 to b9; now and then they stray."""
    generator = np.random.default_rng(0)
    worlds = [np.where(generator.random(12) < 0.2, 1 - row % 2, row % 2) for row in range(400)]
    return [" ".join(f"{'ab'[world]}{generator.integers(10)}" for world in own) for own in worlds]


class Expected(NamedTuple):
    table: npt.NDArray[np.float64]
    cost: float


def one_by_one(glove: Glove, rounds: Rounds, settings: GloveSettings) -> Expected:
    """The published algorithm written out: AdaGrad on one pair after another, as the released tool has it."""
    width, rate = settings.vector_size, settings.learning_rate
    values = [side[:, 0].double().numpy().copy() for side in (glove._words, glove._contexts)]
    vectors, biases = [one[:, :width] for one in values], [values[0][:, width].copy(), values[1][:, width + 1].copy()]
    seen, seen_biases = [np.ones_like(one) for one in vectors], [np.ones_like(one) for one in biases]
    cost = 0.0
    for row, column, count in zip(rounds.firsts, rounds.seconds, rounds.counts.astype(np.float64), strict=True):
        places = (row, column)
        own = [one[place].copy() for one, place in zip(vectors, places, strict=True)]
        miss = own[0] @ own[1] + biases[0][row] + biases[1][column] - np.log(count)
        pull = min(1.0, count / settings.x_max) ** settings.alpha * miss
        cost += 0.5 * pull * miss
        for side, place in enumerate(places):
            step = rate * pull * own[1 - side]
            vectors[side][place] -= step / np.sqrt(seen[side][place])
            seen[side][place] += step**2
            biases[side][place] -= rate * pull / np.sqrt(seen_biases[side][place])
            seen_biases[side][place] += (rate * pull) ** 2
    return Expected(vectors[0] + vectors[1], cost)


def pairs_of(stream: WordStream, window: int, folder: Path) -> ShuffledPairs:
    counter = PairCounter(len(stream.words), window, folder, 10**6)
    for chunk in stream.chunks():
        counter.add(chunk)
    return ShuffledPairs(counter.iter_sorted(), len(stream.words), 1, folder, np.random.default_rng(0))


def test_a_round_at_once_is_its_pairs_one_by_one(tmp_path: Path):
    settings = GloveSettings(vector_size=5, x_max=10.0, alpha=0.75, learning_rate=0.3)
    stream = stream_of(tmp_path, two_worlds()[:60])
    glove = Glove(len(stream.words), settings)
    (rounds,) = pairs_of(stream, 5, tmp_path).epoch(np.random.default_rng(1))
    assert len(rounds.ends) <= len(stream.words)
    expected = one_by_one(glove, rounds, settings)
    (told,) = glove.train_rounds(rounds)
    assert told[0] == len(rounds.counts)
    assert told[1] == pytest.approx(expected.cost, rel=1e-4)
    np.testing.assert_allclose(glove.table(), expected.table, rtol=1e-3, atol=1e-4)


def test_rounds_reach_what_pairs_in_any_order_reach(tmp_path: Path):
    settings = GloveSettings(vector_size=6, x_max=10.0)
    stream = stream_of(tmp_path, two_worlds())
    pairs, generator = pairs_of(stream, 5, tmp_path), np.random.default_rng(1)
    ours, theirs = Glove(len(stream.words), settings), Glove(len(stream.words), settings)
    for _ in range(20):
        (rounds,) = pairs.epoch(generator)
        cost = sum(part for _, part in ours.train_rounds(rounds))
        order = generator.permutation(len(rounds.counts))
        each = np.arange(1, len(order) + 1)  # a round for every pair
        shuffled = Rounds(rounds.firsts[order], rounds.seconds[order], rounds.counts[order], each)
        expected = sum(part for _, part in theirs.train_rounds(shuffled))
    assert cost == pytest.approx(expected, rel=0.1)
    near, wanted = (one.table() @ one.table().T for one in (ours, theirs))
    assert np.corrcoef(near.ravel(), wanted.ravel())[0, 1] > 0.9


def test_a_word_that_a_round_does_not_hold_stays_as_it_was():
    glove = Glove(5, GloveSettings(vector_size=4))
    before = glove.table().copy()
    ids = np.array([0, 3], dtype=np.int32)
    list(glove.train_rounds(Rounds(ids, ids[::-1].copy(), np.array([7.0, 7.0], dtype=np.float32), np.array([2]))))
    changed = (glove.table() != before).any(axis=1)
    assert changed.tolist() == [True, False, False, True, False]


def test_words_that_meet_the_same_words_come_near_each_other(tmp_path: Path):
    settings = GloveSettings(vector_size=8, window=5, epochs=60, x_max=10, memory_mb=1)
    stream = stream_of(tmp_path, two_worlds())
    trained = train_glove(stream, settings, tmp_path, silent)
    costs = trained.metadata["costs"]
    assert costs[-1] < 0.2 * costs[0]
    vectors = StaticVectors(stream.words, trained.table)
    assert {near.word[0] for near in vectors.most_similar("a0", 9)} == {"a"}
    assert {near.word[0] for near in vectors.most_similar("b0", 9)} == {"b"}


def test_the_same_seed_gives_the_same_bits_whatever_the_threads(tmp_path: Path):
    stream = stream_of(tmp_path, two_worlds())
    tables = []
    for threads, seed in ((1, 0), (1, 0), (2, 0), (1, 1)):
        settings = GloveSettings(vector_size=8, window=3, epochs=3, memory_mb=1, seed=seed, threads=threads)
        tables.append(train_glove(stream, settings, tmp_path, silent).table.tobytes())
    assert tables[0] == tables[1] == tables[2]
    assert tables[0] != tables[3]


def test_training_leaves_the_number_of_threads_as_it_was(tmp_path: Path):
    before = torch.get_num_threads()
    train_glove(stream_of(tmp_path, two_worlds()), SMALL, tmp_path, silent)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("wrong", [{"width": 0}, {"rate": 0.0}, {"alpha": 2.0}, {"x_max": float("inf")}])
def test_settings_that_cannot_work_name_themselves(wrong: dict):
    (name,) = wrong
    with pytest.raises(SettingsError, match=name):
        GloveSettings(**wrong)
