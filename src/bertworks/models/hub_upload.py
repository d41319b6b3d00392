"""A model folder and a name on the hub in, a commit there out; the token is that of `hf auth login` or HF_TOKEN."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from bertworks.errors import BertworksError, FolderError, InputError, SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """Where to upload a model: its name on the hub, OWNER/NAME, the branch, and the message of the commit."""

    name: str
    private: bool = False
    branch: str | None = None
    message: str = "Upload a model of bertworks"


def push_folder(folder: Path, upload: Upload) -> str:
    """Upload a model folder, and return the commit; the model is created on the hub if it does not exist."""
    api = HfApi(endpoint=constants.ENDPOINT)
    try:
        api.create_repo(upload.name, private=upload.private, exist_ok=True)
        if upload.branch is not None:
            api.create_branch(upload.name, branch=upload.branch, exist_ok=True)
        commit = api.upload_folder(
            repo_id=upload.name, folder_path=folder, revision=upload.branch, commit_message=upload.message
        )
    except Exception as error:  # the client and its transports have no other common base
        raise _explain(error, upload) from None
    return str(commit.oid)


def _explain(error: Exception, upload: Upload) -> BertworksError:
    """Turn an exception of the hub's client into one that says what to do."""
    if isinstance(error, HFValidationError):
        return InputError(f"'{upload.name}' is no name on the hub; give OWNER/NAME")
    if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403):
        return SettingsError(
            f"{constants.ENDPOINT} does not let you write '{upload.name}'; log in with `hf auth login`, or set "
            f"HF_TOKEN to a token that may write it"
        )
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return FolderError(f"uploading '{upload.name}' to {constants.ENDPOINT} failed ({reason}); try again")
