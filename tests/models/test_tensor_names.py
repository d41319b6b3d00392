"""Tensor names: Hugging Face's to ours and back without loss, and the report of loading."""

import pytest
import torch
from torch import nn

from bertworks.encoders.bert import Bert, BertConfig, tensor_names
from bertworks.errors import FolderError
from bertworks.models.load_report import LoadReport
from bertworks.models.tensor_names import combine_name_tables, from_hf_names, load_into, to_hf_names

CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=4,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=6,
    max_position_embeddings=5,
)
# A module with one linear where Hugging Face has two.
NAMES = {"weight": ("first.weight", "second.weight"), "bias": ("first.bias", "second.bias")}
HF_TENSORS = {
    "first.weight": torch.tensor([[1.0, 2.0]]),
    "second.weight": torch.tensor([[3.0, 4.0]]),
    "first.bias": torch.tensor([5.0]),
    "second.bias": torch.tensor([6.0]),
}


def test_several_tensors_are_fused_row_by_row():
    ours = from_hf_names(HF_TENSORS, NAMES)
    assert ours["weight"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert ours["bias"].tolist() == [5.0, 6.0]


def test_fused_tensors_are_split_again():
    theirs = to_hf_names(from_hf_names(HF_TENSORS, NAMES), NAMES)
    assert {name: values.tolist() for name, values in theirs.items()} == {
        name: values.tolist() for name, values in HF_TENSORS.items()
    }


def test_the_names_of_an_encoder_convert_back_without_loss():
    state = Bert(CONFIG, torch.Generator().manual_seed(0)).state_dict()
    converted = from_hf_names(to_hf_names(state, tensor_names(CONFIG)), tensor_names(CONFIG))
    assert list(converted) == list(tensor_names(CONFIG))
    assert set(converted) == set(state)
    assert all(torch.equal(converted[name], state[name]) for name in state)


def test_query_key_and_value_are_fused_in_this_order():
    state = {"layers.1.attention.query_key_value.weight": torch.arange(48.0).view(12, 4)}
    names = {name: theirs for name, theirs in tensor_names(CONFIG).items() if name in state}
    theirs = to_hf_names(state, names)
    prefix = "bert.encoder.layer.1.attention.self"
    assert list(theirs) == [f"{prefix}.query.weight", f"{prefix}.key.weight", f"{prefix}.value.weight"]
    assert theirs[f"{prefix}.key.weight"].tolist() == torch.arange(16.0, 32.0).view(4, 4).tolist()


def test_loading_reports_loaded_missing_and_unexpected_keys():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    before = module[1].weight.detach().clone()
    names = combine_name_tables({"0": NAMES, "1": {"weight": ("head.weight",)}})
    report = load_into(module, HF_TENSORS | {"other": torch.zeros(1)}, names)
    loaded = ("first.weight", "second.weight", "first.bias", "second.bias")
    assert report == LoadReport(loaded, ("head.weight",), ("other",))
    assert module[0].weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert torch.equal(module[1].weight, before)


def test_loading_keeps_parameter_objects():
    module = nn.Linear(2, 2)
    weight = module.weight
    load_into(module, HF_TENSORS, NAMES)
    assert module.weight is weight


def test_fp16_tensors_are_loaded_in_the_dtype_of_the_module():
    module = nn.Linear(2, 2)
    load_into(module, {name: values.half() for name, values in HF_TENSORS.items()}, NAMES)
    assert module.weight.dtype == torch.float32
    assert module.weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_parameter_on_the_meta_device_is_materialized_as_a_copy():
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    tensors = {"weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "bias": torch.zeros(2)}
    load_into(module, tensors, {"weight": ("weight",), "bias": ("bias",)})
    tensors["weight"].zero_()
    assert module.weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert module.weight.requires_grad


def test_a_tensor_of_another_shape_is_refused_with_both_shapes():
    with pytest.raises(FolderError) as caught:
        load_into(nn.Linear(2, 3), {"weight": torch.zeros(2, 2)}, {"weight": ("weight",)})
    assert str(caught.value) == (
        "tensor 'weight' should have shape (3, 2), but has (2, 2); use weights that fit the config of the model"
    )


def test_an_incomplete_fused_parameter_is_refused():
    with pytest.raises(FolderError, match=r"'first\.weight' exists but 'second\.weight' does not"):
        load_into(nn.Linear(2, 2), {"first.weight": HF_TENSORS["first.weight"]}, NAMES)


def test_scalars_are_converted_and_loaded():
    module = torch.nn.Module()
    module.gamma = torch.nn.Parameter(torch.tensor(2.5))
    theirs = to_hf_names(module.state_dict(), {"gamma": ("head.gamma",)})
    assert theirs["head.gamma"].shape == ()
    load_into(module, {"head.gamma": torch.tensor(1.5)}, {"gamma": ("head.gamma",)})
    assert module.gamma.item() == 1.5


def test_a_buffer_stays_a_buffer():
    with torch.device("meta"):
        module = torch.nn.Module()
        module.register_buffer("spelling", torch.zeros(2, 3, dtype=torch.uint8))
    load_into(module, {"e.spelling": torch.ones(2, 3, dtype=torch.uint8)}, {"spelling": ("e.spelling",)})
    assert module.spelling.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert list(module.parameters()) == []
    assert list(module.state_dict()) == ["spelling"]
