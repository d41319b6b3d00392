"""Preparing a corpus: identical bytes for any number of workers and interruptions; errors for mismatched folders."""

import errno
import functools
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from killed_child import run_killed

from bertworks.commands.prepare import PrepareRequest, prepare, verify
from bertworks.corpus.corpus import Corpus
from bertworks.corpus.units import PrepareSettings
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.folder_lock import lock_folder
from bertworks.text.cleaning import CleanSettings
from bertworks.text.sources import ReadSettings, TextSource

WORDS = "river stone cloud garden window letter winter bread silver morning road engine paper music harbour".split()
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", "and", "s", "##s", *WORDS]


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    return write_documents(tmp_path / "text.txt", 60, seed=1)


def write_documents(path: Path, count: int, seed: int) -> Path:
    rng = random.Random(seed)
    documents = []
    for _ in range(count):
        sentences = [
            " ".join(rng.choices(WORDS, k=rng.randint(5, 12))).capitalize() + "." for _ in range(rng.randint(2, 9))
        ]
        documents.append("\n".join(sentences))
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def request(source, vocabulary, out, block_bytes=2000, **settings) -> PrepareRequest:
    read_settings = ReadSettings(block_bytes=block_bytes)
    return PrepareRequest(
        sources=(TextSource(str(source)),),
        vocabulary=vocabulary,
        output=out,
        settings=PrepareSettings(**settings),
        read_settings=read_settings,
    )


def file_hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path, text, vocabulary):
    one = prepare(request(text, vocabulary, tmp_path / "one"), workers=1)
    two = prepare(request(text, vocabulary, tmp_path / "two"), workers=2)
    assert file_hashes(one) == file_hashes(two)
    assert len(list((one / "text").iterdir())) > 5


def test_finished_folder_has_no_work_files_and_valid_hashes(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    assert not (folder / ".work").exists()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert verify(folder) == 2 * len(manifest["shards"])


def test_counts_add_up(tmp_path, vocabulary):
    source = tmp_path / "text.txt"
    source.write_text(
        "The river and the stone.\nThe cloud.\n\nshort\n\nThe road and the engine.\nThe bread.\n", encoding="utf-8"
    )
    folder = prepare(request(source, vocabulary, tmp_path / "out"), workers=1)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["documents"] == 2
    assert manifest["sentences"] == 4
    assert manifest["counts"]["documents read"] == 3
    assert manifest["counts"]["documents dropped: shorter than 20 characters"] == 1
    assert manifest["languages"] == ["en"]
    tokens_manifest = Corpus.open(folder).tokens_manifest
    # "the river and the stone ." "the cloud ." "the road and the engine ." "the bread ."
    assert tokens_manifest["counts"]["tokens"] == 6 + 3 + 6 + 3


def test_another_vocabulary_adds_only_its_tokens(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    before = file_hashes(folder)
    other = tmp_path / "other" / "vocab.txt"
    other.parent.mkdir()
    other.write_text("\n".join([*TOKENS, "rivers"]) + "\n", encoding="utf-8")
    prepare(PrepareRequest(sources=(), vocabulary=other, output=folder), workers=2)
    after = file_hashes(folder)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"manifest.json"}
    assert len(json.loads((folder / "manifest.json").read_text())["tokens"]) == 2
    assert verify(folder) == 3 * len(list((folder / "text").iterdir()))


def test_same_request_on_a_finished_folder_changes_nothing(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    before = file_hashes(folder)
    prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    assert file_hashes(folder) == before


def test_corpus_of_another_request_is_an_error_and_kept(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    before = file_hashes(folder)
    other = write_documents(tmp_path / "other.txt", 5, seed=2)
    with pytest.raises(FolderError, match="is a corpus with different sources, files;"):
        prepare(request(other, vocabulary, folder), workers=1)
    with pytest.raises(FolderError, match="different settings"):
        prepare(request(text, vocabulary, folder, max_repeats=3), workers=1)
    assert file_hashes(folder) == before


def test_folder_with_other_files_is_an_error(tmp_path, text, vocabulary):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.doc").write_text("ten years of work")
    with pytest.raises(FolderError, match="already holds something else"):
        prepare(request(text, vocabulary, out), workers=1)
    assert [path.name for path in out.iterdir()] == ["thesis.doc"]


def test_source_changed_since_an_unfinished_run_is_an_error(tmp_path, text, vocabulary, monkeypatch):
    out = tmp_path / "out"
    stop_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.undo()
    text.write_text(text.read_text(encoding="utf-8") + "\nOne more.\n", encoding="utf-8")
    with pytest.raises(FolderError, match="unfinished preparation with different files;"):
        prepare(request(text, vocabulary, out), workers=1)


def test_vocabulary_changed_since_an_unfinished_run_is_an_error(tmp_path, text, vocabulary, monkeypatch):
    out = tmp_path / "out"
    stop_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.undo()
    vocabulary.write_text("\n".join([*TOKENS, "new"]) + "\n", encoding="utf-8")
    with pytest.raises(FolderError, match="different vocabulary"):
        prepare(request(text, vocabulary, out), workers=1)


def stop_after(monkeypatch, num_units: int) -> None:
    """Raise KeyboardInterrupt after `num_units` units."""
    import bertworks.commands.prepare as module

    original = module.read_unit
    remaining = iter(range(num_units))

    def read_unit(block, job):
        if next(remaining, None) is None:
            raise KeyboardInterrupt
        original(block, job)

    monkeypatch.setattr(module, "read_unit", read_unit)


def test_ctrl_c_keeps_finished_units(tmp_path, text, vocabulary, monkeypatch):
    uninterrupted = prepare(request(text, vocabulary, tmp_path / "uninterrupted"), workers=1)
    out = tmp_path / "out"
    stop_after(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.undo()
    finished = {path: path.stat().st_mtime_ns for path in (out / ".work").glob("*.json") if path.name[0] == "0"}
    assert len(finished) == 3
    stages = []
    prepare(request(text, vocabulary, out), 1, lambda progress: stages.append(progress.stage))
    num_units = len(list((out / "text").iterdir()))
    assert stages.count("reading") == num_units - 3
    assert file_hashes(out) == file_hashes(uninterrupted)


def test_full_disk_is_a_clear_error_and_the_same_request_resumes(tmp_path, text, vocabulary, monkeypatch):
    uninterrupted = prepare(request(text, vocabulary, tmp_path / "uninterrupted"), workers=1)
    original, remaining = os.fsync, iter(range(20))

    def fail_when_full(handle):
        if next(remaining, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(handle)

    monkeypatch.setattr(os, "fsync", fail_when_full)
    out = tmp_path / "out"
    with pytest.raises(
        FolderError, match=r"cannot write .*: no space left on the disk of .*; free some space and run the same command"
    ):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.setattr(os, "fsync", original)
    prepare(request(text, vocabulary, out), workers=1)
    assert file_hashes(out) == file_hashes(uninterrupted)


@pytest.mark.parametrize("num_writes", range(6))
def test_a_disk_that_is_full_at_the_beginning_leaves_what_the_same_request_recognizes(
    tmp_path, text, vocabulary, monkeypatch, num_writes
):
    original, remaining = os.fsync, iter(range(num_writes))

    def fail_when_full(handle):
        if next(remaining, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(handle)

    out = tmp_path / "out"
    monkeypatch.setattr(os, "fsync", fail_when_full)
    with pytest.raises(FolderError, match=rf"cannot write {out}/.*: no space left on the disk of {out}"):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.setattr(os, "fsync", original)
    assert Corpus.open(prepare(request(text, vocabulary, out), workers=1)).manifest["documents"] == 60


def test_what_an_earlier_version_left_when_it_was_killed_at_its_beginning_is_recognized(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "whole"), workers=1)
    out = tmp_path / "out"
    (tokens,) = (folder / "tokens").iterdir()
    saved = out / "tokens" / tokens.name
    saved.mkdir(parents=True)
    shutil.copy(tokens / "tokenizer.json", saved)
    (saved / ".vocab.txt.host.12.part").touch()
    prepare(request(text, vocabulary, out), workers=1)
    assert file_hashes(out) == file_hashes(folder)


@pytest.mark.parametrize("has_work_folder", [False, True])
@pytest.mark.parametrize("name", ["tokens/notes/thesis.doc", "text/a.jsonl", "text/.git/config", "thesis.doc"])
def test_folders_of_the_same_names_with_other_files_are_an_error(tmp_path, text, vocabulary, name, has_work_folder):
    out = tmp_path / "out"
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("ten years of work")
    if has_work_folder:
        (out / ".work").mkdir()
    with pytest.raises(FolderError, match="already holds something else"):
        prepare(request(text, vocabulary, out), workers=1)
    assert (out / name).read_text() == "ten years of work"


@pytest.mark.parametrize("content", ["[]", "{}", '{"tokens": 3}', '{"tokens": []}'])
@pytest.mark.parametrize("has_sources", [False, True])
def test_a_corpus_with_a_damaged_manifest_is_an_error(tmp_path, text, vocabulary, content, has_sources):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    (folder / "manifest.json").write_text(content)
    again = request(text, vocabulary, folder)
    with pytest.raises(FolderError, match=r"manifest\.json is (not the manifest of a|damaged or was changed)"):
        prepare(again if has_sources else replace(again, sources=()), workers=1)


def test_two_preparations_cannot_write_to_one_folder(tmp_path, text, vocabulary):
    out = tmp_path / "out"
    with lock_folder(out), pytest.raises(FolderError, match=f"another run is writing to {out} .*wait for it, or"):
        prepare(request(text, vocabulary, out), workers=1)
    assert not out.exists()
    prepare(request(text, vocabulary, out), workers=2)
    assert not (out / ".lock").exists()


def test_output_folder_without_permission_is_a_clear_error(tmp_path, text, vocabulary, monkeypatch):
    def deny(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", deny)
    with pytest.raises(FolderError, match=r"choose another folder with --output"):
        prepare(request(text, vocabulary, tmp_path / "locked" / "out"), workers=1)


def test_path_through_a_file_is_a_clear_error(tmp_path, text, vocabulary):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match=r"choose another folder with --output"):
        prepare(request(text, vocabulary, tmp_path / "file" / "out"), workers=1)


def test_verify_names_the_damaged_file(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    shard = sorted((folder / "text").iterdir())[1]
    shard.write_bytes(shard.read_bytes().replace(b"river", b"liver", 1))
    with pytest.raises(FolderError, match=rf"{shard.name} was changed after it was written"):
        verify(folder)
    shard.unlink()
    with pytest.raises(FolderError, match=rf"{shard.name} is missing"):
        verify(folder)


def test_verify_detects_a_changed_vocabulary(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    path = next((folder / "tokens").glob("*/tokenizer.json"))
    path.write_text(path.read_text().replace('"river"', '"fluss"'))
    with pytest.raises(FolderError, match="has another vocabulary than was written"):
        verify(folder)


def test_trailing_slash_of_a_source_does_not_matter(tmp_path, vocabulary):
    (tmp_path / "notes").mkdir()
    write_documents(tmp_path / "notes" / "a.txt", 8, seed=2)
    folder = prepare(request(f"{tmp_path}/notes/", vocabulary, tmp_path / "out"), workers=1)
    before = file_hashes(folder)
    prepare(request(f"{tmp_path}/notes", vocabulary, tmp_path / "out"), workers=1)
    assert file_hashes(folder) == before


def test_corrected_request_can_use_the_same_folder(tmp_path, vocabulary):
    source = tmp_path / "a.jsonl"
    source.write_text('{"body": "The river and the stone."}\n{"body": "The cloud and the road."}\n', encoding="utf-8")
    out = tmp_path / "out"
    with pytest.raises(InputError, match="no field 'text'"):
        prepare(request(source, vocabulary, out), workers=1)
    corrected = PrepareRequest(
        sources=(TextSource(str(source)),), vocabulary=vocabulary, output=out, read_settings=ReadSettings(field="body")
    )
    assert json.loads((prepare(corrected, workers=1) / "manifest.json").read_text())["documents"] == 2


def test_copies_of_held_out_documents_are_removed_from_training(tmp_path, vocabulary):
    training, held_out = tmp_path / "a.txt", tmp_path / "b.txt"
    training.write_text("The river and the stone.\n\nThe cloud and the road.\n", encoding="utf-8")
    held_out.write_text("The cloud and the road.\n\nThe paper and the bread.\n", encoding="utf-8")
    sources = (TextSource(str(training)), TextSource(str(held_out), split="held-out"))
    folder = prepare(PrepareRequest(sources=sources, vocabulary=vocabulary, output=tmp_path / "out"), workers=1)
    corpus = Corpus.open(folder)
    assert corpus.split("train").num_documents == 1
    assert corpus.split("held-out").num_documents == 2


def test_text_without_remaining_documents_is_an_error_with_counts(tmp_path, vocabulary):
    source = tmp_path / "tiny.txt"
    source.write_text("a\n\nb\n", encoding="utf-8")
    too_strict = request(source, vocabulary, tmp_path / "out")
    with pytest.raises(InputError, match=r"no document is left .*shorter than 20 characters: 2"):
        prepare(too_strict, workers=1)
    corrected = replace(too_strict, settings=PrepareSettings(clean=CleanSettings(min_characters=1)))
    assert Corpus.open(prepare(corrected, workers=1)).manifest["documents"] == 2


def test_standard_input_must_be_the_same_when_resuming(tmp_path, text, vocabulary, monkeypatch):
    content = text.read_bytes()
    out = tmp_path / "out"
    stop_after(monkeypatch, 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(KeyboardInterrupt):
        prepare(request("-", vocabulary, out), workers=1)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.replace(b"river", b"rover"))))
    with pytest.raises(InputError, match="has different text than when this preparation was started"):
        prepare(request("-", vocabulary, out), workers=1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    prepare(request("-", vocabulary, out), workers=1)
    from_file = prepare(request(text, vocabulary, tmp_path / "file"), workers=1)
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (out, from_file)]
    assert manifests[0]["documents"] == manifests[1]["documents"]
    assert manifests[0]["characters"] == manifests[1]["characters"]


PREPARE_SCRIPT = """
import sys
from pathlib import Path
from bertworks.corpus.units import PrepareSettings
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.text.sources import ReadSettings, TextSource
source, vocabulary, out = sys.argv[1:]
read_settings = ReadSettings(block_bytes=20_000)
request = PrepareRequest(
    sources=(TextSource(source),), vocabulary=Path(vocabulary), output=Path(out), read_settings=read_settings
)
prepare(request, 2)
"""


def prepare_with_kills(folder: Path, text: Path, vocabulary: Path, num_kills: int, seed: int) -> None:
    """Kill the preparation (SIGKILL) at random moments after its start, then let it finish."""
    rng = random.Random(seed)
    command = [sys.executable, "-c", PREPARE_SCRIPT, str(text), str(vocabulary), str(folder)]
    plan, num_killed = folder / ".work" / "plan.json", 0
    for _ in range(num_kills):
        process = subprocess.Popen(command)
        started = time.monotonic()
        while not plan.exists() and process.poll() is None:
            time.sleep(0.001)
        # The first kill comes right after the plan is written, so that it hits the work on a machine of any speed.
        time.sleep(rng.uniform(0, time.monotonic() - started) if num_killed else 0.0)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        num_killed += 1
    subprocess.run(command, check=True)
    assert num_killed, "the preparation finished before the first kill"


@pytest.mark.parametrize(("num_kills", "seed"), [(3, 0), pytest.param(30, 1, marks=pytest.mark.soak)])
def test_bytes_do_not_depend_on_kills(tmp_path, vocabulary, num_kills, seed):
    text = write_documents(tmp_path / "large.txt", 4000 if num_kills < 10 else 20_000, seed=3)
    uninterrupted = prepare(request(text, vocabulary, tmp_path / "uninterrupted", block_bytes=20_000), workers=2)
    prepare_with_kills(tmp_path / "out", text, vocabulary, num_kills, seed)
    assert file_hashes(tmp_path / "out") == file_hashes(uninterrupted)


def test_killed_at_any_change_of_its_folder_it_continues_to_the_same_bytes(tmp_path, vocabulary):
    text = write_documents(tmp_path / "small.txt", 6, seed=4)
    uninterrupted = file_hashes(prepare(request(text, vocabulary, tmp_path / "uninterrupted"), workers=1))
    was_killed, number = True, 0
    while was_killed:
        number += 1
        out = tmp_path / f"out-{number}"
        work = functools.partial(prepare, request(text, vocabulary, out), 1)
        was_killed = run_killed(work, out, number)
        work()
        assert file_hashes(out) == uninterrupted
    assert number > 30


def test_killed_within_milliseconds_after_its_folder_appeared_it_continues(tmp_path, text, vocabulary):
    uninterrupted = prepare(request(text, vocabulary, tmp_path / "uninterrupted", block_bytes=20_000), workers=1)
    for milliseconds in (0, 1, 3, 9, 27):
        out = tmp_path / f"out-{milliseconds}"
        command = [sys.executable, "-c", PREPARE_SCRIPT, str(text), str(vocabulary), str(out)]
        process = subprocess.Popen(command)
        while not out.exists() and process.poll() is None:
            time.sleep(0.0002)
        time.sleep(milliseconds / 1000)
        process.kill()
        process.wait()
        prepare(request(text, vocabulary, out, block_bytes=20_000), workers=1)
        assert file_hashes(out) == file_hashes(uninterrupted)


def test_output_in_an_object_store_is_an_error(text, vocabulary):
    with pytest.raises(SettingsError, match="s3:/bucket/corpus is the URL of an object store"):
        prepare(request(text, vocabulary, Path("s3://bucket/corpus")), workers=1)


def test_manifest_has_the_clean_settings(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out", clean=CleanSettings(min_characters=5)), workers=1)
    assert json.loads((folder / "manifest.json").read_text())["settings"]["clean"]["min_characters"] == 5


def test_copies_of_a_document_do_not_empty_the_training_split(tmp_path, vocabulary):
    source = tmp_path / "copies.txt"
    document = "The river and the stone.\nThe cloud and the garden.\n"
    source.write_text(
        "\n".join([document] * 11 + ["The road and the engine.\nThe bread and the music.\n"]), encoding="utf-8"
    )
    folder = prepare(request(source, vocabulary, tmp_path / "out"), workers=1)
    splits = Corpus.open(folder).tokens_manifest["splits"]
    assert splits["train"]["pairable"]["documents"] == 2
    assert splits["held-out"]["pairable"]["documents"] == 0


def test_incomplete_files_of_killed_workers_are_removed(tmp_path, text, vocabulary, monkeypatch):
    uninterrupted = prepare(request(text, vocabulary, tmp_path / "uninterrupted"), workers=1)
    out = tmp_path / "out"
    stop_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.undo()
    (out / "text").mkdir()
    (out / "text" / ".000001.jsonl.4711.part").write_text("half a li")
    next((out / "tokens").iterdir()).joinpath(".000001.safetensors.4711.part").write_bytes(b"half")
    prepare(request(text, vocabulary, out), workers=1)
    assert file_hashes(out) == file_hashes(uninterrupted)
