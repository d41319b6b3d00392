"""Google's TensorFlow 1 BERT releases in, config and tensors under Hugging Face's names out, without TensorFlow.

A release is a folder with `bert_config.json`, `vocab.txt` and a checkpoint: pretrained, or fine-tuned by
`run_classifier.py` or `run_squad.py`. A kernel of TensorFlow is the transpose of a weight of torch; otherwise only
names differ. D hidden size, I intermediate size.
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
from bertworks.encoders.config import check_size
from bertworks.errors import FolderError, SettingsError
from bertworks.models.tf1_checkpoint import TensorflowCheckpoint, find_checkpoint, read_checkpoint

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
# Defaults of Google's code for keys that a config lacks.
DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
# Google's code computes the approximation by tanh under the name gelu, transformers the exact function; they differ by
# up to 4e-4. transformers' name for the approximation is gelu_new.
RELEASED_ACTIVATIONS = {"gelu": "gelu_new"}
GELU_NOTE = (
    "hidden_act is gelu_new, the approximation by tanh, which Google's code computes under the name gelu; conversions "
    "of the same release for transformers compute the exact gelu"
)
# The heads of fine-tuned checkpoints: TensorFlow's name of the matrix and of the bias -> Hugging Face's module, and the
# architecture.
TASK_HEADS = {
    ("output_weights", "output_bias"): ("classifier", "BertForSequenceClassification"),
    ("cls/squad/output_weights", "cls/squad/output_bias"): ("qa_outputs", "BertForQuestionAnswering"),
}
# Constants of Google's code that Hugging Face has in the config.
FIXED_SETTINGS: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForPreTraining"],
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
# Scalars of optimizers and loss scaling.
TRAINING_STATE_NAMES = {"global_step", "beta1_power", "beta2_power", "loss_scale", "good_steps", "bad_steps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingReport:
    """What happened to each tensor and setting.

    mapped_names       TensorFlow's name -> Hugging Face's name
    num_skipped        kind of training state ("adam_m") -> number of tensors
    missing_keys       tensors outside the encoder (pooler, heads) that the checkpoint lacks, by Hugging Face's names
    unexpected_keys    tensors that are not part of a pretrained BERT
    ignored_settings   keys of the config that are not used
    notes              what is read otherwise than its name says
    """

    mapped_names: dict[str, str]
    num_skipped: dict[str, int]
    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]
    ignored_settings: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """A release in the Hugging Face format: the content of config.json, and float32 tensors by name."""

    config: dict[str, Any]
    tensors: dict[str, npt.NDArray[np.float32]]
    report: MappingReport


def import_release(folder_or_prefix: str | Path) -> Release:
    """Read a release: its folder, or the prefix of a checkpoint with bert_config.json in the same folder.

    The tensors are those of transformers' BertForPreTraining without `cls.predictions.decoder`, which is tied to the
    word embeddings and to `cls.predictions.bias`, and those of a head of a task. All of them are in memory at once:
    440 MB for BERT-base.
    """
    prefix = find_checkpoint(Path(folder_or_prefix))
    checkpoint = read_checkpoint(prefix)
    config, ignored_settings = _read_config(prefix.parent / "bert_config.json")
    notes = (GELU_NOTE,) if config["hidden_act"] in RELEASED_ACTIVATIONS else ()
    config["hidden_act"] = RELEASED_ACTIVATIONS.get(config["hidden_act"], config["hidden_act"])
    specs = expected_tensors(config)
    head_specs, head_config = _task_head(checkpoint, config["hidden_size"])
    config, specs = config | head_config, specs | head_specs
    _check_tensors(checkpoint, specs)
    tensors, mapped_names = {}, {}
    for name, (target, _) in specs.items():
        if name in checkpoint.entries:
            tensors[target] = _read(checkpoint, name)
            mapped_names[name] = target
    other_names = [name for name in checkpoint.entries if name not in specs]
    kinds = {name: _training_state_kind(name, checkpoint) for name in other_names}
    report = MappingReport(
        mapped_names=mapped_names,
        num_skipped=dict(Counter(kind for kind in kinds.values() if kind)),
        missing_keys=tuple(target for name, (target, _) in specs.items() if name not in mapped_names),
        unexpected_keys=tuple(name for name in other_names if not kinds[name]),
        ignored_settings=ignored_settings,
        notes=notes,
    )
    return Release(config, tensors, report)


def expected_tensors(config: dict[str, Any]) -> dict[str, tuple[str, Shape]]:
    """Return the tensors of a release with this config: TensorFlow's name -> (Hugging Face's name, shape there)."""
    hidden_size = config["hidden_size"]
    shapes: dict[str, Shape] = {
        "bert/embeddings/word_embeddings": (config["vocab_size"], hidden_size),
        "bert/embeddings/position_embeddings": (config["max_position_embeddings"], hidden_size),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], hidden_size),
        **_norm("bert/embeddings/LayerNorm", hidden_size),
    }
    for number in range(config["num_hidden_layers"]):
        shapes |= _layer(f"bert/encoder/layer_{number}", hidden_size, config["intermediate_size"])
    shapes |= {
        **_dense("bert/pooler/dense", hidden_size, hidden_size),
        **_dense("cls/predictions/transform/dense", hidden_size, hidden_size),
        **_norm("cls/predictions/transform/LayerNorm", hidden_size),
        "cls/predictions/output_bias": (config["vocab_size"],),
        "cls/seq_relationship/output_weights": (2, hidden_size),
        "cls/seq_relationship/output_bias": (2,),
    }
    return {name: (_hf_name(name), shape) for name, shape in shapes.items()}


def _task_head(
    checkpoint: TensorflowCheckpoint, hidden_size: int
) -> tuple[dict[str, tuple[str, Shape]], dict[str, Any]]:
    """Return the tensors of the head of a fine-tuned checkpoint, and its keys of config.json; empty without one."""
    for (weight, bias), (module, architecture) in TASK_HEADS.items():
        shape = checkpoint.shapes.get(weight, ())
        if bias in checkpoint.entries and len(shape) == 2:
            num_labels = shape[0]
            specs = {weight: (f"{module}.weight", (num_labels, hidden_size)), bias: (f"{module}.bias", (num_labels,))}
            labels = {str(index): f"LABEL_{index}" for index in range(num_labels)}
            has_classes = module == "classifier"
            return specs, {"architectures": [architecture], **({"id2label": labels} if has_classes else {})}
    return {}, {}


def _layer(name: str, hidden_size: int, intermediate_size: int) -> dict[str, Shape]:
    return {
        **_dense(f"{name}/attention/self/query", hidden_size, hidden_size),
        **_dense(f"{name}/attention/self/key", hidden_size, hidden_size),
        **_dense(f"{name}/attention/self/value", hidden_size, hidden_size),
        **_dense(f"{name}/attention/output/dense", hidden_size, hidden_size),
        **_norm(f"{name}/attention/output/LayerNorm", hidden_size),
        **_dense(f"{name}/intermediate/dense", hidden_size, intermediate_size),  # (D, I)
        **_dense(f"{name}/output/dense", intermediate_size, hidden_size),  # (I, D)
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
        raise FolderError(f"{checkpoint.prefix}: tensor '{name}' should hold floats, but holds {values.dtype}")
    if name.endswith("/kernel"):
        values = values.T
    return np.ascontiguousarray(values, dtype=np.float32)


def _check_tensors(checkpoint: TensorflowCheckpoint, specs: dict[str, tuple[str, Shape]]) -> None:
    """Refuse a checkpoint that lacks tensors of the encoder or whose shapes do not fit the config."""
    shapes = checkpoint.shapes
    missing = [name for name in specs if name.startswith(("bert/embeddings/", "bert/encoder/")) and name not in shapes]
    if missing:
        raise FolderError(
            f"{checkpoint.prefix} lacks {len(missing)} tensors of the encoder that bert_config.json describes, first "
            f"of all '{missing[0]}'; it is no TensorFlow 1 BERT checkpoint, or the config belongs to another model"
        )
    for name, (_, expected_shape) in specs.items():
        if shapes.get(name, expected_shape) != expected_shape:
            raise FolderError(
                f"{checkpoint.prefix}: tensor '{name}' should have shape {expected_shape} by bert_config.json, but has "
                f"{shapes[name]}; use the bert_config.json of this checkpoint"
            )


def _training_state_kind(name: str, checkpoint: TensorflowCheckpoint) -> str:
    """Return the kind of training state that a tensor is ("adam_m", "global_step"), or "" if it is none.

    The state that an optimizer has for a weight is named after it: bert/pooler/dense/bias/adam_m.
    """
    owner, _, last = name.rpartition("/")
    return last if owner in checkpoint.entries or last in TRAINING_STATE_NAMES else ""


def _read_config(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the content of Hugging Face's config.json, and the keys that are not used."""
    settings = read_json(path, "a BERT release")
    if not isinstance(settings, dict):
        raise FolderError(f"{path} should hold a JSON object, but holds a {type(settings).__name__}")
    invalid_keys = [key for key in REQUIRED_KEYS if type(settings.get(key)) is not int or settings[key] < 1]
    if invalid_keys:
        raise FolderError(f"{path} needs a positive integer for {', '.join(invalid_keys)}; use the file of the release")
    try:
        for key in REQUIRED_KEYS:
            check_size(key, settings[key])
    except SettingsError as error:
        raise FolderError(f"{path}: {error}; use the file of the release") from None
    if settings["hidden_size"] % settings["num_attention_heads"]:
        raise FolderError(
            f"{path}: num_attention_heads {settings['num_attention_heads']} does not divide hidden_size "
            f"{settings['hidden_size']}; use the file of the release"
        )
    config = {key: settings[key] for key in REQUIRED_KEYS} | {
        key: settings.get(key, value) for key, value in DEFAULTS.items()
    }
    return FIXED_SETTINGS | config, tuple(key for key in settings if key not in config)
