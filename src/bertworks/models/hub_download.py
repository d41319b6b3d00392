"""Downloads from the hub: the name of a model in, its folder in the cache out, or an error that says what to do."""

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
from bertworks.packages import MODELS
from bertworks.settings import nearest_name

DISK_ERRORS = {
    errno.ENOSPC: "no space left on that disk; free some space",
    errno.EDQUOT: "no space left in the quota on that disk; free some space",
    errno.EACCES: "writing there is not allowed; change its permissions",
    errno.EPERM: "writing there is not allowed; change its permissions",
    errno.EROFS: "that file system is read-only; make it writable",
}


def endpoint() -> str:
    """Return the address of the hub: HF_ENDPOINT, or huggingface.co."""
    return constants.ENDPOINT


def download_snapshot(name: str, revision: str | None, patterns: list[str]) -> Path:
    """Return the folder of a model in the hub's cache, after a download of the files that match the patterns."""
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the client, its two transports and the OS have no other common base
        raise _explain_hub_error(error, name, revision) from None  # its own chain fills screens


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


def _suggestion(name: str) -> str:
    """Return a question after one of our own models if the name resembles it: en_small for en-small."""
    nearest = nearest_name(name, MODELS)
    return f"; did you mean '{nearest}'?" if nearest else ""
