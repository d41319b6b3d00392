"""What is told of a vocabulary, a corpus and embeddings."""

from pathlib import Path

import pytest
from small_run import TOKENS, prepare_corpus

import bertworks
from bertworks.errors import FolderError
from bertworks.folder_info.kind import UNFINISHED
from bertworks.folder_info.text_kinds import describe_corpus, describe_vectors, describe_vocabulary


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"))


def test_a_corpus_tells_its_counts_languages_and_version(corpus: Path):
    info = describe_corpus(corpus)
    assert (info.command, info.version) == ("bertworks prepare", bertworks.__version__)
    assert (info.facts["documents"], info.facts["sentences"]) == (40, 240)
    (vocabulary,) = info.facts["vocabularies"].values()
    assert vocabulary.startswith(f"wordpiece of {len(TOKENS)}, ")
    assert vocabulary.endswith(" tokens of text")
    assert info.next_command == f"bertworks plan --data {corpus} --budget 2h"


def test_a_corpus_without_a_shard_is_damaged(corpus: Path):
    shard = next((corpus / "text").iterdir())
    hidden = shard.rename(corpus / "hidden")
    with pytest.raises(FolderError, match=f"lacks text/{shard.name}"):
        describe_corpus(corpus)
    hidden.rename(shard)


def test_a_corpus_without_a_manifest_is_unfinished(tmp_path: Path):
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "000000.json").write_text("{}")
    (tmp_path / ".work" / "000000.final.json").write_text("{}")
    info = describe_corpus(tmp_path)
    assert (info.state, info.facts) == (UNFINISHED, {"units read": 1})


def test_a_vocabulary_of_others_has_no_command(corpus: Path):
    (folder,) = (corpus / "tokens").iterdir()
    info = describe_vocabulary(folder)
    assert (info.command, info.facts["tokens"], info.facts["cased"]) == ("", len(TOKENS), False)


def test_parts_of_embeddings_are_unfinished(tmp_path: Path):
    (tmp_path / "vectors.npy").write_bytes(b"")
    (tmp_path / "progress.json").write_text('{"unit": "words", "texts": 12}')
    info = describe_vectors(tmp_path)
    assert (info.state, info.facts) == (UNFINISHED, {"level": "words", "texts": 12})
