"""Configs of encoders: a config.json in, a frozen dataclass with the same keys out, and back.

Each family has a config class of its own, whose fields are the keys of its config.json. Code that works for all
families reads the properties of `EncoderConfig`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, fields, replace
from types import NoneType
from typing import Any, ClassVar, Protocol, Self, TypeVar, get_args, get_origin, get_type_hints

from bertworks.encoders.layers import LayerConfig
from bertworks.encoders.memory import ActivationBytes, transformer_activation_bytes
from bertworks.errors import SettingsError, show_value

# Number of layers, hidden size and attention heads of the released BERTs; the intermediate size is 4 * hidden size.
TRANSFORMER_PRESETS: dict[str, dict[str, Any]] = {
    name: {"num_hidden_layers": num_layers, "hidden_size": hidden_size, "num_attention_heads": num_heads}
    for name, (num_layers, hidden_size, num_heads) in {
        "tiny": (2, 128, 2),
        "mini": (4, 256, 4),
        "small": (4, 512, 8),
        "medium": (8, 512, 8),
        "base": (12, 768, 12),
        "large": (24, 1024, 16),
    }.items()
}
# Keys of a config.json that change the result, with the only value that is implemented.
SUPPORTED_VALUES: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": {},
}
# Metadata of a field whose key may be missing in a config.json, and of one that may be 0.
OPTIONAL = {"optional": True}
OPTIONAL_OR_ZERO = {"optional": True, "minimum": 0}
# Metadata of a number that may be 1 or more.
ABOVE_ZERO = {"above_zero": True}
# What a mistyped or hostile file can make us build is bounded: published models are far below these sizes.
MAX_LAYERS = 1_000
MAX_POSITIONS = 2**17
MAX_SIZE = 2**24
_LARGEST = {"max_position_embeddings": MAX_POSITIONS, "n_positions": MAX_POSITIONS, "max_length": MAX_POSITIONS}


class EncoderConfig(Protocol):
    """What code for all families reads of a config; the config classes of the families inherit the defaults.

    model_type         as in config.json
    presets            named sizes: the arguments of `resized`
    attribute_map      argument of `resized` -> the family's fields, where the names differ
    supported_values   keys of a config.json that are no fields -> the only value that is implemented
    required_values    the same for keys that transformers has another default for: they must be stated, and are written
    target_ratio       the usual ratio of tokens that are predicted in pretraining, for memory estimates
    """

    model_type: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    attribute_map: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    supported_values: ClassVar[Mapping[str, Any]] = {}
    required_values: ClassVar[Mapping[str, Any]] = {}
    target_ratio: ClassVar[float] = 0.15

    def __hash__(self) -> int:
        return id(self)  # for type checkers: each config is a frozen dataclass, which hashes its fields

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def max_length(self) -> int:
        """The number of tokens of the longest sequence."""
        ...

    @property
    def hidden_dropout_prob(self) -> float: ...
    @property
    def initializer_range(self) -> float: ...

    @property
    def token_embedding_size(self) -> int:
        return self.hidden_size

    @property
    def type_vocab_size(self) -> int:
        """The number of token types; 0 without token type embeddings."""
        return 0

    @property
    def pooled_size(self) -> int:
        """The size of the pooled output."""
        return self.hidden_size

    @property
    def depth(self) -> int:
        """The number of layers that are run one after the other."""
        return self.num_hidden_layers

    @property
    def hidden_sizes(self) -> tuple[int, ...]:
        """The sizes of the embeddings and of the output of each layer."""
        return (self.hidden_size,) * (self.depth + 1)

    @property
    def first_position(self) -> int:
        """The row of the position embeddings that belongs to the first token."""
        return 0

    @property
    def layer_config(self) -> LayerConfig:
        """The config of a Transformer layer."""
        raise SettingsError(f"a model of the family '{self.model_type}' has no Transformer layers")

    @property
    def hidden_act(self) -> str:
        return self.layer_config.hidden_act

    @property
    def mlm_hidden_act(self) -> str:
        """The activation of the masked LM head."""
        return self.hidden_act

    @property
    def layer_norm_eps(self) -> float:
        return self.layer_config.layer_norm_eps

    @property
    def has_mlm_transform(self) -> bool:
        """Whether the masked LM head has a transform of its own; otherwise the pooler comes before every head."""
        return True

    @property
    def feed_forward_size(self) -> int:
        """The size of the largest part of a layer, for cost estimates."""
        return self.layer_config.intermediate_size

    def activation_bytes(self, max_length: int) -> ActivationBytes:
        """Estimate the activation memory of a training step per token."""
        return transformer_activation_bytes(self.layer_config, max_length, self.target_ratio)

    @classmethod
    def from_preset(cls, name: str, vocab_size: int) -> Self:
        """Return the config of a named size."""
        if name not in cls.presets:
            raise SettingsError(
                f"there is no size '{name}' of the family '{cls.model_type}'; choose one of: {', '.join(cls.presets)}"
            )
        return cls(vocab_size=vocab_size).resized(**cls.presets[name])  # type: ignore[call-arg]

    def resized(self, **changes: Any) -> Self:
        """Return the config with other sizes, named alike for all families.

        The names are hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, max_length, hidden_act,
        dropout_prob (everywhere) and the family's own fields. Without an intermediate_size, a new hidden_size sets it
        to 4 * hidden_size.
        """
        minimums = {field.name: _minimum(field) for field in fields(self)}  # type: ignore[arg-type]
        intermediate = self.attribute_map.get("intermediate_size", ("intermediate_size",))
        if "hidden_size" in changes and minimums.keys() >= set(intermediate):
            changes.setdefault("intermediate_size", 4 * changes["hidden_size"])
        values = {}
        for name, value in changes.items():
            for key in self.attribute_map.get(name, (name,)):
                if key not in minimums:
                    raise SettingsError(f"the family '{self.model_type}' has no {name}; leave it out")
                values[key] = value
        for key, value in values.items():
            check_size(key, value, minimums[key])
        return replace(self, **values)  # type: ignore[type-var]

    @classmethod
    def normalize(cls, config_dict: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a config.json with the keys of this class, where a family has been written with others, or with other
        defaults."""
        return config_dict

    def check_supported(self, config_dict: Mapping[str, Any]) -> None:
        """Refuse values of a config.json that are not implemented."""
        for key, value in {**self.supported_values, **self.required_values}.items():
            is_missing = config_dict.get(key) is None
            if config_dict.get(key) != value and not (is_missing and key in self.supported_values):
                stated = show_value(config_dict.get(key))
                raise SettingsError(f"{key} is {stated}, but only {value!r} is supported; choose another model")

    def with_pad_token_id(self, pad_token_id: int) -> Self:
        """Return the config for a vocabulary with this padding token; the positions of some families depend on it."""
        return self


C = TypeVar("C", bound=EncoderConfig)


def config_from_dict(config_class: type[C], config_dict: Mapping[str, Any]) -> C:
    """Return the config that a config.json states; refuse values that are invalid or not implemented."""
    hints, config_dict = get_type_hints(config_class), config_class.normalize(config_dict)
    values = {field.name: _read_value(field, hints[field.name], config_dict) for field in fields(config_class)}  # type: ignore[arg-type]
    config = config_class(**values)
    config.check_supported(config_dict)
    return config


def config_to_dict(config: EncoderConfig, architectures: Sequence[str]) -> dict[str, Any]:
    """Return the config.json; `architectures` are names of transformers' classes, such as BertForPreTraining."""
    values = {name: _to_lists(value) for name, value in asdict(config).items()}  # type: ignore[call-overload]
    return {
        "model_type": config.model_type,
        "architectures": list(architectures),
        **values,
        **config.required_values,
    }


def check_activation(name: str, activations: Mapping[str, object]) -> None:
    """Refuse an activation function that is not implemented."""
    if name not in activations:
        raise SettingsError(f"there is no activation '{name}'; choose one of: {', '.join(activations)}")


def check_size(name: str, value: object, minimum: int = 1) -> None:
    """Refuse a number of layers, a size or a length that no model has; values that are no numbers are not checked."""
    largest = _LARGEST.get(name, MAX_LAYERS if "layer" in name else MAX_SIZE)
    if isinstance(value, int) and not isinstance(value, bool) and not minimum <= value <= largest:
        raise SettingsError(f"{name} is {show_value(value)}; it must be from {minimum:,} to {largest:,}")


def check_num_heads(hidden_size: int, num_heads: int) -> None:
    """Refuse a number of attention heads that does not divide the hidden size."""
    if hidden_size % num_heads:
        raise SettingsError(
            f"a hidden size of {hidden_size} cannot be divided among {num_heads} attention heads; choose a multiple"
        )


def _read_value(field: Field[Any], hint: Any, config_dict: Mapping[str, Any]) -> Any:
    """Return the value of a field. Sizes must be stated, unless the field is optional; the rest has defaults."""
    kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
    is_required = kinds[0] not in (float, str, bool) and not field.metadata.get("optional")
    value = config_dict.get(field.name, None if is_required else field.default)
    if value is None and NoneType in kinds:
        return None
    if isinstance(value, list) and get_origin(kinds[0]) is tuple:
        return _to_tuples(value)
    if field.metadata.get("above_zero"):
        is_valid, expected = _is_above_zero(value), "a number above 0"
    else:
        is_valid = _is_valid(value, kinds[0], field)
        expected = _PROBABILITY if _is_probability(field) else _EXPECTED.get(kinds[0], "a list")
    if not is_valid:
        raise SettingsError(
            f"{field.name} should be {expected}, but is {show_value(value)}; use the model's own config.json"
        )
    check_size(field.name, value, _minimum(field))
    return value


_PROBABILITY = "a number from 0 to below 1"
_EXPECTED = {
    int: "a whole number above 0",
    float: "a number from 0 up",
    str: "a string",
    bool: "true or false",
}


def _is_above_zero(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _minimum(field: Field[Any]) -> int:
    """Return the smallest value of a field: a size is 1 or more, a number with a fraction may be 0."""
    minimum: int = field.metadata.get("minimum", 0 if isinstance(field.default, float) else 1)
    return minimum


def _is_probability(field: Field[Any]) -> bool:
    return isinstance(field.default, float) and "drop" in field.name


def _is_valid(value: object, kind: Any, field: Field[Any]) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is str:
        return isinstance(value, str)
    if kind is int:
        return isinstance(value, int) and value >= _minimum(field)
    if kind is float:
        return isinstance(value, int | float) and 0 <= value < (1 if _is_probability(field) else math.inf)
    return isinstance(value, tuple)


def _to_tuples(value: Any) -> Any:
    return tuple(_to_tuples(item) for item in value) if isinstance(value, list) else value


def _to_lists(value: Any) -> Any:
    return [_to_lists(item) for item in value] if isinstance(value, tuple) else value
