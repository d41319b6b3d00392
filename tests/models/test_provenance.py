"""Where a model came from: hashes for its own folder, places for the folder of its run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertworks.disk import sha256
from bertworks.models.provenance import corpus_hash, display_name, folders_of, hashes_of, recorded_folder


@pytest.fixture(scope="module")
def corpus(make_corpus: Callable[..., Any]) -> Path:
    return make_corpus([[5, 4, 6], [3], [7, 8]]).corpus.folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "base"


def test_the_hashes_are_those_of_the_weights_and_of_the_text(base, corpus):
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert hashes_of(str(base), corpus) == {
        "base_sha256": sha256(base / "model.safetensors"),
        "corpus_sha256": corpus_hash(manifest),
    }
    assert hashes_of(None) == {}


def test_what_is_lost_meanwhile_has_no_hash_and_harms_nobody(base, corpus):
    shutil.rmtree(base)
    assert hashes_of(str(base)) == {}
    assert hashes_of(None, base) == {}


def test_a_run_tells_where_its_base_and_its_corpus_lie(base, corpus, tmp_path):
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    assert recorded_folder(model, "base_folder") is None
    (model.parent / "run.json").write_text(json.dumps(folders_of(str(base), corpus)))
    assert recorded_folder(model, "base_folder") == base.resolve()
    assert recorded_folder(model, "corpus_folder") == corpus.resolve()
    shutil.rmtree(base)
    assert recorded_folder(model, "base_folder") is None


def test_a_model_of_the_hub_has_no_place():
    assert folders_of("google-bert/bert-base-uncased") == {}


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("runs/books/model", "books"),
        ("models/minilm", "minilm"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
    ],
)
def test_a_model_of_a_run_is_called_by_its_run(base, name):
    assert display_name(base) == name
