"""Opening a corpus folder, positions in its splits, sampling of other documents, held-out documents, damaged shards."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage import flip_bit
from numbered_corpus import FIRST_WORD, KEEP_ALL, SENTENCE_PER_LINE, NumberedCorpus, numbered_text

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.corpus import corpus as corpus_module
from bertworks.corpus.corpus import Corpus, CorpusPosition, CorpusSplit, CorpusVerification
from bertworks.corpus.text_shard import read_text
from bertworks.corpus.units import MIN_HELD_OUT, PrepareSettings
from bertworks.errors import FolderError, InputError
from bertworks.text.sources import ReadSettings, TextSource

# Pairable documents of 5, 4 and 20 tokens and one of a single sentence of 6.
SMALL = [[3, 2], [6], [1, 1, 2], [7, 6, 7]]


def word_of(position: CorpusPosition) -> int:
    """The number k of the word wk at a position."""
    return int(position.shard.input_ids[position.token : position.token + 1][0]) - FIRST_WORD


def word_at(split: CorpusSplit, offset: float) -> int:
    return word_of(split.position_at(offset))


def test_axis_of_all_documents_has_every_token_once_pairable_first(make_corpus: Callable[..., NumberedCorpus]) -> None:
    split = make_corpus(SMALL).corpus.split("train")
    words = [word_at(split, offset + 0.5) for offset in range(35)]
    assert split.length == 35
    assert words == [*range(5), *range(11, 35), *range(5, 11)]


def test_axis_of_pairable_documents_excludes_single_sentences(make_corpus: Callable[..., NumberedCorpus]) -> None:
    split = make_corpus(SMALL).corpus.split("train")
    words = [word_of(split.pairable_position_at(offset)) for offset in range(29)]
    assert split.length_pairable == 29
    assert (split.num_documents, split.num_single_sentence, split.num_tokens) == (4, 1, 35)
    assert words == [*range(5), *range(11, 35)]


def test_offsets_beyond_the_end_are_the_last_token(make_corpus: Callable[..., NumberedCorpus]) -> None:
    split = make_corpus(SMALL).corpus.split("train")
    assert word_at(split, np.nextafter(35.0, 0.0)) == word_at(split, 35.0) == word_at(split, 36.0) == 10
    assert (
        split.pairable_position_at(29.0).token
        == split.pairable_position_at(100.0).token
        == split.pairable_position_at(28.0).token
    )


def test_axis_spans_all_shards(make_corpus: Callable[..., NumberedCorpus]) -> None:
    numbered = make_corpus(SMALL * 5, block_bytes=100)
    split = numbered.corpus.split("train")
    assert len(split.shards) > 3
    assert sorted(word_at(split, offset) for offset in range(175)) == list(range(175))


def test_shard_cache_is_bounded(make_corpus: Callable[..., NumberedCorpus], monkeypatch: pytest.MonkeyPatch) -> None:
    numbered = make_corpus(SMALL * 5, block_bytes=100)
    expected = [word_at(numbered.corpus.split("train"), offset) for offset in range(175)]
    monkeypatch.setattr(corpus_module, "_MAX_OPEN_SHARDS", 2)
    split = numbered.corpus.split("train")
    order = np.random.default_rng(0).permutation(175).tolist()
    assert {offset: word_at(split, offset) for offset in order} == dict(enumerate(expected))
    assert len(split._shard_cache) == 2


def test_split_is_pickled_without_its_shards(make_corpus: Callable[..., NumberedCorpus]) -> None:
    split = make_corpus([[50, 50]] * 60).corpus.split("train")
    expected = word_at(split, 1234.0)
    pickled = pickle.dumps(split)
    assert len(pickled) < 2000  # the shard itself has 6,000 tokens of two bytes
    assert word_at(pickle.loads(pickled), 1234.0) == expected


def all_positions(split: CorpusSplit) -> list[CorpusPosition]:
    return [split.pairable_position_at(offset) for offset in np.arange(0.5, split.length_pairable)]


def test_other_document_is_uniform_over_tokens(make_corpus: Callable[..., NumberedCorpus]) -> None:
    split = make_corpus(SMALL).corpus.split("train")
    origin = split.pairable_position_at(6.0)  # in the document of 4 tokens, w11 to w14
    words = [word_of(split.sample_other_document(origin, value)) for value in np.arange(0.5, 31) / 31]
    assert sorted(words) == [*range(11), *range(15, 35)]


@pytest.mark.parametrize("shape", [SMALL, [[2, 2], [300, 300]], [[1, 1], [1]], [[5, 5], [4, 4], [1]]])
def test_other_document_is_never_the_same(make_corpus: Callable[..., NumberedCorpus], shape: list[list[int]]) -> None:
    numbered = make_corpus(shape)
    document_of = numbered.document_of
    split = numbered.corpus.split("train")
    random_values = [0.0, 1e-300, *np.linspace(0, 1, 50, endpoint=False), *(1 - np.arange(1, 20) * 2.0**-53)]
    for origin in all_positions(split):
        for value in random_values:
            other = split.sample_other_document(origin, float(value))
            assert document_of[word_of(other)] != document_of[word_of(origin)]


def test_other_document_is_never_the_same_at_the_edges_of_weighted_documents(tmp_path: Path, vocabulary: Path) -> None:
    split = two_sources(tmp_path, vocabulary, 0.1, 1 / 3).split("train")
    shard_indices = set()
    for origin in all_positions(split):
        first, end = origin.shard.document_span(origin.sentence)
        shard_indices.add(origin.shard_index)
        weight = split.shards[origin.shard_index].weight
        before = float(split._ends_all[origin.shard_index - 1]) if origin.shard_index else 0.0
        start = before + origin.shard.first_token(first) * weight
        length = (origin.shard.first_token(end) - origin.shard.first_token(first)) * weight
        edge = start / (split.length - length)
        for value in (edge, np.nextafter(edge, 0), np.nextafter(edge, 1)):
            other = split.sample_other_document(origin, min(max(float(value), 0.0), 1 - 2.0**-53))
            assert other.shard_index != origin.shard_index or not first <= other.sentence < end
    assert shard_indices == {0, 1}


def two_sources(tmp_path: Path, vocabulary: Path, first: float, second: float) -> Corpus:
    """Two weighted sources of 20 documents of 30 tokens each."""
    words = itertools.count()
    for name in ("a.txt", "b.txt"):
        documents = ["\n".join(" ".join(f"w{next(words)}" for _ in range(10)) for _ in range(3)) for _ in range(20)]
        (tmp_path / name).write_text("\n\n".join(documents))
    sources = (TextSource(str(tmp_path / "a.txt"), first), TextSource(str(tmp_path / "b.txt"), second))
    settings = PrepareSettings(held_out_ratio=0.0, clean=KEEP_ALL)
    return Corpus.open(
        prepare(
            PrepareRequest(
                sources=sources,
                vocabulary=vocabulary,
                output=tmp_path / "corpus",
                settings=settings,
                read_settings=SENTENCE_PER_LINE,
            ),
            workers=1,
        )
    )


def test_source_of_weight_two_is_sampled_twice_as_often(tmp_path: Path, vocabulary: Path) -> None:
    split = two_sources(tmp_path, vocabulary, 1.0, 2.0).split("train")
    assert split.length == 600 + 1200
    counts = Counter(split.position_at(offset).shard_index for offset in np.arange(0, 1800, 7.3))
    assert abs(counts[1] / counts[0] - 2) < 0.05
    others = Counter(
        split.sample_other_document(split.position_at(0.0), value).shard_index
        for value in np.linspace(0, 1, 1000, endpoint=False)
    )
    # Without the document of 30 tokens itself the first source has 570 of 1,770.
    assert abs(others[1] / others[0] - 1200 / 570) < 0.05


def test_every_token_of_a_weighted_source_is_reachable(tmp_path: Path, vocabulary: Path) -> None:
    split = two_sources(tmp_path, vocabulary, 0.3, 2.5).split("train")
    assert {word_at(split, offset) for offset in np.arange(0.1, split.length, 0.25)} == set(range(1200))


# Held-out documents.


def splits_of(folder: Path) -> dict[str, str]:
    """The split of each document, by its text."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return {
        document.text: split for shard in manifest["shards"] for document, split in read_text(folder / shard["file"])
    }


def prepare_corpus(folder: Path, vocabulary: Path, sources: list[TextSource], held_out_ratio: float = 0.2) -> Path:
    settings = PrepareSettings(held_out_ratio=held_out_ratio, clean=KEEP_ALL)
    request = PrepareRequest(
        sources=tuple(sources), vocabulary=vocabulary, output=folder, settings=settings, read_settings=SENTENCE_PER_LINE
    )
    return prepare(request, workers=1)


def documents_text(first: int, last: int) -> str:
    return "\n\n".join(f"w{number} w1 w2\nw{number} w3" for number in range(first, last))


def test_held_out_documents_depend_on_content_not_on_file_order(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text(documents_text(100, 250))
    (tmp_path / "b.txt").write_text(documents_text(300, 350))
    sources = [TextSource(str(tmp_path / "a.txt")), TextSource(str(tmp_path / "b.txt"))]
    one = splits_of(prepare_corpus(tmp_path / "one", vocabulary, sources))
    other = splits_of(prepare_corpus(tmp_path / "other", vocabulary, sources[::-1]))
    assert one == other
    assert len(one) == 200
    # 200 documents at 0.2: 40, and 5 * sqrt(200 * 0.2 * 0.8) = 28
    assert abs(sum(split == "held-out" for split in one.values()) - 40) <= 28


def test_no_document_is_in_both_splits(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text(documents_text(0, 100) + "\n\n" + documents_text(50, 120))
    corpus = Corpus.open(prepare_corpus(tmp_path / "corpus", vocabulary, [TextSource(str(tmp_path / "a.txt"))]))
    splits = {}
    for name in ("train", "held-out"):
        split = corpus.split(name)
        positions = [split.position_at(offset) for offset in np.arange(0.5, split.length)]
        first_tokens = {one.shard.first_token(one.shard.document_span(one.sentence)[0]) for one in positions}
        splits[name] = {int(positions[0].shard.input_ids[token : token + 1][0]) for token in first_tokens}
    assert not splits["train"] & splits["held-out"]
    assert splits["train"] | splits["held-out"] == set(range(FIRST_WORD, FIRST_WORD + 120))


@pytest.mark.parametrize(("num_documents", "expected"), [(40, MIN_HELD_OUT), (16, 4), (8, 2), (5, 2), (4, 2), (3, 0)])
def test_small_corpus_still_has_held_out_documents(
    tmp_path: Path, vocabulary: Path, num_documents: int, expected: int
) -> None:
    (tmp_path / "a.txt").write_text(documents_text(0, num_documents))
    folder = prepare_corpus(tmp_path / "corpus", vocabulary, [TextSource(str(tmp_path / "a.txt"))], held_out_ratio=1e-9)
    assert sum(split == "held-out" for split in splits_of(folder).values()) == expected


def test_held_out_sources_replace_the_held_out_ratio(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text(documents_text(0, 60))
    (tmp_path / "b.txt").write_text(documents_text(60, 70))
    sources = [TextSource(str(tmp_path / "a.txt")), TextSource(str(tmp_path / "b.txt"), split="held-out")]
    splits = splits_of(prepare_corpus(tmp_path / "corpus", vocabulary, sources, held_out_ratio=0.5))
    for text, split in splits.items():
        assert split == ("held-out" if int(text.split()[0][1:]) >= 60 else "train")
    assert len(splits) == 70


# Errors.


def test_split_without_text_is_an_error(make_corpus: Callable[..., NumberedCorpus]) -> None:
    with pytest.raises(InputError, match="has no text in its split 'held-out'; prepare it again with --held-out"):
        make_corpus(SMALL).corpus.split("held-out")


def test_unknown_split_is_an_error(numbered: NumberedCorpus) -> None:
    with pytest.raises(InputError, match="no split 'test'; choose one of: train, held-out"):
        numbered.corpus.split("test")


def test_folder_that_is_not_a_corpus_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"has no manifest\.json: it is not, or not yet, a prepared corpus"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize("content", ["[]", "5", '{"model_type": "bert"}'])
def test_other_manifest_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(FolderError, match=r"manifest\.json is not the manifest of a prepared corpus"):
        Corpus.open(tmp_path)


def test_unfinished_corpus_is_an_error(tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(documents_text(0, 10))

    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bertworks.commands.prepare.finalize_unit", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(tmp_path / "corpus", vocabulary, [TextSource(str(tmp_path / "a.txt"))])
    with pytest.raises(FolderError, match="not yet, a prepared corpus"):
        Corpus.open(tmp_path / "corpus")


def test_unknown_vocabulary_is_an_error_that_lists_the_available_ones(numbered: NumberedCorpus) -> None:
    key = numbered.corpus.manifest["tokens"][0]
    with pytest.raises(FolderError, match=f"has no tokens of vocabulary 0000; it has: {key}"):
        Corpus.open(numbered.corpus.folder, "0000")


def test_one_of_several_vocabularies_must_be_named(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text(numbered_text([[3, 2]] * 20))
    (tmp_path / "other.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "w0", "##1"]) + "\n")
    sources = (TextSource(str(tmp_path / "a.txt")),)
    settings = PrepareSettings(clean=KEEP_ALL)
    for path in (vocabulary, tmp_path / "other.txt"):
        prepare(
            PrepareRequest(
                sources=sources,
                vocabulary=path,
                output=tmp_path / "corpus",
                settings=settings,
                read_settings=ReadSettings(),
            ),
            workers=1,
        )
    with pytest.raises(InputError, match=r"has tokens of several vocabularies: .*; name one"):
        Corpus.open(tmp_path / "corpus")
    vocab_sizes = [
        Corpus.open(tmp_path / "corpus", key[:8]).tokenizer.vocab_size for key in read_keys(tmp_path / "corpus")
    ]
    assert vocab_sizes == [10_012, 7]
    assert Corpus.open(tmp_path / "corpus", str(tmp_path / "other.txt")).tokenizer.vocab_size == 7


def read_keys(folder: Path) -> list[str]:
    keys: list[str] = json.loads((folder / "manifest.json").read_text())["tokens"]
    return keys


# Damage.


def test_a_damaged_shard_is_found_when_its_tokens_are_needed(make_corpus: Callable[..., NumberedCorpus]) -> None:
    corpus = make_corpus(SMALL).corpus
    (path,) = corpus.tokens_folder.glob("*.safetensors")
    flip_bit(path, -1)
    split = Corpus.open(corpus.folder).split("train")
    with pytest.raises(FolderError, match=rf"{path.name} is damaged or was changed: its sha256 is not the one in"):
        split.position_at(0.0)


def test_all_shards_are_compared_in_the_background(make_corpus: Callable[..., NumberedCorpus]) -> None:
    corpus = make_corpus([[40] * 4] * 40, block_bytes=2**10).corpus
    paths = sorted(corpus.tokens_folder.glob("*.safetensors"))
    assert len(paths) > 5
    verification = CorpusVerification(corpus)
    assert verification.wait(60)
    assert verification.error == ""
    flip_bit(paths[3], 0)
    paths[5].unlink()
    verification = CorpusVerification(corpus)
    assert verification.wait(60)
    assert verification.error.startswith(f"{paths[3]} is damaged or was changed: its sha256 is not the one in")
    paths[3].unlink()
    verification = CorpusVerification(corpus)
    assert verification.wait(60)
    assert verification.error.startswith(f"{paths[3]} is missing; run `bertworks")


def test_another_tokenizer_than_that_of_the_tokens_is_an_error(make_corpus: Callable[..., NumberedCorpus]) -> None:
    corpus = make_corpus(SMALL).corpus
    path = corpus.tokens_folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"w17"', '"w_17"'))
    with pytest.raises(FolderError, match="has another vocabulary than was written; delete"):
        _ = Corpus.open(corpus.folder).tokenizer
