"""Bundles: models, what they came from and the corpus in one folder, with hashes that are checked at the start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import TASKS, write_pretrained, write_sentences, write_tuned

from bertworks.disk import sha256
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.models.provenance import corpus_hash, folders_of, hashes_of
from bertworks.serving.bundle import BundleRequest, bundle, read_bundle


@pytest.fixture(scope="module")
def corpus(make_corpus: Callable[..., Any]) -> Path:
    return make_corpus([[5, 4, 6], [3], [7, 8]]).corpus.folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretraining run: its model lies in the folder `model`."""
    run = tmp_path_factory.mktemp("runs") / "books"
    write_pretrained(run / "model")
    return run


@pytest.fixture
def tuned(base: Path, tmp_path: Path) -> Path:
    """A fine-tuning run whose model records the hash of what it began with."""
    run = tmp_path / "sst2"
    told = {"base": "model", "base_sha256": sha256(base / "model" / "model.safetensors")}
    write_tuned(run / "model", TASKS["classify"], told=told)
    return run


@pytest.fixture
def made(tuned: Path, base: Path, corpus: Path, tmp_path: Path) -> Path:
    """A bundle of a fine-tuned model, its base and the corpus."""
    return bundle(BundleRequest((str(tuned),), tmp_path / "out", (str(base),), corpus)).folder


def told_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "bundle.json").read_text())


def change(folder: Path, **values: Any) -> None:
    (folder / "bundle.json").write_text(json.dumps({**told_in(folder), **values}))


def test_a_bundle_holds_models_the_corpus_and_an_index(made, corpus):
    found = read_bundle(made)
    assert set(found.models) == {"sst2", "books"}
    assert (made / "models" / "sst2" / "model.safetensors").is_file()
    assert (made / "corpus" / "manifest.json").read_bytes() == (corpus / "manifest.json").read_bytes()
    assert sorted(path.name for path in (made / "corpus" / "text").iterdir()) == ["000000.jsonl"]
    assert found.index == made / "corpus"
    assert found.index_model == "books"  # a pretrained model is better at vectors than a tuned one
    assert told_in(made)["index"]["passages"] == 3


def test_every_file_of_a_bundle_has_its_hash(made):
    inside = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert set(told_in(made)["files"]) == inside - {"bundle.json"}


def test_the_chain_goes_from_the_corpus_to_the_tuned_model(made, base, corpus):
    links = {link.later: link for link in read_bundle(made).chain}
    assert links["sst2"].earlier == "books"
    assert links["sst2"].is_recorded
    assert links["sst2"].sha256 == sha256(base / "model" / "model.safetensors")
    assert links["books"].earlier == "corpus"
    assert not links["books"].is_recorded  # its folder names no corpus
    assert links["books"].sha256 == corpus_hash(json.loads((corpus / "manifest.json").read_text()))


def test_a_corpus_hash_that_is_recorded_is_compared(corpus, tmp_path):
    right = corpus_hash(json.loads((corpus / "manifest.json").read_text()))
    run = write_pretrained(tmp_path / "run" / "model", told={"corpus_sha256": right}).parent
    found = bundle(BundleRequest((str(run),), tmp_path / "out", manifest=corpus))
    assert found.chain[0].is_recorded
    assert found.index is None
    assert not (tmp_path / "out" / "corpus" / "text").exists()
    other = write_pretrained(tmp_path / "other" / "model", told={"corpus_sha256": "0" * 64}).parent
    with pytest.raises(FolderError, match="another corpus"):
        bundle(BundleRequest((str(other),), tmp_path / "out2", manifest=corpus))


def test_the_hash_of_a_corpus_does_not_change_with_one_more_vocabulary(corpus):
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert corpus_hash(manifest) == corpus_hash({**manifest, "pieces": [*manifest["pieces"], "another"]})


def test_a_base_is_found_by_its_name_where_no_hash_is_recorded(folders, tmp_path):
    found = bundle(BundleRequest((str(folders["classify"]),), tmp_path / "out", (str(folders["pretrained"]),)))
    (link,) = found.chain
    assert (link.later, link.earlier, link.is_recorded) == ("classify", "pretrained", False)


@pytest.fixture
def recorded(corpus: Path, tmp_path: Path) -> Path:
    """A fine-tuning run of a pretraining run, each of which recorded where it came from."""
    books, sst2 = tmp_path / "runs" / "books", tmp_path / "runs" / "sst2"
    write_pretrained(books / "model", told=hashes_of(None, corpus))
    (books / "run.json").write_text(json.dumps(folders_of(None, corpus)))
    write_tuned(sst2 / "model", TASKS["classify"], told=hashes_of(str(books / "model")))
    (sst2 / "run.json").write_text(json.dumps(folders_of(str(books / "model"))))
    return sst2


def test_a_run_alone_brings_its_base_and_its_corpus_along(recorded, tmp_path):
    found = bundle(BundleRequest((str(recorded),), tmp_path / "out"))
    assert list(found.models) == ["sst2", "books"]
    assert [(link.later, link.earlier, link.is_recorded) for link in found.chain] == [
        ("sst2", "books", True),
        ("books", "corpus", True),
    ]
    assert found.index_model == "books"
    assert (tmp_path / "out" / "corpus" / "text").is_dir()


def test_a_base_or_a_corpus_that_is_no_longer_the_same_is_not_taken(recorded, tmp_path):
    shutil.rmtree(recorded.parent / "books" / "model")
    write_pretrained(recorded.parent / "books" / "model", seed=9, told={"corpus_sha256": "0" * 64})
    (link,) = bundle(BundleRequest((str(recorded),), tmp_path / "out")).chain
    assert (link.later, link.earlier) == ("sst2", None)
    (link,) = bundle(BundleRequest((str(recorded.parent / "books"),), tmp_path / "out2")).chain
    assert (link.later, link.earlier, link.sha256) == ("books", None, "0" * 64)


def test_models_of_two_corpora_share_a_bundle_with_one_of_them(recorded, corpus, tmp_path):
    other = write_pretrained(tmp_path / "runs" / "other" / "model", 5, {"corpus_sha256": "0" * 64}).parent
    found = bundle(BundleRequest((str(recorded), str(other)), tmp_path / "out", manifest=corpus))
    assert {link.later: link.earlier for link in found.chain} == {"sst2": "books", "books": "corpus", "other": None}


def test_a_base_that_was_not_given_is_told_to_be_missing(tuned, base, tmp_path):
    (link,) = bundle(BundleRequest((str(tuned),), tmp_path / "out")).chain
    assert (link.earlier, link.is_recorded) == (None, True)
    assert link.sha256 == sha256(base / "model" / "model.safetensors")


def test_a_model_made_for_vectors_makes_the_index(tuned, corpus, tmp_path):
    sentences = write_sentences(tmp_path / "minilm")
    found = bundle(BundleRequest((str(tuned), str(sentences)), tmp_path / "out", corpus=corpus))
    assert found.index_model == "minilm"
    assert (found.models["minilm"] / "1_Pooling" / "config.json").is_file()


def test_a_changed_file_is_refused_by_name(made):
    path = made / "models" / "sst2" / "config.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(FolderError, match=r"models/sst2/config\.json is not what bundle\.json says"):
        read_bundle(made)


def test_a_missing_file_is_refused_by_name(made):
    (made / "corpus" / "vectors.npy").unlink()
    with pytest.raises(FolderError, match=r"lacks corpus/vectors\.npy"):
        read_bundle(made)


def test_a_link_that_does_not_fit_is_refused(made):
    told = told_in(made)
    for link in told["chain"]:
        link["sha256"] = "0" * 64
    change(made, chain=told["chain"])
    with pytest.raises(FolderError, match="hashes do not fit"):
        read_bundle(made)


def test_a_bundle_of_another_format_is_refused(made):
    change(made, format=99)
    with pytest.raises(FolderError, match="format"):
        read_bundle(made)


def test_a_damaged_corpus_is_not_bundled(tuned, corpus, tmp_path):
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy)
    with (copy / "text" / "000000.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(FolderError, match="not what its manifest says"):
        bundle(BundleRequest((str(tuned),), tmp_path / "out", corpus=copy))
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_bundled_is_told(tuned, corpus, tmp_path):
    with pytest.raises(InputError, match="no model"):
        bundle(BundleRequest((f"x={corpus}",), tmp_path / "out"))
    with pytest.raises(SettingsError, match="leave one out"):
        bundle(BundleRequest((str(tuned),), tmp_path / "out", corpus=corpus, manifest=corpus))
    with pytest.raises(SettingsError, match="no such model"):
        bundle(BundleRequest((str(tuned),), tmp_path / "out", corpus=corpus, index="other"))
    with pytest.raises(FolderError, match="exists"):
        bundle(BundleRequest((str(tuned),), tmp_path))


def test_an_interrupted_bundle_is_taken_up_by_the_same_command(tuned, base, corpus, tmp_path):
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    request = BundleRequest((str(tuned),), tmp_path / "out", (str(base),), corpus)
    with pytest.raises(KeyboardInterrupt):
        bundle(request, stop)
    assert not (tmp_path / "out").exists()
    again = bundle(request)
    inside = {path.name for path in (tmp_path / "out" / "corpus").iterdir()}
    assert inside == {"manifest.json", "text", "passages.jsonl", "offsets.npy", "vectors.npy", "vectors.npy.json"}
    assert again.index_model == "books"
