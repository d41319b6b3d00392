"""What users hand over: deep, long and unreadable files get a reason of one line."""

import errno
import os
from pathlib import Path

import pytest

from bertworks.commands.embed import EmbedRequest
from bertworks.commands.finetune.request import FinetuneRequest
from bertworks.errors import InputError
from bertworks.exporters.export import ExportRequest
from bertworks.reading import MAX_DEPTH, check_path, parse_json, parse_toml, unreadable_reason


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 200_000])
def test_deep_json_is_refused(depth: int):
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        parse_json("[" * depth + "]" * depth)


def test_json_of_the_allowed_depth_is_read():
    value = parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


@pytest.mark.parametrize("text", ["a = " + "[" * 5_000, "a = " + "{a=" * 5_000, "a." * 5_000 + "a = 1"])
def test_deep_toml_is_refused(text: str):
    with pytest.raises(ValueError, match=r"nested more than 64 deep|Invalid"):
        parse_toml(text)


def test_a_long_recipe_is_refused_before_it_is_parsed():
    # 200,000 dots would take the parser a quarter of a minute.
    with pytest.raises(ValueError, match="400,005 characters; the most are 131,072"):
        parse_toml("a." * 200_000 + "a = 1")


def test_a_number_of_thousands_of_digits_is_a_value_error():
    for parse in (parse_json, lambda text: parse_toml(f"a = {text}")):
        with pytest.raises(ValueError, match="digits"):
            parse("9" * 5_000)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "reading it is not allowed; change its permissions"),
        (errno.EISDIR, "it is a folder; give a file"),
        (errno.EIO, "the disk reports an error; check the disk"),
        (errno.ENAMETOOLONG, "its name is too long for a file; check the name"),
    ],
)
def test_an_unreadable_file_has_a_reason_and_a_way_out(number: int, reason: str):
    assert unreadable_reason(OSError(number, os.strerror(number))) == reason


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="its name is too long for a file"):
        check_path(tmp_path / ("n" * 300))
    with pytest.raises(InputError, match="is no path"):
        check_path(tmp_path / "a\0b")
    check_path(tmp_path / "absent")


def test_strings_in_requests_become_paths():
    request = EmbedRequest(model="en-small", file="texts.txt", output="vectors.npy")  # type: ignore[arg-type]
    assert request.output == Path("vectors.npy")
    finetune = FinetuneRequest(task="classify", model="m", train="train.tsv", output="run", dev=None)  # type: ignore[arg-type]
    assert (finetune.train, finetune.output, finetune.dev) == (Path("train.tsv"), Path("run"), None)
    export = ExportRequest(model="m", target="onnx", output="exported", data="dev.tsv")  # type: ignore[arg-type]
    assert (export.output, export.data) == (Path("exported"), Path("dev.tsv"))
