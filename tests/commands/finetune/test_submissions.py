"""What a published set asks of a model besides training: which files are handed in, and which are scored."""

from pathlib import Path

import pytest

from bertworks.commands.evaluate import files_of_set
from bertworks.commands.finetune.submissions import BenchmarkDataset
from bertworks.errors import InputError, SettingsError


def put(data: Path, *names: str) -> None:
    for name in names:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("index\tsentence1\tsentence2\n")


def test_what_is_there_is_handed_in(tmp_path: Path):
    put(tmp_path, "glue/MRPC/test.tsv", "glue/MNLI/test_mismatched.tsv", "squad/dev-v1.1.json")
    assert BenchmarkDataset("glue/mrpc", tmp_path).submission_splits() == [("glue/MRPC", "test")]
    assert BenchmarkDataset("glue/MNLI", tmp_path).submission_splits() == [("glue/MNLI", "test_mismatched")]
    assert BenchmarkDataset("squad1", tmp_path).submission_splits() == [("squad1", "dev")]


def test_the_diagnostic_set_goes_with_mnli_and_not_without_it(tmp_path: Path):
    put(tmp_path, "glue/AX/diagnostic.tsv")
    with pytest.raises(InputError, match=r"no test_matched file of glue/MNLI; put test_matched\.tsv"):
        BenchmarkDataset("glue/MNLI", tmp_path).submission_splits()
    put(tmp_path, "glue/MNLI/test_matched.tsv", "glue/RTE/test.tsv")
    found = [("glue/MNLI", "test_matched"), ("glue/AX", "test")]
    assert BenchmarkDataset("glue/MNLI", tmp_path).submission_splits() == found
    assert BenchmarkDataset("glue/RTE", tmp_path).submission_splits() == [("glue/RTE", "test")]


def test_a_set_that_nobody_takes_in_or_without_a_test_file_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="chnsenticorp has no official submission for --test to write"):
        BenchmarkDataset("chnsenticorp", tmp_path).submission_splits()
    with pytest.raises(InputError, match=r"no test file of glue/MRPC; put test\.tsv \(or \.gz\) into"):
        BenchmarkDataset("glue/MRPC", tmp_path).submission_splits()


def test_the_labelled_files_of_a_set_are_those_that_are_there(tmp_path: Path):
    put(tmp_path, "glue/MNLI/dev_matched.tsv", "glue/MNLI/dev_mismatched.tsv", "glue/MNLI/test_matched.tsv")
    found = files_of_set("glue/mnli", tmp_path)
    assert [one.name for one in found] == ["dev_matched", "dev_mismatched"]
    assert found[1].path == tmp_path / "glue" / "MNLI" / "dev_mismatched.tsv"
    assert found[1].columns == {"text": "sentence1", "pair": "sentence2", "label": "gold_label"}
    put(tmp_path, "comve/test.csv")
    assert [one.name for one in files_of_set("comve", tmp_path)] == ["test"]
    with pytest.raises(InputError, match=r"no dev file of glue/RTE; put dev\.tsv"):
        files_of_set("glue/RTE", tmp_path)
    with pytest.raises(SettingsError, match="glue/AX has no labelled file but train; there is nothing to score"):
        files_of_set("glue/AX", tmp_path)


def test_a_set_with_one_dev_set_has_no_further_scores(tmp_path: Path):
    put(tmp_path, "glue/RTE/dev.tsv")
    assert BenchmarkDataset("glue/RTE", tmp_path).score_other_dev_sets(tmp_path / "run", lambda progress: None) == {}
