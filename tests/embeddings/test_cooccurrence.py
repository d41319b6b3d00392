"""Co-occurrence counts: by hand, and equal to plain loops with any memory limit and chunk size."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertworks.embeddings.cooccurrence import BYTES_PER_PAIR, UNIT, PairCounter, ShuffledPairs, max_pairs_in_memory

V = 50


def count_pairs(
    folder: Path, ids: list[int], window: int, max_pairs: int, chunk_size: int
) -> dict[tuple[int, int], int]:
    folder.mkdir(exist_ok=True)
    counter = PairCounter(V, window, folder, max_pairs)
    for start in range(0, len(ids), chunk_size):
        counter.add(np.array(ids[start : start + chunk_size], dtype=np.int32))
    counts: dict[tuple[int, int], int] = {}
    previous_key = -1
    for pairs in counter.iter_sorted():
        for key, count in zip(pairs.keys.tolist(), pairs.counts.tolist(), strict=True):
            assert key > previous_key, "ascending and unique"
            previous_key = key
            counts[divmod(key, V)] = count
    return counts


def count_by_loops(ids: list[int], window: int) -> dict[tuple[int, int], int]:
    counts: Counter[tuple[int, int]] = Counter()
    for index, word in enumerate(ids):
        for distance in range(1, window + 1):
            if index < distance or -1 in ids[index - distance : index + 1]:
                break
            other = ids[index - distance]
            counts[min(word, other), max(word, other)] += round(UNIT / distance) * (2 if word == other else 1)
    return dict(counts)


def random_text(num_words: int) -> list[int]:
    generator = np.random.default_rng(3)
    words = (generator.random(num_words) ** 2 * V).astype(int)
    return np.where(generator.random(num_words) < 0.05, -1, words).tolist()


def test_a_pair_at_distance_d_counts_one_dth(tmp_path: Path):
    # 1 2 1 | 3: (1,2) twice at distance 1, (1,1) at distance 2 in both orders; 3 is in another context
    counts = count_pairs(tmp_path, [1, 2, 1, -1, 3], window=4, max_pairs=10**6, chunk_size=10**6)
    assert counts == {(1, 2): 2 * UNIT, (1, 1): UNIT}


@pytest.mark.parametrize("window", [1, 3, 10])
def test_counts_equal_those_of_plain_loops(tmp_path: Path, window: int):
    ids = random_text(3_000)
    assert count_pairs(tmp_path, ids, window, 10**6, 10**6) == count_by_loops(ids, window)


@pytest.mark.parametrize(("max_pairs", "chunk_size"), [(10**6, 1), (10**6, 7), (400, 50), (64, 5), (8, 1_000)])
def test_neither_memory_nor_chunk_size_changes_a_count(tmp_path: Path, max_pairs: int, chunk_size: int):
    ids = random_text(500)
    assert count_pairs(tmp_path, ids, 5, max_pairs, chunk_size) == count_by_loops(ids, 5)
    assert any(tmp_path.glob("*.run")) == (max_pairs < 1_000), "runs are written with little memory"


def test_memory_stays_within_the_limit(tmp_path: Path):
    max_pairs = max_pairs_in_memory(4)
    assert max_pairs * BYTES_PER_PAIR == 4 * 2**20
    counter = PairCounter(5_000, 10, tmp_path, max_pairs)
    ids = np.random.default_rng(0).integers(5_000, size=60_000).astype(np.int32)
    tracemalloc.start()
    for start in range(0, len(ids), counter.chunk_size):
        counter.add(ids[start : start + counter.chunk_size])
    num_pairs = sum(len(pairs.keys) for pairs in counter.iter_sorted())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_pairs * 16 > 8 * 2**20, "more pairs than fit in memory"
    assert peak < 4 * 2**20


@pytest.mark.parametrize("num_files", [1, 3])
def test_an_epoch_has_every_pair_in_both_orders_in_conflict_free_rounds(tmp_path: Path, num_files: int):
    ids = random_text(2_000)
    expected = {key: count / UNIT for key, count in count_by_loops(ids, 5).items()}
    expected |= {(second, first): count for (first, second), count in expected.items()}
    counter = PairCounter(V, 5, tmp_path, 10**6)
    counter.add(np.array(ids, dtype=np.int32))
    pairs = ShuffledPairs(counter.iter_sorted(), V, num_files, tmp_path, np.random.default_rng(0))
    assert pairs.num_pairs == len(expected)
    generator = np.random.default_rng(1)
    epochs = []
    for _ in range(2):
        visited: list[tuple[int, int, float]] = []
        for rounds in pairs.epoch(generator):
            columns = rounds.firsts.tolist(), rounds.seconds.tolist(), rounds.counts.tolist()
            visited += zip(*columns, strict=True)
            assert rounds.ends[-1] == len(rounds.counts)
            for round_indices in np.split(np.arange(len(rounds.counts)), rounds.ends[:-1]):
                assert len(round_indices) > 0
                for side in columns[:2]:
                    words = [side[index] for index in round_indices]
                    assert len(set(words)) == len(words), "no word occurs twice on a side of a round"
        assert {(first, second): count for first, second, count in visited} == pytest.approx(expected)
        assert len(visited) == len(expected)
        epochs.append(visited)
    assert epochs[0] != epochs[1]
