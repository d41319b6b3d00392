"""Training static vectors from text: sources and corpus folders, reproducibility, and files on disk."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.word_vectors import VectorsRequest, convert_vectors, evaluate_vectors, train_vectors
from bertworks.corpus.units import PrepareSettings
from bertworks.embeddings.static_files import read_vectors
from bertworks.embeddings.static_settings import GloveSettings, Word2VecSettings
from bertworks.embeddings.static_words import WordSettings
from bertworks.errors import BertworksError, FolderError, InputError
from bertworks.metrics.word_vectors import SectionScore, Similarity
from bertworks.progress import Progress
from bertworks.text.sources import ReadSettings, TextSource

GLOVE = GloveSettings(vector_size=6, window=3, epochs=4, memory_mb=1)
SKIP_GRAM = Word2VecSettings(vector_size=6, epochs=2)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Forty documents of two topics, in English and Chinese, one per line."""
    generator = np.random.default_rng(0)
    english = ["Bread, milk and butter are food.", "The dog and the cat are animals."]
    chinese = ["面包和牛奶都是食物。", "小狗和小猫都是动物。"]
    lines = [" ".join(generator.choice([english[index % 2], chinese[index % 2]], 6)) for index in range(40)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "text.txt"


def request_of(text: Path, training: GloveSettings | Word2VecSettings = GLOVE, **options: Any) -> VectorsRequest:
    kind = "glove" if isinstance(training, GloveSettings) else training.objective
    return VectorsRequest(
        sources=(str(text),), output=text.parent / "vectors", kind=kind, training_settings=training, **options
    )


@pytest.mark.parametrize("training", [GLOVE, SKIP_GRAM])
def test_the_same_text_and_seed_give_the_same_bytes(text: Path, training: GloveSettings | Word2VecSettings):
    folders = []
    for index in range(2):
        request = replace(request_of(text, training), output=text.parent / f"v{index}")
        train_vectors(request, num_workers=1)
        folders.append({path.name: path.read_bytes() for path in request.output.iterdir()})
    assert folders[0] == folders[1]
    assert sorted(path.name for path in text.parent.iterdir()) == ["text.txt", "v0", "v1"], "no temporary files remain"


def test_a_folder_has_metadata_on_its_training(text: Path):
    events: list[Progress] = []
    vectors = train_vectors(request_of(text), 1, events.append)
    loaded = read_vectors(text.parent / "vectors")
    assert loaded.words == vectors.words
    assert {"bread", "牛奶"} <= set(loaded.words)
    assert loaded.metadata["kind"] == "glove"
    assert loaded.metadata["settings"]["x_max"] == 10.0
    assert loaded.metadata["word_settings"]["min_count"] == 5
    assert loaded.metadata["corpus"]["sources"] == ["text.txt"]
    assert len(loaded.metadata["corpus"]["words_sha256"]) == 64
    assert len(loaded.metadata["training"]["costs"]) == 4
    assert str(text.parent) not in json.dumps(loaded.metadata)
    assert {progress.stage for progress in events} == {"reading", "counting", "training"}
    assert all(progress.done == progress.total for progress in events if progress is events[-1])


def test_the_number_of_workers_changes_nothing(text: Path):
    read_settings = ReadSettings(block_bytes=700)
    tables = []
    for workers in (1, 2):
        request = replace(request_of(text, read_settings=read_settings), output=text.parent / f"v{workers}")
        tables.append(train_vectors(request, workers).table.tobytes())
    assert tables[0] == tables[1]


def test_a_corpus_folder_as_source_uses_its_training_documents(text: Path, vocabulary: Path):
    corpus = text.parent / "corpus"
    settings = PrepareSettings(held_out_ratio=0.2, max_repeats=0)
    prepare(
        PrepareRequest(sources=(TextSource(str(text)),), vocabulary=vocabulary, output=corpus, settings=settings),
        workers=1,
    )
    vectors = train_vectors(request_of(corpus), 1)
    documents = [json.loads(line) for path in (corpus / "text").iterdir() for line in path.read_text().splitlines()]
    num_held_out = sum(document["split"] == "held-out" for document in documents)
    assert num_held_out > 0
    assert vectors.metadata["counts"]["documents left out: split 'held-out'"] == num_held_out
    assert vectors.metadata["counts"]["documents read"] == len(documents) - num_held_out
    with pytest.raises(InputError, match="corpus is a corpus folder, which must be the only source"):
        train_vectors(replace(request_of(corpus), sources=(str(corpus), str(text)), output=text.parent / "other"), 1)


def test_a_non_empty_output_folder_is_rejected_first(text: Path):
    (text.parent / "vectors").mkdir()
    (text.parent / "vectors" / "notes").write_text("mine")
    with pytest.raises(FolderError, match="is not empty"):
        train_vectors(request_of(text), 1)


def test_too_little_text_leaves_no_files(text: Path):
    with pytest.raises(BertworksError, match="occurs 5000 times or more"):
        train_vectors(request_of(text, word_settings=WordSettings(min_count=5000)), 1)
    assert [path.name for path in text.parent.iterdir()] == ["text.txt"]


def test_temporary_files_of_a_killed_run_are_removed(text: Path):
    work_folder = text.parent / ".vectors.work"
    work_folder.mkdir()
    (work_folder / "000000.run").write_bytes(b"half of something")
    assert len(train_vectors(request_of(text), 1)) > 5
    assert not work_folder.exists()


def test_word_lists_are_scored_by_their_type(text: Path, tmp_path: Path):
    vectors = train_vectors(request_of(text), 1)
    (tmp_path / "pairs").write_text("bread\tmilk\t9\nbread\tdog\t1\nbread\tunheard\t1\n")
    (tmp_path / "questions").write_text(": food\nbread milk dog cat\nbread milk dog unheard\n")
    scores = evaluate_vectors(vectors, [tmp_path / "pairs", tmp_path / "questions"])
    assert isinstance(scores["pairs"], Similarity)
    assert (scores["pairs"].num_pairs, scores["pairs"].num_known) == (3, 2)
    (section,) = scores["questions"]
    assert isinstance(section, SectionScore)
    assert (section.section, section.num_questions, section.num_known) == ("food", 2, 1)


def test_vectors_are_converted_and_back(text: Path, tmp_path: Path):
    vectors = train_vectors(request_of(text), 1)
    convert_vectors(tmp_path / "vectors", tmp_path / "v.txt", "glove")
    converted = convert_vectors(tmp_path / "v.txt", tmp_path / "again", "folder")
    assert converted.words == vectors.words
    assert read_vectors(tmp_path / "again").table.tobytes() == vectors.table.tobytes()
