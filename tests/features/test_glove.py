"""GloVe: a step equals the formula written out with loops, rows may collide, and the same seed gives the same bits."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertworks.errors import SettingsError
from bertworks.features.cooccurrence import _SHUFFLED
from bertworks.features.glove import Glove, train_glove
from bertworks.features.static import StaticVectors
from bertworks.features.static_settings import GloveSettings
from bertworks.features.static_words import WordSettings
from bertworks.features.word_stream import StreamWriter, WordStream
from bertworks.text.document import Counts

SMALL = GloveSettings(width=8, window=3, epochs=3, batch=64, memory_mb=1)


def silent(stage: str, done: int, total: int, unit: str) -> None:
    assert 0 <= done <= total


def stream_of(folder: Path, contexts: list[str]) -> WordStream:
    folder.mkdir(exist_ok=True)
    with StreamWriter(folder / "ids", Counts()) as writer:
        writer.add(contexts)
        return writer.finish(WordSettings(min_count=1))


def two_worlds() -> list[str]:
    """Words a0 to a9 only ever meet each other, and so do b0 to b9."""
    generator = np.random.default_rng(0)
    return [" ".join(f"{'ab'[row % 2]}{word}" for word in generator.integers(10, size=12)) for row in range(400)]


def test_a_step_is_the_formula_with_gradients_of_colliding_rows_added_up():
    settings = GloveSettings(width=3, x_max=10.0, alpha=0.75, rate=0.1)
    glove = Glove(4, settings)
    batch = np.array([(0, 1, 2.0), (0, 2, 30.0), (1, 1, 5.0), (0, 3, 0.5)], dtype=_SHUFFLED)
    words, contexts = (side.vectors.double().numpy().copy() for side in (glove._words, glove._contexts))
    of_words, of_contexts = (side.biases.double().numpy().copy()[:, 0] for side in (glove._words, glove._contexts))
    ordered = [(0, 1, 2.0), (1, 0, 2.0), (0, 2, 30.0), (2, 0, 30.0), (1, 1, 5.0), (0, 3, 0.5), (3, 0, 0.5)]
    gradients = [np.zeros((4, 3)), np.zeros((4, 3)), np.zeros(4), np.zeros(4)]
    squares = [np.ones((4, 3)), np.ones((4, 3)), np.ones(4), np.ones(4)]
    cost = 0.0
    for row, column, count in ordered:
        miss = words[row] @ contexts[column] + of_words[row] + of_contexts[column] - np.log(count)
        pull = min(1.0, count / 10.0) ** 0.75 * miss
        cost += 0.5 * pull * miss
        places = (row, column, row, column)
        for number, gradient in enumerate((pull * contexts[column], pull * words[row], pull, pull)):
            gradients[number][places[number]] += gradient
            squares[number][places[number]] += gradient**2
    expected = [
        values - 0.1 * gradient / np.sqrt(square)
        for values, gradient, square in zip((words, contexts, of_words, of_contexts), gradients, squares, strict=True)
    ]
    assert glove.step(batch) == pytest.approx(cost, rel=1e-5)
    sides = (glove._words, glove._contexts)
    found = [side.vectors.numpy() for side in sides] + [side.biases.numpy()[:, 0] for side in sides]
    for values, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-6)


def test_a_word_that_a_batch_does_not_hold_stays_as_it_was():
    glove = Glove(5, GloveSettings(width=4))
    before = glove.table().copy()
    glove.step(np.array([(0, 3, 7.0)], dtype=_SHUFFLED))
    changed = (glove.table() != before).any(axis=1)
    assert changed.tolist() == [True, False, False, True, False]


def test_words_that_meet_the_same_words_come_near_each_other(tmp_path: Path):
    settings = GloveSettings(width=8, window=5, epochs=60, batch=128, x_max=10, memory_mb=1)
    stream = stream_of(tmp_path, two_worlds())
    trained = train_glove(stream, settings, tmp_path, silent)
    costs = trained.told["costs"]
    assert costs[-1] < 0.2 * costs[0]
    vectors = StaticVectors(stream.words, trained.table)
    assert {near.word[0] for near in vectors.like("a0", 9)} == {"a"}
    assert {near.word[0] for near in vectors.like("b0", 9)} == {"b"}


def test_the_same_seed_gives_the_same_bits_whatever_the_threads(tmp_path: Path):
    stream = stream_of(tmp_path, two_worlds())
    tables = []
    for threads, seed in ((1, 0), (1, 0), (2, 0), (1, 1)):
        settings = GloveSettings(width=8, window=3, epochs=3, batch=64, memory_mb=1, seed=seed, threads=threads)
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
