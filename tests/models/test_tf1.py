"""Google's TensorFlow 1 releases: names, shapes and config, and parity with transformers."""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import BertConfig, BertForPreTraining

from bertworks.encoders.layers import ACTIVATIONS
from bertworks.errors import FolderError
from bertworks.models import tf1
from bertworks.models.folder import load_encoder, read_folder
from bertworks.models.tf1 import GELU_NOTE, expected_tensors, import_release
from bertworks.models.tf1_checkpoint import Entry, TensorflowCheckpoint

FIXTURES = Path(__file__).parent / "fixtures" / "tf1"
GENERATOR = runpy.run_path(str(FIXTURES.parent / "make_tf1.py"))  # the script that wrote the fixtures
CONFIG, WEIGHTS, values = GENERATOR["CONFIG"], GENERATOR["WEIGHTS"], GENERATOR["values"]
# Tied in BertForPreTraining to the word embeddings and to cls.predictions.bias, so a release does not have them.
TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}


def release_with(tmp_path: Path, **changes: Any) -> Path:
    """A copy of the release with a changed config; None removes a key."""
    folder = Path(shutil.copytree(FIXTURES / "release", tmp_path / "release"))
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    (folder / "bert_config.json").write_text(json.dumps(config))
    return folder


def test_all_tensors_of_a_release_are_mapped():
    report = import_release(FIXTURES / "release").report
    assert set(report.mapped_names) == set(WEIGHTS)
    assert report.num_skipped == {"adam_m": 46, "adam_v": 46, "global_step": 1}
    assert report.missing_keys == ()
    assert report.unexpected_keys == ()
    assert report.ignored_settings == ("directionality", "pooler_type")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("bert/embeddings/word_embeddings", "bert.embeddings.word_embeddings.weight"),
        ("bert/embeddings/LayerNorm/gamma", "bert.embeddings.LayerNorm.weight"),
        ("bert/embeddings/LayerNorm/beta", "bert.embeddings.LayerNorm.bias"),
        ("bert/encoder/layer_1/attention/self/key/bias", "bert.encoder.layer.1.attention.self.key.bias"),
        ("cls/predictions/output_bias", "cls.predictions.bias"),
        ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
        ("cls/seq_relationship/output_bias", "cls.seq_relationship.bias"),
    ],
)
def test_a_tensor_has_the_same_values_under_its_new_name(theirs: str, ours: str):
    tensor = import_release(FIXTURES / "release").tensors[ours]
    assert np.array_equal(tensor, values(theirs, WEIGHTS[theirs]))


def test_kernels_are_transposed():
    tensors = import_release(FIXTURES / "release").tensors
    kernel = values("bert/encoder/layer_0/intermediate/dense/kernel", (16, 20))
    weight = tensors["bert.encoder.layer.0.intermediate.dense.weight"]
    assert weight.shape == (20, 16)
    assert weight.flags.c_contiguous
    assert np.array_equal(weight, kernel.T)
    square = values("bert/pooler/dense/kernel", (16, 16))
    assert not np.array_equal(square, square.T)
    assert np.array_equal(tensors["bert.pooler.dense.weight"], square.T)


def test_the_config_has_the_keys_of_transformers():
    assert import_release(FIXTURES / "release").config == {
        "model_type": "bert",
        "architectures": ["BertForPreTraining"],
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 20,
        "max_position_embeddings": 24,
        "type_vocab_size": 2,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.3,
        "attention_probs_dropout_prob": 0.2,
        "initializer_range": 0.04,
    }


def test_transformers_loads_the_tensors():
    release = import_release(FIXTURES / "release")
    model = BertForPreTraining(BertConfig.from_dict(release.config))
    weights = {name: torch.from_numpy(array) for name, array in release.tensors.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) == TIED
    assert unexpected == []
    embeddings = torch.from_numpy(values("bert/embeddings/word_embeddings", (40, 16)))
    assert torch.equal(model.get_output_embeddings().weight, embeddings)
    # The pooler by hand, in TensorFlow's order: tanh(vector @ kernel + bias).
    vector = values("any row", (1, 16))
    expected = np.tanh(vector @ values("bert/pooler/dense/kernel", (16, 16)) + values("bert/pooler/dense/bias", (16,)))
    pooled = model.bert.pooler(torch.from_numpy(vector)[None]).detach().numpy()
    assert np.allclose(pooled, expected, atol=1e-6)


def test_a_sharded_checkpoint_without_nsp_head_reports_missing_keys():
    release = import_release(FIXTURES / "sharded" / "model.ckpt-12")
    assert release.report.missing_keys == ("cls.seq_relationship.weight", "cls.seq_relationship.bias")
    assert release.report.num_skipped == {}
    assert np.array_equal(release.tensors["cls.predictions.bias"], values("cls/predictions/output_bias", (40,)))


def test_layers_beyond_the_config_are_unexpected_keys(tmp_path: Path):
    report = import_release(release_with(tmp_path, num_hidden_layers=1)).report
    assert len(report.unexpected_keys) == 16
    assert all(name.startswith("bert/encoder/layer_1/") for name in report.unexpected_keys)
    assert report.num_skipped == {"adam_m": 46, "adam_v": 46, "global_step": 1}


def test_an_encoder_with_missing_layers_is_refused(tmp_path: Path):
    with pytest.raises(FolderError) as caught:
        import_release(release_with(tmp_path, num_hidden_layers=3))
    assert "lacks 16 tensors of the encoder that bert_config.json describes" in str(caught.value)
    assert "'bert/encoder/layer_2/attention/self/query/kernel'" in str(caught.value)


def test_a_shape_that_differs_from_the_config_is_refused(tmp_path: Path):
    folder = release_with(tmp_path, vocab_size=41)
    with pytest.raises(FolderError) as caught:
        import_release(folder)
    assert str(caught.value) == (
        f"{folder}/bert_model.ckpt: tensor 'bert/embeddings/word_embeddings' should have shape (41, 16) by "
        "bert_config.json, but has (40, 16); use the bert_config.json of this checkpoint"
    )


def test_a_release_without_a_config_is_refused(tmp_path: Path):
    folder = release_with(tmp_path)
    (folder / "bert_config.json").unlink()
    with pytest.raises(FolderError, match=r"has no bert_config\.json"):
        import_release(folder)


def test_a_config_that_is_no_object_is_refused(tmp_path: Path):
    folder = release_with(tmp_path)
    (folder / "bert_config.json").write_text("[]")
    with pytest.raises(FolderError, match="should hold a JSON object, but holds a list"):
        import_release(folder)


def test_missing_and_invalid_settings_are_named_together(tmp_path: Path):
    folder = release_with(tmp_path, hidden_size=None, num_hidden_layers=0, vocab_size="40")
    with pytest.raises(FolderError, match="a positive integer for vocab_size, hidden_size, num_hidden_layers"):
        import_release(folder)


def test_heads_that_do_not_divide_the_hidden_size_are_refused(tmp_path: Path):
    with pytest.raises(FolderError, match="num_attention_heads 3 does not divide hidden_size 16"):
        import_release(release_with(tmp_path, num_attention_heads=3))


def test_missing_settings_have_googles_defaults(tmp_path: Path):
    folder = release_with(tmp_path, hidden_act=None, hidden_dropout_prob=None, initializer_range=None)
    config = import_release(folder).config
    assert (config["hidden_act"], config["hidden_dropout_prob"], config["initializer_range"]) == ("gelu_new", 0.1, 0.02)


def test_the_expected_tensors_are_those_of_a_real_checkpoint():
    assert {name: shape for name, (_, shape) in expected_tensors(CONFIG).items()} == WEIGHTS


def test_a_config_of_a_billion_layers_is_refused_before_their_names_are_made(tmp_path: Path):
    with pytest.raises(FolderError, match="num_hidden_layers is 1000000000; it must be from 1 to 1,000"):
        import_release(release_with(tmp_path, num_hidden_layers=10**9))


def test_the_activation_is_what_the_released_code_computes(tmp_path: Path):
    """gelu in Google's modeling.py is x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    release = import_release(FIXTURES / "release")
    x = np.linspace(-4, 4, 81)
    released = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    ours = ACTIVATIONS[release.config["hidden_act"]](torch.from_numpy(x)).numpy()
    assert np.abs(ours - released).max() < 1e-12
    assert np.abs(torch.nn.functional.gelu(torch.from_numpy(x)).numpy() - released).max() > 4e-4
    assert release.report.notes == (GELU_NOTE,)
    relu = import_release(release_with(tmp_path, hidden_act="relu"))
    assert (relu.config["hidden_act"], relu.report.notes) == ("relu", ())


def with_tensors(checkpoint: TensorflowCheckpoint, arrays: dict[str, np.ndarray]) -> TensorflowCheckpoint:
    """A checkpoint with more tensors, which are in memory."""

    class Extended(TensorflowCheckpoint):
        def tensor(self, name: str) -> np.ndarray:
            return arrays[name] if name in arrays else checkpoint.tensor(name)

    entries = {
        name: Entry(dtype=1, shape=values.shape, shard=0, offset=0, size=values.nbytes, crc=0)
        for name, values in arrays.items()
    }
    return Extended(checkpoint.prefix, checkpoint.num_shards, {**checkpoint.entries, **entries})


@pytest.mark.parametrize(
    ("names", "num_outputs", "module", "architecture"),
    [
        (("output_weights", "output_bias"), 3, "classifier", "BertForSequenceClassification"),
        (("cls/squad/output_weights", "cls/squad/output_bias"), 2, "qa_outputs", "BertForQuestionAnswering"),
    ],
)
def test_heads_of_run_classifier_and_run_squad_are_read(
    names: tuple[str, str], num_outputs: int, module: str, architecture: str, monkeypatch: pytest.MonkeyPatch
):
    arrays = {names[0]: values(names[0], (num_outputs, 16)), names[1]: values(names[1], (num_outputs,))}
    read = tf1.read_checkpoint
    monkeypatch.setattr(tf1, "read_checkpoint", lambda prefix: with_tensors(read(prefix), arrays))
    release = import_release(FIXTURES / "release")
    assert release.config["architectures"] == [architecture]
    assert np.array_equal(release.tensors[f"{module}.weight"], arrays[names[0]])
    assert np.array_equal(release.tensors[f"{module}.bias"], arrays[names[1]])
    assert release.report.unexpected_keys == ()
    peer = getattr(transformers, architecture)(BertConfig.from_dict(release.config))
    weights = {name: torch.from_numpy(array) for name, array in release.tensors.items()}
    assert not [name for name in peer.load_state_dict(weights, strict=False).missing_keys if module in name]
    assert (len(release.config.get("id2label", {})) == 3) == (module == "classifier")


def test_unknown_tensors_are_in_the_report_of_the_loaded_model(monkeypatch: pytest.MonkeyPatch):
    arrays = {"my/adapter/kernel": values("my/adapter/kernel", (2, 2))}
    read = tf1.read_checkpoint
    monkeypatch.setattr(tf1, "read_checkpoint", lambda prefix: with_tensors(read(prefix), arrays))
    _, report = load_encoder(read_folder(FIXTURES / "release"))
    assert "my/adapter/kernel" in report.unexpected_keys
