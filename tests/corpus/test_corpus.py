"""A corpus folder opens with its vocabulary or says why not; its splits find every piece, and another document."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numbered_corpus import FIRST_WORD, KEEP_ALL, ONE_A_LINE, Numbered, numbered_text

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.corpus import corpus as corpus_file
from bertworks.corpus.corpus import Corpus, CorpusSplit
from bertworks.corpus.text_shard import read_text
from bertworks.corpus.units import MIN_HELD_OUT, PrepareSettings
from bertworks.errors import FolderError, InputError
from bertworks.text.sources import ReadSettings, TextSource

# Paired documents of 5, 4 and 20 pieces and a lone one of 6.
SMALL = [[3, 2], [6], [1, 1, 2], [7, 6, 7]]


def piece_at(split: CorpusSplit, position: float) -> int:
    place = split.position_at(position)
    return int(place.shard.input_ids[place.token]) - FIRST_WORD


def test_the_row_of_all_holds_every_piece_once_paired_documents_first(make_corpus: Callable[..., Numbered]) -> None:
    split = make_corpus(SMALL).corpus.split("train")
    found = [piece_at(split, position + 0.5) for position in range(35)]
    assert split.length == 35
    assert found == [*range(5), *range(11, 35), *range(5, 11)]


def test_the_row_of_paired_documents_leaves_the_lone_ones_out(make_corpus: Callable[..., Numbered]) -> None:
    split = make_corpus(SMALL).corpus.split("train")
    places = [split.pairable_position_at(position) for position in range(29)]
    assert split.length_pairable == 29
    assert (split.num_documents, split.num_single_sentence, split.num_tokens) == (4, 1, 35)
    assert [int(place.shard.input_ids[place.token]) - FIRST_WORD for place in places] == [*range(5), *range(11, 35)]


def test_positions_at_and_behind_the_end_of_a_row_are_its_last_piece(make_corpus: Callable[..., Numbered]) -> None:
    split = make_corpus(SMALL).corpus.split("train")
    assert piece_at(split, np.nextafter(35.0, 0.0)) == piece_at(split, 35.0) == piece_at(split, 36.0) == 10
    assert (
        split.pairable_position_at(29.0).token
        == split.pairable_position_at(100.0).token
        == split.pairable_position_at(28.0).token
    )


def test_rows_run_on_over_shards(make_corpus: Callable[..., Numbered]) -> None:
    numbered = make_corpus(SMALL * 5, block_bytes=100)
    split = numbered.corpus.split("train")
    assert len(split.shards) > 3
    assert sorted(piece_at(split, position) for position in range(175)) == list(range(175))


def test_more_shards_than_may_stay_mapped_are_opened_in_turn(
    make_corpus: Callable[..., Numbered], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered = make_corpus(SMALL * 5, block_bytes=100)
    expected = [piece_at(numbered.corpus.split("train"), position) for position in range(175)]
    monkeypatch.setattr(corpus_file, "_MAX_OPEN_SHARDS", 2)
    split = numbered.corpus.split("train")
    order = np.random.default_rng(0).permutation(175).tolist()
    assert {position: piece_at(split, position) for position in order} == dict(enumerate(expected))
    assert len(split._shard_cache) == 2


def test_a_split_travels_to_another_process_without_its_shards(make_corpus: Callable[..., Numbered]) -> None:
    split = make_corpus([[50, 50]] * 60).corpus.split("train")
    expected = piece_at(split, 1234.0)
    sent = pickle.dumps(split)
    assert len(sent) < 2000  # the shard itself holds 6,000 pieces of two bytes
    assert piece_at(pickle.loads(sent), 1234.0) == expected


def all_places(split: CorpusSplit) -> list[corpus_file.Place]:
    return [split.pairable_position_at(position) for position in np.arange(0.5, split.length_pairable)]


def test_elsewhere_is_uniform_over_the_pieces_of_the_other_documents(make_corpus: Callable[..., Numbered]) -> None:
    split = make_corpus(SMALL).corpus.split("train")
    place = split.pairable_position_at(6.0)  # in the document of 4 pieces, w11 to w14
    found = [split.sample_other_document(place, draw) for draw in np.arange(0.5, 31) / 31]
    assert sorted(int(one.shard.input_ids[one.token]) - FIRST_WORD for one in found) == [*range(11), *range(15, 35)]


@pytest.mark.parametrize("shape", [SMALL, [[2, 2], [300, 300]], [[1, 1], [1]], [[5, 5], [4, 4], [1]]])
def test_elsewhere_is_never_the_own_document(make_corpus: Callable[..., Numbered], shape: list[list[int]]) -> None:
    numbered = make_corpus(shape)
    document_of = numbered.document_of
    split = numbered.corpus.split("train")
    draws = [0.0, 1e-300, *np.linspace(0, 1, 50, endpoint=False), *(1 - np.arange(1, 20) * 2.0**-53)]
    for place in all_places(split):
        own = document_of[place.shard.input_ids[place.token] - FIRST_WORD]
        for draw in draws:
            other = split.sample_other_document(place, float(draw))
            assert document_of[other.shard.input_ids[other.token] - FIRST_WORD] != own


def test_elsewhere_is_never_the_own_document_at_its_very_edges_whatever_the_weight(
    tmp_path: Path, vocabulary: Path
) -> None:
    split = two_sources(tmp_path, vocabulary, 0.1, 1 / 3).split("train")
    own_of = {0: [], 1: []}
    for place in all_places(split):
        first, last = place.shard.document_span(place.sentence)
        own_of[place.shard_index].append((first, last))
        shard = split.shards[place.shard_index]
        before = float(split._ends_all[place.shard_index - 1]) if place.shard_index else 0.0
        own_start = before + place.shard.first_token(first) * shard.weight
        own_length = (place.shard.first_token(last) - place.shard.first_token(first)) * shard.weight
        edge = own_start / (split.length - own_length)
        for draw in (edge, np.nextafter(edge, 0), np.nextafter(edge, 1)):
            other = split.sample_other_document(place, min(max(float(draw), 0.0), 1 - 2.0**-53))
            assert other.shard_index != place.shard_index or not first <= other.sentence < last
    assert all(own_of.values())


def two_sources(tmp_path: Path, vocabulary: Path, first: float, second: float) -> Corpus:
    """Two sources of 20 documents of 30 pieces each, with their weights."""
    words = itertools.count()
    for name in ("a.txt", "b.txt"):
        documents = ["\n".join(" ".join(f"w{next(words)}" for _ in range(10)) for _ in range(3)) for _ in range(20)]
        (tmp_path / name).write_text("\n\n".join(documents))
    sources = (TextSource(str(tmp_path / "a.txt"), first), TextSource(str(tmp_path / "b.txt"), second))
    settings = PrepareSettings(held_out_ratio=0.0, clean=KEEP_ALL)
    return Corpus.open(
        prepare(PrepareRequest(sources, vocabulary, tmp_path / "corpus", settings, ONE_A_LINE), workers=1)
    )


def test_documents_of_a_source_of_weight_two_are_met_twice_as_often(tmp_path: Path, vocabulary: Path) -> None:
    split = two_sources(tmp_path, vocabulary, 1.0, 2.0).split("train")
    assert split.length == 600 + 1200
    met = Counter(split.position_at(position).shard_index for position in np.arange(0, 1800, 7.3))
    assert abs(met[1] / met[0] - 2) < 0.05
    partners = Counter(
        split.sample_other_document(split.position_at(0.0), draw).shard_index
        for draw in np.linspace(0, 1, 1000, endpoint=False)
    )
    # Without the own document of 30 pieces the first source has 570 of 1,770.
    assert abs(partners[1] / partners[0] - 1200 / 570) < 0.05


def test_every_piece_of_a_weighted_source_can_be_met(tmp_path: Path, vocabulary: Path) -> None:
    split = two_sources(tmp_path, vocabulary, 0.3, 2.5).split("train")
    assert {piece_at(split, position) for position in np.arange(0.1, split.length, 0.25)} == set(range(1200))


# Which documents are held out.


def held_out_of(folder: Path) -> dict[str, str]:
    """The split of each document, by its text."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return {
        placed.document.text: placed.split
        for shard in manifest["shards"]
        for placed in read_text(folder / shard["file"])
    }


def prepared(folder: Path, vocabulary: Path, sources: list[TextSource], rate: float = 0.2) -> Path:
    settings = PrepareSettings(held_out_ratio=rate, clean=KEEP_ALL)
    request = PrepareRequest(tuple(sources), vocabulary, folder, settings, ONE_A_LINE)
    return prepare(request, workers=1)


def documents_text(first: int, last: int) -> str:
    return "\n\n".join(f"w{number} w1 w2\nw{number} w3" for number in range(first, last))


def test_what_is_held_out_is_decided_by_content_not_by_the_order_of_files(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text(documents_text(100, 250))
    (tmp_path / "b.txt").write_text(documents_text(300, 350))
    sources = [TextSource(str(tmp_path / "a.txt")), TextSource(str(tmp_path / "b.txt"))]
    one = held_out_of(prepared(tmp_path / "one", vocabulary, sources))
    other = held_out_of(prepared(tmp_path / "other", vocabulary, sources[::-1]))
    assert one == other
    assert len(one) == 200
    # 200 documents at 0.2: 40, and 5 * sqrt(200 * 0.2 * 0.8) = 28
    assert abs(sum(split == "held-out" for split in one.values()) - 40) <= 28


def test_no_document_is_in_both_splits(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text(documents_text(0, 100) + "\n\n" + documents_text(50, 120))
    corpus = Corpus.open(prepared(tmp_path / "corpus", vocabulary, [TextSource(str(tmp_path / "a.txt"))]))
    splits = {}
    for name in ("train", "held-out"):
        split = corpus.split(name)
        places = [split.position_at(position) for position in np.arange(0.5, split.length)]
        firsts = {place.shard.first_token(place.shard.document_span(place.sentence)[0]) for place in places}
        splits[name] = {int(places[0].shard.input_ids[first]) for first in firsts}
    assert not splits["train"] & splits["held-out"]
    assert splits["train"] | splits["held-out"] == set(range(FIRST_WORD, FIRST_WORD + 120))


@pytest.mark.parametrize(("num_documents", "expected"), [(40, MIN_HELD_OUT), (16, 4), (8, 2), (5, 2), (4, 2), (3, 0)])
def test_a_small_corpus_still_holds_some_documents_out(
    tmp_path: Path, vocabulary: Path, num_documents: int, expected: int
) -> None:
    (tmp_path / "a.txt").write_text(documents_text(0, num_documents))
    folder = prepared(tmp_path / "corpus", vocabulary, [TextSource(str(tmp_path / "a.txt"))], rate=1e-9)
    assert sum(split == "held-out" for split in held_out_of(folder).values()) == expected


def test_sources_of_their_own_are_all_that_is_held_out(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text(documents_text(0, 60))
    (tmp_path / "b.txt").write_text(documents_text(60, 70))
    sources = [TextSource(str(tmp_path / "a.txt")), TextSource(str(tmp_path / "b.txt"), split="held-out")]
    splits = held_out_of(prepared(tmp_path / "corpus", vocabulary, sources, rate=0.5))
    for text, split in splits.items():
        assert split == ("held-out" if int(text.split()[0][1:]) >= 60 else "train")
    assert len(splits) == 70


# What cannot be opened.


def test_a_split_without_text_is_refused(make_corpus: Callable[..., Numbered]) -> None:
    with pytest.raises(InputError, match="has no text in its split 'held-out'; prepare it again with --held-out"):
        make_corpus(SMALL).corpus.split("held-out")


def test_an_unknown_split_is_refused(numbered: Numbered) -> None:
    with pytest.raises(InputError, match="no split 'test'; choose one of: train, held-out"):
        numbered.corpus.split("test")


def test_a_folder_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"has no manifest\.json: it is not, or not yet, a prepared corpus"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize("content", ["[]", "5", '{"model_type": "bert"}'])
def test_the_manifest_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(FolderError, match=r"manifest\.json is not the manifest of a prepared corpus"):
        Corpus.open(tmp_path)


def test_an_unfinished_corpus_is_refused(tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(documents_text(0, 10))

    def stop(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertworks.commands.prepare.settle_unit", stop)
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path / "corpus", vocabulary, [TextSource(str(tmp_path / "a.txt"))])
    with pytest.raises(FolderError, match="not yet, a prepared corpus"):
        Corpus.open(tmp_path / "corpus")


def test_a_vocabulary_that_was_not_prepared_is_refused_with_those_that_were(numbered: Numbered) -> None:
    key = numbered.corpus.manifest["pieces"][0]
    with pytest.raises(FolderError, match=f"has no pieces of vocabulary 0000; it has: {key}"):
        Corpus.open(numbered.corpus.folder, "0000")


def test_of_several_vocabularies_one_must_be_named(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text(numbered_text([[3, 2]] * 20))
    (tmp_path / "other.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "w0", "##1"]) + "\n")
    sources = (TextSource(str(tmp_path / "a.txt")),)
    settings = PrepareSettings(clean=KEEP_ALL)
    for path in (vocabulary, tmp_path / "other.txt"):
        prepare(PrepareRequest(sources, path, tmp_path / "corpus", settings, ReadSettings()), workers=1)
    with pytest.raises(InputError, match=r"holds pieces of several vocabularies: .*; name one"):
        Corpus.open(tmp_path / "corpus")
    sizes = [Corpus.open(tmp_path / "corpus", key[:8]).tokenizer.vocab_size for key in read_keys(tmp_path / "corpus")]
    assert sizes == [10_012, 7]
    assert Corpus.open(tmp_path / "corpus", str(tmp_path / "other.txt")).tokenizer.vocab_size == 7


def read_keys(folder: Path) -> list[str]:
    keys: list[str] = json.loads((folder / "manifest.json").read_text())["pieces"]
    return keys
