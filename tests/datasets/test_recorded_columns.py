"""The recorded columns that a file has: all of its texts, the label if it is there, the header if it has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertworks.datasets.recorded_columns import columns_for_file, recorded_columns_in

RECORDED = {"text": "msg", "label": "kind"}


def write(folder: Path, *lines: str, name: str = "file.tsv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_file_with_the_recorded_columns_is_read_with_them(tmp_path: Path) -> None:
    path = write(tmp_path, "kind\ttext\tmsg", "ham\tx\thello")
    assert columns_for_file(path, RECORDED, {}) == RECORDED


def test_given_columns_take_precedence(tmp_path: Path) -> None:
    path = write(tmp_path, "kind\ttext\tmsg", "ham\tx\thello")
    assert columns_for_file(path, RECORDED, {"text": "text"}) == {"text": "text", "label": "kind"}
    assert columns_for_file(path, RECORDED, {"label": "text"}) == {"text": "msg", "label": "text"}


def test_a_file_without_a_recorded_text_is_recognized_as_before(tmp_path: Path) -> None:
    path = write(tmp_path, "kind\tsentence", "ham\thello")
    assert columns_for_file(path, RECORDED, {}) == {}
    pair = {"text": "sentence", "pair": "other", "label": "kind"}
    assert columns_for_file(path, pair, {}) == {}


def test_a_file_without_the_recorded_label_keeps_the_text(tmp_path: Path) -> None:
    assert columns_for_file(write(tmp_path, "msg\tgold", "hello\tham"), RECORDED, {}) == {"text": "msg"}


def test_old_folders_have_no_record(tmp_path: Path) -> None:
    assert columns_for_file(write(tmp_path, "text\tlabel", "a\tb"), {}, {"text": "text"}) == {"text": "text"}


def test_the_header_is_for_files_without_one(tmp_path: Path) -> None:
    recorded = {**RECORDED, "header": "source,kind,msg"}
    headless = write(tmp_path, "a\tham\thello", "a\tspam\tbuy")
    assert columns_for_file(headless, recorded, {}) == {**RECORDED, "header": "source,kind,msg"}
    with_header = write(tmp_path, "id\tmsg\tkind", "1\thello\tham", name="header.tsv")
    assert columns_for_file(with_header, recorded, {}) == RECORDED
    other_shape = write(tmp_path, "ham\thello", name="other.tsv")
    assert columns_for_file(other_shape, recorded, {}) == {}
    common_names = write(tmp_path, "id\tsms\tlabel", "1\thello\tham", name="common.tsv")
    assert columns_for_file(common_names, recorded, {}) == {}
    assert columns_for_file(headless, recorded, {"header": "a,kind,msg"}) == {**RECORDED, "header": "a,kind,msg"}


def test_json_lines_have_their_own_names(tmp_path: Path) -> None:
    path = write(tmp_path, '{"msg": "hello", "kind": "ham"}', name="file.jsonl")
    assert columns_for_file(path, {**RECORDED, "header": "a,b"}, {}) == RECORDED


def test_columns_of_words_and_tags_are_indices(tmp_path: Path) -> None:
    path = write(tmp_path, "1 John B-PER", "2 sat O", name="dev.txt")
    assert columns_for_file(path, {"text": "1", "label": "-1"}, {}) == {"text": "1", "label": "-1"}
    assert columns_for_file(path, {"text": "3", "label": "-1"}, {}) == {}


@pytest.mark.parametrize(("name", "columns"), [("test.zh", {"targets": "zh"}), ("other.zh", {})])
def test_the_file_of_translations_must_exist(tmp_path: Path, name: str, columns: dict[str, str]) -> None:
    write(tmp_path, "你好", name=name)
    path = write(tmp_path, "hello", name="test.en")
    assert columns_for_file(path, {"targets": "zh"}, {}) == columns


def test_the_flag_for_broken_lines_stays(tmp_path: Path) -> None:
    path = write(tmp_path, "kind\tmsg", "ham\thello")
    assert columns_for_file(path, {**RECORDED, "broken": "yes"}, {}) == {**RECORDED, "broken": "yes"}


def test_recorded_columns_among_names() -> None:
    assert recorded_columns_in({"msg", "kind"}, RECORDED, {}) == RECORDED
    assert recorded_columns_in({"msg"}, RECORDED, {}) == {"text": "msg"}
    assert recorded_columns_in({"text"}, RECORDED, {}) is None
    assert recorded_columns_in({"text"}, {}, {}) == {}
