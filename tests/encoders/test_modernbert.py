"""ModernBERT: both forms of its config.json, pooling, variants, finite values, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from family_models import randomize_weights
from family_parity import load_peer, make_peer, small_config
from random_weights import randomize_parameters

from bertworks.encoders.families import family_of
from bertworks.encoders.layers import DropoutSeeds
from bertworks.encoders.modernbert import ModernBert, ModernBertConfig, tensor_names
from bertworks.errors import SettingsError
from bertworks.models.folder import load_encoder, read_folder
from bertworks.models.tensor_names import load_into
from bertworks.sampling.batch import Batch
from bertworks.tasks.classify import Classify
from bertworks.tasks.module import TaskModule

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5
FAMILY = family_of("modernbert")
CONFIG = ModernBertConfig(vocab_size=70).resized(
    hidden_size=24, num_hidden_layers=4, num_attention_heads=3, intermediate_size=40, max_length=64, local_attention=8
)
# As config.json of the released base model, with another size of the vocabulary.
RELEASED = {
    "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
    "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False,
    "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 768, "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02, "intermediate_size": 1152, "layer_norm_eps": 1e-05, "local_attention": 128,
    "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False, "mlp_dropout": 0.0,
    "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 12,
    "num_hidden_layers": 22, "pad_token_id": 50283, "position_embedding_type": "absolute", "sep_token_id": 50282,
    "tie_word_embeddings": True, "torch_dtype": "float32", "vocab_size": 50368,
}  # fmt: skip


def make_batch(lengths: tuple[int, ...]) -> Batch:
    input_ids = torch.randint(5, 70, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    return Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor(lengths))


def mask_of(batch: Batch) -> torch.Tensor:
    return torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]


def test_the_released_config_and_the_one_that_transformers_writes_today_are_the_same():
    config = FAMILY.config_from_dict(RELEASED)
    expected = ModernBertConfig(classifier_pooling="mean")
    assert config == expected
    assert expected.resized(**ModernBertConfig.presets["base"]) == expected
    written = transformers.AutoConfig.for_model(**RELEASED).to_dict()
    for key in ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"):
        written.pop(key, None)
    assert {"layer_types", "rope_parameters"} <= written.keys()
    assert FAMILY.config_from_dict(written) == expected


def test_other_thetas_and_intervals_are_read_in_both_forms():
    old = {**RELEASED, "global_attn_every_n_layers": 2, "global_rope_theta": 80_000, "local_rope_theta": None}
    config = FAMILY.config_from_dict(old)
    assert isinstance(config, ModernBertConfig)
    assert (config.global_attn_every_n_layers, config.global_rope_theta, config.local_rope_theta) == (2, 80_000, 80_000)
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 5e5}, "sliding_attention": None}
    config = FAMILY.config_from_dict({**RELEASED, "layer_types": kinds * 5 + kinds[:2], "rope_parameters": rope})
    assert isinstance(config, ModernBertConfig)
    assert (config.global_attn_every_n_layers, config.global_rope_theta, config.local_rope_theta) == (4, 5e5, 1e4)
    global_only = FAMILY.config_from_dict({**RELEASED, "layer_types": ["full_attention"] * 22})
    assert isinstance(global_only, ModernBertConfig)
    assert global_only.global_attn_every_n_layers == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True),
        ("mlp_bias", True),
        ("norm_bias", True),
        ("classifier_bias", True),
        ("decoder_bias", False),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("layer_types", ["sliding_attention"] * 22),
        ("layer_types", ["full_attention", "full_attention", "sliding_attention"]),
        ("layer_types", []),
        ("layer_types", "full_attention"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 1e4}),
        ("rope_parameters", {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}),
        ("rope_parameters", [1]),
    ],
)
def test_what_is_not_implemented_is_refused(key: str, value: Any):
    with pytest.raises(SettingsError, match=f"{key} is .*, but only .* supported"):
        FAMILY.config_from_dict({**RELEASED, key: value})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("global_rope_theta", 0, "global_rope_theta should be a number above 0, but is 0"),
        ("local_rope_theta", "10000", "local_rope_theta should be a number above 0"),
        ("classifier_pooling", "max", "classifier_pooling is .*max.*; choose one of: cls, mean"),
        ("num_attention_heads", 256, "gives heads of 3 values, but rotary positions need an even number"),
        ("hidden_activation", "swiglu", "there is no activation 'swiglu'"),
        ("global_attn_every_n_layers", 0, "global_attn_every_n_layers should be a whole number above 0"),
    ],
)
def test_values_that_no_model_has_are_refused(key: str, value: Any, message: str):
    with pytest.raises(SettingsError, match=message):
        FAMILY.config_from_dict({**RELEASED, key: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"global_attn_every_n_layers": 2, "local_attention": 7},
        {"global_attn_every_n_layers": 1},
        {"local_attention": 1},
        {"local_attention": 64, "local_rope_theta": 500.0},
        {"hidden_act": "silu", "num_hidden_layers": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("lengths", [(60, 60), (60, 60, 60, 60, 41), (33, 12, 5, 33)], ids=str)
def test_variants_of_the_config_equal_transformers(settings: dict[str, Any], lengths: tuple[int, ...]):
    config = CONFIG.resized(**settings)
    peer_config = transformers.AutoConfig.for_model(**{**FAMILY.config_to_dict(config, []), "pad_token_id": 1})
    peer = randomize_parameters(transformers.ModernBertModel(peer_config)).eval()
    ours = ModernBert(config).eval()
    weights = {f"model.{name}": values for name, values in peer.state_dict().items()}
    report = load_into(ours, weights, tensor_names(config))
    assert (report.unexpected_keys, report.missing_keys) == ((), ("head.dense.weight", "head.norm.weight"))
    batch = make_batch(lengths)
    mask = mask_of(batch)
    with torch.no_grad():
        expected = peer(batch.input_ids, attention_mask=mask.long()).last_hidden_state[mask]
        assert float((ours(batch).to_padded()[mask] - expected).abs().max()) < TOLERANCE
    with torch.inference_mode():
        assert float((ours(batch).to_padded()[mask] - expected).abs().max()) < TOLERANCE


@pytest.mark.parametrize("lengths", [(20, 20, 20), (17, 3, 9)], ids=str)
def test_a_classifier_that_pools_the_mean_equals_transformers(lengths: tuple[int, ...]):
    config = small_config("modernbert").resized(classifier_pooling="mean")
    peer = make_peer(config, "sequence", 3)
    ours = TaskModule(FAMILY.build(config, None), Classify(labels=("a", "b", "c"))).eval()
    load_peer(ours, peer, config, {"head": "sequence"})
    batch = make_batch(lengths)
    expected = peer(batch.input_ids, attention_mask=mask_of(batch).long()).logits
    assert float((ours.outputs(batch) - expected).detach().abs().max()) < TOLERANCE
    encoder = ours.encoder
    assert float((ours.head.score(encoder(batch).pooled) - expected).detach().abs().max()) < TOLERANCE  # type: ignore[operator]
    at_positions = encoder(batch, positions=torch.tensor([1, 2]))
    assert at_positions.pooled is None
    assert at_positions.last_hidden_state.shape == (2, 24)


def test_the_transform_of_a_masked_lm_is_that_of_a_new_classifier(tmp_path: Path):
    """As in transformers, where all heads have the same names."""
    config_dict = {**FAMILY.config_to_dict(CONFIG, []), "pad_token_id": 1}
    peer = randomize_weights(transformers.ModernBertForMaskedLM(transformers.AutoConfig.for_model(**config_dict)))
    peer.save_pretrained(tmp_path)
    encoder, report = load_encoder(read_folder(tmp_path))
    assert report.missing_keys == ()
    vectors = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(encoder.pool(vectors), peer.head(vectors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_inference", [False, True], ids=["training", "inference"])
def test_long_texts_and_much_padding_give_finite_values_and_gradients(dtype: torch.dtype, is_inference: bool):
    config = CONFIG.resized(max_length=700)
    encoder = randomize_parameters(ModernBert(config)).train(not is_inference)
    batch = make_batch((700,) * 10 + (40,))  # nearly full: computed with its padding in training
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), torch.inference_mode(is_inference):
        encoded = encoder(batch, seeds=DropoutSeeds(torch.tensor(1, dtype=torch.int32)))
    assert all(values.isfinite().all() for values in (*encoded.hidden_states, encoded.pooled))
    if not is_inference:
        (encoded.last_hidden_state.mean() + encoded.pooled.mean()).backward()
        assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())


def test_dropout_follows_the_seed_everywhere():
    encoder = randomize_parameters(ModernBert(CONFIG)).train()
    assert isinstance(encoder, ModernBert)
    encoder.set_dropout(0.3)
    config = encoder.config
    assert (config.embedding_dropout, config.attention_dropout, config.mlp_dropout) == (0.3, 0.3, 0.3)
    batch = make_batch((40, 40))
    first, again, other = (
        encoder(batch, seeds=DropoutSeeds(torch.tensor(seed, dtype=torch.int32))).last_hidden_state
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_what_is_added_to_the_residual_stream_is_initialized_smaller():
    encoder = ModernBert(CONFIG.resized(hidden_size=64, num_attention_heads=2), torch.Generator().manual_seed(0))
    layer = encoder.layers[1]
    cut = 0.02 * 0.8796  # the standard deviation of a normal distribution truncated at two
    assert float(layer.intermediate.weight.detach().std()) == pytest.approx(cut, rel=0.05)
    for module in (layer.output, layer.attention.out, encoder.pooler):
        assert float(module.weight.detach().std()) == pytest.approx(cut / 8**0.5, rel=0.05)
