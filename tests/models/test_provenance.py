"""Provenance: hashes in the folder of a model, folders in the run.json of its run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertworks.disk import sha256
from bertworks.models.provenance import (
    corpus_hash,
    display_name,
    folders_of,
    hashes_of,
    languages_of,
    recorded_folder,
)


@pytest.fixture(scope="module")
def corpus(make_corpus: Callable[..., Any]) -> Path:
    return make_corpus([[5, 4, 6], [3], [7, 8]]).corpus.folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "base"


def test_hashes_are_those_of_the_base_weights_and_the_corpus(base, corpus):
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert hashes_of(str(base), corpus) == {
        "base_sha256": sha256(base / "model.safetensors"),
        "corpus_sha256": corpus_hash(manifest),
    }
    assert hashes_of(None) == {}


def test_a_base_or_corpus_that_was_removed_has_no_hash(base, corpus):
    shutil.rmtree(base)
    assert hashes_of(str(base)) == {}
    assert hashes_of(None, base) == {}


def test_a_run_records_the_folders_of_its_base_and_corpus(base, corpus, tmp_path):
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    assert recorded_folder(model, "base_folder") is None
    (model.parent / "run.json").write_text(json.dumps(folders_of(str(base), corpus)))
    assert recorded_folder(model, "base_folder") == base.resolve()
    assert recorded_folder(model, "corpus_folder") == corpus.resolve()
    shutil.rmtree(base)
    assert recorded_folder(model, "base_folder") is None


def test_a_model_of_the_hub_has_no_folder():
    assert folders_of("google-bert/bert-base-uncased") == {}


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("runs/books/model", "books"),
        ("models/minilm", "minilm"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
    ],
)
def test_a_model_in_a_run_folder_has_the_name_of_the_run(base, name):
    assert display_name(base) == name


def test_languages_are_those_of_the_manifest_if_it_names_them():
    assert languages_of({"languages": ["en", "zh"]}) == {"languages": ["en", "zh"]}
    assert languages_of({"languages": []}) == {}
    assert languages_of({}) == {}
