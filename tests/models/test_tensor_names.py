"""The table of foreign names: there and back without loss, and what loading takes, lacks and leaves."""

import pytest
import torch
from torch import nn

from bertworks.encoders.bert import Bert, BertConfig, tensor_names
from bertworks.errors import FolderError
from bertworks.models.tensor_names import LoadReport, combine_name_tables, from_hf_names, load_into, to_hf_names

SIZES = BertConfig(
    vocab_size=11,
    hidden_size=4,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=6,
    max_position_embeddings=5,
)
# A small module with one product where they have two.
NAMES = {"weight": ("first.weight", "second.weight"), "bias": ("first.bias", "second.bias")}
TWO = {
    "first.weight": torch.tensor([[1.0, 2.0]]),
    "second.weight": torch.tensor([[3.0, 4.0]]),
    "first.bias": torch.tensor([5.0]),
    "second.bias": torch.tensor([6.0]),
}


def test_theirs_are_stacked_row_under_row():
    ours = from_hf_names(TWO, NAMES)
    assert ours["weight"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert ours["bias"].tolist() == [5.0, 6.0]


def test_ours_are_cut_back_into_theirs():
    theirs = to_hf_names(from_hf_names(TWO, NAMES), NAMES)
    assert {name: values.tolist() for name, values in theirs.items()} == {
        name: values.tolist() for name, values in TWO.items()
    }


def test_an_encoder_goes_there_and_back_without_loss():
    state = Bert(SIZES, torch.Generator().manual_seed(0)).state_dict()
    back = from_hf_names(to_hf_names(state, tensor_names(SIZES)), tensor_names(SIZES))
    assert list(back) == list(tensor_names(SIZES))
    assert set(back) == set(state)
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_query_key_and_value_stand_one_under_the_other():
    state = {"layers.1.attention.query_key_value.weight": torch.arange(48.0).view(12, 4)}
    names = {name: theirs for name, theirs in tensor_names(SIZES).items() if name in state}
    theirs = to_hf_names(state, names)
    place = "bert.encoder.layer.1.attention.self"
    assert list(theirs) == [f"{place}.query.weight", f"{place}.key.weight", f"{place}.value.weight"]
    assert theirs[f"{place}.key.weight"].tolist() == torch.arange(16.0, 32.0).view(4, 4).tolist()


def test_loading_reports_what_it_took_lacked_and_left():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    before = module[1].weight.detach().clone()
    names = combine_name_tables({"0": NAMES, "1": {"weight": ("head.weight",)}})
    report = load_into(module, TWO | {"other": torch.zeros(1)}, names)
    taken = ("first.weight", "second.weight", "first.bias", "second.bias")
    assert report == LoadReport(taken, ("head.weight",), ("other",))
    assert module[0].weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert torch.equal(module[1].weight, before)


def test_loading_keeps_the_parameters_so_that_an_optimizer_still_holds_them():
    module = nn.Linear(2, 2)
    weight = module.weight
    load_into(module, TWO, NAMES)
    assert module.weight is weight


def test_half_precision_is_loaded_in_the_precision_of_the_module():
    module = nn.Linear(2, 2)
    load_into(module, {name: values.half() for name, values in TWO.items()}, NAMES)
    assert module.weight.dtype == torch.float32
    assert module.weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_parameter_without_memory_becomes_a_real_one_of_its_own():
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    ready = {"weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "bias": torch.zeros(2)}
    load_into(module, ready, {"weight": ("weight",), "bias": ("bias",)})
    ready["weight"].zero_()
    assert module.weight.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert module.weight.requires_grad


def test_a_tensor_of_another_size_is_refused_with_both_sizes():
    with pytest.raises(FolderError) as caught:
        load_into(nn.Linear(2, 3), {"weight": torch.zeros(2, 2)}, {"weight": ("weight",)})
    assert str(caught.value) == (
        "tensor 'weight' should be (3, 2), but is (2, 2); bring weights of the same sizes as the model"
    )


def test_a_parameter_of_which_only_a_part_is_there_is_refused():
    with pytest.raises(FolderError, match=r"'first\.weight' is there but 'second\.weight' is not"):
        load_into(nn.Linear(2, 2), {"first.weight": TWO["first.weight"]}, NAMES)


def test_a_single_number_goes_to_a_folder_and_back():
    module = torch.nn.Module()
    module.gamma = torch.nn.Parameter(torch.tensor(2.5))
    theirs = to_hf_names(module.state_dict(), {"gamma": ("head.gamma",)})
    assert theirs["head.gamma"].shape == ()
    load_into(module, {"head.gamma": torch.tensor(1.5)}, {"gamma": ("head.gamma",)})
    assert module.gamma.item() == 1.5


def test_a_table_that_is_told_and_not_learned_stays_no_parameter():
    with torch.device("meta"):
        module = torch.nn.Module()
        module.register_buffer("spelling", torch.zeros(2, 3, dtype=torch.uint8))
    load_into(module, {"e.spelling": torch.ones(2, 3, dtype=torch.uint8)}, {"spelling": ("e.spelling",)})
    assert module.spelling.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert list(module.parameters()) == []
    assert list(module.state_dict()) == ["spelling"]
