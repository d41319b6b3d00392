"""Weights: safetensors, truncated, sharded; pickles without code execution; old and tied names."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from file_size import max_file_size
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bertworks.encoders.families import ENCODERS, family_of
from bertworks.encoders.tensor_names import NameTable
from bertworks.errors import BertworksError, FolderError
from bertworks.models.weight_files import find_weights
from bertworks.models.weights import (
    Weights,
    normalize_names,
    open_weights,
    untied_output,
    wrap_tensors,
    write_weights,
)

BERT = ENCODERS["bert"]
TABLE: NameTable = {
    "norm.weight": ("bert.embeddings.LayerNorm.weight",),
    "pooler.bias": ("bert.pooler.dense.bias",),
    "layers.0.intermediate.bias": ("bert.encoder.layer.0.intermediate.dense.bias",),
}
TENSORS = {"one": torch.tensor([1.0, 2.0]), "two": torch.tensor([[3], [4]])}


def read(folder: Path) -> Weights:
    file = find_weights(folder)
    assert file is not None
    return Weights(open_weights(file))


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def to_lists(tensors: Weights) -> dict[str, list[float]]:
    return {name: tensors[name].tolist() for name in tensors}


def names_after(*names: str) -> list[str]:
    stored = wrap_tensors(Path("file"), {name: torch.zeros(1) for name in names})
    return list(normalize_names(stored, BERT, TABLE))


def test_safetensors_are_read_by_name(tmp_path: Path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    tensors = read(tmp_path)
    assert to_lists(tensors) == {"one": [1.0, 2.0], "two": [[3], [4]]}
    assert (len(tensors), "one" in tensors, "three" in tensors) == (2, True, False)
    assert {name: entry.shape for name, entry in tensors.entries.items()} == {"one": (2,), "two": (2, 1)}


def test_opened_weights_stay_readable_when_the_file_is_replaced(tmp_path: Path):
    write_weights(tmp_path / "model.safetensors", TENSORS)
    tensors = read(tmp_path)
    write_weights(tmp_path / "model.safetensors", {"one": torch.zeros(5)})
    assert tensors["one"].tolist() == [1.0, 2.0]


def test_written_weights_have_torch_metadata_and_views_are_copied(tmp_path: Path):
    base = torch.arange(6.0).view(3, 2)
    write_weights(tmp_path / "model.safetensors", {"b": base[1:], "a": base[:1], "c": base.t()})
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert {name: file.get_tensor(name).tolist() for name in file.keys()} == {  # noqa: SIM118
            "a": [[0.0, 1.0]],
            "b": [[2.0, 3.0], [4.0, 5.0]],
            "c": [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]],
        }
    assert names_in(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize("keep", [0, 4, 30, 150])
def test_truncated_safetensors_are_refused(tmp_path: Path, keep: int):
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    data = file.read_bytes()
    assert keep < len(data)
    file.write_bytes(data[:keep])
    with pytest.raises(FolderError, match=r"model\.safetensors is damaged or truncated .*download it again"):
        read(tmp_path)


def test_damaged_safetensors_are_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 1_000)
    with pytest.raises(FolderError, match=r"model\.safetensors is damaged"):
        read(tmp_path)


def test_a_git_lfs_pointer_is_recognized(tmp_path: Path):
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(FolderError, match="only a Git LFS pointer; fetch the file itself with: git lfs pull"):
        read(tmp_path)


def write_shards(folder: Path, weight_map: dict[str, object]) -> Path:
    save_file({"one": TENSORS["one"]}, folder / "model-00001-of-00002.safetensors")
    save_file({"two": TENSORS["two"]}, folder / "model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_sharded_safetensors_are_read_by_their_index(tmp_path: Path):
    weight_map = {"one": "model-00001-of-00002.safetensors", "two": "model-00002-of-00002.safetensors"}
    assert to_lists(read(write_shards(tmp_path, weight_map))) == {"one": [1.0, 2.0], "two": [[3], [4]]}


@pytest.mark.parametrize(
    ("file_name", "message"),
    [
        ("model-00003-of-00002.safetensors", "there is no such file in its folder"),
        ("../model.safetensors", "which is no file of this folder"),
        ("model-00001-of-00002.safetensors", r"model-00001-of-00002\.safetensors should hold 'two', but does not"),
        (7, "should list the file of each tensor under 'weight_map'"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, file_name: object, message: str):
    with pytest.raises(FolderError, match=message):
        read(write_shards(tmp_path, {"one": "model-00001-of-00002.safetensors", "two": file_name}))


def test_a_bin_is_read_without_safetensors(tmp_path: Path):
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    assert to_lists(read(tmp_path)) == {"one": [1.0, 2.0], "two": [[3], [4]]}


def test_sharded_bins_are_read_by_their_index(tmp_path: Path):
    for number, name in enumerate(TENSORS, 1):
        torch.save({name: TENSORS[name]}, tmp_path / f"pytorch_model-0000{number}-of-00002.bin")
    weight_map = {"one": "pytorch_model-00001-of-00002.bin", "two": "pytorch_model-00002-of-00002.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert to_lists(read(tmp_path)) == {"one": [1.0, 2.0], "two": [[3], [4]]}


class MaliciousPickle:
    """A pickle that creates a folder when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self.victim),))


@pytest.mark.parametrize("kind", ["bare pickle", "archive"])
def test_a_malicious_bin_is_refused_without_executing_it(tmp_path: Path, kind: str):
    victim = tmp_path / "victim"
    file = tmp_path / "pytorch_model.bin"
    if kind == "archive":
        torch.save({"one": TENSORS["one"], "trap": MaliciousPickle(victim)}, file)
    else:
        file.write_bytes(pickle.dumps({"trap": MaliciousPickle(victim)}, protocol=2))
    with pytest.raises(FolderError, match=r"pytorch_model\.bin holds other Python objects.*Nothing in it was executed"):
        read(tmp_path)
    assert not victim.exists()


def test_a_bin_next_to_safetensors_is_not_read(tmp_path: Path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    victim = tmp_path / "victim"
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(MaliciousPickle(victim)))
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps(MaliciousPickle(victim)))
    assert read(tmp_path)["one"].tolist() == [1.0, 2.0]
    assert not victim.exists()


@pytest.mark.parametrize("content", [{"one": TENSORS["one"], "epoch": 3}, [1, 2], {"state": {"one": TENSORS["one"]}}])
def test_a_bin_that_is_no_state_dict_is_refused(tmp_path: Path, content: object):
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(FolderError, match="should hold a state_dict and nothing else"):
        read(tmp_path)


@pytest.mark.parametrize("keep", [0, 2, 100, 400])
def test_a_truncated_bin_is_refused(tmp_path: Path, keep: int):
    file = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, file)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(FolderError, match=r"pytorch_model\.bin .*is damaged"):
        read(tmp_path)


def test_old_names_of_norms_are_converted():
    assert names_after("bert.embeddings.LayerNorm.gamma", "bert.encoder.layer.0.output.LayerNorm.beta") == [
        "bert.embeddings.LayerNorm.weight",
        "bert.encoder.layer.0.output.LayerNorm.bias",
    ]


def test_a_bare_encoder_gets_its_prefix_and_heads_keep_their_names():
    assert names_after("embeddings.LayerNorm.gamma", "encoder.layer.0.output.dense.bias", "pooler.dense.bias") == [
        "bert.embeddings.LayerNorm.weight",
        "bert.encoder.layer.0.output.dense.bias",
        "bert.pooler.dense.bias",
    ]
    heads = ["cls.seq_relationship.weight", "classifier.weight", "qa_outputs.bias"]
    assert names_after(*heads) == heads


def test_buffers_are_dropped():
    assert names_after("bert.embeddings.position_ids", "embeddings.token_type_ids", "bert.pooler.dense.bias") == [
        "bert.pooler.dense.bias"
    ]


def test_a_duplicate_name_is_refused():
    with pytest.raises(FolderError, match=r"'bert\.pooler\.dense\.bias' twice, the second time as 'pooler\.dense"):
        names_after("bert.pooler.dense.bias", "pooler.dense.bias")


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert", "mpnet"])
@pytest.mark.parametrize("head_first", [True, False])
def test_the_layer_of_a_classifier_wins_over_an_unused_pooler(model_type: str, head_first: bool):
    family = family_of(model_type)
    pooler = f"{family.prefix}pooler.dense.bias"
    tensors = {"classifier.dense.bias": torch.tensor([1.0]), pooler: torch.tensor([2.0])}
    stored = wrap_tensors(Path("file"), tensors if head_first else dict(reversed(tensors.items())))
    entries = normalize_names(stored, family, {"pooler.bias": (pooler,)})
    assert to_lists(Weights(entries)) == {pooler: [1.0]}  # as transformers: the pooler is no part of its classifiers


TIED = {
    "bert.embeddings.word_embeddings.weight": torch.tensor([[1.0], [2.0]]),
    "cls.predictions.decoder.weight": torch.tensor([[1.0], [2.0]]),
    "cls.predictions.bias": torch.tensor([3.0, 4.0]),
    "cls.predictions.decoder.bias": torch.tensor([3.0, 4.0]),
}


def test_copies_of_tied_tensors_are_dropped():
    entries = normalize_names(wrap_tensors(Path("file"), TIED), BERT, TABLE)
    assert list(entries) == ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"]


def test_a_copy_replaces_a_missing_original():
    tensors = {name: value for name, value in TIED.items() if name != "cls.predictions.bias"}
    entries = normalize_names(wrap_tensors(Path("file"), tensors), BERT, TABLE)
    assert list(entries) == ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"]
    assert entries["cls.predictions.bias"].read().tolist() == [3.0, 4.0]


def test_untied_output_embeddings_of_a_masked_lm_are_kept_and_their_bias_is_the_heads():
    tensors = TIED | {
        "cls.predictions.decoder.weight": torch.tensor([[1.0], [2.5]]),
        "cls.predictions.decoder.bias": torch.tensor([5.0, 6.0]),
    }
    entries = normalize_names(wrap_tensors(Path("file"), tensors), BERT, TABLE)
    assert untied_output(BERT, entries) == "cls.predictions.decoder.weight"
    assert entries["cls.predictions.decoder.weight"].read().tolist() == [[1.0], [2.5]]
    assert entries["cls.predictions.bias"].read().tolist() == [5.0, 6.0]
    assert untied_output(BERT, normalize_names(wrap_tensors(Path("file"), TIED), BERT, TABLE)) is None


def test_untied_output_embeddings_of_a_causal_lm_are_refused():
    gpt = family_of("openai-gpt")
    tensors = {
        "transformer.tokens_embed.weight": torch.tensor([[1.0], [2.0]]),
        "lm_head.weight": torch.tensor([[1.0], [2.5]]),
    }
    with pytest.raises(FolderError, match=r"'lm_head\.weight' should be tied to 'transformer\.tokens_embed"):
        normalize_names(wrap_tensors(Path("file"), tensors), gpt, {"e": ("transformer.tokens_embed.weight",)})


def test_the_prefix_of_data_parallel_modules_is_removed():
    assert names_after("module.bert.pooler.dense.bias", "module.classifier.weight") == [
        "bert.pooler.dense.bias",
        "classifier.weight",
    ]


def test_a_parameter_of_a_bare_encoder_without_a_module_gets_the_prefix():
    entries = wrap_tensors(Path("file"), {"mask_emb": torch.zeros(1), "lm_loss.bias": torch.zeros(1)})
    names = normalize_names(entries, family_of("xlnet"), {"mask_embedding": ("transformer.mask_emb",)})
    assert list(names) == ["transformer.mask_emb", "lm_loss.bias"]


def test_weights_have_default_file_permissions(tmp_path: Path):
    (tmp_path / "other").write_text("")
    write_weights(tmp_path / "model.safetensors", TENSORS)
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_write_is_explained_and_leaves_the_old_file(tmp_path: Path):
    file = tmp_path / "model.safetensors"
    write_weights(file, {"one": torch.zeros(2)})
    before = file.read_bytes()
    message = r"cannot write .*model\.safetensors: .*too large"
    with max_file_size(10_000), pytest.raises(FolderError, match=message):
        write_weights(file, {"one": torch.ones(100_000)})
    assert file.read_bytes() == before
    assert names_in(tmp_path) == ["model.safetensors"]


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def disk_full(*_: object, **__: object) -> None:  # the message of safetensors
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("bertworks.models.weights.save_file", disk_full)
    with pytest.raises(FolderError, match=r"model\.safetensors: no space left on the disk of .*; free some space"):
        write_weights(tmp_path / "model.safetensors", TENSORS)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_an_unreadable_file_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    (tmp_path / name).write_bytes(b"whole")
    real_open = Path.open

    def refuse(path: Path, *args: str, **kwargs: str) -> object:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FolderError) as error:
        read(tmp_path)
    assert str(error.value).endswith(f"{name} cannot be read: reading it is not allowed; change its permissions")


def test_a_bin_whose_tensor_repeats_one_number_is_refused(tmp_path: Path):
    torch.save({"one": torch.zeros(1).expand(2**20, 2**20)}, tmp_path / "pytorch_model.bin")  # 4 TB, if it were copied
    with pytest.raises(FolderError, match="claims 4,398,046,511,104 bytes of tensors, more than it holds"):
        read(tmp_path)


def test_a_bin_whose_tensors_are_tied_is_read(tmp_path: Path):
    tied = torch.arange(4.0)
    torch.save({"one": tied, "two": tied}, tmp_path / "pytorch_model.bin")
    assert to_lists(read(tmp_path)) == {"one": [0, 1, 2, 3], "two": [0, 1, 2, 3]}


def test_a_compressed_bin_is_refused(tmp_path: Path):
    torch.save({"one": torch.zeros(2**20)}, tmp_path / "whole.bin")
    with (
        zipfile.ZipFile(tmp_path / "whole.bin") as whole,
        zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    with pytest.raises(FolderError, match=r"its archive is compressed, which torch\.save never does"):
        read(tmp_path)


def test_a_bin_that_claims_more_values_than_it_stores_is_refused(tmp_path: Path):
    torch.save({"one": torch.zeros(7)}, tmp_path / "whole.bin")
    with (
        zipfile.ZipFile(tmp_path / "whole.bin") as whole,
        zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as changed,
    ):
        for name in whole.namelist():
            data = whole.read(name)
            # In the pickle K is the opcode of a small integer: 7 values become 255.
            changed.writestr(name, data.replace(b"K\x07", b"K\xff") if name.endswith("data.pkl") else data)
    with pytest.raises(FolderError):
        read(tmp_path)


def test_a_name_of_300_characters_in_an_index_is_refused(tmp_path: Path):
    index = {"weight_map": {"one": "n" * 300}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BertworksError, match="its name is too long for a file"):
        read(tmp_path)
