"""Uploads to a local server with the protocol of the Hugging Face hub, and what is said when it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_hub import COMMIT, Hub, local_hub
from small_models import write_pretrained

import bertworks
from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.models.hub_upload import Upload, push_folder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with local_hub(tmp_path, monkeypatch) as hub_server:
        hub_server.token = "secret"
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield hub_server


def test_a_pushed_model_is_loaded_at_its_commit(server: Hub, tmp_path: Path):
    model = bertworks.load(write_pretrained(tmp_path / "model"))
    commit = model.push_to_hub("me/small", branch="next")
    assert commit == COMMIT
    assert "POST /api/models/me/small/branch/next" in server.requests
    assert server.models["me/small"]["README.md"].startswith(b'---\nlibrary_name: "bertworks"')
    downloaded = bertworks.load(f"me/small@{commit}")
    assert downloaded.similarity("the cat", "a dog") == model.similarity("the cat", "a dog")
    assert repr(downloaded).startswith("Model('me/small': bert")
    with pytest.raises(InputError, match="has no revision 'old'"):
        bertworks.load("me/small@old")


def test_a_refused_upload_says_how_to_log_in(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "wrong")
    (tmp_path / "model").mkdir()
    with pytest.raises(SettingsError, match="does not let you write 'me/small'; log in with `hf auth login`"):
        push_folder(tmp_path / "model", Upload(name="me/small"))


def test_a_wrong_name_and_an_absent_hub_are_named(server: Hub, tmp_path: Path):
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match="'a/b/c' is no name on the hub; give OWNER/NAME"):
        push_folder(tmp_path / "model", Upload(name="a/b/c"))
    server.models.clear()
    with pytest.raises(FolderError, match=r"uploading 'me/small' to .* failed"):
        push_folder(tmp_path / "absent", Upload(name="me/small"))
