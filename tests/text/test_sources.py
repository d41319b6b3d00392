"""Sources as users name them: listing, splitting into blocks, and error messages."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import sys
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import InputError, SettingsError
from bertworks.text.document import Counts, RawDocument
from bertworks.text.sources import Block, ReadSettings, TextSource, blocks, read, total_bytes

COMPRESSORS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


def read_all(path: Path | str, settings: ReadSettings | None = None) -> tuple[list[RawDocument], Counts]:
    counts = Counts()
    units = blocks([TextSource(str(path))], settings or ReadSettings())
    return [document for block in units for document in read(block, counts)], counts


def texts(path: Path | str, settings: ReadSettings | None = None) -> list[str]:
    return [document.text for document in read_all(path, settings)[0]]


def error_message(path: Path | str, settings: ReadSettings | None = None) -> str:
    """The error of `blocks`, before anything is read."""
    with pytest.raises(InputError) as caught:
        blocks([TextSource(str(path))], settings or ReadSettings())
    return str(caught.value)


def test_folder_is_read_recursively_in_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", ".hidden.txt", ".git/x.txt", "a/.y.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"words of {name}")
    documents, counts = read_all(tmp_path)
    assert [(one.source, one.text) for one in documents] == [
        ("a/z.md", "words of a/z.md"),
        ("b.txt:1", "words of b.txt"),
    ]
    assert not counts


def test_glob_names_files_relative_to_its_fixed_part(tmp_path: Path) -> None:
    for name in ("a/x.txt", "b/x.txt", "b/y.md", "b/.z.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words")
    assert [one.source for one in read_all(tmp_path / "*/*.txt")[0]] == ["a/x.txt:1", "b/x.txt:1"]
    assert [one.source for one in read_all(tmp_path / "**")[0]] == ["a/x.txt:1", "b/x.txt:1", "b/y.md"]


def test_file_whose_name_looks_like_a_glob_is_read_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("words")
    assert texts(tmp_path / "a[1].txt") == ["words"]


def test_standard_input_is_split_into_blocks_with_data(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"one\n\ntwo\n\nthree"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    units = list(blocks([TextSource("-")], ReadSettings(block_bytes=3)))
    assert [[one.text for one in read(block, Counts())] for block in units] == [["one"], ["two"], ["three"]]
    assert total_bytes([TextSource("-")]) is None


def test_json_lines_are_detected_without_a_file_name(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'{"text": "one"}\n{"text": "two"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    units = blocks([TextSource("-")], ReadSettings())
    assert [one.text for block in units for one in read(block, Counts())] == ["one", "two"]


def test_prose_in_braces_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("{aside}\nwords\n")
    assert texts(tmp_path / "a.txt") == ["{aside}\nwords"]


def test_standard_input_named_twice_is_an_error() -> None:
    with pytest.raises(InputError, match="named twice"):
        blocks([TextSource("-"), TextSource("-")], ReadSettings())


def test_named_pipe_is_read_once_from_start_to_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    units = blocks([TextSource(str(path))], ReadSettings())
    writer = os.fork()
    if not writer:
        path.write_text("through a pipe")
        os._exit(0)
    assert [one.text for block in units for one in read(block, Counts())] == ["through a pipe"]
    assert os.waitpid(writer, 0)[1] == 0


def test_blocks_are_numbered_across_sources_and_can_be_pickled(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\nthree\n\nfour\n")
    (tmp_path / "b.md").write_text("five")
    sources = [TextSource(str(tmp_path / "a.txt")), TextSource(str(tmp_path / "b.md"), weight=2.0, split="train")]
    units = list(blocks(sources, ReadSettings(block_bytes=9)))
    assert [(block.number, block.source_index, block.origin) for block in units] == [
        (0, 0, "a.txt"),
        (1, 0, "a.txt"),
        (2, 1, "b.md"),
    ]
    assert sum(block.num_bytes for block in units) == total_bytes(sources) == 26
    copies: list[Block] = [pickle.loads(pickle.dumps(block)) for block in units]
    assert copies == units
    assert [one.text for block in copies for one in read(block, Counts())] == ["one", "two", "three", "four", "five"]


def test_small_files_are_grouped_into_one_block(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.md.gz").write_bytes(gzip.compress(b"words " * 100))
    size = (tmp_path / "0.md.gz").stat().st_size
    units = list(blocks([TextSource(str(tmp_path))], ReadSettings(block_bytes=3 * size * 4)))
    assert [block.origin for block in units] == ["0.md.gz and 3 more", "4.md.gz and 1 more"]
    assert len(pickle.dumps(units[0])) < 2000
    assert [one.source for block in units for one in read(block, Counts())] == [f"{n}.md.gz" for n in range(6)]


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("block_bytes", [5, 4096])
def test_compressed_files_are_decompressed(tmp_path: Path, suffix: str, block_bytes: int) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"one\n\ntwo\n\nthree\n") + COMPRESSORS[suffix]("\n四".encode()))
    documents, _ = read_all(path, ReadSettings(block_bytes=block_bytes))
    assert [(one.text, one.source) for one in documents] == [
        ("one", f"a.txt{suffix}:1"),
        ("two", f"a.txt{suffix}:3"),
        ("three", f"a.txt{suffix}:5"),
        ("四", f"a.txt{suffix}:7"),
    ]


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_truncated_compressed_file_is_an_error_before_reading(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](os.urandom(500).hex().encode())[:-20])
    assert (
        error_message(path)
        == f"a.txt{suffix} is truncated: its compressed data ends too early; copy or download it again"
    )


def test_large_truncated_gzip_is_an_error_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a line of words\n\n" * 200_000)[:-9])
    with pytest.raises(InputError, match=r"a\.txt\.gz is truncated"):
        read_all(path, ReadSettings(block_bytes=2**16))


def tar_bytes(files: dict[str, bytes], mode: str = "w") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as tar:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return target.getvalue()


ARCHIVE_FILES = {
    "in/a.txt": b"one\n\ntwo",
    "in/b.jsonl.gz": gzip.compress(b'{"text": "three"}\n'),
    "in/.hidden.txt": b"no",
    "in/c.bin": bytes(range(256)),
    "in/d.zip": b"PK",
}
ARCHIVE_TEXTS = ["in/a.txt:1 one", "in/a.txt:3 two", "in/b.jsonl.gz:1 three"]


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz", "x.tar.zst", "x.zip"])
def test_archives_are_read_without_extracting(tmp_path: Path, name: str) -> None:
    data = tar_bytes(ARCHIVE_FILES)
    if name == "x.zip":
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as file:
            for member, content in ARCHIVE_FILES.items():
                file.writestr(member, content)
    else:
        compress = COMPRESSORS.get(".gz" if name == "x.tgz" else Path(name).suffix, bytes)
        (tmp_path / name).write_bytes(compress(data))
    documents, counts = read_all(tmp_path / name)
    assert [f"{one.source} {one.text}" for one in documents] == [f"{name}/{text}" for text in ARCHIVE_TEXTS]
    assert counts == {"files skipped: not text": 1, "files skipped: archive inside an archive": 1}
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_damaged_archives_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK no zip")
    (tmp_path / "x.tar").write_bytes(tar_bytes({"a.txt": b"words " * 5000})[:9000])
    for name in ("x.zip", "x.tar"):
        with pytest.raises(InputError, match=name):
            read_all(tmp_path / name)


def test_a_zip_member_without_a_name_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr(zipfile.ZipInfo(""), "one")
        file.writestr("a.txt", "two")
    assert texts(tmp_path / "x.zip") == ["one", "two"]


def wiki_page(number: int) -> bytes:
    return b"  <page>\n<title>P%d</title><ns>0</ns><text>Words of %d.</text>\n  </page>\n" % (number, number)


def test_multistream_dump_is_split_at_its_streams(tmp_path: Path) -> None:
    streams = [b"<mediawiki>\n", *(wiki_page(n) + wiki_page(n + 100) for n in range(5)), b"</mediawiki>\n"]
    path = tmp_path / "d.xml.bz2"
    path.write_bytes(b"".join(map(bz2.compress, streams)))
    units = list(blocks([TextSource(str(path))], ReadSettings(block_bytes=3)))
    assert len(units) == 7
    assert sum(block.num_bytes for block in units) == path.stat().st_size
    assert max(len(pickle.dumps(block)) for block in units) < 2000
    expected = [f"Words of {n}." for pair in range(5) for n in (pair, pair + 100)]
    assert [one.text for block in units for one in read(block, Counts())] == expected


def test_bz2_streams_that_split_pages_are_read_as_one_stream(tmp_path: Path) -> None:
    data = b"<mediawiki>\n" + b"".join(map(wiki_page, range(9))) + b"</mediawiki>\n"
    path = tmp_path / "d.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(data[start : start + 50]) for start in range(0, len(data), 50)))
    assert texts(path, ReadSettings(block_bytes=99)) == [f"Words of {n}." for n in range(9)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
@pytest.mark.parametrize("block_bytes", [30, 2**20])
def test_encodings_are_read_equally_in_small_and_large_blocks(tmp_path: Path, encoding: str, block_bytes: int) -> None:
    documents = [f"第{number}篇文章，今天天气很好，我们去公园" for number in range(20)]
    (tmp_path / "a.txt").write_bytes("\n\n".join(documents).encode(encoding))
    assert texts(tmp_path / "a.txt", ReadSettings(block_bytes=block_bytes)) == documents


def test_mixed_encodings_are_read_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("né à Paris\nthé\n".encode() + "garçon\n".encode("cp1252"))
    documents, counts = read_all(tmp_path / "a.txt")
    assert [one.text for one in documents] == ["né à Paris\nthé\ngarçon"]
    assert counts == {"lines decoded as cp1252: not valid UTF-8": 1}


WORDS = st.text("ab é中\n", min_size=1, max_size=12).map(lambda text: " ".join(text.split())).filter(bool)


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, 200), min_size=2, max_size=2),
    suffix=st.sampled_from([".txt", ".txt.gz", ".jsonl", ".wiki"]),
)
def test_documents_do_not_depend_on_the_block_size(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]], sizes: list[int], suffix: str
) -> None:
    expected = ["\n".join(lines) for lines in documents]
    data = "\n\n".join(expected)
    if suffix == ".jsonl":
        data = "".join(json.dumps({"text": one}) + "\n" for one in expected)
    if suffix == ".wiki":
        data = "".join(f" = Title = \n {one}\n" for one in expected)
    path = tmp_path_factory.mktemp("sizes") / f"a{suffix}"
    path.write_bytes(gzip.compress(data.encode()) if suffix == ".txt.gz" else data.encode())
    for size in [*sizes, 2**20]:
        assert texts(path, ReadSettings(block_bytes=size)) == expected


def without_spaces(text: str) -> bytes:
    return text.replace(" ", "").encode()


@pytest.mark.parametrize("compressed", [False, True])
def test_line_of_50_mb_is_split_in_bounded_memory_without_changes(tmp_path: Path, compressed: bool) -> None:
    mebibyte = (b"some words, " * 2**17)[: 2**20]
    path = tmp_path / ("a.txt.gz" if compressed else "a.txt")
    expected = hashlib.sha256()
    with gzip.open(path, "wb", compresslevel=1) if compressed else path.open("wb") as file:
        for _ in range(50):
            file.write(mebibyte)
            expected.update(without_spaces(mebibyte.decode()))
    counts, actual = Counts(), hashlib.sha256()
    tracemalloc.start()
    for block in blocks([TextSource(str(path))], ReadSettings()):
        for one in read(block, counts):
            actual.update(without_spaces(one.text))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert actual.digest() == expected.digest()
    assert counts == {"documents split: longer than a block": 1}
    assert peak < 50e6


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_line_without_spaces_is_split_between_characters(tmp_path: Path, encoding: str, suffix: str) -> None:
    text = "中文字" * 500_000
    data = text.encode(encoding)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(gzip.compress(data, 1) if suffix else data)
    parts = texts(path, ReadSettings(block_bytes=500_001))
    assert "".join(parts) == text
    assert len(parts) >= 4


def test_a_million_lines_of_one_word_are_read_completely(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"word\n" * 1_000_000)
    documents, counts = read_all(tmp_path / "a.txt", ReadSettings(block_bytes=2**20))
    assert sum(one.text.count("word") for one in documents) == 1_000_000
    assert all(set(one.text.split("\n")) == {"word"} for one in documents)
    assert counts == {"documents split: longer than a block": 1}


def test_too_long_record_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.text.splitting.MAX_RECORD_BYTES", 2**21)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "' + b"a" * 2**24 + b'"}\n')
    with pytest.raises(InputError, match="one record is longer than"):
        read_all(tmp_path / "a.jsonl", ReadSettings(block_bytes=100))


def test_bad_sources_are_errors_before_reading(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "image.txt").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "folder").mkdir()
    assert error_message(tmp_path / "nowhere.txt").startswith(f"{tmp_path / 'nowhere.txt'} does not exist")
    assert error_message(tmp_path / "empty.txt") == "empty.txt is empty; fill it or leave it out"
    assert error_message(tmp_path / "image.txt") == "image.txt is binary, not text; convert it to text or leave it out"
    assert (
        error_message(tmp_path / "folder")
        == f"folder {tmp_path / 'folder'} holds no files; give a folder with text in it"
    )
    assert error_message(tmp_path / "*.md").startswith(f"no file matches {tmp_path / '*.md'}")


def test_compressed_empty_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b""))
    assert error_message(tmp_path / "a.txt.gz") == "a.txt.gz is empty; fill it or leave it out"


def test_unreadable_file_is_an_error_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("words")
    # Tests may run as root, which can read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert error_message(tmp_path / "a.txt").startswith("a.txt cannot be read: no permission")
    monkeypatch.undo()
    (tmp_path / "link.txt").symlink_to(tmp_path / "gone.txt")
    assert error_message(tmp_path).startswith("link.txt cannot be read: No such file or directory")


def test_file_deleted_before_its_block_is_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    units = list(blocks([TextSource(str(tmp_path / "a.txt"))], ReadSettings()))
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InputError, match=r"^a\.txt cannot be read: there is no such file"):
        list(read(units[0], Counts()))


@pytest.mark.parametrize("block_bytes", [100, 2**20])
def test_empty_and_binary_files_of_a_folder_are_skipped_and_counted(tmp_path: Path, block_bytes: int) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "image.jpg").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "text.txt").write_text("words")
    documents, counts = read_all(tmp_path, ReadSettings(block_bytes=block_bytes))
    assert [one.text for one in documents] == ["words"]
    assert counts == {"files skipped: empty": 1, "files skipped: not text": 1}


def test_unknown_settings_are_errors_with_the_choices() -> None:
    with pytest.raises(SettingsError, match="unknown format 'html'; choose auto, plain, markdown"):
        ReadSettings(format="html")
    with pytest.raises(SettingsError, match="unknown meaning of lines 'x'; choose auto, sentences"):
        ReadSettings(lines="x")
    with pytest.raises(SettingsError, match="weight 0"):
        TextSource("a", weight=0)


def test_python_docs_are_grouped_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.text.python_docs.parts", lambda: ["stdlib:a", "stdlib:b"])
    monkeypatch.setattr(
        "bertworks.text.python_docs.read", lambda part, counts: iter([RawDocument(f"Text of {part}.", part)])
    )
    units = list(blocks([TextSource("python-docs")], ReadSettings()))
    assert [(block.origin, len(block.chunks)) for block in units] == [("stdlib:a and 1 more", 2)]
    assert [one.text for one in read(units[0], Counts())] == ["Text of stdlib:a.", "Text of stdlib:b."]
    assert total_bytes([TextSource("python-docs")]) == units[0].num_bytes
