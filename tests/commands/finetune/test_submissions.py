"""Published benchmarks: which files are submitted, and which are scored."""

from pathlib import Path

import pytest

from bertworks.commands.evaluate import dataset_files
from bertworks.commands.finetune.submissions import BenchmarkDataset
from bertworks.errors import InputError, SettingsError


def write_files(data: Path, *names: str) -> None:
    for name in names:
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("index\tsentence1\tsentence2\n")


def test_existing_test_files_are_submitted(tmp_path: Path):
    write_files(tmp_path, "glue/MRPC/test.tsv", "glue/MNLI/test_mismatched.tsv", "squad/dev-v1.1.json")
    assert BenchmarkDataset("glue/mrpc", tmp_path).submission_splits() == [("glue/MRPC", "test")]
    assert BenchmarkDataset("glue/MNLI", tmp_path).submission_splits() == [("glue/MNLI", "test_mismatched")]
    assert BenchmarkDataset("squad1", tmp_path).submission_splits() == [("squad1", "dev")]


def test_the_diagnostic_set_is_submitted_only_with_mnli(tmp_path: Path):
    write_files(tmp_path, "glue/AX/diagnostic.tsv")
    with pytest.raises(InputError, match=r"no test_matched file of glue/MNLI; put test_matched\.tsv"):
        BenchmarkDataset("glue/MNLI", tmp_path).submission_splits()
    write_files(tmp_path, "glue/MNLI/test_matched.tsv", "glue/RTE/test.tsv")
    expected = [("glue/MNLI", "test_matched"), ("glue/AX", "test")]
    assert BenchmarkDataset("glue/MNLI", tmp_path).submission_splits() == expected
    assert BenchmarkDataset("glue/RTE", tmp_path).submission_splits() == [("glue/RTE", "test")]


def test_a_dataset_without_submission_format_or_test_file_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="chnsenticorp has no official submission format; omit --test"):
        BenchmarkDataset("chnsenticorp", tmp_path).submission_splits()
    with pytest.raises(InputError, match=r"no test file of glue/MRPC; put test\.tsv \(or \.gz\) into"):
        BenchmarkDataset("glue/MRPC", tmp_path).submission_splits()


def test_the_labelled_files_of_a_dataset_are_those_that_exist(tmp_path: Path):
    write_files(tmp_path, "glue/MNLI/dev_matched.tsv", "glue/MNLI/dev_mismatched.tsv", "glue/MNLI/test_matched.tsv")
    files = dataset_files("glue/mnli", tmp_path)
    assert [file.name for file in files] == ["dev_matched", "dev_mismatched"]
    assert files[1].path == tmp_path / "glue" / "MNLI" / "dev_mismatched.tsv"
    assert files[1].columns == {"text": "sentence1", "pair": "sentence2", "label": "gold_label"}
    write_files(tmp_path, "comve/test.csv")
    assert [file.name for file in dataset_files("comve", tmp_path)] == ["test"]
    with pytest.raises(InputError, match=r"no dev file of glue/RTE; put dev\.tsv"):
        dataset_files("glue/RTE", tmp_path)
    with pytest.raises(
        SettingsError, match="glue/AX has no labelled split besides train; there is nothing to evaluate on"
    ):
        dataset_files("glue/AX", tmp_path)


def test_a_dataset_with_one_dev_set_has_no_other_dev_scores(tmp_path: Path):
    write_files(tmp_path, "glue/RTE/dev.tsv")
    assert BenchmarkDataset("glue/RTE", tmp_path).score_other_dev_sets(tmp_path / "run", lambda progress: None) == {}
