"""Model folders: a model of any family, format and origin in, its FolderInfo out, without importing torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertworks.errors import FolderError
from bertworks.folder_info.kind import FolderInfo, known, read_object, total_bytes
from bertworks.integrity.model_files import METADATA_FILE, check_model_files
from bertworks.models.sentence_files import MODULES_FILE, read_max_length
from bertworks.packages import model_inside, model_name

CERTIFICATE = "certificate.json"
ADAPTER_CONFIG = "adapter_config.json"
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
GRAPH_FILES = {"onnx": "model.onnx", "openvino": "openvino_model.xml"}
# A size of the encoder -> its keys in the config.json of one family or another.
_SIZES = {
    "layers": ("num_hidden_layers", "n_layers", "n_layer", "encoder_layers"),
    "hidden size": ("hidden_size", "dim", "n_embd", "d_model", "projection_size"),
    "attention heads": ("num_attention_heads", "n_heads", "n_head", "encoder_attention_heads"),
    "vocabulary size": ("vocab_size",),
}
_LENGTHS = ("max_position_embeddings", "n_positions", "max_length")
# Families whose position embeddings begin after the id of the padding token.
_SHIFTED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet")
_TASK_ARCHITECTURES = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "answer",
    "ForMultipleChoice": "choose",
}
_MAX_LABELS = 20


def is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def is_ours(folder: Path) -> bool:
    return is_model(folder) and (folder / METADATA_FILE).is_file()


def is_finetuned(folder: Path) -> bool:
    return is_ours(folder) and "task" in read_object(folder / METADATA_FILE, "a model folder")


def is_export(folder: Path) -> bool:
    return is_model(folder) and (folder / CERTIFICATE).is_file()


def is_word_vectors(folder: Path) -> bool:
    return is_model(folder) and _config(folder).get("model_type") == "static"


def is_sentence_transformer(folder: Path) -> bool:
    return (folder / MODULES_FILE).is_file()


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file()


def is_tf1_release(folder: Path) -> bool:
    has_weights = any((folder / name).is_file() for name in WEIGHT_FILES)
    return (folder / "bert_config.json").is_file() and not has_weights


def is_package(folder: Path) -> bool:
    return model_inside(folder) is not None


def describe_pretrained(folder: Path) -> FolderInfo:
    metadata = check_model_files(folder)
    return FolderInfo(
        folder=folder,
        kind="pretrained model",
        command="bertworks adapt" if "base" in metadata else "bertworks pretrain",
        version=_version(metadata),
        facts=model_facts(folder, metadata),
        next_command=f"bertworks finetune classify --model {folder} --train TRAIN --dev DEV --output run",
    )


def describe_finetuned(folder: Path) -> FolderInfo:
    metadata = check_model_files(folder)
    return FolderInfo(
        folder=folder,
        kind="fine-tuned model",
        command="bertworks finetune",
        version=_version(metadata),
        facts=model_facts(folder, metadata),
        next_command=use_command(folder, metadata),
    )


def describe_export(folder: Path) -> FolderInfo:
    metadata = check_model_files(folder)
    certificate = read_object(folder / CERTIFICATE, "the certificate of an export")
    original = certificate.get("original")
    facts = {
        "exported to": certificate.get("to"),
        "exported from": original.get("folder") if isinstance(original, dict) else None,
        "mean cosine with the original": certificate.get("mean_cosine"),
        "largest differences": certificate.get("max_difference"),
    }
    return FolderInfo(
        folder=folder,
        kind="exported model",
        command="bertworks export",
        version=_version(certificate),
        facts=known(facts) | model_facts(folder, metadata),
        next_command=use_command(folder, metadata),
    )


def describe_word_vectors(folder: Path) -> FolderInfo:
    metadata, config = check_model_files(folder), _config(folder)
    corpus = metadata.get("corpus")
    facts = {
        "algorithm": metadata.get("kind"),
        "words": config.get("vocab_size"),
        "vector size": config.get("hidden_size"),
        "words of training text": corpus.get("num_words") if isinstance(corpus, dict) else None,
        "disk space": total_bytes(folder),
    }
    return FolderInfo(
        folder=folder,
        kind="word vectors",
        command="bertworks word-vectors train" if metadata else "",
        version=_version(metadata),
        facts=known(facts),
        next_command=f"bertworks word-vectors nearest {folder} WORD",
    )


def describe_sentence_transformer(folder: Path) -> FolderInfo:
    config = _config(folder)
    pooling = read_object(folder / "1_Pooling" / "config.json", "the pooling of a sentence-transformers model")
    kinds = [
        name.removeprefix("pooling_mode_")
        for name, value in pooling.items()
        if value is True and name.startswith("pooling_mode_")
    ]
    return FolderInfo(
        folder=folder,
        kind="sentence-transformers model",
        facts=known({"pooling": kinds})
        | (model_facts(folder, {}) if config else known({"disk space": total_bytes(folder)})),
        next_command=f"bertworks embed {folder} TEXTS --output vectors.npy",
    )


def describe_transformers(folder: Path) -> FolderInfo:
    if "model_type" not in _config(folder):
        raise FolderError(f"{folder / 'config.json'} has no model_type; use the model's own config.json")
    return FolderInfo(
        folder=folder,
        kind="transformers model",
        facts=model_facts(folder, {}),
        next_command=use_command(folder, {}),
    )


def describe_adapter(folder: Path) -> FolderInfo:
    config = read_object(folder / ADAPTER_CONFIG, "a LoRA adapter")
    facts = {
        "base": config.get("base_model_name_or_path"),
        "rank": config.get("r"),
        "adapted modules": config.get("target_modules"),
        "task": config.get("task_type"),
        "disk space": total_bytes(folder),
    }
    return FolderInfo(
        folder=folder,
        kind="LoRA adapter",
        facts=known(facts),
        next_command=f"bertworks predict {folder} TEXTS",
    )


def describe_tf1_release(folder: Path) -> FolderInfo:
    config = read_object(folder / "bert_config.json", "a TensorFlow 1 release")
    checkpoints = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    if not checkpoints:
        raise FolderError(f"{folder} has a bert_config.json, but no checkpoint (*.index and *.data-…); copy it again")
    facts = {"checkpoint": checkpoints} | _sizes(config) | {"disk space": total_bytes(folder)}
    return FolderInfo(
        folder=folder,
        kind="TensorFlow 1 checkpoint",
        facts=known(facts),
        next_command=f'bertworks fill-mask {folder} "… [MASK] …"',
    )


def describe_package(folder: Path) -> FolderInfo:
    model = model_inside(folder)
    assert model is not None
    metadata = check_model_files(model)
    path = folder if folder.is_absolute() else f"./{folder}"
    return FolderInfo(
        folder=folder,
        kind="model package",
        command="bertworks package",
        version=_version(metadata),
        facts={"name": model_name(model.parent.name)} | model_facts(model, metadata),
        next_command=f"pip install {path}",
    )


def model_facts(folder: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model folder says of its model."""
    config = _config(folder)
    labels = list((config.get("id2label") or {}).values())
    facts = {
        "task": metadata.get("task") or _architecture_task(config),
        "labels": labels[:_MAX_LABELS] + ["…"] * (len(labels) > _MAX_LABELS),
        "scores": metadata.get("scores"),
        "objective": metadata.get("objective"),
        "base": metadata.get("base"),
        "languages": metadata.get("languages"),
        "family": config.get("model_type"),
        **_sizes(config),
        "parameters": _num_parameters(folder),
        "max length": _max_length(folder, config, metadata),
        "engine": next((name for name, file in GRAPH_FILES.items() if (folder / file).is_file()), None),
        "disk space": total_bytes(folder),
    }
    return known(facts)


def use_command(folder: Path, metadata: Mapping[str, Any]) -> str:
    """Return the command that uses a model: for its task if it has one."""
    config = _config(folder)
    task = metadata.get("task") or _architecture_task(config)
    if task == "translate":
        return f"bertworks translate {folder} TEXTS"
    if task:
        return f"bertworks predict {folder} TEXTS"
    architectures = config.get("architectures") or [""]
    if str(architectures[0]).endswith(("ForMaskedLM", "ForPreTraining")):
        return f'bertworks fill-mask {folder} "… [MASK] …"'
    return f"bertworks embed {folder} TEXTS --output vectors.npy"


def _config(folder: Path) -> dict[str, Any]:
    return read_object(folder / "config.json", "a model folder")


def _version(content: Mapping[str, Any]) -> str:
    versions = content.get("versions")
    return str(versions.get("bertworks", "")) if isinstance(versions, dict) else ""


def _architecture_task(config: Mapping[str, Any]) -> str | None:
    architecture = str((config.get("architectures") or [""])[0])
    return next((task for suffix, task in _TASK_ARCHITECTURES.items() if architecture.endswith(suffix)), None)


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: next((config[key] for key in keys if key in config), None) for name, keys in _SIZES.items()}


def _max_length(folder: Path, config: Mapping[str, Any], metadata: Mapping[str, Any]) -> int | None:
    window = metadata.get("window")
    if isinstance(window, dict):
        return int(window["max_length"])
    if is_sentence_transformer(folder) and (length := read_max_length(folder)) is not None:
        return length
    positions = next((config[key] for key in _LENGTHS if isinstance(config.get(key), int)), None)
    if positions is not None and config.get("model_type") in _SHIFTED_POSITIONS:
        return int(positions) - int(config.get("pad_token_id", 1)) - 1
    return positions


def _num_parameters(folder: Path) -> int | None:
    """Return the number of values in the safetensors files of a folder; None if it has weights of another format."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("model*.safetensors"))
    try:
        total = 0
        for path in files:
            with safe_open(path, "np") as file:
                total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{folder} has damaged weights ({error}); copy or download the model again") from None
    return total or None
