"""The name of a model in, its local folder out: an existing folder, a packaged model, or a download from the hub.

`huggingface_hub` does downloads, their cache, resuming, tokens, mirrors (HF_ENDPOINT) and offline mode
(HF_HUB_OFFLINE). This file decides which files are downloaded, and explains errors.
"""

from __future__ import annotations

import errno
from pathlib import Path

from huggingface_hub import constants, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from bertworks.errors import BertworksError, FolderError, InputError, SettingsError
from bertworks.models.sentence_files import MODULES_FILE, PROMPTS_FILE, SETTINGS_FILES
from bertworks.packages import MODELS, check_installed, packaged_model
from bertworks.settings import nearest_name
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
DISK_ERRORS = {
    errno.ENOSPC: "no space left on that disk; free some space",
    errno.EDQUOT: "no space left in the quota on that disk; free some space",
    errno.EACCES: "writing there is not allowed; change its permissions",
    errno.EPERM: "writing there is not allowed; change its permissions",
    errno.EROFS: "that file system is read-only; make it writable",
}


def fetch(name: str, revision: str | None = None) -> Path:
    """Return the folder of the model `name`: a local folder, a packaged model, or a download in the hub's cache.

    `revision` is a branch, tag or commit; a cached commit needs no network. The default is the newest commit, or the
    cached one if the hub cannot be reached.
    """
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
    for weights in WEIGHTS:
        folder = _snapshot(name, revision, CONFIG_AND_TOKENIZER_FILES + weights)
        if any(path.is_file() for pattern in weights for path in folder.glob(pattern)):
            return folder
        revision = folder.name  # the commit, so that the next attempt needs no request
    if not folder.is_dir() or all(path.name == _MODEL_CARD for path in folder.iterdir()):
        raise InputError(f"'{name}' on {constants.ENDPOINT} has none of the files of a model; check the name")
    return folder


def _snapshot(name: str, revision: str | None, patterns: list[str]) -> Path:
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the client, its two transports and the OS have no other common base
        raise _explain_hub_error(error, name, revision) from error


def _explain_hub_error(error: Exception, name: str, revision: str | None) -> BertworksError:
    """Turn an exception of the hub's client into one that says what to do."""
    model = f"'{name}' on {constants.ENDPOINT}"
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    match error:
        case HFValidationError():
            way_out = "give one that exists, or a name on the hub: 'name' or 'owner/name'"
            return InputError(f"there is no folder {name}; {way_out}")
        case GatedRepoError():
            return InputError(f"{model} is gated: ask for access at {constants.ENDPOINT}/{name}, then {log_in}")
        case RevisionNotFoundError():
            return InputError(f"{model} has no revision '{revision or 'main'}'; check the branch, tag or commit")
        case LocalEntryNotFoundError(__cause__=HfHubHTTPError() as cause) if _is_refusal(cause):
            return _explain_hub_error(cause, name, revision)
        case LocalEntryNotFoundError():
            return _not_cached_error(error, name)
    # To somebody without a token the hub answers alike whether a model is private or does not exist.
    if isinstance(error, RepositoryNotFoundError) or (_is_refusal(error) and not get_token()):
        way_out = f"check the name, or give a folder that exists; if the model is private, {log_in}"
        return InputError(f"there is no {model}: {way_out}{_suggestion(name)}")
    if _is_refusal(error):
        way_out = "log in anew with `hf auth login`, or correct HF_TOKEN"
        return SettingsError(f"{constants.ENDPOINT} does not let you read '{name}' with your token; {way_out}")
    if (number := _system_error(error)) in DISK_ERRORS:
        way_out = f"{DISK_ERRORS[number]}, or set HF_HUB_CACHE to another folder"
        return FolderError(f"cannot save {model} in {constants.HF_HUB_CACHE}: {way_out}")
    return FolderError(f"fetching {model} failed ({_reason(error)}); run the same command again, whole files are kept")


def _not_cached_error(error: LocalEntryNotFoundError, name: str) -> BertworksError:
    """Explain why neither the hub nor the cache has the model."""
    cause = error.__cause__ or error
    cache_state = "only a part of it is" if isinstance(error, IncompleteSnapshotError) else "it is not"
    cache = f"{cache_state} in the cache {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE:
        why = f"offline mode is on (HF_HUB_OFFLINE) and {cache}"
        return InputError(f"cannot fetch '{name}': {why}; go online, or give a folder that exists{_suggestion(name)}")
    why = f"{constants.ENDPOINT} cannot be reached ({_reason(cause)}) and {cache}"
    way_out = "check the network, set HF_ENDPOINT to a mirror, or give a folder that exists"
    return InputError(f"cannot fetch '{name}': {why}; {way_out}{_suggestion(name)}")


def _suggestion(name: str) -> str:
    """Return a question after one of our own models if the name resembles it: en_small for en-small."""
    nearest = nearest_name(name, MODELS)
    return f"; did you mean '{nearest}'?" if nearest else ""


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403)


def _system_error(error: Exception) -> int:
    """Return the errno of an error. The chunked transport, in Rust, reports a full disk only in its message."""
    if "No space left on device" in str(error):
        return errno.ENOSPC
    return (error.errno or 0) if isinstance(error, OSError) else 0


def _reason(error: BaseException) -> str:
    """Return the first line of a message; the client adds advice about its own arguments below it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
