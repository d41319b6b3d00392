"""Model folders: ours in transformers, theirs in ours, old kinds of them, and what is refused with which words."""

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
from safetensors.torch import load_file, save_file
from torch import nn

import bertworks
from bertworks.encoders.bert import HEADS, Bert, BertConfig, tensor_names
from bertworks.encoders.config import config_to_dict
from bertworks.errors import FolderError
from bertworks.models.folder import load_encoder, read_folder, write_folder
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.objectives.heads import MlmHead, PairHead
from bertworks.sampling.batch import Batch
from bertworks.vocabulary.tokenizer import Tokenizer

CLOSE = 1e-5
FIXTURES = Path(__file__).parent / "fixtures" / "tf1"
TOLD = {"objective": "masked-next", "scores": {"accuracy": 0.5}}


class Parts(nn.Module):
    """An encoder with both heads of pretraining, every parameter drawn."""

    def __init__(self, sizes: BertConfig) -> None:
        super().__init__()
        self.encoder = Bert(sizes)
        self.masked = MlmHead(sizes)
        self.pair = PairHead(sizes.hidden_size)
        self.names = combine_name_tables(
            {"encoder": tensor_names(sizes), "masked": HEADS["masked"], "pair": HEADS["pair"]}
        )
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.1, generator=generator)


@dataclass(frozen=True)
class Written:
    """A folder that we wrote, and what is in it."""

    path: Path
    parts: Parts
    sizes: BertConfig


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Written:
    sizes = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    parts = Parts(sizes).eval()
    path = tmp_path_factory.mktemp("written") / "model"
    write_folder(
        path,
        config_to_dict(sizes, ["BertForPreTraining"]),
        to_hf_names(parts.state_dict(), parts.names),
        tokenizer,
        TOLD,
    )
    return Written(path, parts, sizes)


@pytest.fixture
def changed(written: Written, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the folder and changes settings (None takes one out) or tensors in the copy."""

    def change(tensors: Callable[[dict[str, torch.Tensor]], Any] | None = None, **settings: Any) -> Path:
        folder = Path(shutil.copytree(written.path, tmp_path / "changed"))
        config = json.loads((folder / "config.json").read_text()) | settings
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        if tensors is not None:
            held = load_file(folder / "model.safetensors")
            tensors(held)
            save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return change


def batch_of(vocabulary: int) -> Batch:
    ids = torch.randint(1, vocabulary, (2, 9), generator=torch.Generator().manual_seed(3))
    return Batch(ids, (torch.arange(9) > 4).long().expand(2, 9), torch.tensor([9, 9]))


def same_output(ours: nn.Module, theirs: nn.Module, vocabulary: int) -> bool:
    batch = batch_of(vocabulary)
    with torch.no_grad():
        expected = theirs(batch.input_ids, token_type_ids=batch.token_type_ids).last_hidden_state
        return bool((ours.eval()(batch).to_padded() - expected).abs().max() < CLOSE)


def test_a_folder_comes_back_as_it_was_written(written: Written, tokenizer: Tokenizer):
    folder = read_folder(written.path)
    assert folder.encoder_config == written.sizes
    assert folder.config["architectures"] == ["BertForPreTraining"]
    assert folder.config["pad_token_id"] == tokenizer.specials.pad
    assert folder.tokenizer.hash == tokenizer.hash
    assert folder.tokenizer is folder.tokenizer
    expected = to_hf_names(written.parts.state_dict(), written.parts.names)
    assert set(folder.tensors) == set(expected)
    assert all(torch.equal(folder.tensors[name], expected[name]) for name in expected)


def test_what_is_told_comes_back_with_the_versions_of_all_parts(written: Written):
    told = dict(read_folder(written.path).metadata)
    versions = told.pop("versions")
    assert told == TOLD
    assert versions["bertworks"] == bertworks.__version__
    assert versions["torch"] == torch.__version__
    assert set(versions) == {"bertworks", "torch", "tokenizers", "safetensors", "numpy"}


def test_a_folder_holds_these_files_and_no_pickle(written: Written):
    assert sorted(file.name for file in written.path.iterdir()) == [
        "bertworks.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert [file.name for file in written.path.parent.iterdir()] == ["model"]


def test_a_whole_model_is_loaded_from_its_folder(written: Written):
    with torch.device("meta"):
        parts = Parts(written.sizes)
    report = load_into(parts, read_folder(written.path).tensors, parts.names)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    for name, values in written.parts.state_dict().items():
        assert torch.equal(parts.state_dict()[name], values)


# What each class of transformers has no place for: the heads that it is without.
LEFT: dict[str, tuple[str, ...]] = {
    "AutoModel": ("cls.",),
    "AutoModelForMaskedLM": ("bert.pooler.", "cls.seq_relationship."),
    "BertForPreTraining": (),
}


@pytest.mark.parametrize("name", LEFT)
def test_transformers_loads_our_folder_and_draws_nothing_anew(written: Written, name: str):
    _, info = getattr(transformers, name).from_pretrained(written.path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    left = {key for keys in written.parts.names.values() for key in keys if key.startswith(LEFT[name])}
    assert set(info["unexpected_keys"]) == left


def test_transformers_computes_the_same_from_our_folder(written: Written):
    batch = batch_of(written.sizes.vocab_size)
    theirs = transformers.BertForPreTraining.from_pretrained(written.path).eval()
    with torch.no_grad():
        expected = theirs(batch.input_ids, token_type_ids=batch.token_type_ids)
        encoded = written.parts.encoder(batch)
        pieces = written.parts.masked(encoded.last_hidden_state, written.parts.encoder.token_embeddings.weight).view(
            2, 9, -1
        )
        pairs = written.parts.pair(encoded.pooled)
        masked = transformers.AutoModelForMaskedLM.from_pretrained(written.path).eval()
        logits = masked(batch.input_ids, token_type_ids=batch.token_type_ids).logits
    assert float((pieces - expected.prediction_logits).abs().max()) < CLOSE
    assert float((pairs - expected.seq_relationship_logits).abs().max()) < CLOSE
    assert float((pieces - logits).abs().max()) < CLOSE
    assert same_output(written.parts.encoder, transformers.AutoModel.from_pretrained(written.path).eval(), 100)


def test_transformers_cuts_text_the_same_with_our_tokenizer(written: Written, tokenizer: Tokenizer):
    theirs = transformers.AutoTokenizer.from_pretrained(written.path)
    found = theirs("W1 w2a, w3", "w4ab unknown")
    expected = tokenizer.encode("W1 w2a, w3", "w4ab unknown")
    assert found["input_ids"] == list(expected.input_ids)
    assert found["token_type_ids"] == list(expected.token_type_ids)
    assert theirs.mask_token_id == tokenizer.specials.mask


LACKING = {
    "BertModel": set(),
    "BertForMaskedLM": {"bert.pooler.dense.weight", "bert.pooler.dense.bias"},
    "BertForPreTraining": set(),
}


@pytest.mark.parametrize("name", LACKING)
def test_a_folder_of_transformers_is_read(name: str, tmp_path: Path):
    torch.manual_seed(0)
    sizes = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    theirs = getattr(transformers, name)(transformers.BertConfig(**config_to_dict(sizes, [name]))).eval()
    theirs.save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    assert (folder.encoder_config, folder.metadata) == (sizes, {})
    encoder, report = load_encoder(folder)
    assert set(report.missing_keys) == LACKING[name]
    assert same_output(encoder, getattr(theirs, "bert", theirs), 50)
    with pytest.raises(FolderError, match=r"holds neither tokenizer\.json nor vocab\.txt"):
        _ = folder.tokenizer


def test_a_folder_of_transformers_in_several_files_is_read(tmp_path: Path):
    torch.manual_seed(0)
    sizes = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    theirs = transformers.BertModel(transformers.BertConfig(**config_to_dict(sizes, ["BertModel"]))).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    encoder, report = load_encoder(read_folder(tmp_path))
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    assert same_output(encoder, theirs, 50)


def test_an_old_folder_is_read_too(tmp_path: Path):
    """A pytorch_model.bin, gamma and beta, a buffer, tied copies, and a config without model_type."""
    torch.manual_seed(0)
    sizes = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**config_to_dict(sizes, []))).eval()
    old = {"bert.embeddings.position_ids": torch.arange(32)}
    for name, values in theirs.state_dict().items():
        old[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = values
    assert "cls.predictions.decoder.weight" in old
    torch.save(old, tmp_path / "pytorch_model.bin")
    config = {key: value for key, value in config_to_dict(sizes, []).items() if key != "model_type"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    folder = read_folder(tmp_path)
    assert folder.config["model_type"] == "bert"
    parts = Parts(sizes)
    report = load_into(parts, folder.tensors, parts.names)
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    assert same_output(parts.encoder, theirs.bert, 50)


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
        hidden_act="gelu",
        hidden_dropout_prob=0.3,
        attention_probs_dropout_prob=0.2,
        layer_norm_eps=1e-12,
        initializer_range=0.04,
    )
    _, report = load_encoder(folder)
    assert report.missing_keys == ()
    assert all(name.startswith("cls.") for name in report.unexpected_keys)


def test_a_missing_pooler_is_drawn_from_the_generator(changed: Callable[..., Path]):
    def without_pooler(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"]

    folder = read_folder(changed(without_pooler))
    one, same, other = (load_encoder(folder, torch.Generator().manual_seed(seed))[0].pooler for seed in (1, 1, 2))
    assert torch.equal(one.weight, same.weight)
    assert not torch.equal(one.weight, other.weight)
    assert 0 < float(one.weight.detach().abs().max()) <= 0.04
    assert not one.bias.any()


def test_weights_in_half_precision_become_single(changed: Callable[..., Path]):
    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: values.half() for name, values in tensors.items()})

    encoder, _ = load_encoder(read_folder(changed(halve)))
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_layers_beyond_the_config_are_reported_as_unused(changed: Callable[..., Path]):
    _, report = load_encoder(read_folder(changed(num_hidden_layers=1)))
    assert len([name for name in report.unexpected_keys if name.startswith("bert.encoder.layer.1.")]) == 16


def test_fewer_layers_than_the_config_says_are_refused(changed: Callable[..., Path]):
    folder = changed(num_hidden_layers=3)
    with pytest.raises(FolderError) as caught:
        read_folder(folder)
    assert str(caught.value) == (
        f"{folder}/model.safetensors lacks 16 tensors of the encoder that config.json asks for, first of all "
        "'bert.encoder.layer.2.attention.self.query.weight'; it is of another kind of model, or the config is of "
        "another model"
    )


def test_a_shape_that_differs_from_the_config_names_file_tensor_expected_and_found(changed: Callable[..., Path]):
    folder = changed(intermediate_size=25)
    with pytest.raises(FolderError) as caught:
        read_folder(folder)
    assert str(caught.value) == (
        f"{folder}/model.safetensors: tensor 'bert.encoder.layer.0.intermediate.dense.weight' should be (25, 16) by "
        "config.json, but is (24, 16); put the config.json of these weights beside them"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "t5"}, r"config\.json: there is no encoder for model_type 't5'; choose .* one of: bert"),
        ({"model_type": ["bert"]}, r"there is no encoder for model_type \['bert'\]"),
        ({"is_decoder": True}, r"config\.json: is_decoder is True, but only False is supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"hidden_size": None}, r"config\.json: hidden_size should be a whole number above 0, but is None"),
        ({"hidden_act": "mish"}, r"config\.json: there is no activation 'mish'"),
    ],
)
def test_a_config_that_cannot_be_obeyed_is_refused(changed: Callable[..., Path], settings: dict[str, Any], words: str):
    folder = changed(**settings)
    with pytest.raises(FolderError, match=words):
        read_folder(folder)


def test_without_a_model_type_and_a_prefix_nobody_can_tell_the_family(changed: Callable[..., Path]):
    def bare(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("bert.")] = tensors.pop(name)

    folder = changed(bare, model_type=None)
    with pytest.raises(FolderError, match=r"config\.json has no model_type; add one of: bert"):
        read_folder(folder)


def test_folders_that_are_none_are_refused(tmp_path: Path, changed: Callable[..., Path]):
    with pytest.raises(FolderError, match="nowhere is not a folder; give the folder of a model"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=r"holds no weights that can be read; it should have one of model\.safetens"):
        read_folder(tmp_path)
    folder = changed()
    (folder / "config.json").unlink()
    with pytest.raises(FolderError, match=r"has no config\.json"):
        read_folder(folder)


@pytest.mark.parametrize(("name", "text"), [("config.json", "[]"), ("config.json", "{"), ("bertworks.json", "3")])
def test_settings_that_are_no_settings_are_refused(changed: Callable[..., Path], name: str, text: str):
    folder = changed()
    (folder / name).write_text(text)
    with pytest.raises(FolderError, match=name.replace(".", r"\.")):
        read_folder(folder)


def test_a_tokenizer_with_more_pieces_than_the_model_is_refused(changed: Callable[..., Path]):
    def shrink(tensors: dict[str, torch.Tensor]) -> None:
        name = "bert.embeddings.word_embeddings.weight"
        tensors[name] = tensors[name][:50].clone()

    folder = read_folder(changed(shrink, vocab_size=50))
    with pytest.raises(FolderError, match="the tokenizer has 10012 pieces, but the model only 50"):
        _ = folder.tokenizer


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_writing_again_replaces_our_files_and_leaves_others(written: Written, changed: Callable[..., Path]):
    folder = changed()
    (folder / "notes.txt").write_text("mine")
    tensors = to_hf_names(written.parts.state_dict(), written.parts.names)
    config = config_to_dict(written.sizes, ["BertForPreTraining"])
    write_folder(folder, config, tensors, read_folder(written.path).tokenizer, {"objective": "masked"})
    assert read_folder(folder).metadata["objective"] == "masked"
    after, before = contents(folder), contents(written.path)
    assert after.pop("notes.txt") == b"mine"
    assert {name for name in before if after.pop(name) != before[name]} == {"bertworks.json"}
    assert after == {}


def test_the_folder_one_stands_in_can_be_written(written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tensors = to_hf_names(written.parts.state_dict(), written.parts.names)
    write_folder(".", config_to_dict(written.sizes, []), tensors, read_folder(written.path).tokenizer, {})
    assert set(contents(tmp_path)) == set(contents(written.path))


@pytest.mark.parametrize("fails", ["model.safetensors", "vocab.txt", "bertworks.json"])
def test_a_disk_that_fills_up_leaves_the_old_model_whole(
    written: Written, changed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, fails: str
):
    """Whichever file does not fit any more: all or none of the folder changes."""
    folder = changed()
    before = contents(folder)
    tokenizer = read_folder(folder).tokenizer
    flush = os.fsync

    def full(handle: int) -> None:
        if fails in Path(f"/proc/self/fd/{handle}").readlink().name:
            raise OSError(28, "No space left on device")
        flush(handle)

    monkeypatch.setattr("os.fsync", full)
    tensors = {
        name: values + 1 for name, values in to_hf_names(written.parts.state_dict(), written.parts.names).items()
    }
    with pytest.raises(FolderError) as caught:
        write_folder(folder, config_to_dict(written.sizes, []), tensors, tokenizer, {"objective": "other"})
    assert str(caught.value) == (
        f"cannot write {folder}/{fails}: the disk is full; free some space and run the same command again, it will "
        "continue"
    )
    assert contents(folder) == before


def test_a_new_folder_that_could_not_be_finished_is_not_there_at_all(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    tokenizer = read_folder(written.path).tokenizer
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FolderError, match="the disk is full"):
        write_folder(tmp_path / "new", config_to_dict(written.sizes, []), {"one": torch.ones(1)}, tokenizer, {})
    assert list(tmp_path.iterdir()) == []
