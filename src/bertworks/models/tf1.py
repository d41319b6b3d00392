"""One of Google's BERT releases in, config and tensors under Hugging Face's names out. No TensorFlow is needed.

A release is a folder with `bert_config.json`, `vocab.txt` and a checkpoint. TensorFlow multiplies a row by a kernel,
torch by the transpose of a weight; otherwise only names differ. H is the width, F the inner width of a layer.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertworks.disk import read_json
from bertworks.errors import FolderError
from bertworks.models.tf1_checkpoint import TensorflowCheckpoint, find_checkpoint, read_checkpoint

__all__ = ["Checkpoint", "MappingReport", "Release", "import_release", "read_checkpoint"]

Shape = tuple[int, ...]

REQUIRED_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
# What Google's own reader assumes when a config does not say.
DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
# What the code of the release fixes and Hugging Face keeps in the config.
FIXED_SETTINGS: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForPreTraining"],
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
# Scalars that optimizers and loss scaling keep beside the weights.
TRAINING_STATE_NAMES = {"global_step", "beta1_power", "beta2_power", "loss_scale", "good_steps", "bad_steps"}


@dataclass(frozen=True, slots=True)
class MappingReport:
    """What became of each tensor and setting: nothing is left out in silence.

    `mapped`: TensorFlow's name -> Hugging Face's. `skipped`: state of the training by kind ("adam_m") -> how many.
    `missing`: parts outside the encoder (pooler, heads) that the checkpoint does not have, in Hugging Face's names.
    `unknown`: tensors without a place in a pretrained BERT. `ignored_settings`: keys of the config nobody reads.
    """

    mapped_names: dict[str, str]
    num_skipped: dict[str, int]
    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]
    ignored_settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """A release as the Hugging Face ecosystem would hold it: config.json's content, and float32 tensors by name."""

    config: dict[str, Any]
    tensors: dict[str, npt.NDArray[np.float32]]
    report: MappingReport


def import_release(folder_or_prefix: Path) -> Release:
    """Read a release: its folder, or the prefix of one checkpoint with bert_config.json beside it.

    The tensors are those of transformers' BertForPreTraining without `cls.predictions.decoder`, which is tied to the
    word embeddings and to `cls.predictions.bias`. All of them are in memory at once: 440 MB for BERT-base.
    """
    prefix = find_checkpoint(folder_or_prefix)
    checkpoint = read_checkpoint(prefix)
    config, ignored_settings = _read_config(prefix.parent / "bert_config.json")
    places = expected_tensors(config)
    _check_tensors(checkpoint, places)
    tensors, mapped = {}, {}
    for name, (target, _) in places.items():
        if name in checkpoint.entries:
            tensors[target] = _read(checkpoint, name)
            mapped[name] = target
    rest = [name for name in checkpoint.entries if name not in places]
    kinds = {name: _kind_of_state(name, checkpoint) for name in rest}
    report = MappingReport(
        mapped_names=mapped,
        num_skipped=dict(Counter(kind for kind in kinds.values() if kind)),
        missing_keys=tuple(target for name, (target, _) in places.items() if name not in mapped),
        unexpected_keys=tuple(name for name in rest if not kinds[name]),
        ignored_settings=ignored_settings,
    )
    return Release(config, tensors, report)


def expected_tensors(config: dict[str, Any]) -> dict[str, tuple[str, Shape]]:
    """The tensors a release with this config holds: TensorFlow's name -> (Hugging Face's name, TensorFlow's shape)."""
    width = config["hidden_size"]
    shapes: dict[str, Shape] = {
        "bert/embeddings/word_embeddings": (config["vocab_size"], width),
        "bert/embeddings/position_embeddings": (config["max_position_embeddings"], width),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], width),
        **_norm("bert/embeddings/LayerNorm", width),
    }
    for number in range(config["num_hidden_layers"]):
        shapes |= _layer(f"bert/encoder/layer_{number}", width, config["intermediate_size"])
    shapes |= {
        **_dense("bert/pooler/dense", width, width),
        **_dense("cls/predictions/transform/dense", width, width),
        **_norm("cls/predictions/transform/LayerNorm", width),
        "cls/predictions/output_bias": (config["vocab_size"],),
        "cls/seq_relationship/output_weights": (2, width),
        "cls/seq_relationship/output_bias": (2,),
    }
    return {name: (_hf_name(name), shape) for name, shape in shapes.items()}


def _layer(name: str, hidden_size: int, intermediate_size: int) -> dict[str, Shape]:
    return {
        **_dense(f"{name}/attention/self/query", hidden_size, hidden_size),
        **_dense(f"{name}/attention/self/key", hidden_size, hidden_size),
        **_dense(f"{name}/attention/self/value", hidden_size, hidden_size),
        **_dense(f"{name}/attention/output/dense", hidden_size, hidden_size),
        **_norm(f"{name}/attention/output/LayerNorm", hidden_size),
        **_dense(f"{name}/intermediate/dense", hidden_size, intermediate_size),  # (H, F)
        **_dense(f"{name}/output/dense", intermediate_size, hidden_size),  # (F, H)
        **_norm(f"{name}/output/LayerNorm", hidden_size),
    }


def _dense(name: str, rows: int, columns: int) -> dict[str, Shape]:
    return {f"{name}/kernel": (rows, columns), f"{name}/bias": (columns,)}


def _norm(name: str, hidden_size: int) -> dict[str, Shape]:
    return {f"{name}/gamma": (hidden_size,), f"{name}/beta": (hidden_size,)}


def _hf_name(name: str) -> str:
    """Turn TensorFlow's name into Hugging Face's."""
    *path, last = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).split("/")
    if last.endswith("_embeddings"):
        path.append(last)
    ends = {"beta": "bias", "bias": "bias", "output_bias": "bias"}
    return ".".join([*path, ends.get(last, "weight")])


def _read(checkpoint: TensorflowCheckpoint, name: str) -> npt.NDArray[np.float32]:
    values = checkpoint.tensor(name)
    if not np.issubdtype(values.dtype, np.floating):
        raise FolderError(f"{checkpoint.prefix}: tensor '{name}' should hold real numbers, but holds {values.dtype}")
    if name.endswith("/kernel"):
        values = values.T
    return np.ascontiguousarray(values, dtype=np.float32)


def _check_tensors(checkpoint: TensorflowCheckpoint, specs: dict[str, tuple[str, Shape]]) -> None:
    """Refuse a checkpoint that lacks a part of the encoder, or has a tensor of another shape than the config says."""
    shapes = checkpoint.shapes
    missing = [name for name in specs if name.startswith(("bert/embeddings/", "bert/encoder/")) and name not in shapes]
    if missing:
        raise FolderError(
            f"{checkpoint.prefix} lacks {len(missing)} tensors of the encoder that bert_config.json asks for, first of "
            f"all '{missing[0]}'; it is not a TensorFlow 1 BERT checkpoint, or the config is of another model"
        )
    for name, (_, expected) in specs.items():
        if shapes.get(name, expected) != expected:
            raise FolderError(
                f"{checkpoint.prefix}: tensor '{name}' should be {expected} by bert_config.json, but is "
                f"{shapes[name]}; put the bert_config.json of this checkpoint beside it"
            )


def _kind_of_state(name: str, checkpoint: TensorflowCheckpoint) -> str:
    """Return what kind of training state a tensor is ("adam_m", "global_step"), or nothing if it is none.

    An optimizer names what it keeps for a weight after the weight: bert/pooler/dense/bias/adam_m.
    """
    owner, _, last = name.rpartition("/")
    return last if owner in checkpoint.entries or last in TRAINING_STATE_NAMES else ""


def _read_config(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings as Hugging Face's config.json has them, and the keys that have no place there."""
    found = read_json(path, "a BERT release")
    if not isinstance(found, dict):
        raise FolderError(f"{path} should hold settings in braces, but holds a {type(found).__name__}")
    wrong = [key for key in REQUIRED_KEYS if type(found.get(key)) is not int or found[key] < 1]
    if wrong:
        raise FolderError(
            f"{path} should give a whole number above 0 for {', '.join(wrong)}; bring the release's own file"
        )
    if found["hidden_size"] % found["num_attention_heads"]:
        raise FolderError(
            f"{path}: num_attention_heads {found['num_attention_heads']} does not divide hidden_size "
            f"{found['hidden_size']}; bring the release's own file"
        )
    config = {key: found[key] for key in REQUIRED_KEYS} | {
        key: found.get(key, value) for key, value in DEFAULTS.items()
    }
    return FIXED_SETTINGS | config, tuple(key for key in found if key not in config)
