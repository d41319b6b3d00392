"""TensorFlow 1 checkpoints: those in fixtures/ were written by TensorFlow, see fixtures/make_tf1.py."""

import runpy
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertworks.errors import FolderError, InputError
from bertworks.models import tf1_checkpoint
from bertworks.models.crc32c import masked_crc32c
from bertworks.models.tf1_checkpoint import TensorflowCheckpoint, find_checkpoint, read_checkpoint
from bertworks.models.tf1_slices import slice_key

FIXTURES = Path(__file__).parent / "fixtures" / "tf1"
GENERATOR = runpy.run_path(str(FIXTURES.parent / "make_tf1.py"))  # the script that wrote the fixtures
KINDS, WEIGHTS, values = GENERATOR["KINDS"], GENERATOR["WEIGHTS"], GENERATOR["values"]
SHARDED = FIXTURES / "sharded" / "model.ckpt-12"
DATA = "bert_model.ckpt.data-00000-of-00001"
INDEX = "bert_model.ckpt.index"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A copy of the release to damage."""
    return Path(shutil.copytree(FIXTURES / "release", tmp_path / "release"))


@pytest.fixture(scope="module")
def kinds() -> TensorflowCheckpoint:
    return read_checkpoint(FIXTURES / "kinds" / "kinds.ckpt")


def flip_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def block(records: list[tuple[int, bytes, bytes]], compression: int = 0) -> bytes:
    """A block with its trailer; a record is (length of the shared key prefix, rest of the key, value)."""
    encoded = [bytes([shared, len(key), len(value)]) + key + value for shared, key, value in records]
    body = b"".join(encoded) + bytes(4) + b"\1\0\0\0" + bytes([compression])  # one restart point, at 0
    return body + masked_crc32c(body).to_bytes(4, "little")


def write_table(prefix: Path, blocks: list[bytes], magic: int = 0xDB4775248B80FB57) -> None:
    """Write an index of at most 127 bytes before its last block, so that each varint has one byte."""
    handles, data = [], b""
    for data_block in blocks:
        handles.append((0, bytes([97 + len(handles)]), bytes([len(data), len(data_block) - 5])))
        data += data_block
    index = block(handles)
    footer = bytes([0, 0, len(data), len(index) - 5]).ljust(40, b"\0") + magic.to_bytes(8, "little")
    prefix.with_name(prefix.name + ".index").write_bytes(data + index + footer)


HEADER = b"\x08\x01"  # field 1, one data file


def entry(raw: bytes, offset: int) -> bytes:
    """An entry of type uint8 (4) without dimensions."""
    crc = masked_crc32c(raw).to_bytes(4, "little")
    return bytes([0x08, 4, 0x20, offset, 0x28, len(raw), 0x35]) + crc


def test_every_tensor_of_a_real_checkpoint_is_read_exactly():
    checkpoint = read_checkpoint(FIXTURES / "release" / "bert_model.ckpt")
    for name, shape in WEIGHTS.items():
        for full in (name, f"{name}/adam_m", f"{name}/adam_v"):
            assert checkpoint.shapes[full] == shape
            assert np.array_equal(checkpoint.tensor(full), values(full, shape))
    assert checkpoint.tensor("global_step") == 12
    assert len(checkpoint.shapes) == 3 * 46 + 1


def test_every_tensor_of_a_sharded_checkpoint_is_read_exactly():
    checkpoint = read_checkpoint(SHARDED)
    assert checkpoint.num_shards == 2
    assert {entry.shard for entry in checkpoint.entries.values()} == {0, 1}
    assert len(checkpoint.shapes) == 44
    for name, shape in checkpoint.shapes.items():
        assert np.array_equal(checkpoint.tensor(name), values(name, shape))


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("text", "bfloat16")])
def test_each_numeric_type_is_read(kinds: TensorflowCheckpoint, name: str):
    types = {"scalar": "float32", "empty": "float32"}
    expected = np.array(KINDS[name], dtype=types.get(name, name))
    tensor = kinds.tensor(name)
    assert tensor.dtype == expected.dtype
    assert tensor.shape == expected.shape
    assert np.array_equal(tensor, expected)


def test_bfloat16_is_converted_to_float32_without_loss(kinds: TensorflowCheckpoint):
    tensor = kinds.tensor("bfloat16")
    assert tensor.dtype == np.float32
    assert tensor.tolist() == [1.0, -2.5, 0.15625]


def test_a_tensor_is_a_copy(kinds: TensorflowCheckpoint):
    kinds.tensor("int32")[0, 0] = 99
    assert kinds.tensor("int32").tolist() == [[1, -2], [3, 4]]


def test_strings_are_listed_but_refused(kinds: TensorflowCheckpoint):
    assert kinds.shapes["text"] == ()
    with pytest.raises(FolderError, match="tensor 'text' has the non-numeric type 7"):
        kinds.tensor("text")


def test_a_partitioned_variable_is_joined_from_its_slices(kinds: TensorflowCheckpoint):
    assert kinds.entries["sliced"].slices == (((0, 2), (0, 2)), ((2, 2), (0, 2)))
    assert np.array_equal(kinds.tensor("sliced"), np.zeros((4, 2), np.float32))
    first, second = (slice_key("sliced", extents) for extents in kinds.entries["sliced"].slices)
    assert {first, second} == set(kinds.slice_entries)
    damaged = replace(kinds, slice_entries={first: kinds.slice_entries[first]})
    with pytest.raises(FolderError, match="tensor 'sliced' is stored in slices, but a slice is missing"):
        damaged.tensor("sliced")
    whole = replace(kinds.slice_entries[first], offset=kinds.entries["scalar"].offset)
    with pytest.raises(FolderError, match="do not match their checksum"):
        replace(kinds, slice_entries={first: whole, second: whole}).tensor("sliced")


def test_an_unknown_tensor_is_refused(kinds: TensorflowCheckpoint):
    with pytest.raises(InputError, match=r"has no tensor 'int33'; see .shapes for the 13 it has"):
        kinds.tensor("int33")


def test_a_missing_index_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no .*/model\.ckpt-12\.index"):
        read_checkpoint(tmp_path / "model.ckpt-12")


def test_a_missing_data_file_is_named(tmp_path: Path):
    folder = Path(shutil.copytree(FIXTURES / "sharded", tmp_path / "sharded"))
    (folder / "model.ckpt-12.data-00001-of-00002").unlink()
    with pytest.raises(FolderError, match=r"data-00001-of-00002 is missing: the checkpoint has 2 data files"):
        read_checkpoint(folder / "model.ckpt-12")


def test_a_truncated_data_file_is_named_with_the_tensor(release: Path):
    data = release / DATA
    size = data.stat().st_size
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(FolderError, match=rf"is truncated: tensor 'global_step' ends at byte {size}, the file at byte"):
        read_checkpoint(release / "bert_model.ckpt")


def test_a_flipped_bit_in_a_tensor_is_detected(release: Path):
    checkpoint = read_checkpoint(release / "bert_model.ckpt")
    flip_bit(release / DATA, checkpoint.entries["bert/pooler/dense/kernel"].offset + 500)
    with pytest.raises(FolderError, match="the bytes of tensor 'bert/pooler/dense/kernel' do not match their checksum"):
        checkpoint.tensor("bert/pooler/dense/kernel")
    assert checkpoint.tensor("bert/pooler/dense/bias").shape == (16,)


def test_a_flipped_bit_in_the_index_is_detected(release: Path):
    flip_bit(release / INDEX, 100)
    with pytest.raises(FolderError, match=r"index is damaged \(the block at byte 0 does not match its checksum\)"):
        read_checkpoint(release / "bert_model.ckpt")


@pytest.mark.parametrize("size", [0, 20, 100, 4600])
def test_a_truncated_index_is_refused(release: Path, size: int):
    index = release / INDEX
    index.write_bytes(index.read_bytes()[:size])
    with pytest.raises(FolderError, match="is not the index of a TensorFlow checkpoint, or it is truncated"):
        read_checkpoint(release / "bert_model.ckpt")


def test_an_index_without_its_start_is_refused(release: Path):
    index = release / INDEX
    index.write_bytes(index.read_bytes()[1000:])
    with pytest.raises(FolderError, match="index is damaged"):
        read_checkpoint(release / "bert_model.ckpt")


def test_a_git_lfs_pointer_is_recognized(release: Path):
    (release / INDEX).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 8526\n")
    with pytest.raises(FolderError, match="it is a Git LFS pointer, run: git lfs pull"):
        read_checkpoint(release / "bert_model.ckpt")


def test_a_table_of_several_blocks_is_read(tmp_path: Path):
    prefix = tmp_path / "small"
    (tmp_path / "small.data-00000-of-00001").write_bytes(b"\x05\x06\x07")
    first = block([(0, b"", HEADER), (0, b"ab", entry(b"\x05", 0)), (1, b"c", entry(b"\x06", 1))])
    second = block([(0, b"b", entry(b"\x07", 2))])
    write_table(prefix, [first, second])
    checkpoint = read_checkpoint(prefix)
    assert {name: int(checkpoint.tensor(name)) for name in checkpoint.shapes} == {"ab": 5, "ac": 6, "b": 7}


def test_a_compressed_block_is_refused(tmp_path: Path):
    write_table(tmp_path / "small", [block([(0, b"", HEADER)], compression=1)])
    with pytest.raises(FolderError, match=r"the block at byte 0 is compressed, as by TensorFlow before 1.2"):
        read_checkpoint(tmp_path / "small")


def test_a_checkpoint_of_a_big_endian_machine_is_refused(tmp_path: Path):
    write_table(tmp_path / "small", [block([(0, b"", HEADER + b"\x10\x01")])])
    with pytest.raises(FolderError, match="written on a big-endian machine"):
        read_checkpoint(tmp_path / "small")


def test_another_leveldb_table_is_refused(tmp_path: Path):
    write_table(tmp_path / "small", [block([(0, b"key", b"value")])])
    with pytest.raises(FolderError, match="is a table, but not that of a TensorFlow checkpoint"):
        read_checkpoint(tmp_path / "small")


def test_a_size_that_does_not_fit_the_shape_is_refused(tmp_path: Path):
    (tmp_path / "small.data-00000-of-00001").write_bytes(b"\x05\x06")
    write_table(tmp_path / "small", [block([(0, b"", HEADER), (0, b"a", entry(b"\x05\x06", 0))])])
    with pytest.raises(FolderError, match=r"tensor 'a' of shape \(\) takes 2 bytes in data file 0, which does not fit"):
        read_checkpoint(tmp_path / "small")


@pytest.mark.parametrize("suffix", ["", ".index", ".meta", ".data-00001-of-00002"])
def test_any_file_of_a_checkpoint_finds_its_prefix(suffix: str):
    assert find_checkpoint(SHARDED.with_name(SHARDED.name + suffix)) == SHARDED


def test_the_only_checkpoint_of_a_folder_is_found():
    assert find_checkpoint(SHARDED.parent) == SHARDED


def test_of_several_checkpoints_the_latest_is_chosen(tmp_path: Path):
    for name in ("model.ckpt-9.index", "model.ckpt-12.index"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"has 2 checkpoints \(model.ckpt-12, model.ckpt-9\); give the path of one"):
        find_checkpoint(tmp_path)
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "gs://bucket/run/model.ckpt-9"\nall_model_checkpoint_paths: "model.ckpt-12"\n'
    )
    assert find_checkpoint(tmp_path) == tmp_path / "model.ckpt-9"


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"has no TensorFlow checkpoint: no file there ends in .index"):
        find_checkpoint(tmp_path)


def test_a_number_of_more_than_64_bits_is_refused(tmp_path: Path):
    records = [(0, b"", HEADER), (0, b"a", b"\x08" + b"\xff" * 20 + b"\x01")]
    write_table(tmp_path / "model.ckpt", [block(records)])
    with pytest.raises(FolderError, match="more than 64 bits"):
        read_checkpoint(tmp_path / "model.ckpt")


def test_a_name_that_grows_with_every_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tf1_checkpoint, "LONGEST_KEY", 8)
    records = [(0, b"", HEADER), *((number * 4, b"abcd", b"") for number in range(4))]
    write_table(tmp_path / "model.ckpt", [block(records)])
    with pytest.raises(FolderError, match="a name has 12 bytes"):
        read_checkpoint(tmp_path / "model.ckpt")


def test_blocks_that_overlap_are_refused(tmp_path: Path):
    data = block([(0, b"", HEADER)])
    handle = bytes([0, len(data) - 5])
    index = block([(0, b"a", handle), (0, b"b", handle)])
    footer = bytes([0, 0, len(data), len(index) - 5]).ljust(40, b"\0") + tf1_checkpoint.MAGIC.to_bytes(8, "little")
    (tmp_path / "model.ckpt.index").write_bytes(data + index + footer)
    with pytest.raises(FolderError, match="the block at byte 0 overlaps the one before it"):
        read_checkpoint(tmp_path / "model.ckpt")


def test_entries_of_more_bytes_than_the_data_files_have_are_refused(tmp_path: Path):
    (tmp_path / "model.ckpt.data-00000-of-00001").write_bytes(b"\x05")
    records = [(0, b"", HEADER), (0, b"a", entry(b"\x05", 0)), (0, b"b", entry(b"\x05", 0))]
    write_table(tmp_path / "model.ckpt", [block(records)])
    with pytest.raises(FolderError, match="names more bytes than its data files have"):
        read_checkpoint(tmp_path / "model.ckpt")
