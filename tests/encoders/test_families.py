"""One suite over every encoder: parity with transformers both ways, attention, padding, configs, depths."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import transformers
from graph_batches import sequences_of
from random_weights import randomize_parameters

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.encoder import Encoder
from bertworks.encoders.families import CLASS_SUFFIXES, ENCODERS, architecture_of, family_of, shapes_of
from bertworks.encoders.family import Family
from bertworks.encoders.layers import ACTIVATIONS
from bertworks.engines.graph_encoder import GraphEncoder
from bertworks.engines.runtimes import RUNTIMES
from bertworks.errors import SettingsError
from bertworks.models.tensor_names import load_into, to_hf_names
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
LENGTHS = {"full": (9, 9), "nearly full": (20, 19, 20), "ragged": (17, 3, 3, 1, 8)}
LSTMS = ("elmo", "awd-lstm")
TOKEN_TYPES = [name for name, family in ENCODERS.items() if family.has_token_types]
# Settings without which a part of the family would not be tested, and keys that transformers' configs do not have.
SETTINGS = {
    "ernie": {"use_task_id": True},
    "deberta-v2": {"position_buckets": 8},
    "modernbert": {"local_attention": 6},
}
OWN_KEYS = {
    "xlnet": {"n_positions"},
    "electra": {"generator_size"},
    "deberta-v2": {
        "position_buckets",
        "share_att_key",
        "norm_rel_ebd",
        "conv_kernel_size",
        "conv_groups",
        "conv_act",
    },
    "modernbert": {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"},  # read, not written
}


def make_config(model_type: str) -> EncoderConfig:
    """A small model of the family, with sizes that differ from one another."""
    config = ENCODERS[model_type].config_from_preset("tiny", 70)
    if model_type == "static":
        return config.resized(hidden_size=24, max_length=40)
    heads = {} if model_type in LSTMS else {"num_attention_heads": 3}
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 96, "max_length": 40, **heads}
    return config.resized(**sizes, **SETTINGS.get(model_type, {}))


def make_peer(config: EncoderConfig) -> Any:
    """transformers' encoder with this config and random weights."""
    config_dict = family_of(config.model_type).config_to_dict(config, [architecture_of(config)])
    specials = dict.fromkeys(family_of(config.model_type).special_ids, 1)
    peer_config = transformers.AutoConfig.for_model(**specials | config_dict, attn_implementation="eager")
    return randomize_parameters(getattr(transformers, architecture_of(config))(peer_config)).eval()


def weights_of(peer: Any, family: Family) -> dict[str, torch.Tensor]:
    """The trained weights of transformers' encoder under their names in a file, without copies and sinusoids."""
    named = {family.prefix + name: values for name, values in peer.state_dict().items()}
    fixed = {*family.copies, *(name for name in named if name.endswith("embed_positions.weight"))}
    return {name: values for name, values in named.items() if name not in fixed}


def make_batch(lengths: tuple[int, ...], config: EncoderConfig) -> Batch:
    generator = torch.Generator().manual_seed(len(lengths))
    input_ids = torch.randint(5, config.vocab_size, (len(lengths), max(lengths)), generator=generator)
    token_type_ids = torch.zeros_like(input_ids)
    for sequence, length in enumerate(lengths):
        if config.model_type in TOKEN_TYPES:
            token_type_ids[sequence, length // 2 : length] = 1
        input_ids[sequence, length:] = 1  # RoBERTa's padding token, which has no position
    return Batch(input_ids=input_ids, token_type_ids=token_type_ids, lengths=torch.tensor(lengths))


def is_token(batch: Batch) -> torch.Tensor:
    return torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]


def peer_hidden_states(peer: Any, batch: Batch, config: EncoderConfig) -> list[torch.Tensor]:
    mask = is_token(batch)
    token_types = {"token_type_ids": batch.token_type_ids} if config.model_type in TOKEN_TYPES else {}
    peer = peer.get_encoder() if peer.config.is_encoder_decoder else peer
    with torch.no_grad():
        output = peer(batch.input_ids, attention_mask=mask.long(), output_hidden_states=True, **token_types)
    return [values[mask] for values in output.hidden_states]


@pytest.fixture(params=list(ENCODERS))
def config(request: pytest.FixtureRequest) -> EncoderConfig:
    return make_config(request.param)


@pytest.fixture
def encoder(config: EncoderConfig) -> Encoder:
    """An encoder in double precision."""
    encoder = randomize_parameters(family_of(config.model_type).build(config, None)).double().eval()
    assert isinstance(encoder, Encoder)
    return encoder


IN_TRANSFORMERS = [name for name, family in ENCODERS.items() if hasattr(transformers, family.class_prefix + "Model")]


@pytest.fixture(params=IN_TRANSFORMERS)
def pair(request: pytest.FixtureRequest) -> tuple[Encoder, Any]:
    """Our encoder and transformers', with the same weights."""
    config = make_config(request.param)
    family, peer = family_of(config.model_type), make_peer(config)
    ours = family.build(config, None).eval()
    report = load_into(ours, weights_of(peer, family), family.tensor_names(config))
    assert all(name.startswith(family.optional_prefixes) for name in report.missing_keys)  # some have no pooler
    assert report.unexpected_keys == ()
    return ours, peer


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_layer_equals_that_of_transformers(pair: tuple[Encoder, Any], lengths: tuple[int, ...]):
    ours, peer = pair
    batch = make_batch(lengths, ours.config)
    with torch.no_grad():
        encoded = ours(batch)
    expected = peer_hidden_states(peer, batch, ours.config)
    assert len(encoded.hidden_states) == len(expected)
    for layer, values in enumerate(expected):
        assert float((encoded.to_padded(layer)[is_token(batch)] - values).abs().max()) < TOLERANCE


def test_weights_are_written_under_transformers_names(pair: tuple[Encoder, Any]):
    ours, peer = pair
    family = family_of(ours.config.model_type)
    written = to_hf_names(ours.state_dict(), family.tensor_names(ours.config))
    expected = weights_of(peer, family)
    assert all(name.startswith(family.optional_prefixes) for name in set(written) - set(expected))
    for name, values in expected.items():
        assert torch.equal(written[name], values)
    shapes = shapes_of(family, ours.config)
    assert {name: shapes[name] for name in expected} == {name: tuple(one.shape) for name, one in expected.items()}


def test_a_config_survives_a_config_json(config: EncoderConfig):
    family = family_of(config.model_type)
    config_dict = family.config_to_dict(config, [architecture_of(config)])
    assert family.config_from_dict(config_dict) == config
    names = [field.name for field in fields(config)]
    assert list(config_dict) == ["model_type", "architectures", *names, *config.required_values]


@pytest.mark.parametrize("model_type", IN_TRANSFORMERS)
def test_the_keys_of_a_config_are_transformers_keys(model_type: str):
    config_dict = family_of(model_type).config_to_dict(make_config(model_type), [])
    known = set(transformers.AutoConfig.for_model(model_type).to_dict())
    assert set(config_dict) - known == OWN_KEYS.get(model_type, set())


def test_common_names_of_a_config_are_its_own_keys(config: EncoderConfig):
    resized = config.resized(hidden_size=48, max_length=20, dropout_prob=0.3)
    assert (resized.hidden_size, resized.max_length, resized.hidden_dropout_prob) == (48, 20, 0.3)
    assert resized.vocab_size == config.vocab_size
    assert len(resized.hidden_sizes) == resized.num_hidden_layers + 1


def test_a_size_that_a_family_does_not_have_is_refused():
    for model_type in (*LSTMS, "static"):
        config = make_config(model_type)
        with pytest.raises(SettingsError, match=f"the family '{model_type}' has no num_attention_heads; leave it out"):
            config.resized(num_attention_heads=2)
        with pytest.raises(SettingsError, match="has no Transformer layers"):
            _ = config.layer_config


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_the_last_layer_at_some_positions_equals_that_at_all(encoder: Encoder, lengths: tuple[int, ...]):
    batch = make_batch(lengths, encoder.config)
    positions = torch.tensor([batch.input_ids.shape[1] * (len(lengths) - 1), lengths[0] - 1, 0])
    with torch.no_grad():
        whole, partial = encoder(batch), encoder(batch, positions=positions)
    assert float((whole.gather(positions) - partial.gather(positions)).abs().max()) < 1e-10
    assert float((whole.pooled - partial.pooled).abs().max()) < 1e-10


def test_padding_does_not_change_the_output(encoder: Encoder):
    batch = make_batch((7,), encoder.config)
    padded = replace(
        batch,
        input_ids=torch.cat([batch.input_ids, batch.input_ids.new_ones(1, 5)], 1),
        token_type_ids=torch.cat([batch.token_type_ids, batch.token_type_ids.new_zeros(1, 5)], 1),
    )
    with torch.no_grad():
        one, other = (encoder(inputs).to_padded()[0, :7] for inputs in (batch, padded))
    assert float((one - other).abs().max()) < 1e-10


def visible_positions(model_type: str, attention: str, position: int, length: int) -> set[int]:
    """Return the positions that the output at `position` may depend on."""
    if model_type == "static":
        return {position}
    return set(range(position + 1 if attention == "causal" else length))


def test_an_output_depends_on_exactly_the_positions_that_its_attention_allows(encoder: Encoder):
    attentions = [attention for attention in encoder.supported_attention if attention != "mask"]
    assert attentions
    for attention in attentions:
        batch = replace(make_batch((9,), encoder.config), attention=attention)
        layout = encoder.create_layout(batch)
        embeddings = encoder.embed(batch, layout).detach().requires_grad_()
        encoder.forward_layers(embeddings, layout).last_hidden_state[3].sum().backward()
        assert embeddings.grad is not None
        gradients = embeddings.grad.abs().amax(1)
        positions = {position for position in range(9) if gradients[position] > 0}
        assert positions == visible_positions(encoder.config.model_type, attention, 3, 9)


def test_attention_that_an_encoder_does_not_support_is_refused():
    encoder = ENCODERS["openai-gpt"].build(make_config("openai-gpt"), None)
    with pytest.raises(SettingsError, match="supports attention causal only"):
        encoder(replace(make_batch((5,), encoder.config), attention="bidirectional"))


def test_layer_depths_are_embeddings_layers_and_pooler(encoder: Encoder):
    depths, num_layers = encoder.layer_depths(), encoder.config.num_hidden_layers
    assert depths.keys() == {name for name, _ in encoder.named_parameters()}
    for name, depth in depths.items():
        if name.startswith("layers."):
            index = int(name.split(".")[1])
            assert depth == (num_layers if index == len(encoder.layers) - 1 else index + 1)
        else:
            assert depth == (num_layers + 1 if name.startswith("pooler") else 0)


def test_only_lstms_and_static_vectors_have_no_counterpart_in_transformers():
    assert set(ENCODERS) - set(IN_TRANSFORMERS) == {*LSTMS, "static"}


@pytest.mark.parametrize("model_type", IN_TRANSFORMERS)
def test_every_kind_of_head_has_a_class_in_transformers(model_type: str):
    family = family_of(model_type)
    for kind in family.heads:
        if kind in ("nsp", "generator"):  # transformers has them with other heads or as models of their own
            continue
        assert hasattr(transformers, family.class_prefix + CLASS_SUFFIXES[kind]), kind


def test_layers_of_albert_share_their_weights():
    config = make_config("albert")
    shallow, deep = (
        ENCODERS["albert"].build(config.resized(num_hidden_layers=num_layers), None) for num_layers in (3, 9)
    )
    assert sum(one.numel() for one in shallow.parameters()) == sum(one.numel() for one in deep.parameters())


def test_positions_of_roberta_follow_the_padding_token():
    config = ENCODERS["roberta"].config_from_preset("tiny", 70).resized(max_length=40).with_pad_token_id(3)
    assert (config.first_position, config.max_length) == (4, 40)
    assert family_of("roberta").config_to_dict(config, [])["max_position_embeddings"] == 44
    config_dict = {**family_of("roberta").config_to_dict(config, []), "pad_token_id": 43}
    with pytest.raises(SettingsError, match="pad_token_id should be the id of the padding token, but 43 leaves none"):
        family_of("roberta").config_from_dict(config_dict)


def test_the_intermediate_size_of_gpt_is_four_times_the_hidden_size():
    config = make_config("openai-gpt")
    assert config.layer_config.intermediate_size == 96
    with pytest.raises(SettingsError, match=r"intermediate_size is 50, but a GPT's is 4 \* hidden_size"):
        config.resized(intermediate_size=50)


@pytest.mark.parametrize("num_groups", [2, 3])
@torch.inference_mode()
def test_albert_with_several_groups_of_layers_has_the_hidden_states_of_transformers(num_groups: int):
    config = make_config("albert").resized(num_hidden_layers=6, num_hidden_groups=num_groups)
    peer = make_peer(config)
    encoder = family_of("albert").build(config, None).eval()
    report = load_into(encoder, weights_of(peer, family_of("albert")), family_of("albert").tensor_names(config))
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    batch = make_batch((9, 9), config)
    theirs = peer(batch.input_ids, token_type_ids=batch.token_type_ids, output_hidden_states=True)
    for ours, expected in zip(encoder(batch).hidden_states, theirs.hidden_states, strict=True):
        assert (ours.view_as(expected) - expected).abs().max() < TOLERANCE
    depths = encoder.layer_depths()
    last_depths = [depths[f"layers.{group}.norm.bias"] for group in range(num_groups)]
    assert last_depths == [(group + 1) * 6 // num_groups for group in range(num_groups)]


@torch.inference_mode()
def test_albert_with_several_layers_in_a_group_runs_them_each_time():
    """Both have the hidden states after each of the two layers of a group."""
    config = make_config("albert").resized(num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2)
    peer, family = make_peer(config), family_of("albert")
    encoder = family.build(config, None).eval()
    report = load_into(encoder, weights_of(peer, family), family.tensor_names(config))
    assert (report.missing_keys, report.unexpected_keys) == ((), ())
    batch = make_batch((9, 9), config)
    theirs = peer(batch.input_ids, token_type_ids=batch.token_type_ids, output_hidden_states=True)
    hidden_states = encoder(batch).hidden_states
    assert len(hidden_states) == len(config.hidden_sizes) == 9
    for ours, expected in zip(hidden_states, theirs.hidden_states, strict=True):
        assert (ours.view_as(expected) - expected).abs().max() < TOLERANCE
    depths = encoder.layer_depths()
    assert [depths[f"layers.{index}.norm.bias"] for index in range(4)] == [3, 4, 7, 8]
    assert depths["pooler.bias"] == 9
    runtime = RUNTIMES["onnx"].from_encoder(encoder, None, True)
    actual = GraphEncoder(config, runtime).encode_sequences(sequences_of(batch), 0).last_hidden_state
    assert abs(actual - hidden_states[-1].numpy()).max() < 1e-4


def test_an_albert_with_more_groups_than_layers_is_refused():
    config_dict = family_of("albert").config_to_dict(make_config("albert"), [])
    with pytest.raises(SettingsError, match="num_hidden_groups is 4, but there are only 3 layers"):
        family_of("albert").config_from_dict({**config_dict, "num_hidden_groups": 4})


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_transformers(name: str):
    values = torch.linspace(-6, 6, 241)
    expected = transformers.activations.ACT2FN[name](values)
    assert (ACTIVATIONS[name](values) - expected).abs().max() < 1e-6


def test_a_model_with_one_token_type_does_not_distinguish_those_of_a_vocabulary():
    encoder = randomize_parameters(family_of("xlm-roberta").build(make_config("xlm-roberta"), None)).eval()
    batch = make_batch((9, 5), encoder.config)
    pair = replace(batch, token_type_ids=torch.ones_like(batch.token_type_ids))
    with torch.no_grad():
        assert torch.equal(encoder(batch).last_hidden_state, encoder(pair).last_hidden_state)
        components = encoder.embedding_components(batch.input_ids[0], pair.token_type_ids[0])
    assert torch.equal(components["token_type"], encoder.token_type_embeddings.weight.expand(9, -1))
