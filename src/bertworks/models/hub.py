"""The name of a model in, its local folder out: an existing folder, a packaged model, or a download from the hub.

`huggingface_hub` does downloads, their cache, resuming, tokens, mirrors (HF_ENDPOINT) and offline mode
(HF_HUB_OFFLINE); `hub_download` calls it. This file decides which files are downloaded.
"""

from __future__ import annotations

from pathlib import Path

from bertworks.errors import InputError, SettingsError
from bertworks.models.sentence_files import MODULES_FILE, PROMPTS_FILE, SETTINGS_FILES
from bertworks.packages import check_installed, packaged_model
from bertworks.vocabulary.vocabulary_files import COMPANION_FILES, VOCABULARY_FILES

_ENCODER_FILES = [
    "config.json",
    *VOCABULARY_FILES,
    *COMPANION_FILES,
    *SETTINGS_FILES,
]
# In these patterns * and ? match slashes, too, so none may start with one: onnx/model.safetensors must not match.
_MODULE_FOLDER = "[0-9]*_*/"
_MODEL_CARD = "README.md"  # that of a Matryoshka model names the sizes of its vectors
CONFIG_AND_TOKENIZER_FILES = [
    *_ENCODER_FILES,
    "bertworks.json",
    "bert_config.json",
    MODULES_FILE,
    PROMPTS_FILE,
    _MODEL_CARD,
    *(_MODULE_FOLDER + name for name in (*_ENCODER_FILES, "model.safetensors", "pytorch_model.bin")),
]
# Most models are on the hub in several formats; only the first of these that a model has is downloaded.
WEIGHTS = (
    ["model.safetensors", "model.safetensors.index.json", "model-?????-of-?????.safetensors"],
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-?????-of-?????.bin"],
    ["bert_model.ckpt.index", "bert_model.ckpt.data-?????-of-?????"],
    ["model.ckpt-*.index", "model.ckpt-*.data-?????-of-?????"],
    ["adapter_config.json", "adapter_model.safetensors"],
    ["adapter_config.json", "adapter_model.bin"],
)


def fetch(name: str, revision: str | None = None) -> Path:
    """Return the folder of the model `name`: a local folder, a packaged model, or a download in the hub's cache.

    `revision` is a branch, tag or commit, also written after the name: NAME@REVISION; a cached commit needs no network.
    The default is the newest commit, or the
    cached one if the hub cannot be reached.
    """
    if revision is None and "@" in name and not Path(name).exists():
        name, _, revision = name.rpartition("@")
    if not name:
        raise InputError("the name of the model is empty; give a folder or a name on the hub")
    path = Path(name).expanduser() if name.startswith("~/") else Path(name)
    folder = packaged_model(str(path)) or path
    if folder.is_dir():
        if revision is not None:
            raise SettingsError(f"{folder} is a local folder and has no revision '{revision}'; leave the revision out")
        return folder
    if folder.exists():
        raise InputError(f"{folder} is a file; give the model's folder")
    check_installed(name)
    from bertworks.models.hub_download import download_snapshot, endpoint  # only now: its client takes half a second

    for weights in WEIGHTS:
        folder = download_snapshot(name, revision, CONFIG_AND_TOKENIZER_FILES + weights)
        if any(path.is_file() for pattern in weights for path in folder.glob(pattern)):
            return folder
        revision = folder.name  # the commit, so that the next attempt needs no request
    if not folder.is_dir() or all(path.name == _MODEL_CARD for path in folder.iterdir()):
        raise InputError(f"'{name}' on {endpoint()} has none of the files of a model; check the name")
    return folder
