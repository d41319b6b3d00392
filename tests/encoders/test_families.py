"""One suite over every encoder: parity with transformers both ways, reading, padding, folders of their names."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from random_weights import randomize_parameters

from bertworks.encoders.families import CLASS_SUFFIXES, ENCODERS, Family, architecture_of, family_of, shapes_of
from bertworks.encoders.stack import BertConfig, Encoder
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import load_into, to_hf_names
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CLOSE = 1e-5
LENGTHS = {"full": (9, 9), "nearly full": (20, 19, 20), "ragged": (17, 3, 3, 1, 8)}


def sizes_for(name: str) -> BertConfig:
    """A small model of the family, its numbers unlike one another."""
    usual = ENCODERS[name].config_from_preset("tiny", 70)
    num_heads = 3 if usual.num_attention_heads > 1 else 1  # an LSTM has none to share
    depth = (
        {"num_hidden_layers": 3, "intermediate_size": 96} if usual.num_hidden_layers else {}
    )  # a table has no layers
    return replace(usual, hidden_size=24, num_attention_heads=num_heads, max_position_embeddings=40, **depth)


def peer_of(sizes: BertConfig) -> Any:
    """transformers' encoder of these sizes, with weights of its own."""
    config = family_of(sizes.model_type).config_to_dict(sizes, [architecture_of(sizes)])
    specials = dict.fromkeys(family_of(sizes.model_type).special_ids, 1)
    kind = transformers.AutoConfig.for_model(**specials | config, attn_implementation="eager")
    return randomize_parameters(getattr(transformers, architecture_of(sizes))(kind)).eval()


def weights_of(peer: Any, family: Family) -> dict[str, torch.Tensor]:
    """What transformers' encoder learned, under the names it has in a file; copies and waves are not written."""
    named = {family.prefix + name: values for name, values in peer.state_dict().items()}
    fixed = {*family.copies, *(name for name in named if name.endswith("embed_positions.weight"))}
    return {name: values for name, values in named.items() if name not in fixed}


def batch_with(lengths: tuple[int, ...], sizes: BertConfig) -> Batch:
    generator = torch.Generator().manual_seed(len(lengths))
    ids = torch.randint(5, sizes.vocab_size, (len(lengths), max(lengths)), generator=generator)
    segments = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        if sizes.type_vocab_size > 1:
            segments[row, length // 2 : length] = 1
        ids[row, length:] = 1  # the padding piece of RoBERTa, of which it counts no positions
    return Batch(ids, segments, torch.tensor(lengths))


def theirs_of(peer: Any, batch: Batch, sizes: BertConfig) -> list[torch.Tensor]:
    real = torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    more = {"token_type_ids": batch.token_type_ids} if sizes.type_vocab_size > 1 else {}
    peer = peer.get_encoder() if peer.config.is_encoder_decoder else peer
    with torch.no_grad():
        found = peer(batch.input_ids, attention_mask=real.long(), output_hidden_states=True, **more)
    return [values[real] for values in found.hidden_states]


@pytest.fixture(params=list(ENCODERS))
def sizes(request: pytest.FixtureRequest) -> BertConfig:
    return sizes_for(request.param)


PEERED = [name for name, family in ENCODERS.items() if hasattr(transformers, family.class_prefix + "Model")]


@pytest.fixture(params=PEERED)
def pair(request: pytest.FixtureRequest) -> tuple[Encoder, Any]:
    """Ours and transformers', with the same weights."""
    sizes = sizes_for(request.param)
    family, peer = family_of(sizes.model_type), peer_of(sizes)
    ours = family.build(sizes, None).eval()
    report = load_into(ours, weights_of(peer, family), family.tensor_names(sizes))
    assert all(name.startswith(family.optional_prefixes) for name in report.missing_keys)  # theirs may have no pooler
    assert report.unexpected_keys == ()
    return ours, peer


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_layer_equals_that_of_transformers(pair: tuple[Encoder, Any], lengths: tuple[int, ...]):
    ours, peer = pair
    batch = batch_with(lengths, ours.config)
    with torch.no_grad():
        found = ours(batch)
    real = torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    expected = theirs_of(peer, batch, ours.config)
    assert len(found.hidden_states) == len(expected)
    for number, values in enumerate(expected):
        assert float((found.to_padded(number)[real] - values).abs().max()) < CLOSE


def test_weights_go_back_under_the_names_they_had(pair: tuple[Encoder, Any]):
    ours, peer = pair
    family = family_of(ours.config.model_type)
    back = to_hf_names(ours.state_dict(), family.tensor_names(ours.config))
    expected = weights_of(peer, family)
    assert all(name.startswith(family.optional_prefixes) for name in set(back) - set(expected))
    for name, values in expected.items():
        assert torch.equal(back[name], values)
    shapes = shapes_of(family, ours.config)
    assert {name: shapes[name] for name in expected} == {name: tuple(one.shape) for name, one in expected.items()}


def test_a_config_says_the_sizes_again(sizes: BertConfig):
    family = family_of(sizes.model_type)
    config = family.config_to_dict(sizes, [architecture_of(sizes)])
    assert family.config_from_dict(config) == sizes
    assert config["model_type"] == sizes.model_type


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_the_last_layer_at_some_places_is_that_of_all(sizes: BertConfig, lengths: tuple[int, ...]):
    ours = randomize_parameters(family_of(sizes.model_type).build(sizes, None)).double().eval()
    batch = batch_with(lengths, sizes)
    places = torch.tensor([batch.input_ids.shape[1] * (len(lengths) - 1), lengths[0] - 1, 0])
    with torch.no_grad():
        whole, some = ours(batch), ours(batch, positions=places)
    assert float((whole.gather(places) - some.gather(places)).abs().max()) < 1e-10
    assert float((whole.pooled - some.pooled).abs().max()) < 1e-10


def test_padding_changes_nothing(sizes: BertConfig):
    ours = randomize_parameters(family_of(sizes.model_type).build(sizes, None)).double().eval()
    alone = batch_with((7,), sizes)
    wide = Batch(
        torch.cat([alone.input_ids, alone.input_ids.new_ones(1, 5)], 1), torch.zeros(1, 12).long(), alone.lengths
    )
    wide = replace(wide, token_type_ids=torch.cat([alone.token_type_ids, wide.token_type_ids[:, 7:]], 1))
    with torch.no_grad():
        found = [ours(batch).to_padded()[0, :7] for batch in (alone, wide)]
    assert float((found[0] - found[1]).abs().max()) < 1e-10


def test_a_place_that_may_not_be_read_changes_nothing(sizes: BertConfig):
    ours = randomize_parameters(family_of(sizes.model_type).build(sizes, None)).double().eval()
    batch = batch_with((9,), sizes)
    for reads in set(ours.supported_attention) & {"causal"}:
        layout = ours.create_layout(replace(batch, attention=reads))
        values = ours.embed(batch, layout).detach().requires_grad_()
        ours.forward_layers(values, layout).last_hidden_state[3].sum().backward()
        assert values.grad is not None
        assert values.grad[4:].abs().max() == 0
        assert values.grad[:4].abs().min() > 0


def test_a_way_of_reading_that_an_encoder_cannot_obey_is_refused():
    ours = ENCODERS["openai-gpt"].build(sizes_for("openai-gpt"), None)
    with pytest.raises(SettingsError, match="reads causal only"):
        ours(replace(batch_with((5,), ours.config), attention="bidirectional"))


def test_all_but_those_of_lstms_and_tables_have_a_counterpart_in_transformers():
    assert set(ENCODERS) - set(PEERED) == {"elmo", "awd-lstm", "static"}


@pytest.mark.parametrize("name", PEERED)
def test_every_table_of_a_head_has_a_class_of_transformers(name: str):
    family = family_of(name)
    for kind in family.heads:
        if kind == "nsp":  # it never stands alone
            continue
        assert hasattr(transformers, family.class_prefix + CLASS_SUFFIXES[kind]), kind


def test_layers_of_albert_share_their_weights():
    shallow, deep = sizes_for("albert"), replace(sizes_for("albert"), num_hidden_layers=9)
    counts = [
        sum(one.numel() for one in ENCODERS["albert"].build(sizes, None).parameters()) for sizes in (shallow, deep)
    ]
    assert counts[0] == counts[1]
