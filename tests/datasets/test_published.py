"""Published datasets: their files, their columns, and submissions."""

import gzip
import json
from pathlib import Path

import pytest

from bertworks.datasets.files import recognize_columns
from bertworks.datasets.published import DATASETS, dataset_of, read_dataset, write_submission
from bertworks.errors import InputError, SettingsError
from bertworks.metrics.classification import METRICS
from bertworks.text.document import Counts

# The published headers of GLUE; CoLA has one in its test file only.
HEADERS = {
    "glue/CoLA": {"test": "index\tsentence"},
    "glue/SST-2": {"train": "sentence\tlabel", "test": "index\tsentence"},
    "glue/MRPC": {
        "train": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "test": "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
    },
    "glue/STS-B": {
        "train": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "test": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
    },
    "glue/QQP": {
        "train": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "test": "id\tquestion1\tquestion2",
    },
    "glue/MNLI": {
        "train": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
        "dev_mismatched": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
        "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
        "test_matched": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
        "sentence1_parse\tsentence2_parse\tsentence1\tsentence2",
    },
    "glue/QNLI": {"train": "index\tquestion\tsentence\tlabel", "test": "index\tquestion\tsentence"},
    "glue/RTE": {"train": "index\tsentence1\tsentence2\tlabel", "test": "index\tsentence1\tsentence2"},
    "glue/WNLI": {"train": "index\tsentence1\tsentence2\tlabel", "test": "index\tsentence1\tsentence2"},
    "glue/AX": {"test": "index\tsentence1\tsentence2"},
    "chnsenticorp": {"train": "label\ttext_a", "test": "label\ttext_a"},
}


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def test_the_known_datasets():
    glue = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "AX"]
    others = ["python-docs", "swag", "comve", "squad1", "squad2", "cmrc2018", "conll2003", "chnsenticorp"]
    assert list(DATASETS) == [f"glue/{name}" for name in glue] + others


def test_every_dataset_has_an_existing_task_metrics_and_splits():
    metrics_by_task = {"classify": METRICS, "regress": METRICS, "choose": METRICS}
    metrics_by_task |= {"tag": {"f1"}, "answer": {"f1", "exact_match"}}  # type: ignore[dict-item]
    for one in DATASETS.values():
        assert one.metrics
        assert set(one.metrics) <= set(metrics_by_task[one.task])
        assert set(one.submissions) <= set(one.splits)
        assert (one.task in ("classify", "regress")) == bool(one.roles)


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("glue/CoLA", ("matthews", "accuracy")),
        ("glue/MRPC", ("f1", "accuracy")),
        ("glue/STS-B", ("spearman", "pearson")),
        ("glue/MNLI", ("accuracy",)),
        ("glue/AX", ("matthews",)),
    ],
)
def test_the_official_metrics(name: str, metrics: tuple[str, ...]):
    assert dataset_of(name).metrics == metrics


def test_labels_are_in_the_official_order():
    assert dataset_of("glue/MNLI").labels == ("entailment", "neutral", "contradiction")
    assert dataset_of("glue/RTE").labels == ("entailment", "not_entailment")
    assert dataset_of("conll2003").labels == (
        *("O", "B-PER", "I-PER", "B-ORG", "I-ORG"),
        *("B-LOC", "I-LOC", "B-MISC", "I-MISC"),
    )


def test_names_ignore_case():
    assert dataset_of("GLUE/mrpc").name == "glue/MRPC"
    assert dataset_of("SQuAD-2.0").name == "squad2"


def test_an_unknown_name_raises_an_error_with_the_known_ones():
    with pytest.raises(SettingsError, match=r"'MRPC'; did you mean glue/MRPC\? .*glue/CoLA, .*chnsenticorp"):
        dataset_of("MRPC")


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, splits in HEADERS.items() for split in splits])
def test_the_published_headers_have_the_expected_columns(tmp_path: Path, name: str, split: str):
    one = dataset_of(name)
    header = HEADERS[name][split].split("\t")
    path = write(tmp_path / one.folders[0] / one.splits[split].files[0], "\t".join(header) + "\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\t".join(f"value of {column}" for column in header).replace("\ufeff", "") + "\n")
    record = next(read_dataset(name, tmp_path, split, Counts()))
    role_columns = recognize_columns(list(record.fields), one.column_roles(split), path.name)
    expected = {role: column for role, column in one.roles.items() if role != "label" or one.splits[split].is_labelled}
    assert {role: column for role, column in role_columns.items() if role != "id"} == expected
    assert {record.fields[column] for column in role_columns.values()} == {
        f"value of {column}" for column in role_columns.values()
    }


def test_cola_is_read_without_a_header(tmp_path: Path):
    write(tmp_path / "train.tsv", "gj04\t0\t*\tBad the.\n")
    records = list(read_dataset("glue/CoLA", tmp_path, "train", Counts()))
    assert [(record.fields["sentence"], record.fields["label"]) for record in records] == [("Bad the.", "0")]
    assert dataset_of("glue/CoLA").column_roles("train") == {"text": "sentence", "label": "label", "id": None}


def test_broken_lines_are_counted_in_qqp_and_an_error_elsewhere(tmp_path: Path):
    content = 'id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"\tWas he?\t0\n1\t2\t3\tWhy?\tHow?\t0\n'
    write(tmp_path / "train.tsv", content)
    counts = Counts()
    assert len(list(read_dataset("glue/QQP", tmp_path, "train", counts))) == 1
    assert counts.total() == 1
    with pytest.raises(InputError, match="line 2"):
        list(read_dataset("glue/RTE", tmp_path, "train", counts))


def test_files_are_found_in_a_data_folder_and_in_the_dataset_s_own(tmp_path: Path):
    own_folder = tmp_path / "glue" / "SST-2"
    dev = write(own_folder / "dev.tsv", "sentence\tlabel\n")
    train = own_folder / "train.tsv.gz"
    train.write_bytes(gzip.compress(b"sentence\tlabel\n"))
    sst = dataset_of("glue/SST-2")
    for folder in (tmp_path, tmp_path / "glue", own_folder):
        assert (sst.find(folder, "dev"), sst.find(folder, "train")) == (dev, train)


def test_the_dataset_s_folder_precedes_a_file_of_the_same_name_above_it(tmp_path: Path):
    write(tmp_path / "train.tsv", "another set\n")
    assert dataset_of("glue/RTE").find(tmp_path, "train") == tmp_path / "train.tsv"
    expected = write(tmp_path / "glue" / "RTE" / "train.tsv", "index\tsentence1\tsentence2\tlabel\n")
    assert dataset_of("glue/RTE").find(tmp_path, "train") == expected


def test_a_missing_file_raises_an_error_with_its_folder(tmp_path: Path):
    with pytest.raises(InputError, match=r"no dev file of swag; put val\.csv \(or \.gz\) into .*swag"):
        dataset_of("swag").find(tmp_path, "dev")
    with pytest.raises(SettingsError, match="squad1 has no split 'test'; it has train, dev"):
        dataset_of("squad1").find(tmp_path, "test")


def test_columns_of_a_split():
    cola = dataset_of("glue/CoLA")
    assert cola.columns_of("dev") == {"text": "sentence", "label": "label", "header": "source,label,star,sentence"}
    assert cola.columns_of("test") == {"text": "sentence", "label": ""}
    assert dataset_of("glue/QQP").columns_of("test")["broken"] == "yes"
    assert dataset_of("conll2003").columns_of("dev") == {}


def test_has_split(tmp_path: Path):
    assert not dataset_of("glue/RTE").has_split(tmp_path, "test")
    write(tmp_path / "glue" / "RTE" / "test.tsv", "index\tsentence1\tsentence2\n")
    assert dataset_of("glue/RTE").has_split(tmp_path, "test")
    with pytest.raises(SettingsError, match="no split 'dev_matched'"):
        dataset_of("glue/RTE").has_split(tmp_path, "dev_matched")


def test_mnli_has_two_dev_splits_and_the_diagnostic_set_none():
    assert dataset_of("glue/MNLI").splits_of_kind("dev") == ("dev_matched", "dev_mismatched")
    assert dataset_of("glue/MNLI").splits_of_kind("train") == ("train",)
    assert dataset_of("glue/AX").splits_of_kind("dev") == ()


@pytest.mark.parametrize(
    ("name", "split", "predictions", "file", "content"),
    [
        ("glue/CoLA", None, [("0", "1"), ("1", "0")], "CoLA.tsv", "index\tprediction\n0\t1\n1\t0\n"),
        ("glue/MNLI", "test_matched", [("0", "neutral")], "MNLI-m.tsv", "index\tprediction\n0\tneutral\n"),
        ("glue/MNLI", "test_mismatched", [("0", "entailment")], "MNLI-mm.tsv", "index\tprediction\n0\tentailment\n"),
        ("glue/AX", None, [("0", "contradiction")], "AX.tsv", "index\tprediction\n0\tcontradiction\n"),
        (
            "glue/STS-B",
            "test",
            [("0", 3.14159), ("1", 5.2), ("2", -0.1)],
            "STS-B.tsv",
            "index\tprediction\n0\t3.142\n1\t5.000\n2\t0.000\n",
        ),
        ("swag", None, [("0", 3), ("1", 0)], "predictions.csv", ",pred\n0,3\n1,0\n"),
    ],
)
def test_a_submission_has_the_official_name_and_format(
    tmp_path: Path,
    name: str,
    split: str | None,
    predictions: list[tuple[str, str | float]],
    file: str,
    content: str,
):
    path = write_submission(name, iter(predictions), tmp_path / "out", split)
    assert path == tmp_path / "out" / file
    assert path.read_bytes().decode() == content
    assert [one.name for one in path.parent.iterdir()] == [file]


def test_answers_are_submitted_as_one_object(tmp_path: Path):
    path = write_submission("squad2", [("q1", "巴黎"), ("q2", "")], tmp_path)
    assert (path.name, json.loads(path.read_text(encoding="utf-8"))) == ("predictions.json", {"q1": "巴黎", "q2": ""})


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("glue/MNLI", None, "test_matched and test_mismatched, not for None"),
        ("glue/RTE", "dev", "has submissions for test, not for 'dev'"),
        ("chnsenticorp", None, "no official submission"),
    ],
)
def test_an_unknown_submission_raises_an_error(tmp_path: Path, name: str, split: str | None, message: str):
    with pytest.raises(SettingsError, match=message):
        write_submission(name, [("0", "entailment")], tmp_path, split)


def test_a_wrong_label_raises_an_error_and_leaves_no_file(tmp_path: Path):
    with pytest.raises(InputError, match="'2' is not a label of glue/CoLA; its labels are 0, 1"):
        write_submission("glue/CoLA", [("0", "1"), ("1", "2")], tmp_path)
    assert list(tmp_path.iterdir()) == []
