"""Pairs of near words: counts by hand, the same ones from plain loops, in any memory and however text is cut."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertworks.embeddings.cooccurrence import BYTES_PER_PAIR, UNIT, PairCounter, ShuffledPairs, max_pairs_in_memory

V = 50


def counted(folder: Path, ids: list[int], window: int, most: int, size: int) -> dict[tuple[int, int], int]:
    folder.mkdir(exist_ok=True)
    counter = PairCounter(V, window, folder, most)
    for start in range(0, len(ids), size):
        counter.add(np.array(ids[start : start + size], dtype=np.int32))
    found: dict[tuple[int, int], int] = {}
    last = -1
    for pairs in counter.iter_sorted():
        for key, count in zip(pairs.keys.tolist(), pairs.counts.tolist(), strict=True):
            assert key > last, "in rising order, each once"
            last = key
            found[divmod(key, V)] = count
    return found


def by_loops(ids: list[int], window: int) -> dict[tuple[int, int], int]:
    found: Counter[tuple[int, int]] = Counter()
    for place, word in enumerate(ids):
        for distance in range(1, window + 1):
            if place < distance or -1 in ids[place - distance : place + 1]:
                break
            other = ids[place - distance]
            found[min(word, other), max(word, other)] += round(UNIT / distance) * (2 if word == other else 1)
    return dict(found)


def some_text(num_words: int) -> list[int]:
    generator = np.random.default_rng(3)
    words = (generator.random(num_words) ** 2 * V).astype(int)
    return np.where(generator.random(num_words) < 0.05, -1, words).tolist()


def test_a_distance_of_d_counts_one_dth(tmp_path: Path):
    # 1 2 1 | 3: (1,2) twice at distance 1, (1,1) at distance 2 in both orders; 3 stands in a stretch of its own
    found = counted(tmp_path, [1, 2, 1, -1, 3], window=4, most=10**6, size=10**6)
    assert found == {(1, 2): 2 * UNIT, (1, 1): UNIT}


@pytest.mark.parametrize("window", [1, 3, 10])
def test_counts_are_those_of_plain_loops(tmp_path: Path, window: int):
    ids = some_text(3_000)
    assert counted(tmp_path, ids, window, 10**6, 10**6) == by_loops(ids, window)


@pytest.mark.parametrize(("most", "size"), [(10**6, 1), (10**6, 7), (400, 50), (64, 5), (8, 1_000)])
def test_neither_memory_nor_cuts_change_a_count(tmp_path: Path, most: int, size: int):
    ids = some_text(500)
    assert counted(tmp_path, ids, 5, most, size) == by_loops(ids, 5)
    assert any(tmp_path.glob("*.run")) == (most < 1_000), "little memory: runs on disk"


def test_memory_stays_within_what_was_allowed(tmp_path: Path):
    most = max_pairs_in_memory(4)
    assert most * BYTES_PER_PAIR == 4 * 2**20
    counter = PairCounter(5_000, 10, tmp_path, most)
    ids = np.random.default_rng(0).integers(5_000, size=60_000).astype(np.int32)
    tracemalloc.start()
    for start in range(0, len(ids), counter.chunk_size):
        counter.add(ids[start : start + counter.chunk_size])
    num_pairs = sum(len(pairs.keys) for pairs in counter.iter_sorted())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_pairs * 16 > 8 * 2**20, "there was more to count than fits"
    assert peak < 4 * 2**20


@pytest.mark.parametrize("num_files", [1, 3])
def test_an_epoch_holds_every_pair_in_both_orders_in_rounds_of_its_own(tmp_path: Path, num_files: int):
    ids = some_text(2_000)
    expected = {key: count / UNIT for key, count in by_loops(ids, 5).items()}
    expected |= {(second, first): count for (first, second), count in expected.items()}
    counter = PairCounter(V, 5, tmp_path, 10**6)
    counter.add(np.array(ids, dtype=np.int32))
    pairs = ShuffledPairs(counter.iter_sorted(), V, num_files, tmp_path, np.random.default_rng(0))
    assert pairs.num_pairs == len(expected)
    generator = np.random.default_rng(1)
    epochs = []
    for _ in range(2):
        met: list[tuple[int, int, float]] = []
        for rounds in pairs.epoch(generator):
            columns = rounds.firsts.tolist(), rounds.seconds.tolist(), rounds.counts.tolist()
            met += zip(*columns, strict=True)
            assert rounds.ends[-1] == len(rounds.counts)
            for own in np.split(np.arange(len(rounds.counts)), rounds.ends[:-1]):
                assert len(own) > 0
                for side in columns[:2]:
                    words = [side[number] for number in own]
                    assert len(set(words)) == len(words), "no word stands twice on a side of a round"
        assert {(first, second): count for first, second, count in met} == pytest.approx(expected)
        assert len(met) == len(expected)
        epochs.append(met)
    assert epochs[0] != epochs[1]
