"""Preparing a corpus: the same bytes whoever runs it and however often it was killed; clear refusals otherwise."""

import errno
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bertworks.commands.prepare import PrepareRequest, prepare, verify
from bertworks.corpus.corpus import Corpus
from bertworks.corpus.units import PrepareSettings
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.text.cleaning import CleanSettings
from bertworks.text.sources import ReadSettings, TextSource

WORDS = "river stone cloud garden window letter winter bread silver morning road engine paper music harbour".split()
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", "and", "s", "##s", *WORDS]


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    return write_documents(tmp_path / "text.txt", 60, seed=1)


def write_documents(path: Path, count: int, seed: int) -> Path:
    draw = random.Random(seed)
    documents = []
    for _ in range(count):
        sentences = [
            " ".join(draw.choices(WORDS, k=draw.randint(5, 12))).capitalize() + "." for _ in range(draw.randint(2, 9))
        ]
        documents.append("\n".join(sentences))
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def request(source, vocabulary, out, block_bytes=2000, **settings) -> PrepareRequest:
    reading = ReadSettings(block_bytes=block_bytes)
    return PrepareRequest((TextSource(str(source)),), vocabulary, out, PrepareSettings(**settings), reading)


def bytes_of(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_one_worker_and_two_write_the_same_bytes(tmp_path, text, vocabulary):
    one = prepare(request(text, vocabulary, tmp_path / "one"), workers=1)
    two = prepare(request(text, vocabulary, tmp_path / "two"), workers=2)
    assert bytes_of(one) == bytes_of(two)
    assert len(list((one / "text").iterdir())) > 5


def test_a_finished_folder_holds_no_working_files_and_its_hashes_are_right(tmp_path, text, vocabulary):
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
    pieces = Corpus.open(folder).tokens_manifest
    # "the river and the stone ." "the cloud ." "the road and the engine ." "the bread ."
    assert pieces["counts"]["pieces"] == 6 + 3 + 6 + 3


def test_another_vocabulary_adds_only_its_pieces(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    before = bytes_of(folder)
    other = tmp_path / "other" / "vocab.txt"
    other.parent.mkdir()
    other.write_text("\n".join([*PIECES, "rivers"]) + "\n", encoding="utf-8")
    prepare(PrepareRequest((), other, folder), workers=2)
    after = bytes_of(folder)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"manifest.json"}
    assert len(json.loads((folder / "manifest.json").read_text())["pieces"]) == 2
    assert verify(folder) == 3 * len(list((folder / "text").iterdir()))


def test_the_same_command_on_a_finished_folder_does_nothing(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    before = bytes_of(folder)
    prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    assert bytes_of(folder) == before


def test_a_folder_of_another_run_is_refused_and_kept(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    before = bytes_of(folder)
    other = write_documents(tmp_path / "other.txt", 5, seed=2)
    with pytest.raises(FolderError, match=r"corpus of another run \(different: sources, files\)"):
        prepare(request(other, vocabulary, folder), workers=1)
    with pytest.raises(FolderError, match=r"different: settings"):
        prepare(request(text, vocabulary, folder, max_repeats=3), workers=1)
    assert bytes_of(folder) == before


def test_a_folder_with_something_else_in_it_is_refused(tmp_path, text, vocabulary):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.doc").write_text("ten years of work")
    with pytest.raises(FolderError, match="already holds something else"):
        prepare(request(text, vocabulary, out), workers=1)
    assert [path.name for path in out.iterdir()] == ["thesis.doc"]


def test_a_source_that_changed_since_an_unfinished_run_is_refused(tmp_path, text, vocabulary, monkeypatch):
    out = tmp_path / "out"
    stop_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.undo()
    text.write_text(text.read_text(encoding="utf-8") + "\nOne more.\n", encoding="utf-8")
    with pytest.raises(FolderError, match=r"unfinished preparation of another run \(different: files\)"):
        prepare(request(text, vocabulary, out), workers=1)


def test_a_vocabulary_that_changed_since_an_unfinished_run_is_refused(tmp_path, text, vocabulary, monkeypatch):
    out = tmp_path / "out"
    stop_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.undo()
    vocabulary.write_text("\n".join([*PIECES, "new"]) + "\n", encoding="utf-8")
    with pytest.raises(FolderError, match=r"different: vocabulary"):
        prepare(request(text, vocabulary, out), workers=1)


def stop_after(monkeypatch, num_units: int) -> None:
    """Make Ctrl-C arrive after so many units."""
    import bertworks.commands.prepare as module

    real = module.read_unit
    left = iter(range(num_units))

    def read_unit(block, job):
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(block, job)

    monkeypatch.setattr(module, "read_unit", read_unit)


def test_ctrl_c_loses_nothing_that_was_finished(tmp_path, text, vocabulary, monkeypatch):
    undisturbed = prepare(request(text, vocabulary, tmp_path / "undisturbed"), workers=1)
    out = tmp_path / "out"
    stop_after(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.undo()
    finished = {path: path.stat().st_mtime_ns for path in (out / ".work").glob("*.json") if path.name[0] == "0"}
    assert len(finished) == 3
    seen = []
    prepare(request(text, vocabulary, out), 1, lambda event: seen.append(event.stage))
    num_units = len(list((out / "text").iterdir()))
    assert seen.count("reading") == num_units - 3
    assert bytes_of(out) == bytes_of(undisturbed)


def test_a_full_disk_is_one_sentence_and_the_same_command_continues(tmp_path, text, vocabulary, monkeypatch):
    undisturbed = prepare(request(text, vocabulary, tmp_path / "undisturbed"), workers=1)
    real, left = os.fsync, iter(range(20))

    def full(handle):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "out"
    with pytest.raises(
        FolderError, match=r"cannot write .*: the disk is full; free some space and run the same command"
    ):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.setattr(os, "fsync", real)
    prepare(request(text, vocabulary, out), workers=1)
    assert bytes_of(out) == bytes_of(undisturbed)


def test_an_output_folder_that_may_not_be_written_is_one_sentence(tmp_path, text, vocabulary, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FolderError, match=r"writing there is not allowed; choose another folder with --out"):
        prepare(request(text, vocabulary, tmp_path / "locked" / "out"), workers=1)


def test_a_path_that_leads_through_a_file_is_one_sentence(tmp_path, text, vocabulary):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match=r"choose another folder with --out"):
        prepare(request(text, vocabulary, tmp_path / "file" / "out"), workers=1)


def test_verify_names_the_damaged_file(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    shard = sorted((folder / "text").iterdir())[1]
    shard.write_bytes(shard.read_bytes().replace(b"river", b"liver", 1))
    with pytest.raises(FolderError, match=rf"{shard.name} is not what was written"):
        verify(folder)
    shard.unlink()
    with pytest.raises(FolderError, match=rf"{shard.name} is missing"):
        verify(folder)


def test_verify_finds_a_vocabulary_that_was_changed(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out"), workers=1)
    path = next((folder / "pieces").glob("*/tokenizer.json"))
    path.write_text(path.read_text().replace('"river"', '"fluss"'))
    with pytest.raises(FolderError, match="holds another vocabulary than was written"):
        verify(folder)


def test_a_folder_may_be_named_with_a_slash_at_its_end(tmp_path, vocabulary):
    (tmp_path / "notes").mkdir()
    write_documents(tmp_path / "notes" / "a.txt", 8, seed=2)
    folder = prepare(request(f"{tmp_path}/notes/", vocabulary, tmp_path / "out"), workers=1)
    before = bytes_of(folder)
    prepare(request(f"{tmp_path}/notes", vocabulary, tmp_path / "out"), workers=1)
    assert bytes_of(folder) == before


def test_a_command_that_was_wrong_from_the_start_can_be_mended_in_the_same_folder(tmp_path, vocabulary):
    source = tmp_path / "a.jsonl"
    source.write_text('{"body": "The river and the stone."}\n{"body": "The cloud and the road."}\n', encoding="utf-8")
    out = tmp_path / "out"
    with pytest.raises(InputError, match="no field 'text'"):
        prepare(request(source, vocabulary, out), workers=1)
    right = PrepareRequest((TextSource(str(source)),), vocabulary, out, read_settings=ReadSettings(field="body"))
    assert json.loads((prepare(right, workers=1) / "manifest.json").read_text())["documents"] == 2


def test_training_never_sees_a_document_of_a_held_out_source(tmp_path, vocabulary):
    training, held_out = tmp_path / "a.txt", tmp_path / "b.txt"
    training.write_text("The river and the stone.\n\nThe cloud and the road.\n", encoding="utf-8")
    held_out.write_text("The cloud and the road.\n\nThe paper and the bread.\n", encoding="utf-8")
    sources = (TextSource(str(training)), TextSource(str(held_out), split="held-out"))
    folder = prepare(PrepareRequest(sources, vocabulary, tmp_path / "out"), workers=1)
    corpus = Corpus.open(folder)
    assert corpus.split("train").num_documents == 1
    assert corpus.split("held-out").num_documents == 2


def test_text_that_is_filtered_away_completely_is_refused_with_the_counts(tmp_path, vocabulary):
    source = tmp_path / "tiny.txt"
    source.write_text("a\n\nb\n", encoding="utf-8")
    wrong = request(source, vocabulary, tmp_path / "out")
    with pytest.raises(InputError, match=r"no document is left .*shorter than 20 characters: 2"):
        prepare(wrong, workers=1)
    mended = replace(wrong, settings=PrepareSettings(clean=CleanSettings(min_characters=1)))
    assert Corpus.open(prepare(mended, workers=1)).manifest["documents"] == 2


def test_standard_input_is_read_and_must_be_the_same_on_the_second_try(tmp_path, text, vocabulary, monkeypatch):
    content = text.read_bytes()
    out = tmp_path / "out"
    stop_after(monkeypatch, 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(KeyboardInterrupt):
        prepare(request("-", vocabulary, out), workers=1)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.replace(b"river", b"rover"))))
    with pytest.raises(InputError, match="does not hold the text with which this preparation was begun"):
        prepare(request("-", vocabulary, out), workers=1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    prepare(request("-", vocabulary, out), workers=1)
    from_file = prepare(request(text, vocabulary, tmp_path / "file"), workers=1)
    told = [json.loads((folder / "manifest.json").read_text()) for folder in (out, from_file)]
    assert told[0]["documents"] == told[1]["documents"]
    assert told[0]["characters"] == told[1]["characters"]


KILLED = """
import sys
from pathlib import Path
from bertworks.corpus.units import PrepareSettings
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.text.sources import ReadSettings, Source
source, vocabulary, out = sys.argv[1:]
reading = ReadSettings(block_bytes=20_000)
prepare(PrepareRequest((Source(source),), Path(vocabulary), Path(out), PrepareSettings(), reading), 2)
"""


def prepare_under_fire(folder: Path, text: Path, vocabulary: Path, num_kills: int, seed: int) -> None:
    """Kill the preparation (SIGKILL) at random moments after it has begun, then let it finish."""
    draw = random.Random(seed)
    command = [sys.executable, "-c", KILLED, str(text), str(vocabulary), str(folder)]
    plan, num_killed = folder / ".work" / "plan.json", 0
    for _ in range(num_kills):
        process = subprocess.Popen(command)
        started = time.monotonic()
        while not plan.exists() and process.poll() is None:
            time.sleep(0.001)
        # At first right behind its plan, so that however fast a machine is, one kill falls into the work.
        time.sleep(draw.uniform(0, time.monotonic() - started) if num_killed else 0.0)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        num_killed += 1
    subprocess.run(command, check=True)
    assert num_killed, "it was finished before the first kill"


@pytest.mark.parametrize(("num_kills", "seed"), [(3, 0), pytest.param(30, 1, marks=pytest.mark.soak)])
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path, vocabulary, num_kills, seed):
    text = write_documents(tmp_path / "large.txt", 4000 if num_kills < 10 else 20_000, seed=3)
    undisturbed = prepare(request(text, vocabulary, tmp_path / "undisturbed", block_bytes=20_000), workers=2)
    prepare_under_fire(tmp_path / "out", text, vocabulary, num_kills, seed)
    assert bytes_of(tmp_path / "out") == bytes_of(undisturbed)


def test_a_corpus_is_not_written_to_the_address_of_a_store(text, vocabulary):
    with pytest.raises(SettingsError, match="s3:/bucket/corpus is the address of a store; name a folder"):
        prepare(request(text, vocabulary, Path("s3://bucket/corpus")), workers=1)


def test_settings_of_cleaning_are_part_of_the_corpus(tmp_path, text, vocabulary):
    folder = prepare(request(text, vocabulary, tmp_path / "out", clean=CleanSettings(min_characters=5)), workers=1)
    assert json.loads((folder / "manifest.json").read_text())["settings"]["clean"]["min_characters"] == 5


def test_copies_of_a_document_do_not_empty_the_training_split(tmp_path, vocabulary):
    source = tmp_path / "copies.txt"
    same = "The river and the stone.\nThe cloud and the garden.\n"
    source.write_text(
        "\n".join([same] * 11 + ["The road and the engine.\nThe bread and the music.\n"]), encoding="utf-8"
    )
    folder = prepare(request(source, vocabulary, tmp_path / "out"), workers=1)
    splits = Corpus.open(folder).tokens_manifest["splits"]
    assert splits["train"]["pairable"]["documents"] == 2
    assert splits["held-out"]["pairable"]["documents"] == 0


def test_what_a_killed_worker_left_half_written_is_swept_away(tmp_path, text, vocabulary, monkeypatch):
    undisturbed = prepare(request(text, vocabulary, tmp_path / "undisturbed"), workers=1)
    out = tmp_path / "out"
    stop_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(text, vocabulary, out), workers=1)
    monkeypatch.undo()
    (out / "text").mkdir()
    (out / "text" / ".000001.jsonl.4711.part").write_text("half a li")
    next((out / "pieces").iterdir()).joinpath(".000001.safetensors.4711.part").write_bytes(b"half")
    prepare(request(text, vocabulary, out), workers=1)
    assert bytes_of(out) == bytes_of(undisturbed)
