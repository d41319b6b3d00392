"""`bertworks export`: a folder with a certificate, what is printed about it, and refusals with exit code 2."""

import json
import sys
from pathlib import Path

import pytest
import torch

from bertworks.cli import main
from bertworks.encoders.bert import Bert, BertConfig
from bertworks.inference.finetuned import save_finetuned
from bertworks.inference.predictor import Predictor
from bertworks.sampling.windows import WindowRule
from bertworks.tasks.classify import Classify
from bertworks.tasks.module import TaskModule
from bertworks.vocabulary.algorithms import wordpiece_backend
from bertworks.vocabulary.tokenizer import Tokenizer

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"the film was good bad".split()]
CONFIG = BertConfig(
    vocab_size=len(TOKENS),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    initializer_range=0.3,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    module = TaskModule(Bert(CONFIG, generator), Classify(labels=("no", "yes")), generator)
    tokenizer = Tokenizer.from_backend(wordpiece_backend(TOKENS, cased=False))
    save_finetuned(tmp_path / "model", Predictor(module, tokenizer, WindowRule(32, 8)), {})
    return tmp_path / "model"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["bertworks", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return int(exit_info.value.code or 0)


def test_a_folder_is_written_and_its_certificate_printed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    dev = tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\nthe film was good\tyes\nthe film was bad\tno\n")
    assert run(monkeypatch, "export", folder, "--to", "int8", "--output", tmp_path / "out", "--data", dev) == 0
    told = capsys.readouterr().out
    assert (tmp_path / "out" / "model.onnx").is_file()
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert "compared on" in told
    assert f"cosine of sentence vectors: mean {certificate['mean_cosine']:.5f}" in told
    assert "accuracy on dev.tsv: 0.5000 before, 0.5000 after" in told
    assert "linear layers in int8: " in told


def test_a_refusal_is_one_sentence_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    arguments = ("export", folder, "--to", "safetensors-fp16", "--output", tmp_path / "out", "--tolerance", "1e-9")
    assert run(monkeypatch, *arguments) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("bertworks: the export of")
    assert "1e-09 is allowed (--tolerance)" in message
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_verbs_take_an_exported_folder_and_any_engine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "texts.txt").write_text("the film was good\nbad\n")
    (tmp_path / "dev.tsv").write_text("text\tlabel\nthe film was good\tyes\nthe film was bad\tno\n")
    assert run(monkeypatch, "export", folder, "--to", "onnx", "--output", tmp_path / "out") == 0
    found: dict[str, list[object]] = {"predict": [], "evaluate": []}
    for model in ([folder], [folder, "--engine", "openvino"], [tmp_path / "out"]):
        capsys.readouterr()
        assert run(monkeypatch, "predict", model[0], tmp_path / "texts.txt", *model[1:]) == 0
        found["predict"].append([json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()])
        assert run(monkeypatch, "evaluate", model[0], tmp_path / "dev.tsv", "--json", *model[1:]) == 0
        found["evaluate"].append(json.loads(capsys.readouterr().out)["accuracy"])
    assert found["predict"] == [found["predict"][0]] * 3
    assert found["evaluate"] == [found["evaluate"][0]] * 3
    assert len(found["predict"][0]) == 2


def test_middle_layers_of_an_export_are_refused_in_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "texts.txt").write_text("good\n")
    arguments = ("embed", folder, tmp_path / "texts.txt", "--output", tmp_path / "v.npy", "--engine", "onnx")
    assert run(monkeypatch, *arguments, "--layers", "embeddings") == 2
    assert "has only its last layer and predictions" in capsys.readouterr().err
    assert run(monkeypatch, *arguments) == 0
    assert (tmp_path / "v.npy").is_file()
