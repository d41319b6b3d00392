"""Text in object stores: read like the same files on disk, with clear errors."""

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertworks.errors import InputError, MissingDependencyError
from bertworks.text.document import Counts
from bertworks.text.sources import ReadSettings, TextSource, blocks, inventory, read, total_bytes

TEXT = "".join(f"Sentence {number} of a long text.\n\n" for number in range(300))


@pytest.fixture
def bucket() -> Iterator[str]:
    """An in-memory store with a text, a compressed one in a subfolder, a table and a hidden file."""
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/texts/a.txt", TEXT.encode())
    store.pipe("/bucket/texts/below/b.txt.gz", gzip.compress(b"Packed words stand here.\n\nAnd more of them.\n"))
    store.pipe("/bucket/texts/.hidden.txt", b"not to be read\n")
    with store.open("/bucket/table.parquet", "wb") as file:
        pq.write_table(pa.table({"text": ["One row of text.", "Another row."]}), file)
    yield "memory://bucket"
    store.rm("/bucket", recursive=True)


def documents(address: str, block_bytes: int = 2**22) -> list[tuple[str, str]]:
    counts = Counts()
    units = blocks([TextSource(address)], ReadSettings(block_bytes=block_bytes))
    return [(one.text, one.source) for block in units for one in read(block, counts)]


def copy_to_disk(folder: Path) -> Path:
    """Write the same texts to files."""
    store = fsspec.filesystem("memory")
    for name in ("a.txt", "below/b.txt.gz", ".hidden.txt"):
        path = folder / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(store.cat(f"/bucket/texts/{name}"))
    return folder / "texts"


@pytest.mark.parametrize("block_bytes", [1000, 2**22])
def test_folder_of_a_store_is_read_like_one_on_disk(bucket: str, tmp_path: Path, block_bytes: int) -> None:
    texts = copy_to_disk(tmp_path)
    stored = documents(f"{bucket}/texts", block_bytes)
    assert stored == documents(str(texts), block_bytes) == documents(f"file://{texts}", block_bytes)
    assert [source.partition(":")[0].partition("@")[0] for _, source in stored][-1] == "below/b.txt.gz"
    assert not any("not to be read" in text for text, _ in stored)


def test_files_globs_and_tables_of_a_store_are_read(bucket: str) -> None:
    assert documents(f"{bucket}/texts/a.txt") == documents(f"{bucket}/texts/*.txt")
    assert [text for text, _ in documents(f"{bucket}/table.parquet")] == ["One row of text.", "Another row."]


def test_inventory_detects_a_change_in_a_store(bucket: str) -> None:
    sources = [TextSource(f"{bucket}/texts")]
    before = inventory(sources)
    assert inventory(sources) == before
    assert before["files"] == 2
    assert before["bytes"] == total_bytes(sources)
    fsspec.filesystem("memory").pipe("/bucket/texts/a.txt", TEXT.encode())
    after = inventory(sources)
    assert [name for name in before if after[name] != before[name]] == ["times"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("memory://bucket/nothing", "does not exist; check the address"),
        ("memory://bucket/*.csv", "holds no files"),
        ("nowhere://bucket/a.txt", "Protocol not known: nowhere"),
    ],
)
def test_invalid_addresses_are_errors(bucket: str, address: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        documents(address)
    assert address in str(error.value)


def test_missing_package_of_a_store_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match=r"bertworks\[s3\]"):
        documents("s3://bucket/texts")
