"""Bundles: models, their provenance and the corpus in one folder, with hashes that are verified."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killed_child import run_killed
from numbered_corpus import KEEP_ALL
from small_models import TASKS, write_finetuned, write_pretrained, write_sentence_model

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.corpus.units import PrepareSettings
from bertworks.disk import sha256
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.folder_lock import lock_output
from bertworks.inference.model import load
from bertworks.models.provenance import corpus_hash, folders_of, hashes_of
from bertworks.progress import Progress
from bertworks.serving.bundle import BundleRequest, bundle, read_bundle
from bertworks.serving.passage_search import PassageIndex
from bertworks.text.sources import TextSource
from bertworks.vocabulary.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpus(make_corpus: Callable[..., Any]) -> Path:
    return make_corpus([[5, 4, 6], [3], [7, 8]]).corpus.folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretraining run with its model in the folder `model`."""
    run = tmp_path_factory.mktemp("runs") / "books"
    write_pretrained(run / "model")
    return run


@pytest.fixture
def finetuned(base: Path, tmp_path: Path) -> Path:
    """A fine-tuning run whose model records the hash of its base."""
    run = tmp_path / "sst2"
    metadata = {"base": "model", "base_sha256": sha256(base / "model" / "model.safetensors")}
    write_finetuned(run / "model", TASKS["classify"], metadata=metadata)
    return run


@pytest.fixture
def bundle_folder(finetuned: Path, base: Path, corpus: Path, tmp_path: Path) -> Path:
    """A bundle of a fine-tuned model, its base and the corpus."""
    return bundle(
        BundleRequest(runs=(str(finetuned),), output=tmp_path / "output", bases=(str(base),), corpus=corpus)
    ).folder


def read_manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "bundle.json").read_text())


def edit_manifest(folder: Path, **values: Any) -> None:
    (folder / "bundle.json").write_text(json.dumps({**read_manifest(folder), **values}))


def test_a_bundle_holds_models_the_corpus_and_an_index(bundle_folder, corpus):
    opened = read_bundle(bundle_folder)
    assert set(opened.models) == {"sst2", "books"}
    assert (bundle_folder / "models" / "sst2" / "model.safetensors").is_file()
    assert (bundle_folder / "corpus" / "manifest.json").read_bytes() == (corpus / "manifest.json").read_bytes()
    assert sorted(path.name for path in (bundle_folder / "corpus" / "text").iterdir()) == ["000000.jsonl"]
    assert opened.index == bundle_folder / "corpus"
    assert opened.index_model == "books"  # a pretrained model is preferred to a fine-tuned one
    assert read_manifest(bundle_folder)["index"]["num_passages"] == 3


def test_every_file_of_a_bundle_has_its_hash(bundle_folder):
    files = {path.relative_to(bundle_folder).as_posix() for path in bundle_folder.rglob("*") if path.is_file()}
    assert set(read_manifest(bundle_folder)["files"]) == files - {"bundle.json"}


def test_the_provenance_goes_from_the_base_to_the_finetuned_model(bundle_folder, base):
    links = {link.later: link for link in read_bundle(bundle_folder).chain}
    assert links["sst2"].earlier == "books"
    assert links["sst2"].is_recorded
    assert links["sst2"].sha256 == sha256(base / "model" / "model.safetensors")
    assert "books" not in links  # its bertworks.json has no corpus hash, and --corpus is any text to search


def test_a_manifest_is_the_origin_of_a_pretrained_model_that_records_none(base, corpus, tmp_path):
    (link,) = bundle(BundleRequest(runs=(str(base),), output=tmp_path / "output", manifest=corpus)).chain
    assert (link.later, link.earlier, link.is_recorded) == ("books", "corpus", False)
    assert link.sha256 == corpus_hash(json.loads((corpus / "manifest.json").read_text()))


def test_a_recorded_corpus_hash_is_compared(corpus, tmp_path):
    digest = corpus_hash(json.loads((corpus / "manifest.json").read_text()))
    run = write_pretrained(tmp_path / "run" / "model", metadata={"corpus_sha256": digest}).parent
    opened = bundle(BundleRequest(runs=(str(run),), output=tmp_path / "output", manifest=corpus))
    assert opened.chain[0].is_recorded
    assert opened.index is None
    assert not (tmp_path / "output" / "corpus" / "text").exists()
    other = write_pretrained(tmp_path / "other" / "model", metadata={"corpus_sha256": "0" * 64}).parent
    with pytest.raises(FolderError, match=r"another corpus than that of --manifest; .* --corpus for a text to search"):
        bundle(BundleRequest(runs=(str(other),), output=tmp_path / "output2", manifest=corpus))


def prepare_text(folder: Path, vocabulary: Path, text: str) -> Path:
    """Prepare a corpus of a text with the tokens of a vocabulary."""
    folder.mkdir()
    (folder / "text.txt").write_text(text, encoding="utf-8")
    request = PrepareRequest(
        sources=(TextSource(str(folder / "text.txt")),),
        vocabulary=vocabulary,
        output=folder / "corpus",
        settings=PrepareSettings(held_out_ratio=0.0, clean=KEEP_ALL),
    )
    return prepare(request, workers=1)


def test_any_corpus_can_be_searched_with_a_model_of_another_one(vocabulary, tmp_path):
    other_texts = prepare_text(tmp_path / "other", vocabulary, "the cat sat on the mat.\n\na dog sat there.\n")
    folder = write_pretrained(tmp_path / "run" / "model", metadata={"corpus_sha256": "0" * 64})
    opened = bundle(BundleRequest(runs=(str(folder.parent),), output=tmp_path / "output", corpus=other_texts))
    (link,) = opened.chain  # still of the recorded corpus, which is not this one
    assert (link.later, link.earlier, link.sha256, link.is_recorded) == ("run", None, "0" * 64, True)
    assert opened.index is not None
    model = load(folder)
    assert model.tokenizer.hash != Tokenizer.load(vocabulary).hash  # the corpus has no tokens of the model
    with contextlib.closing(PassageIndex(opened.index)) as index:
        (hit,) = index.search(model.encode(["a dog sat there."])[0], top_k=1)
    assert hit["text"] == "a dog sat there."
    assert hit["score"] == pytest.approx(1.0, abs=1e-3)  # the vector is that of the text, in fp16


def test_a_corpus_with_text_but_without_tokens_can_be_searched(base, corpus, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy)
    shutil.rmtree(copy / "tokens")
    assert bundle(BundleRequest(runs=(str(base),), output=tmp_path / "output", corpus=copy)).index_model == "books"


def test_a_corpus_without_its_text_is_refused_by_name(base, corpus, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy)
    (copy / "text" / "000000.jsonl").unlink()
    with pytest.raises(FolderError, match=r"copy lacks text/000000\.jsonl, the text to search; .* --manifest instead"):
        bundle(BundleRequest(runs=(str(base),), output=tmp_path / "output", corpus=copy))
    assert not (tmp_path / "output").exists()


def test_a_text_that_the_vocabulary_cannot_read_is_a_warning(base, vocabulary, tmp_path):
    arabic = prepare_text(tmp_path / "arabic", vocabulary, "ذهب الولد إلى المدرسة في الصباح.\n" * 40)
    opened = bundle(BundleRequest(runs=(str(base),), output=tmp_path / "output", corpus=arabic))
    assert len(opened.warnings) == 1


def test_the_hash_of_a_corpus_does_not_depend_on_its_vocabularies(corpus):
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert corpus_hash(manifest) == corpus_hash({**manifest, "tokens": [*manifest["tokens"], "another"]})


def test_a_base_is_matched_by_name_where_no_hash_is_recorded(folders, tmp_path):
    request = BundleRequest(
        runs=(str(folders["classify"]),), output=tmp_path / "output", bases=(str(folders["pretrained"]),)
    )
    (link,) = bundle(request).chain
    assert (link.later, link.earlier, link.is_recorded) == ("classify", "pretrained", False)


@pytest.fixture
def recorded_run(corpus: Path, tmp_path: Path) -> Path:
    """A fine-tuning run on top of a pretraining run, both with recorded provenance."""
    books, sst2 = tmp_path / "runs" / "books", tmp_path / "runs" / "sst2"
    write_pretrained(books / "model", metadata=hashes_of(None, corpus))
    (books / "run.json").write_text(json.dumps(folders_of(None, corpus)))
    write_finetuned(sst2 / "model", TASKS["classify"], metadata=hashes_of(str(books / "model")))
    (sst2 / "run.json").write_text(json.dumps(folders_of(str(books / "model"))))
    return sst2


def test_the_recorded_base_and_corpus_of_a_run_are_bundled_with_it(recorded_run, tmp_path):
    opened = bundle(BundleRequest(runs=(str(recorded_run),), output=tmp_path / "output"))
    assert list(opened.models) == ["sst2", "books"]
    assert [(link.later, link.earlier, link.is_recorded) for link in opened.chain] == [
        ("sst2", "books", True),
        ("books", "corpus", True),
    ]
    assert opened.index_model == "books"
    assert (tmp_path / "output" / "corpus" / "text").is_dir()


def test_a_recorded_base_or_corpus_that_has_changed_is_not_bundled(recorded_run, tmp_path):
    shutil.rmtree(recorded_run.parent / "books" / "model")
    write_pretrained(recorded_run.parent / "books" / "model", seed=9, metadata={"corpus_sha256": "0" * 64})
    (link,) = bundle(BundleRequest(runs=(str(recorded_run),), output=tmp_path / "output")).chain
    assert (link.later, link.earlier) == ("sst2", None)
    (link,) = bundle(BundleRequest(runs=(str(recorded_run.parent / "books"),), output=tmp_path / "output2")).chain
    assert (link.later, link.earlier, link.sha256) == ("books", None, "0" * 64)


def test_models_of_two_corpora_can_be_bundled_with_one_of_them(recorded_run, corpus, tmp_path):
    other = write_pretrained(tmp_path / "runs" / "other" / "model", 5, {"corpus_sha256": "0" * 64}).parent
    request = BundleRequest(runs=(str(recorded_run), str(other)), output=tmp_path / "output", manifest=corpus)
    links = {link.later: link.earlier for link in bundle(request).chain}
    assert links == {"sst2": "books", "books": "corpus", "other": None}


def test_a_base_that_is_not_given_has_a_link_without_an_earlier_model(finetuned, base, tmp_path):
    (link,) = bundle(BundleRequest(runs=(str(finetuned),), output=tmp_path / "output")).chain
    assert (link.earlier, link.is_recorded) == (None, True)
    assert link.sha256 == sha256(base / "model" / "model.safetensors")


def test_a_sentence_embedding_model_is_preferred_for_the_index(finetuned, corpus, tmp_path):
    sentence_model = write_sentence_model(tmp_path / "minilm")
    opened = bundle(
        BundleRequest(runs=(str(finetuned), str(sentence_model)), output=tmp_path / "output", corpus=corpus)
    )
    assert opened.index_model == "minilm"
    assert (opened.models["minilm"] / "1_Pooling" / "config.json").is_file()


def test_a_changed_file_is_rejected_by_name(bundle_folder):
    path = bundle_folder / "models" / "sst2" / "config.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(FolderError, match=r"models/sst2/config\.json does not have the sha256 in bundle\.json"):
        read_bundle(bundle_folder)


def test_a_missing_file_is_reported_by_name(bundle_folder):
    (bundle_folder / "corpus" / "vectors.npy").unlink()
    with pytest.raises(FolderError, match=r"lacks corpus/vectors\.npy"):
        read_bundle(bundle_folder)


def test_a_link_with_a_wrong_hash_is_rejected(bundle_folder):
    chain = read_manifest(bundle_folder)["chain"]
    for link in chain:
        link["sha256"] = "0" * 64
    edit_manifest(bundle_folder, chain=chain)
    with pytest.raises(FolderError, match="hashes do not match"):
        read_bundle(bundle_folder)


def test_a_bundle_of_another_format_is_rejected(bundle_folder):
    edit_manifest(bundle_folder, format=99)
    with pytest.raises(FolderError, match="format"):
        read_bundle(bundle_folder)


def test_a_damaged_corpus_is_not_bundled(finetuned, corpus, tmp_path):
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy)
    with (copy / "text" / "000000.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(FolderError, match="does not have the sha256 in its manifest"):
        bundle(BundleRequest(runs=(str(finetuned),), output=tmp_path / "output", corpus=copy))
    assert not (tmp_path / "output").exists()


def test_invalid_requests_are_rejected(finetuned, corpus, tmp_path):
    with pytest.raises(InputError, match="no model"):
        bundle(BundleRequest(runs=(f"x={corpus}",), output=tmp_path / "output"))
    with pytest.raises(SettingsError, match="leave one out"):
        bundle(BundleRequest(runs=(str(finetuned),), output=tmp_path / "output", corpus=corpus, manifest=corpus))
    with pytest.raises(SettingsError, match="no such model"):
        bundle(BundleRequest(runs=(str(finetuned),), output=tmp_path / "output", corpus=corpus, index="other"))
    with pytest.raises(FolderError, match="exists"):
        bundle(BundleRequest(runs=(str(finetuned),), output=tmp_path))


@pytest.mark.parametrize("name", ["models/sst2/extra.bin", ".hidden", "corpus/text/.000001.jsonl"])
def test_a_file_that_the_bundle_does_not_list_is_rejected_by_name(bundle_folder, name):
    (bundle_folder / name).write_text("not listed")
    with pytest.raises(FolderError, match=rf"has {re.escape(name)}, which bundle\.json does not list; remove"):
        read_bundle(bundle_folder)


def test_a_link_in_the_place_of_a_folder_is_rejected(bundle_folder, tmp_path):
    (bundle_folder / "models" / "linked").symlink_to(tmp_path)
    with pytest.raises(FolderError, match="has models/linked, which"):
        read_bundle(bundle_folder)


@pytest.mark.parametrize("number", [4, 12, 20, 28, 36, 44])
def test_a_killed_bundle_leaves_nothing_to_the_next(finetuned, base, corpus, tmp_path, number):
    """The first has a base, its corpus and an index; the next neither."""
    output = tmp_path / "output"
    first = BundleRequest(runs=(str(finetuned),), output=output, bases=(str(base),), corpus=corpus)
    assert run_killed(functools.partial(bundle, first), output.parent, number)
    opened = bundle(BundleRequest(runs=(str(finetuned),), output=output))
    assert list(opened.models) == ["sst2"]
    assert sorted(path.name for path in output.iterdir()) == ["bundle.json", "models"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_vectors_of_another_model_are_not_continued(finetuned, base, corpus, tmp_path):
    def interrupt(progress: Progress) -> None:
        if progress.stage == "embed":
            raise KeyboardInterrupt

    output = tmp_path / "output"
    other = write_pretrained(tmp_path / "other" / "model", seed=9).parent
    with pytest.raises(KeyboardInterrupt):
        bundle(BundleRequest(runs=(str(base),), output=output, corpus=corpus), interrupt)
    (kept,) = tmp_path.glob(".output.*.part")
    assert {path.name for path in (kept / "corpus").iterdir()} == {".vectors.npy.parts"}
    bundle(BundleRequest(runs=(str(other),), output=output, corpus=corpus))
    bundle(BundleRequest(runs=(str(other),), output=tmp_path / "whole", corpus=corpus))
    vectors = [(folder / "corpus" / "vectors.npy").read_bytes() for folder in (output, tmp_path / "whole")]
    assert vectors[0] == vectors[1]
    assert not kept.exists()


def test_two_runs_cannot_write_one_bundle(finetuned, tmp_path):
    request = BundleRequest(runs=(str(finetuned),), output=tmp_path / "output")
    with lock_output(request.output), pytest.raises(FolderError, match=r"another run is writing to .*/output"):
        bundle(request)
    assert bundle(request).num_files > 0


def test_an_interrupted_bundle_is_continued_by_the_same_request(finetuned, base, corpus, tmp_path):
    def interrupt(progress: Progress) -> None:
        if progress.stage == "embed":
            raise KeyboardInterrupt

    request = BundleRequest(runs=(str(finetuned),), output=tmp_path / "output", bases=(str(base),), corpus=corpus)
    with pytest.raises(KeyboardInterrupt):
        bundle(request, interrupt)
    assert not (tmp_path / "output").exists()
    opened = bundle(request)
    files = {path.name for path in (tmp_path / "output" / "corpus").iterdir()}
    assert files == {"manifest.json", "text", "passages.jsonl", "offsets.npy", "vectors.npy", "vectors.npy.json"}
    assert opened.index_model == "books"
