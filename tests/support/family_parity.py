"""Parity of families with transformers: small configs, peers with random weights, and gradients under their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from bertworks.encoders.config import EncoderConfig
from bertworks.encoders.families import ENCODERS, architecture_of, family_of
from bertworks.models.tensor_names import combine_name_tables, load_into, to_hf_names
from bertworks.models.weights import Weights, normalize_names, wrap_tensors

# Settings without which a part of a family would not be tested.
SETTINGS: dict[str, dict[str, Any]] = {
    "ernie": {"use_task_id": True},
    "deberta-v2": {"position_buckets": 8},
    "modernbert": {"local_attention": 6},
    "openai-gpt": {"pad_token_id": 1},
}
NOT_IN_TRANSFORMERS = ("elmo", "awd-lstm", "static")


def small_config(model_type: str) -> EncoderConfig:
    """Return a small config of a Transformer, with sizes that differ from one another and without dropout."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    config = family_of(model_type).config_from_preset("tiny", 70)
    return config.resized(**sizes, max_length=40, dropout_prob=0.0, **SETTINGS.get(model_type, {}))


def families_with(kind: str) -> list[str]:
    """Return the families that have this kind of head here and in transformers."""
    names = [name for name, family in ENCODERS.items() if kind in family.heads and name not in NOT_IN_TRANSFORMERS]
    return [name for name in names if hasattr(transformers, architecture_of(small_config(name), kind))]


def make_peer(config: EncoderConfig, kind: str, num_labels: int = 2) -> Any:
    """Return transformers' model with this config and kind of head; norms are near 1, everything else near 0."""
    family = family_of(config.model_type)
    config_dict = family.config_to_dict(config, [])
    keys = {"num_labels": num_labels, **dict.fromkeys(family.special_ids, 1), **config_dict}
    peer_config = transformers.AutoConfig.for_model(**keys, attn_implementation="eager")
    peer = getattr(transformers, architecture_of(config, kind))(peer_config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.2, generator=generator)
    return peer


def load_peer(ours: nn.Module, peer: Any, config: EncoderConfig, heads: Mapping[str, str]) -> None:
    """Load the weights of a peer into an encoder with heads (attribute -> kind), as from a folder."""
    family, names = family_of(config.model_type), names_of(config, heads)
    entries = wrap_tensors(Path("model.safetensors"), peer.state_dict())
    report = load_into(ours, Weights(normalize_names(entries, family, family.tensor_names(config))), names)
    assert report.unexpected_keys == ()
    assert all(name.startswith(family.optional_prefixes) for name in report.missing_keys)


def names_of(config: EncoderConfig, heads: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    family = family_of(config.model_type)
    tables = {part: family.heads[kind] for part, kind in heads.items()}
    return combine_name_tables({"encoder": family.tensor_names(config), **tables})


def assert_same_gradients(
    ours: nn.Module, peer: Any, config: EncoderConfig, heads: Mapping[str, str], tolerance: float
) -> None:
    """Assert that all gradients of our module are those of the peer, and that no other parameter of it has one."""
    names, family = names_of(config, heads), family_of(config.model_type)
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    written = to_hf_names(gradients, {name: theirs for name, theirs in names.items() if name in gradients})
    overrides = {old: new for kind in heads.values() for old, new in family.prefix_overrides.get(kind, {}).items()}
    for name, values in written.items():
        prefix = next((old for old in overrides if name.startswith(old)), "")
        expected = peer.get_parameter(overrides.get(prefix, "") + name.removeprefix(prefix)).grad
        assert float((values - expected).abs().max()) < tolerance, name
    with_gradient = {id(parameter) for parameter in peer.parameters() if parameter.grad is not None}
    assert len(with_gradient) == len(written)
