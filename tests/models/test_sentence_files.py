"""The files of sentence-transformers: which they are, and where the maximum length is."""

import json
from pathlib import Path

import pytest
from small_models import write_sentence_model

from bertworks.embeddings.pooling import read_pooling
from bertworks.errors import FolderError
from bertworks.models.sentence_files import read_max_length, read_modules, read_sentence_files


def test_another_folder_has_none(tmp_path: Path):
    assert read_sentence_files(tmp_path) == {}
    assert read_modules(tmp_path) == []


def test_the_files_of_modules_and_the_settings_are_read(tmp_path: Path):
    folder = write_sentence_model(tmp_path / "model")
    (folder / "2_Normalize").mkdir()
    files = read_sentence_files(folder)
    assert set(files) == {"modules.json", "1_Pooling/config.json", "sentence_bert_config.json"}
    assert json.loads(files["1_Pooling/config.json"]) == {"pooling_mode_mean_tokens": True}
    assert json.loads(files["sentence_bert_config.json"]) == {"max_seq_length": 16}


def test_a_maximum_length_of_the_tokenizer_becomes_one_of_the_settings(tmp_path: Path):
    folder = write_sentence_model(tmp_path / "model")
    (folder / "sentence_bert_config.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 12}')
    assert read_max_length(folder) == 12
    assert json.loads(read_sentence_files(folder)["sentence_bert_config.json"]) == {"max_seq_length": 12}
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1000000000000000019884624838656}')
    assert read_max_length(folder) is None
    assert "sentence_bert_config.json" not in read_sentence_files(folder)


@pytest.mark.parametrize("name", ["sentence_roberta_config.json", "sentence_xlm-roberta_config.json"])
def test_older_names_of_the_settings_are_read(tmp_path: Path, name: str):
    folder = write_sentence_model(tmp_path / "model")
    (folder / "sentence_bert_config.json").unlink()
    (folder / name).write_text('{"max_seq_length": 12, "do_lower_case": true}')
    assert read_max_length(folder) == 12
    assert read_pooling(folder).lower_case
    files = read_sentence_files(folder)
    assert json.loads(files["sentence_bert_config.json"]) == {"max_seq_length": 12, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 14}')  # counts before the others
    assert read_max_length(folder) == 14


def test_a_module_outside_of_the_folder_is_refused(tmp_path: Path):
    (tmp_path / "modules.json").write_text('[{"type": "models.Pooling", "path": "../other"}]')
    with pytest.raises(FolderError, match=r"names '\.\./other', which is no folder of this one"):
        read_modules(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "models.Pooling", "path": ".."}]')
    with pytest.raises(FolderError, match=r"names '\.\.', which is no folder of this one"):
        read_modules(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "models.StaticEmbedding", "path": "."}]')
    assert read_modules(tmp_path)[0]["path"] == ""


@pytest.mark.parametrize("content", ["[]", '[{"type": "models.Pooling", "path": null}]', '[{"path": ""}]', "[1]"])
def test_what_is_no_list_of_modules_is_refused(tmp_path: Path, content: str):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(FolderError, match="must be a list of modules, each with type and path"):
        read_modules(tmp_path)


@pytest.mark.parametrize("value", ["0", "-1", "true", '"128"', "12.5"])
def test_a_maximum_length_that_is_none_is_refused(tmp_path: Path, value: str):
    folder = write_sentence_model(tmp_path / "model")
    (folder / "sentence_bert_config.json").write_text(f'{{"max_seq_length": {value}}}')
    with pytest.raises(FolderError, match=r"max_seq_length is .*; it must be a number of tokens, or null"):
        read_max_length(folder)
