"""Tokenizing documents into a shard: order of regions, word starts, counts of empty sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertworks.corpus.shard import ShardArrays, open_shard
from bertworks.corpus.text_shard import SplitDocument
from bertworks.corpus.token_shards import write_tokens
from bertworks.text.document import Document
from bertworks.vocabulary.tokenizer import Tokenizer


def split_document(split: str, *sentences: str) -> SplitDocument:
    return SplitDocument(Document(sentences, "hand"), split)


def tokens_of(shard: ShardArrays, tokenizer: Tokenizer) -> list[list[str]]:
    return [[tokenizer.tokens[number] for number in sentence] for sentence in shard.sentences()]


DOCUMENTS = [
    split_document("held-out", "w1\n"),
    split_document("train", "w2 w3\n", "w4\n"),
    split_document("train", "w5 w6 w7\n"),
    split_document("held-out", "w8 ", "w9 w10\n"),
    split_document("train", "w11 ", "w12 ", "w13\n"),
]


def test_documents_are_sorted_by_split_then_pairable_first(tmp_path: Path, tokenizer: Tokenizer) -> None:
    regions, counts = write_tokens(tmp_path / "shard", DOCUMENTS, tokenizer, "tokens")
    shard = open_shard(tmp_path / "shard")
    assert tokens_of(shard, tokenizer) == [
        *(["w2", "w3"], ["w4"], ["w11"], ["w12"], ["w13"]),
        ["w5", "w6", "w7"],
        *(["w8"], ["w9", "w10"]),
        ["w1"],
    ]
    assert shard.document_ends.tolist() == [2, 5, 6, 8, 9]
    assert regions == {
        "train": {
            "pairable": {"tokens": 6, "sentences": 5, "documents": 2},
            "single_sentence": {"tokens": 3, "sentences": 1, "documents": 1},
        },
        "held-out": {
            "pairable": {"tokens": 3, "sentences": 2, "documents": 1},
            "single_sentence": {"tokens": 1, "sentences": 1, "documents": 1},
        },
    }
    assert counts["tokens"] == counts["words"] == 13


def test_sentences_without_tokens_are_dropped_and_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    documents = [
        split_document("train", "\u200b\n", "w1 w2\n"),  # one sentence remains: not pairable
        split_document("train", "\u200b\n", "\u200b\u200b\n"),  # nothing remains
        split_document("train", "w3\n", "\u200b\n", "w4\n"),
    ]
    regions, counts = write_tokens(tmp_path / "shard", documents, tokenizer, "tokens")
    shard = open_shard(tmp_path / "shard")
    assert tokens_of(shard, tokenizer) == [["w3"], ["w4"], ["w1", "w2"]]
    assert shard.document_ends.tolist() == [2, 3]
    assert regions["train"]["pairable"] == {"tokens": 2, "sentences": 2, "documents": 1}
    assert regions["train"]["single_sentence"] == {"tokens": 2, "sentences": 1, "documents": 1}
    assert counts["sentences without tokens"] == 4
    assert counts["documents without tokens"] == 1


def test_word_starts_are_reordered_with_their_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
    documents = [split_document("train", "w1ab w2\n"), split_document("train", "w3 w4a\n", "w5b\n")]
    _, counts = write_tokens(tmp_path / "shard", documents, tokenizer, "tokens")
    shard = open_shard(tmp_path / "shard")
    assert tokens_of(shard, tokenizer) == [["w3", "w4", "##a"], ["w5", "##b"], ["w1", "##a", "##b", "w2"]]
    flags = [True, True, False, True, False, True, False, False, True]
    assert shard.unpack_word_starts(0, 9).tolist() == flags
    assert (counts["tokens"], counts["words"]) == (9, 5)


def test_unknown_words_are_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    _, counts = write_tokens(
        tmp_path / "shard", [split_document("train", "w1 zebra\n", "雨 w2\n")], tokenizer, "tokens"
    )
    assert counts["unknown tokens"] == 2


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
def test_documents_within_a_region_keep_their_order(tmp_path: Path, tokenizer: Tokenizer, order: list[int]) -> None:
    write_tokens(tmp_path / "shard", [DOCUMENTS[number] for number in order], tokenizer, "tokens")
    sentences = tokens_of(open_shard(tmp_path / "shard"), tokenizer)
    firsts = [sentence[0] for sentence in sentences if sentence[0] in ("w2", "w11")]
    assert firsts == (["w2", "w11"] if order[0] == 0 else ["w11", "w2"])
