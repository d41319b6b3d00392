"""Export: every kind of model to every engine, the same predictions, and refusals that write nothing."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from damage import forget_hashes
from exported_models import CONFIG, TASK_INPUTS, assert_close, finetuned, pretrained, sentence_model, tokenizer

import bertworks
from bertworks.datasets.files import Record
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.exporters import export as exporting
from bertworks.exporters.certificate import Tolerance
from bertworks.exporters.export import ExportRequest, ExportTarget, export
from bertworks.exporters.onnx import write_onnx
from bertworks.folder_lock import lock_output
from bertworks.inference.attribution import explain
from bertworks.inference.model import LoadedModel, load
from bertworks.tasks.classify import Classify
from bertworks.tasks.recurrent_head import RecurrentSettings

pytestmark = pytest.mark.usefixtures("one_thread")

Make = Callable[[str], Path]
ENGINES = ("onnx", "openvino")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that creates the folder of a model by its name, once."""
    home = tmp_path_factory.mktemp("models")

    def create(name: str) -> Path:
        folder = home / name
        if not folder.exists():
            others = {"pretrained": pretrained, "sentences": sentence_model}
            others[name](folder) if name in others else finetuned(folder, TASK_INPUTS[name].task)
        return folder

    return create


def exported(folder: Path, target: str, output: Path, **settings: Any) -> Path:
    return export(ExportRequest(model=str(folder), target=target, output=output, **settings)).output


@pytest.mark.parametrize("name", TASK_INPUTS)
@pytest.mark.parametrize("target", ENGINES)
def test_a_finetuned_model_predicts_the_same_after_export(make: Make, tmp_path: Path, name: str, target: str):
    exported_model = bertworks.load(exported(make(name), target, tmp_path / "out"))
    for text in TASK_INPUTS[name].texts:  # one at a time: a list may not mix texts and pairs
        before, after = (model.predict([text])[0].to_dict() for model in (load(make(name)), exported_model))
        assert_close(before, after)


@pytest.mark.parametrize("target", ENGINES)
def test_a_pretrained_model_fills_masks_and_encodes_the_same_after_export(make: Make, tmp_path: Path, target: str):
    before, after = load(make("pretrained")), load(exported(make("pretrained"), target, tmp_path / "out"))
    text = "john [MASK] in [MASK] . " * 3
    expected, actual = (model.fill_mask(text, 3) for model in (before, after))
    tokens = [[candidate.token for candidate in mask] for mask in expected.mask_candidates]
    assert [[candidate.token for candidate in mask] for mask in actual.mask_candidates] == tokens
    assert_close(
        [sequence.probability for sequence in expected.sequences],
        [sequence.probability for sequence in actual.sequences],
    )
    texts = ["who", "john lives in paris", "我喜欢足球。", "a b c " * 30]
    np.testing.assert_allclose(after.encode(texts), before.encode(texts), atol=1e-4)


@pytest.mark.parametrize("target", ENGINES)
def test_a_sentence_model_keeps_its_pooling(make: Make, tmp_path: Path, target: str):
    output = exported(make("sentences"), target, tmp_path / "out")
    assert (output / "1_Pooling" / "config.json").is_file()
    vectors = load(output).encode(["john lives", "who"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 1], atol=1e-5)
    np.testing.assert_allclose(vectors, load(make("sentences")).encode(["john lives", "who"]), atol=1e-4)


def test_an_exported_folder_has_all_files_but_the_weights(make: Make, tmp_path: Path):
    output = exported(make("classify"), "onnx", tmp_path / "out")
    before = {file.name for file in make("classify").iterdir()}
    assert {file.name for file in output.iterdir()} == before - {"model.safetensors"} | {
        "model.onnx",
        "certificate.json",
    }
    before_metadata, metadata = (
        json.loads((folder / "bertworks.json").read_text()) for folder in (make("classify"), output)
    )
    assert set(metadata.pop("files")) == {file.name for file in output.iterdir()} - {"bertworks.json"}
    assert metadata.pop("content_sha256") != before_metadata.pop("content_sha256")
    assert metadata.pop("graph") == {
        "model_type": "bert",
        "vocab_size": 25,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "max_length": 32,
        "head_kind": "sequence",
        "adds_special_tokens": True,
    }
    assert metadata == {key: value for key, value in before_metadata.items() if key != "files"}


def test_the_graph_in_plain_onnx_runtime_has_the_logits_of_the_original(make: Make, tmp_path: Path):
    output = exported(make("classify"), "onnx", tmp_path / "out")
    session = onnxruntime.InferenceSession(str(output / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [graph_input.shape for graph_input in session.get_inputs()] == [["batch", "sequence"]] * 3
    texts = ["the film was good", "bad"]
    input_ids, mask = np.zeros((2, 6), np.int64), np.zeros((2, 6), np.int64)
    for index, encoding in enumerate(map(tokenizer().encode, texts)):
        input_ids[index, : len(encoding)], mask[index, : len(encoding)] = encoding.input_ids, 1
    inputs = {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": np.zeros_like(input_ids)}
    (logits,) = session.run(["logits"], inputs)
    expected = [prediction.logits for prediction in load(make("classify")).predict(texts)]
    np.testing.assert_allclose(logits, np.stack(expected), atol=1e-5)


def test_outputs_have_the_names_of_optimum(make: Make, tmp_path: Path):
    expected = {
        "classify": ["last_hidden_state", "pooler_output", "logits"],
        "answer": ["last_hidden_state", "pooler_output", "start_logits", "end_logits"],
        "sentences": ["last_hidden_state"],
    }
    for name, outputs in expected.items():
        output = exported(make(name), "onnx", tmp_path / name)
        session = onnxruntime.InferenceSession(str(output / "model.onnx"), providers=["CPUExecutionProvider"])
        assert [output.name for output in session.get_outputs()] == outputs, name


def test_an_fp16_export_halves_the_weights_and_loads_as_fp32(make: Make, tmp_path: Path):
    output = exported(make("tag"), "safetensors-fp16", tmp_path / "out")
    before, after = ((folder / "model.safetensors").stat().st_size for folder in (make("tag"), output))
    assert after < 0.6 * before
    assert load(output).encoder.token_embeddings.weight.dtype == torch.float32
    expected, actual = (load(folder).predict(["john lives in paris"])[0].logits for folder in (make("tag"), output))
    np.testing.assert_allclose(actual, expected, atol=1e-2)
    assert np.abs(actual - expected).max() > 0


@pytest.mark.parametrize("name", ["classify", "pretrained"])
def test_an_int8_export_keeps_the_cosine_and_records_its_attempts(make: Make, tmp_path: Path, name: str):
    output = exported(make(name), "int8", tmp_path / "out", cosine=0.99)
    certificate = json.loads((output / "certificate.json").read_text())
    assert certificate["mean_cosine"] >= 0.99
    assert certificate["scheme"]["linears"] == 4 * CONFIG.num_hidden_layers
    assert certificate["scheme"]["attempts"][0]["fp32_linears"] == 0
    texts = ["john lives in paris", "the film was good"]
    expected, actual = (load(folder).encode(texts) for folder in (make(name), output))
    assert np.abs(expected - actual).max() > 0
    assert (expected * actual).sum() / np.linalg.norm(expected) / np.linalg.norm(actual) > 0.98


def test_an_int8_export_without_any_int8_linear_is_refused_and_writes_nothing(make: Make, tmp_path: Path):
    with pytest.raises(FolderError, match=r"int8 is refused.*with all linear layers in int8.*--cosine.*export to onnx"):
        exported(make("sentences"), "int8", tmp_path / "out", cosine=1 - 1e-9)
    assert list(tmp_path.glob("*out*")) == []


def test_a_certificate_has_texts_differences_and_the_original(make: Make, tmp_path: Path):
    certificate = json.loads((exported(make("classify"), "onnx", tmp_path / "out") / "certificate.json").read_text())
    assert certificate["texts"] == "the 36 built-in English and Chinese texts"
    assert certificate["sequences"] == 36
    assert set(certificate["max_difference"]) == {"last_hidden_state", "pooler_output", "logits"}
    assert 0 <= max(certificate["max_difference"].values()) < 1e-4
    assert certificate["mean_cosine"] == pytest.approx(1)
    assert certificate["original"]["folder"] == "classify"
    assert len(certificate["original"]["sha256"]) == 64
    assert certificate["data"] is None


def test_a_certificate_has_the_metrics_of_a_file_before_and_after(make: Make, tmp_path: Path):
    dev = tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\nthe film was good\tyes\nthe film was bad\tno\nwho\tperhaps\n")
    certificate = json.loads(
        (exported(make("classify"), "int8", tmp_path / "out", data=dev) / "certificate.json").read_text()
    )
    assert certificate["texts"] == "the first 3 examples of dev.tsv"
    assert certificate["data"]["file"] == "dev.tsv"
    assert certificate["data"]["metric"] == "accuracy"
    assert certificate["data"]["before"]["accuracy"] == certificate["data"]["after"]["accuracy"]
    assert certificate["data"]["points_lost"] == 0


def test_a_model_without_a_task_is_compared_on_texts_of_a_file(make: Make, tmp_path: Path):
    (tmp_path / "texts.txt").write_text("john lives\nin paris\n")
    output = exported(make("pretrained"), "onnx", tmp_path / "out", data=tmp_path / "texts.txt")
    assert json.loads((output / "certificate.json").read_text())["texts"] == "the first 2 texts of texts.txt"


def test_corrupted_weights_are_refused_and_nothing_is_written(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def write_corrupted(model: LoadedModel, folder: Path, *_: object) -> dict[str, Any]:
        with torch.no_grad():
            model.encoder.layers[1].output.weight[3, 5] += 0.5
        scheme = write_onnx(model, folder)
        with torch.no_grad():
            model.encoder.layers[1].output.weight[3, 5] -= 0.5
        return scheme

    monkeypatch.setitem(exporting.TARGETS, "onnx", ExportTarget(write_corrupted, Tolerance(1e-4)))
    with pytest.raises(FolderError, match=r"is refused.*last_hidden_state differs by .*0\.0001 is allowed"):
        exported(make("classify"), "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_falls_too_far_is_refused_with_both_values(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    predictions = [prediction.label for prediction in load(make("classify")).predict(["the film was good"])]
    (tmp_path / "dev.tsv").write_text(f"text\tlabel\nthe film was good\t{predictions[0]}\n")

    def write_negated(model: LoadedModel, folder: Path, *_: object) -> dict[str, Any]:
        assert model.predictor is not None
        with torch.no_grad():
            model.predictor.module.head.score.weight.neg_()
            model.predictor.module.head.score.bias.neg_()
        return write_onnx(model, folder)

    monkeypatch.setitem(exporting.TARGETS, "onnx", ExportTarget(write_negated, Tolerance()))
    with pytest.raises(FolderError, match=r"accuracy falls from 1\.0000 to 0\.0000, and 1 points are allowed"):
        exported(make("classify"), "onnx", tmp_path / "out", data=tmp_path / "dev.tsv")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_folder_runs_in_another_engine_without_export(make: Make, engine: str):
    before, after = load(make("tag")), load(make("tag"), engine=engine)
    assert_close(*(model.predict(["john lives in paris"])[0].to_dict() for model in (before, after)))
    np.testing.assert_allclose(after.encode(["who"]), before.encode(["who"]), atol=1e-4)


def test_an_explanation_needs_the_original_weights(make: Make, tmp_path: Path):
    model = load(exported(make("classify"), "onnx", tmp_path / "out"))
    assert model.predictor is not None
    (example,) = Classify.read_unlabelled([Record({"text": "who"}, "text 0")], {})
    with pytest.raises(FolderError, match=r"only its last layer and predictions.*use the folder that it was exported"):
        explain(model.predictor, example)


def test_an_export_of_an_export_is_refused(make: Make, tmp_path: Path):
    output = exported(make("classify"), "onnx", tmp_path / "out")
    with pytest.raises(FolderError, match="is an export itself"):
        exported(output, "int8", tmp_path / "again")


def test_an_exported_folder_runs_in_its_own_engine_only(make: Make, tmp_path: Path):
    output = exported(make("classify"), "onnx", tmp_path / "out")
    assert load(output, engine="onnx").predict(["who"])
    with pytest.raises(SettingsError, match="was exported for 'onnx' and cannot run in 'torch'"):
        load(output, engine="torch")
    with pytest.raises(SettingsError, match="no engine 'tensorrt'; choose one of: torch, onnx, openvino"):
        load(output, engine="tensorrt")


def test_a_folder_with_files_is_not_overwritten(make: Make, tmp_path: Path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FolderError, match="already exists"):
        exported(make("classify"), "onnx", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_two_exports_cannot_write_to_one_folder(make: Make, tmp_path: Path):
    output = tmp_path / "output"
    with lock_output(output), pytest.raises(FolderError, match=f"another run is writing to {output} "):
        exported(make("classify"), "onnx", output)
    assert sorted(path.name for path in exported(make("classify"), "onnx", output).parent.iterdir()) == ["output"]


def test_a_folder_in_which_an_export_was_killed_is_used_again(make: Make, tmp_path: Path):
    output = tmp_path / "output"
    for name in (".output.host.12.part", ".lock"):
        (output / name).mkdir(parents=True) if name.endswith("part") else (output / name).touch()
    assert (exported(make("classify"), "onnx", output) / "model.onnx").is_file()


@pytest.mark.parametrize("num_allocations", [0, 1])
def test_a_full_disk_ends_an_export_to_openvino_with_its_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_allocations: int
):
    """OpenVINO does not say that the disk is full, which it may be before it writes, or while it does."""
    import openvino

    remaining = iter(range(num_allocations))

    def allocate(handle: int, offset: int, length: int) -> None:
        assert length > 2 * 4 * (4 * 32 * 32 + 2 * 32 * 64)  # the weights of two layers in fp32
        if next(remaining, None) is None:
            raise OSError(28, "No space left on device")

    def save_model(model: Any, path: Path, compress_to_fp16: bool) -> None:
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    monkeypatch.setattr(openvino, "save_model", save_model)
    output = tmp_path / "output"
    with pytest.raises(FolderError, match=f"no space left on the disk of {output};"):
        exported(make("classify"), "openvino", output)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_target_is_refused_with_the_known_ones(make: Make, tmp_path: Path):
    with pytest.raises(SettingsError, match="no export to 'gguf'; choose one of: onnx, openvino, saf"):
        exported(make("classify"), "gguf", tmp_path / "out")


def test_a_missing_file_is_named(make: Make, tmp_path: Path):
    with pytest.raises(InputError, match=r"dev\.tsv is not a file"):
        exported(make("classify"), "onnx", tmp_path / "out", data=tmp_path / "dev.tsv")


def test_a_recurrent_head_cannot_be_exported(tmp_path: Path):
    folder = finetuned(tmp_path / "recurrent", TASK_INPUTS["tag"].task, RecurrentSettings("last", 8))
    with pytest.raises(SettingsError, match="a recurrent head runs only in torch"):
        exported(folder, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_graph_is_named(make: Make, tmp_path: Path):
    output = exported(make("classify"), "onnx", tmp_path / "out")
    (output / "model.onnx").write_bytes((output / "model.onnx").read_bytes()[:1000])
    with pytest.raises(FolderError, match=r"model\.onnx is damaged"):
        load(output)
    forget_hashes(output)
    with pytest.raises(FolderError, match=r"model\.onnx cannot be read by ONNX Runtime"):
        load(output)


def test_a_graph_without_a_head_is_refused_for_a_task(make: Make, tmp_path: Path):
    model = load(make("classify"))
    output = exported(make("classify"), "onnx", tmp_path / "out")
    write_onnx(replace(model, predictor=None), output)
    forget_hashes(output)
    with pytest.raises(FolderError, match="the graph has no output logits"):
        load(output)
