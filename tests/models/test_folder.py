"""Model folders: ours load in transformers, theirs load here, old formats too, and invalid ones are refused."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from damage import flip_bit, forget_hashes
from family_parity import NOT_IN_TRANSFORMERS, small_config
from safetensors.torch import load_file, save_file
from torch import nn

import bertworks
from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.encoders.families import ENCODERS
from bertworks.errors import FolderError
from bertworks.models.folder import load_encoder, read_folder, write_folder
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.objectives.heads import MlmHead, PairHead
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.tokenizer import Tokenizer

TOLERANCE = 1e-5
FIXTURES = Path(__file__).parent / "fixtures" / "tf1"
METADATA = {"objective": "mlm-nsp", "scores": {"accuracy": 0.5}}


class PretrainingModel(nn.Module):
    """An encoder with both heads of pretraining and random parameters."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.encoder = Bert(config)
        self.mlm_head = MlmHead(config)
        self.nsp_head = PairHead(config.hidden_size)
        self.names = combine_name_tables(
            {"encoder": tensor_names(config), "mlm_head": HEADS["mlm"], "nsp_head": HEADS["nsp"]}
        )
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.1, generator=generator)


@dataclass(frozen=True)
class WrittenModel:
    """A folder that we wrote, and its content."""

    path: Path
    model: PretrainingModel
    config: BertConfig


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> WrittenModel:
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    model = PretrainingModel(config).eval()
    path = tmp_path_factory.mktemp("written") / "model"
    write_folder(
        path,
        config_to_dict(config, ["BertForPreTraining"]),
        to_hf_names(model.state_dict(), model.names),
        tokenizer,
        METADATA,
    )
    return WrittenModel(path, model, config)


@pytest.fixture
def changed(written: WrittenModel, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the folder and changes settings (None removes one) or tensors of the copy."""

    def change(tensors: Callable[[dict[str, torch.Tensor]], Any] | None = None, **settings: Any) -> Path:
        folder = Path(shutil.copytree(written.path, tmp_path / "changed"))
        config = json.loads((folder / "config.json").read_text()) | settings
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        if tensors is not None:
            stored = load_file(folder / "model.safetensors")
            tensors(stored)
            save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return forget_hashes(folder)

    return change


def random_batch(vocab_size: int) -> Batch:
    input_ids = torch.randint(1, vocab_size, (2, 9), generator=torch.Generator().manual_seed(3))
    return Batch(
        input_ids=input_ids, token_type_ids=(torch.arange(9) > 4).long().expand(2, 9), lengths=torch.tensor([9, 9])
    )


def has_same_output(ours: nn.Module, theirs: nn.Module, vocab_size: int) -> bool:
    batch = random_batch(vocab_size)
    with torch.no_grad():
        expected = theirs(batch.input_ids, token_type_ids=batch.token_type_ids).last_hidden_state
        return bool((ours.eval()(batch).to_padded() - expected).abs().max() < TOLERANCE)


def test_a_folder_reads_back_as_it_was_written(written: WrittenModel, tokenizer: Tokenizer):
    folder = read_folder(written.path)
    assert folder.encoder_config == written.config
    assert folder.config["architectures"] == ["BertForPreTraining"]
    assert folder.config["pad_token_id"] == tokenizer.specials.pad
    assert folder.tokenizer.hash == tokenizer.hash
    assert folder.tokenizer is folder.tokenizer
    expected = to_hf_names(written.model.state_dict(), written.model.names)
    assert set(folder.tensors) == set(expected)
    assert all(torch.equal(folder.tensors[name], expected[name]) for name in expected)


def test_metadata_read_back_with_the_versions_of_libraries(written: WrittenModel):
    metadata = dict(read_folder(written.path).metadata)
    versions = metadata.pop("versions")
    assert metadata == METADATA
    assert versions["bertworks"] == bertworks.__version__
    assert versions["torch"] == torch.__version__
    assert set(versions) == {"bertworks", "torch", "tokenizers", "safetensors", "numpy"}


def test_a_folder_has_these_files_and_no_pickle(written: WrittenModel):
    assert sorted(file.name for file in written.path.iterdir()) == [
        "README.md",
        "bertworks.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert [file.name for file in written.path.parent.iterdir()] == ["model"]


def test_encoder_and_heads_are_loaded_from_a_folder(written: WrittenModel):
    with torch.device("meta"):
        model = PretrainingModel(written.config)
    report = load_into(model, read_folder(written.path).tensors, model.names)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    for name, values in written.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], values)


# The tensors of heads that a class of transformers does not have.
UNEXPECTED_PREFIXES: dict[str, tuple[str, ...]] = {
    "AutoModel": ("cls.",),
    "AutoModelForMaskedLM": ("bert.pooler.", "cls.seq_relationship."),
    "BertForPreTraining": (),
}


@pytest.mark.parametrize("name", UNEXPECTED_PREFIXES)
def test_transformers_loads_our_folder_without_missing_keys(written: WrittenModel, name: str):
    _, info = getattr(transformers, name).from_pretrained(written.path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    unexpected = {
        key for keys in written.model.names.values() for key in keys if key.startswith(UNEXPECTED_PREFIXES[name])
    }
    assert set(info["unexpected_keys"]) == unexpected


def test_transformers_has_the_same_outputs_from_our_folder(written: WrittenModel):
    batch = random_batch(written.config.vocab_size)
    theirs = transformers.BertForPreTraining.from_pretrained(written.path).eval()
    with torch.no_grad():
        expected = theirs(batch.input_ids, token_type_ids=batch.token_type_ids)
        encoded = written.model.encoder(batch)
        embeddings = written.model.encoder.token_embeddings.weight
        mlm_logits = written.model.mlm_head(encoded.last_hidden_state, embeddings).view(2, 9, -1)
        nsp_logits = written.model.nsp_head(encoded.pooled)
        masked_lm = transformers.AutoModelForMaskedLM.from_pretrained(written.path).eval()
        their_logits = masked_lm(batch.input_ids, token_type_ids=batch.token_type_ids).logits
    assert float((mlm_logits - expected.prediction_logits).abs().max()) < TOLERANCE
    assert float((nsp_logits - expected.seq_relationship_logits).abs().max()) < TOLERANCE
    assert float((mlm_logits - their_logits).abs().max()) < TOLERANCE
    assert has_same_output(written.model.encoder, transformers.AutoModel.from_pretrained(written.path).eval(), 100)


def test_transformers_tokenizes_the_same_with_our_tokenizer(written: WrittenModel, tokenizer: Tokenizer):
    theirs = transformers.AutoTokenizer.from_pretrained(written.path)
    encoded = theirs("W1 w2a, w3", "w4ab unknown")
    expected = tokenizer.encode("W1 w2a, w3", "w4ab unknown")
    assert encoded["input_ids"] == list(expected.input_ids)
    assert encoded["token_type_ids"] == list(expected.token_type_ids)
    assert theirs.mask_token_id == tokenizer.specials.mask


MISSING_KEYS = {
    "BertModel": set(),
    "BertForMaskedLM": {"bert.pooler.dense.weight", "bert.pooler.dense.bias"},
    "BertForPreTraining": set(),
}


@pytest.mark.parametrize("name", MISSING_KEYS)
def test_a_folder_of_transformers_is_read(name: str, tmp_path: Path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    theirs = getattr(transformers, name)(transformers.BertConfig(**config_to_dict(config, [name]))).eval()
    theirs.save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    assert (folder.encoder_config, folder.metadata) == (config, {})
    encoder, report = load_encoder(folder)
    assert set(report.missing_keys) == MISSING_KEYS[name]
    assert has_same_output(encoder, getattr(theirs, "bert", theirs), 50)
    with pytest.raises(FolderError, match=r"contains none of tokenizer\.json, vocab\.txt"):
        _ = folder.tokenizer


def test_a_sharded_folder_of_transformers_is_read(tmp_path: Path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    theirs = transformers.BertModel(transformers.BertConfig(**config_to_dict(config, ["BertModel"]))).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    encoder, report = load_encoder(read_folder(tmp_path))
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    assert has_same_output(encoder, theirs, 50)


def test_an_old_folder_is_read(tmp_path: Path):
    """A pytorch_model.bin, gamma and beta, a buffer, tied copies, and a config without model_type."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**config_to_dict(config, []))).eval()
    old = {"bert.embeddings.position_ids": torch.arange(32)}
    for name, values in theirs.state_dict().items():
        old[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = values
    assert "cls.predictions.decoder.weight" in old
    torch.save(old, tmp_path / "pytorch_model.bin")
    settings = {key: value for key, value in config_to_dict(config, []).items() if key != "model_type"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    folder = read_folder(tmp_path)
    assert folder.config["model_type"] == "bert"
    model = PretrainingModel(config)
    report = load_into(model, folder.tensors, model.names)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    assert has_same_output(model.encoder, theirs.bert, 50)


def test_a_release_of_google_is_read():
    folder = read_folder(FIXTURES / "release")
    assert folder.encoder_config == BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=24,
        type_vocab_size=2,
        hidden_act="gelu_new",
        hidden_dropout_prob=0.3,
        attention_probs_dropout_prob=0.2,
        layer_norm_eps=1e-12,
        initializer_range=0.04,
    )
    _, report = load_encoder(folder)
    assert report.missing_keys == ()
    assert all(name.startswith("cls.") for name in report.unexpected_keys)
    assert "which Google's code computes under the name gelu" in report.notes[0]


def test_a_missing_pooler_is_initialized_by_the_generator(changed: Callable[..., Path]):
    def without_pooler(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"]

    folder = read_folder(changed(without_pooler))
    pooler, same, other = (load_encoder(folder, torch.Generator().manual_seed(seed))[0].pooler for seed in (1, 1, 2))
    assert torch.equal(pooler.weight, same.weight)
    assert not torch.equal(pooler.weight, other.weight)
    assert 0 < float(pooler.weight.detach().abs().max()) <= 0.04
    assert not pooler.bias.any()


OPTIONAL = [name for name, family in ENCODERS.items() if family.optional_prefixes and name not in NOT_IN_TRANSFORMERS]


@pytest.mark.parametrize("model_type", OPTIONAL)
def test_all_that_a_folder_may_lack_is_initialized(model_type: str, tmp_path: Path):
    config, family = small_config(model_type), ENCODERS[model_type]
    tensors = to_hf_names(family.build(config, None).state_dict(), family.tensor_names(config))
    stored = {name: values for name, values in tensors.items() if not name.startswith(family.optional_prefixes)}
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(family.config_to_dict(config, [])))
    torch.use_deterministic_algorithms(True)  # memory that is not initialized is NaN
    try:
        encoder, report = load_encoder(read_folder(tmp_path))
    finally:
        torch.use_deterministic_algorithms(False)
    assert set(report.missing_keys) == set(tensors) - set(stored)
    assert report.missing_keys
    assert [name for name, values in encoder.named_parameters() if not values.isfinite().all()] == []


def test_fp16_weights_are_loaded_as_fp32(changed: Callable[..., Path]):
    def to_half(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: values.half() for name, values in tensors.items()})

    encoder, _ = load_encoder(read_folder(changed(to_half)))
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_fewer_layers_than_in_the_config_are_refused(changed: Callable[..., Path]):
    folder = changed(num_hidden_layers=3)
    with pytest.raises(FolderError) as caught:
        read_folder(folder)
    assert str(caught.value) == (
        f"{folder}/model.safetensors lacks 16 tensors of the encoder that config.json describes, first of all "
        "'bert.encoder.layer.2.attention.self.query.weight'; weights and config belong to different models"
    )


def test_a_shape_that_differs_from_the_config_is_refused(changed: Callable[..., Path]):
    folder = changed(intermediate_size=25)
    with pytest.raises(FolderError) as caught:
        read_folder(folder)
    assert str(caught.value) == (
        f"{folder}/model.safetensors: tensor 'bert.encoder.layer.0.intermediate.dense.weight' should have shape "
        "(25, 16) by config.json, but has (24, 16); use the config.json of these weights"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "t5"}, r"config\.json: there is no encoder for model_type 't5'; choose .* one of: bert"),
        ({"model_type": ["bert"]}, r"there is no encoder for model_type \['bert'\]"),
        ({"is_decoder": True}, r"config\.json: is_decoder is True, but only False is supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"hidden_size": None}, r"config\.json: hidden_size should be a whole number above 0, but is None"),
        ({"hidden_act": "swiglu"}, r"config\.json: there is no activation 'swiglu'"),
    ],
)
def test_an_unsupported_config_is_refused(changed: Callable[..., Path], settings: dict[str, Any], words: str):
    folder = changed(**settings)
    with pytest.raises(FolderError, match=words):
        read_folder(folder)


def test_a_folder_without_model_type_and_prefix_is_refused(changed: Callable[..., Path]):
    def bare(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("bert.")] = tensors.pop(name)

    folder = changed(bare, model_type=None)
    with pytest.raises(FolderError, match=r"config\.json has no model_type; add one of: bert"):
        read_folder(folder)


def test_what_is_no_model_folder_is_refused(tmp_path: Path, changed: Callable[..., Path]):
    with pytest.raises(FolderError, match="nowhere is not a folder; give the folder of a model"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=r"has no weights; it needs one of model\.safetens"):
        read_folder(tmp_path)
    folder = changed()
    (folder / "config.json").unlink()
    with pytest.raises(FolderError, match=r"has no config\.json"):
        read_folder(folder)


@pytest.mark.parametrize(("name", "text"), [("config.json", "[]"), ("config.json", "{"), ("bertworks.json", "3")])
def test_files_that_are_no_json_objects_are_refused(changed: Callable[..., Path], name: str, text: str):
    folder = changed()
    (folder / name).write_text(text)
    with pytest.raises(FolderError, match=name.replace(".", r"\.")):
        read_folder(folder)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(changed: Callable[..., Path]):
    def shrink(tensors: dict[str, torch.Tensor]) -> None:
        name = "bert.embeddings.word_embeddings.weight"
        tensors[name] = tensors[name][:50].clone()

    folder = read_folder(changed(shrink, vocab_size=50))
    with pytest.raises(FolderError, match="the tokenizer has 10012 tokens, but the model only 50"):
        _ = folder.tokenizer


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_writing_again_replaces_our_files_and_keeps_others(written: WrittenModel, changed: Callable[..., Path]):
    folder = changed()
    (folder / "notes.txt").write_text("mine")
    tensors = to_hf_names(written.model.state_dict(), written.model.names)
    config = config_to_dict(written.config, ["BertForPreTraining"])
    write_folder(folder, config, tensors, read_folder(written.path).tokenizer, {"objective": "mlm"})
    assert read_folder(folder).metadata["objective"] == "mlm"
    after, before = contents(folder), contents(written.path)
    assert after.pop("notes.txt") == b"mine"
    assert {name for name in before if after.pop(name) != before[name]} == {"bertworks.json"}
    assert after == {}


def test_writing_again_replaces_our_card_but_not_one_that_somebody_wrote(written: WrittenModel, tmp_path: Path):
    tensors = to_hf_names(written.model.state_dict(), written.model.names)
    config, tokenizer = config_to_dict(written.config, ["BertForPreTraining"]), read_folder(written.path).tokenizer
    for objective in ("mlm-nsp", "mlm"):
        write_folder(tmp_path / "model", config, tensors, tokenizer, {"objective": objective})
        assert f"# BERT, pretrained ({objective})" in (tmp_path / "model" / "README.md").read_text()
    (tmp_path / "model" / "README.md").write_text("my card")
    write_folder(tmp_path / "model", config, tensors, tokenizer, {"objective": "mlm-nsp"})
    assert (tmp_path / "model" / "README.md").read_text() == "my card"


def test_the_working_directory_can_be_written(written: WrittenModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tensors = to_hf_names(written.model.state_dict(), written.model.names)
    write_folder(".", config_to_dict(written.config, []), tensors, read_folder(written.path).tokenizer, {})
    assert set(contents(tmp_path)) == set(contents(written.path))


@pytest.mark.parametrize("file_name", ["model.safetensors", "vocab.txt", "bertworks.json"])
def test_a_full_disk_leaves_the_old_model_unchanged(
    written: WrittenModel, changed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, file_name: str
):
    """Whichever file does not fit: all or none of the folder changes."""
    folder = changed()
    before = contents(folder)
    tokenizer = read_folder(folder).tokenizer
    fsync = os.fsync

    def disk_full(handle: int) -> None:
        if file_name in Path(f"/proc/self/fd/{handle}").readlink().name:
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr("os.fsync", disk_full)
    tensors = {
        name: values + 1 for name, values in to_hf_names(written.model.state_dict(), written.model.names).items()
    }
    with pytest.raises(FolderError) as caught:
        write_folder(folder, config_to_dict(written.config, []), tensors, tokenizer, {"objective": "other"})
    assert str(caught.value) == (
        f"cannot write {folder}/{file_name}: no space left on the disk of {folder}; free some space and run the same "
        "command again, it will resume"
    )
    assert contents(folder) == before


def test_a_full_disk_leaves_no_new_folder(written: WrittenModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    tokenizer = read_folder(written.path).tokenizer
    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(FolderError, match="no space left on the disk of"):
        write_folder(tmp_path / "new", config_to_dict(written.config, []), {"one": torch.ones(1)}, tokenizer, {})
    assert list(tmp_path.iterdir()) == []


def test_more_layers_in_the_weights_than_in_the_config_are_refused(changed: Callable[..., Path]):
    folder = changed(num_hidden_layers=1)
    with pytest.raises(FolderError) as caught:
        read_folder(folder)
    assert str(caught.value) == (
        f"{folder}/model.safetensors holds 'bert.encoder.layer.1.attention.output.LayerNorm.bias', a layer that the "
        "encoder of config.json does not have; use the config.json of these weights"
    )


def test_tensors_that_the_encoder_does_not_use_are_named(changed: Callable[..., Path]):
    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["adapter.0.weight"] = torch.ones(2)

    _, report = load_encoder(read_folder(changed(add)))
    assert "adapter.0.weight" in report.unexpected_keys


def test_a_folder_whose_files_differ_from_their_hashes_is_refused(written: WrittenModel, tmp_path: Path):
    folder = Path(shutil.copytree(written.path, tmp_path / "copy"))
    flip_bit(folder / "model.safetensors", -1)
    with pytest.raises(FolderError, match=r"model\.safetensors is damaged: its sha256 is not the one in bertworks"):
        read_folder(folder)


def test_positions_counted_from_the_id_of_another_special_token_are_refused(tmp_path: Path, tokenizer: Tokenizer):
    """transformers does not count tokens with the id of padding: the position of [CLS] would be another."""
    cls = tokenizer.specials.cls
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        pad_token_id=cls,
    )
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(FolderError, match=rf"config\.json: pad_token_id is {cls}, but that is '\[CLS\]'"):
        bertworks.load(tmp_path)
