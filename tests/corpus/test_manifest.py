"""Manifests of a corpus: valid ones are returned, every other is refused with what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_run import prepare_corpus

from bertworks.corpus.corpus import Corpus
from bertworks.corpus.manifest import read_manifest, read_tokens_manifest
from bertworks.errors import FolderError

Table = dict[str, Any]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("manifest"))


@pytest.fixture
def corpus(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "corpus"))


def change_json(path: Path, change: Callable[[Table], Any]) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def test_the_manifests_of_a_corpus_are_valid(prepared: Path):
    manifest = read_manifest(prepared)
    assert manifest == json.loads((prepared / "manifest.json").read_text())
    (key,) = manifest["tokens"]
    tokens_manifest = read_tokens_manifest(prepared, key, manifest)
    assert tokens_manifest == json.loads((prepared / "tokens" / key / "manifest.json").read_text())


SHA256 = "0" * 64
INVALID: dict[str, tuple[Callable[[Table], Any], str]] = {
    "a missing list": (lambda table: table.pop("shards"), "'shards' is missing"),
    "no list": (lambda table: table.update(shards={}), r"'shards': expected a list, got \{\}"),
    "no objects": (lambda table: table.update(shards=[3]), r"'shards'\[0\]: expected a table, got 3"),
    "a negative count": (
        lambda table: table.update(documents=-1),
        "'documents': expected an integer of at least 0, got -1",
    ),
    "a fraction": (lambda table: table.update(documents=1.5), "'documents': expected an integer"),
    "a truth value": (lambda table: table.update(documents=True), "'documents': expected an integer"),
    "a count too high": (lambda table: table.update(documents=41), "'documents' is 41, but the shards have 40"),
    "a key outside": (lambda table: table.update(tokens=["../../etc"]), r"'tokens'\[0\]: expected a name such as"),
    "a path outside": (
        lambda table: table["shards"][0].update(file="text/../../secret.jsonl"),
        "a shard: 'file': expected a file of the folder text, got 'text/../../secret.jsonl'",
    ),
    "an absolute path": (lambda table: table["shards"][0].update(file="/etc/passwd"), "a file of the folder text"),
    "no hash": (lambda table: table["shards"][0].update(sha256="abc"), "expected 64 hexadecimal digits, got 'abc'"),
    "an unlisted source": (lambda table: table["shards"][0].update(source=7), "is of source 7, which is not listed"),
    "a weight of zero": (
        lambda table: table["sources"][0].update(weight=0),
        "source 0: 'weight': expected a number above 0, got 0",
    ),
    "a shard twice": (
        lambda table: table["shards"].append({**table["shards"][0], "documents": 0, "sentences": 0, "characters": 0}),
        "is listed twice",
    ),
    "a long value": (lambda table: table.update(counts="x" * 500), r"got 'x{78}…"),
}


@pytest.mark.parametrize(("change", "message"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_manifest_is_one_sentence(corpus: Path, change: Callable[[Table], Any], message: str):
    change_json(corpus / "manifest.json", change)
    with pytest.raises(FolderError, match=message) as caught:
        Corpus.open(corpus)
    assert str(caught.value).startswith(f"{corpus}/manifest.json is damaged or was changed: ")
    assert str(caught.value).endswith("; delete the folder and prepare it again")
    assert "\n" not in str(caught.value)


def first_region(table: Table) -> Table:
    region: Table = table["shards"][0]["regions"]["train"]["pairable"]
    return region


INVALID_TOKENS: dict[str, tuple[Callable[[Table], Any], str]] = {
    "a missing split": (
        lambda table: table["splits"].pop("held-out"),
        "splits: 'held-out' is missing",
    ),
    "a missing region": (lambda table: table["shards"][0]["regions"]["train"].pop("pairable"), "'pairable' is missing"),
    "an extra key": (lambda table: first_region(table).update(words=1), "other keys than tokens, sentences, documents"),
    "more tokens": (
        lambda table: first_region(table).update(tokens=first_region(table)["tokens"] + 1),
        "'train, pairable: tokens' is [0-9]+, but the shards have",
    ),
    "more documents than sentences": (
        lambda table: first_region(table).update(documents=10**6),
        "more documents than sentences",
    ),
    "another total": (lambda table: table["counts"].update(tokens=1), "'counts: tokens' is 1, but the shards have"),
    "a path": (lambda table: table["shards"][0].update(file="a/000000.safetensors"), "expected a file of this folder"),
    "no shard": (lambda table: table["shards"][0].update(file="tokenizer.json"), "expected a file of this folder"),
    "infinite weight": (lambda table: table["shards"][0].update(weight=float("inf")), "expected a number above 0"),
    "another weight": (lambda table: table["shards"][0].update(weight=2.0), "another weight than its source"),
    "a shard less": (lambda table: table["shards"].pop(), "but the shards have 0"),
    "a vocabulary that is no text": (lambda table: table.update(vocabulary=3), "'vocabulary': expected a string"),
}


@pytest.mark.parametrize(("change", "message"), INVALID_TOKENS.values(), ids=INVALID_TOKENS.keys())
def test_an_invalid_manifest_of_tokens_is_one_sentence(corpus: Path, change: Callable[[Table], Any], message: str):
    (path,) = corpus.glob("tokens/*/manifest.json")
    change_json(path, change)
    with pytest.raises(FolderError, match=message) as caught:
        Corpus.open(corpus)
    assert str(caught.value).startswith(f"{path} is damaged or was changed: ")
    assert "\n" not in str(caught.value)


def test_a_manifest_of_tokens_that_is_no_object_is_refused(corpus: Path):
    (path,) = corpus.glob("tokens/*/manifest.json")
    path.write_text("[]")
    with pytest.raises(FolderError, match="it should hold an object, but holds a list"):
        Corpus.open(corpus)
