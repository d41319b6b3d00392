"""DeBERTa-v2: buckets of relative positions, token types, and configs that are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from random_weights import randomize_parameters
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from bertworks.encoders.deberta_v2 import DebertaV2, DebertaV2Config, tensor_names
from bertworks.encoders.disentangled_attention import log_buckets
from bertworks.encoders.families import family_of
from bertworks.errors import SettingsError
from bertworks.models.folder import load_encoder, read_folder
from bertworks.models.tensor_names import load_into
from bertworks.objectives.heads import MlmHead
from bertworks.sampling.batch import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = DebertaV2Config(vocab_size=70).resized(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48, max_length=40, position_buckets=8
)


def test_small_relative_positions_have_buckets_of_their_own_and_large_ones_share_them():
    # 8 buckets: up to 4 each its own; 5 to 39 are 4 + ceil(3 log(p / 4) / log(39 / 4)).
    positions = torch.tensor([0, 1, 4, 5, 8, 9, 18, 19, 39, -3, -5, -39])
    assert log_buckets(positions, 8, 40).tolist() == [0, 1, 4, 5, 5, 6, 6, 7, 7, -3, -5, -7]


@pytest.mark.parametrize(("num_buckets", "max_position"), [(8, 40), (256, 512), (32, 128), (10, 64)])
def test_buckets_equal_those_of_transformers(num_buckets: int, max_position: int):
    positions = torch.arange(1 - max_position, max_position)
    expected = make_log_bucket_position(positions, num_buckets, max_position).long()
    assert torch.equal(log_buckets(positions, num_buckets, max_position), expected)


VARIANTS: list[dict[str, Any]] = [
    {"type_vocab_size": 2},
    {"position_buckets": -1},
    {"max_relative_positions": 12},
    {"pos_att_type": ("c2p",)},
    {"pos_att_type": ("p2c",)},
    {"pos_att_type": ()},
    {"share_att_key": False},
    {"share_att_key": False, "pos_att_type": ("p2c",)},
    {"share_att_key": False, "pos_att_type": ("c2p",), "position_buckets": -1},
    {"conv_kernel_size": 3, "conv_act": "gelu"},
    {"conv_kernel_size": 5, "conv_groups": 2, "share_att_key": False},
    {"conv_kernel_size": 3, "num_hidden_layers": 1},
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_variants_of_the_config_equal_transformers(settings: dict[str, Any]):
    config = CONFIG.resized(**settings)
    config_dict = family_of("deberta-v2").config_to_dict(config, [])
    peer = randomize_parameters(transformers.DebertaV2Model(transformers.AutoConfig.for_model(**config_dict))).eval()
    ours = DebertaV2(config).eval()
    weights = {f"deberta.{name}": values for name, values in peer.state_dict().items()}
    report = load_into(ours, weights, tensor_names(config))
    assert (report.unexpected_keys, len(report.missing_keys)) == ((), 2)  # the pooler
    input_ids = torch.randint(5, 70, (2, 30), generator=torch.Generator().manual_seed(0))
    token_type_ids = (torch.arange(30) > 11).long().expand(2, 30)
    lengths, positions = torch.tensor([30, 21]), torch.tensor([3, 33])
    batch = Batch(input_ids=input_ids, token_type_ids=token_type_ids, lengths=lengths)
    mask = (torch.arange(30) < lengths[:, None]).long()
    with torch.no_grad():
        expected = peer(input_ids, mask, token_type_ids).last_hidden_state
        difference = (ours(batch).to_padded() - expected) * mask[..., None]
        at_positions = ours(batch, positions=positions).gather(positions)
    assert float(difference.abs().max()) < 1e-5
    assert float((at_positions - expected.flatten(0, 1)[positions]).abs().max()) < 1e-5


def test_kinds_of_attention_are_read_as_a_list_and_as_a_string():
    config_dict = family_of("deberta-v2").config_to_dict(CONFIG, [])
    for kinds in (["c2p", "p2c"], "p2c|c2p", "c2p | p2c"):
        assert family_of("deberta-v2").config_from_dict({**config_dict, "pos_att_type": kinds}) == CONFIG


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("relative_attention", False),
        ("norm_rel_ebd", "none"),
        ("position_biased_input", True),
        ("pos_att_type", ["p2p"]),
        ("conv_kernel_size", 4),
        ("embedding_size", 12),
        ("attention_head_size", 64),
    ],
)
def test_what_is_not_implemented_is_refused(key: str, value: Any):
    config_dict = {**family_of("deberta-v2").config_to_dict(CONFIG, []), key: value}
    with pytest.raises(SettingsError, match=f"{key} is .*, but only .* is supported"):
        family_of("deberta-v2").config_from_dict(config_dict)


def test_the_head_of_a_masked_lm_that_is_not_legacy_equals_transformers(tmp_path: Path):
    """Its tensors have other names, as in Microsoft's releases of version 3."""
    config = transformers.DebertaV2Config(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_buckets=8,
        legacy=False,
    )
    peer = transformers.DebertaV2ForMaskedLM(config).eval()
    randomize_parameters(peer)
    peer.save_pretrained(tmp_path)
    folder = read_folder(tmp_path)
    assert any(name.startswith("lm_predictions.") for name in peer.state_dict())
    encoder, report = load_encoder(folder)
    head = MlmHead(encoder.config)
    assert not load_into(head, folder.tensors, folder.family.heads["mlm"]).missing_keys
    assert len(report.missing_keys) == 2  # the pooler
    input_ids = torch.randint(5, 40, (2, 7), generator=torch.Generator().manual_seed(1))
    batch = Batch(input_ids=input_ids, token_type_ids=torch.zeros_like(input_ids), lengths=torch.tensor([7, 7]))
    with torch.no_grad():
        vectors = encoder.eval()(batch).last_hidden_state.view(2, 7, -1)
        logits = head.transform(vectors) @ encoder.token_embeddings.weight.T + head.bias
        torch.testing.assert_close(logits, peer(input_ids).logits, atol=1e-5, rtol=0)
