"""Exporting: every kind of folder to every engine and back, the same answers, and refusals that leave nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from exported_models import SIZES, SMALL, pretrained, sentence_model, tokenizer, tuned

import bertworks
from bertworks.datasets.files import Record
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.exporters import export as exporting
from bertworks.exporters.certificate import Tolerance
from bertworks.exporters.export import ExportRequest, ExportTarget, export
from bertworks.exporters.onnx import write_onnx
from bertworks.inference.attribution import explain
from bertworks.inference.model import Model, load
from bertworks.tasks.classify import Classify
from bertworks.tasks.recurrent_head import RecurrentSettings

pytestmark = pytest.mark.usefixtures("one_thread")

Make = Callable[[str], Path]
ENGINES = ("onnx", "openvino")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that makes the folder of a model by its name, once."""
    home = tmp_path_factory.mktemp("models")

    def made(name: str) -> Path:
        folder = home / name
        if not folder.exists():
            other = {"pretrained": pretrained, "sentences": sentence_model}
            other[name](folder) if name in other else tuned(folder, SMALL[name].task)
        return folder

    return made


def exported(folder: Path, to: str, out: Path, **asked: Any) -> Path:
    return export(ExportRequest(model=str(folder), target=to, output=out, **asked)).output


def assert_alike(one: Any, other: Any) -> None:
    """The same answer, numbers within 1e-4."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_alike(left, right)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-4)
    else:
        assert one == other


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("to", ENGINES)
def test_a_tuned_model_answers_the_same_after_an_export(make: Make, tmp_path: Path, name: str, to: str):
    again = bertworks.load(exported(make(name), to, tmp_path / "out"))
    for text in SMALL[name].texts:  # one at a time: a list may not mix texts and pairs
        before, after = (model.predict([text])[0].to_dict() for model in (load(make(name)), again))
        assert_alike(before, after)


@pytest.mark.parametrize("to", ENGINES)
def test_a_pretrained_model_fills_and_embeds_the_same(make: Make, tmp_path: Path, to: str):
    before, after = load(make("pretrained")), load(exported(make("pretrained"), to, tmp_path / "out"))
    text = "john [MASK] in [MASK] . " * 3
    one, other = (model.fill_mask(text, 3) for model in (before, after))
    assert [[best.token for best in blank] for blank in one.mask_candidates] == [
        [best.token for best in blank] for blank in other.mask_candidates
    ]
    assert_alike([found.probability for found in one.sequences], [found.probability for found in other.sequences])
    texts = ["who", "john lives in paris", "我喜欢足球。", "a b c " * 30]
    np.testing.assert_allclose(after.encode(texts), before.encode(texts), atol=1e-4)


@pytest.mark.parametrize("to", ENGINES)
def test_a_sentence_model_keeps_its_pooling(make: Make, tmp_path: Path, to: str):
    out = exported(make("sentences"), to, tmp_path / "out")
    assert (out / "1_Pooling" / "config.json").is_file()
    vectors = load(out).encode(["john lives", "who"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 1], atol=1e-5)
    np.testing.assert_allclose(vectors, load(make("sentences")).encode(["john lives", "who"]), atol=1e-4)


def test_an_exported_folder_has_all_but_the_weights(make: Make, tmp_path: Path):
    out = exported(make("classify"), "onnx", tmp_path / "out")
    before = {file.name for file in make("classify").iterdir()}
    assert {file.name for file in out.iterdir()} == before - {"model.safetensors"} | {"model.onnx", "certificate.json"}
    assert (out / "bertworks.json").read_bytes() == (make("classify") / "bertworks.json").read_bytes()


def test_plain_onnx_runtime_gives_the_numbers_of_the_original(make: Make, tmp_path: Path):
    out = exported(make("classify"), "onnx", tmp_path / "out")
    session = onnxruntime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [one.shape for one in session.get_inputs()] == [["batch", "sequence"]] * 3
    one, other = (tokenizer().encode(text) for text in ("the film was good", "bad"))
    ids, mask = np.zeros((2, 6), np.int64), np.zeros((2, 6), np.int64)
    for row, encoding in enumerate((one, other)):
        ids[row, : len(encoding)], mask[row, : len(encoding)] = encoding.input_ids, 1
    rows = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (logits,) = session.run(["logits"], rows)
    found = load(make("classify")).predict(["the film was good", "bad"])
    np.testing.assert_allclose(logits, np.stack([one.logits for one in found]), atol=1e-5)


def test_outputs_have_the_names_of_optimum(make: Make, tmp_path: Path):
    wanted = {
        "classify": ["last_hidden_state", "pooler_output", "logits"],
        "answer": ["last_hidden_state", "pooler_output", "start_logits", "end_logits"],
        "sentences": ["last_hidden_state"],
    }
    for name, outputs in wanted.items():
        out = exported(make(name), "onnx", tmp_path / name)
        session = onnxruntime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
        assert [one.name for one in session.get_outputs()] == outputs, name


def test_half_precision_halves_the_weights_and_loads_as_ever(make: Make, tmp_path: Path):
    out = exported(make("tag"), "safetensors-fp16", tmp_path / "out")
    before, after = ((folder / "model.safetensors").stat().st_size for folder in (make("tag"), out))
    assert after < 0.6 * before
    assert load(out).encoder.token_embeddings.weight.dtype == torch.float32
    one, other = (load(folder).predict(["john lives in paris"])[0].logits for folder in (make("tag"), out))
    np.testing.assert_allclose(one, other, atol=1e-2)
    assert np.abs(one - other).max() > 0


@pytest.mark.parametrize("name", ["classify", "pretrained"])
def test_eight_bits_stay_above_the_cosine_and_say_what_was_tried(make: Make, tmp_path: Path, name: str):
    out = exported(make(name), "int8", tmp_path / "out", cosine=0.99)
    told = json.loads((out / "certificate.json").read_text())
    assert told["mean_cosine"] >= 0.99
    assert told["scheme"]["products"] == 4 * SIZES.num_hidden_layers
    assert told["scheme"]["tried"][0]["kept_in_fp32"] == 0
    texts = ["john lives in paris", "the film was good"]
    one, other = (load(folder).encode(texts) for folder in (make(name), out))
    assert np.abs(one - other).max() > 0
    assert (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other) > 0.98


def test_eight_bits_in_which_nothing_could_be_are_refused_and_nothing_is_left(make: Make, tmp_path: Path):
    with pytest.raises(FolderError, match=r"int8 is refused.*with all products in 8 bits.*--cosine.*export to onnx"):
        exported(make("sentences"), "int8", tmp_path / "out", cosine=1 - 1e-9)
    assert list(tmp_path.glob("*out*")) == []


def test_a_certificate_names_texts_differences_and_the_original(make: Make, tmp_path: Path):
    told = json.loads((exported(make("classify"), "onnx", tmp_path / "out") / "certificate.json").read_text())
    assert told["texts"] == "the 36 built-in English and Chinese texts"
    assert told["rows"] == 36
    assert set(told["max_difference"]) == {"last_hidden_state", "pooler_output", "logits"}
    assert 0 <= max(told["max_difference"].values()) < 1e-4
    assert told["mean_cosine"] == pytest.approx(1)
    assert told["original"]["folder"] == "classify"
    assert len(told["original"]["sha256"]) == 64
    assert told["data"] is None


def test_the_metric_of_a_file_is_told_before_and_after(make: Make, tmp_path: Path):
    dev = tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\nthe film was good\tyes\nthe film was bad\tno\nwho\tperhaps\n")
    told = json.loads((exported(make("classify"), "int8", tmp_path / "out", data=dev) / "certificate.json").read_text())
    assert told["texts"] == "the first 3 cases of dev.tsv"
    assert told["data"]["file"] == "dev.tsv"
    assert told["data"]["metric"] == "accuracy"
    assert told["data"]["before"]["accuracy"] == told["data"]["after"]["accuracy"]
    assert told["data"]["points_lost"] == 0


def test_texts_of_a_person_are_compared_where_there_is_no_task(make: Make, tmp_path: Path):
    (tmp_path / "texts.txt").write_text("john lives\nin paris\n")
    out = exported(make("pretrained"), "onnx", tmp_path / "out", data=tmp_path / "texts.txt")
    assert json.loads((out / "certificate.json").read_text())["texts"] == "the first 2 texts of texts.txt"


def test_corrupted_weights_are_refused_and_nothing_is_left(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def corrupted(model: Model, folder: Path, *_: object) -> dict[str, Any]:
        with torch.no_grad():
            model.encoder.layers[1].output.weight[3, 5] += 0.5
        told = write_onnx(model, folder)
        with torch.no_grad():
            model.encoder.layers[1].output.weight[3, 5] -= 0.5
        return told

    monkeypatch.setitem(exporting.TARGETS, "onnx", ExportTarget(corrupted, Tolerance(1e-4)))
    with pytest.raises(FolderError, match=r"is refused.*last_hidden_state differs by .*0\.0001 is allowed"):
        exported(make("classify"), "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_fallen_metric_is_refused_with_both_figures(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    predictions = [found.label for found in load(make("classify")).predict(["the film was good"])]
    (tmp_path / "dev.tsv").write_text(f"text\tlabel\nthe film was good\t{predictions[0]}\n")

    def turned(model: Model, folder: Path, *_: object) -> dict[str, Any]:
        assert model.predictor is not None
        with torch.no_grad():
            model.predictor.module.head.score.weight.neg_()
            model.predictor.module.head.score.bias.neg_()
        return write_onnx(model, folder)

    monkeypatch.setitem(exporting.TARGETS, "onnx", ExportTarget(turned, Tolerance()))
    with pytest.raises(FolderError, match=r"accuracy falls from 1\.0000 to 0\.0000, and 1 points are allowed"):
        exported(make("classify"), "onnx", tmp_path / "out", data=tmp_path / "dev.tsv")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plain_folder_runs_in_another_engine_without_an_export(make: Make, engine: str):
    before, after = load(make("tag")), load(make("tag"), engine=engine)
    assert_alike(*(model.predict(["john lives in paris"])[0].to_dict() for model in (before, after)))
    np.testing.assert_allclose(after.encode(["who"]), before.encode(["who"]), atol=1e-4)


def test_what_needs_the_weights_is_refused_with_the_way_out(make: Make, tmp_path: Path):
    model = load(exported(make("classify"), "onnx", tmp_path / "out"))
    assert model.predictor is not None
    (case,) = Classify.read_unlabelled([Record({"text": "who"}, "text 0")], {})
    with pytest.raises(FolderError, match=r"its last layer and answers only.*use the folder that it was exported"):
        explain(model.predictor, case)


def test_an_export_of_an_export_is_refused(make: Make, tmp_path: Path):
    out = exported(make("classify"), "onnx", tmp_path / "out")
    with pytest.raises(FolderError, match="is an export itself"):
        exported(out, "int8", tmp_path / "again")


def test_an_exported_folder_runs_in_its_own_engine_only(make: Make, tmp_path: Path):
    out = exported(make("classify"), "onnx", tmp_path / "out")
    assert load(out, engine="onnx").predict(["who"])
    with pytest.raises(SettingsError, match="was exported for 'onnx' and has nothing for 'torch'"):
        load(out, engine="torch")
    with pytest.raises(SettingsError, match="no engine 'tensorrt'; choose one of: torch, onnx, openvino"):
        load(out, engine="tensorrt")


def test_a_folder_that_is_there_is_not_written_over(make: Make, tmp_path: Path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FolderError, match="is there already"):
        exported(make("classify"), "onnx", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_an_unknown_kind_is_refused_with_the_known_ones(make: Make, tmp_path: Path):
    with pytest.raises(SettingsError, match="no export to 'gguf'; choose one of: onnx, openvino, saf"):
        exported(make("classify"), "gguf", tmp_path / "out")


def test_a_file_that_is_not_there_is_named(make: Make, tmp_path: Path):
    with pytest.raises(InputError, match=r"dev\.tsv is not a file"):
        exported(make("classify"), "onnx", tmp_path / "out", data=tmp_path / "dev.tsv")


def test_a_recurrent_head_says_that_it_needs_torch(tmp_path: Path):
    folder = tuned(tmp_path / "recurrent", SMALL["tag"].task, RecurrentSettings("last", 8))
    with pytest.raises(SettingsError, match=r"a recurrent head .* runs in torch only"):
        exported(folder, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_graph_is_named(make: Make, tmp_path: Path):
    out = exported(make("classify"), "onnx", tmp_path / "out")
    (out / "model.onnx").write_bytes((out / "model.onnx").read_bytes()[:1000])
    with pytest.raises(FolderError, match=r"model\.onnx cannot be read by ONNX Runtime"):
        load(out)


def test_a_graph_without_a_head_is_refused_for_a_task(make: Make, tmp_path: Path):
    model = load(make("classify"))
    out = exported(make("classify"), "onnx", tmp_path / "out")
    write_onnx(replace(model, predictor=None), out)
    with pytest.raises(FolderError, match="the graph does not give logits"):
        load(out)
