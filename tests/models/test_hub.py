"""Downloads from a local server with the protocol of the Hugging Face hub."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants
from local_hub import COMMIT, MODEL, WEIGHTS, Hub, local_hub

from bertworks.errors import FolderError, InputError, SettingsError
from bertworks.models import hub_download
from bertworks.models.hub import fetch


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with local_hub(tmp_path, monkeypatch) as hub_server:
        yield hub_server


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_local_folder_is_returned_without_requests(server: Hub, tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    assert fetch(str(folder)) == folder
    assert server.requests == []


def test_a_local_folder_has_no_revisions(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"is a local folder and has no revision 'v2'"):
        fetch(str(tmp_path), "v2")


def test_a_file_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="is a file; give the model's folder"):
        fetch(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["./missing", "/missing/model", "~/missing/model", "a/b/c", "no spaces", "模型"])
def test_a_path_is_not_requested_from_the_hub(server: Hub, name: str):
    with pytest.raises(InputError, match=f"there is no folder {name}; give one that exists, or a name on the hub"):
        fetch(name)
    assert server.requests == []


def test_an_empty_name_is_refused():
    with pytest.raises(InputError, match="empty"):
        fetch("")


def test_only_required_files_are_downloaded(server: Hub):
    required = ["README.md", "config.json", "vocab.txt", "model.safetensors", "modules.json", "1_Pooling/config.json"]
    assert files_in(fetch("tiny/bert")) == {name: MODEL[name] for name in required}
    assert sorted(server.downloads) == sorted(required)


def test_the_files_of_other_tokenizers_and_sentence_models_are_downloaded(server: Hub):
    names = ["spm.model", "special_tokens_map.json", "sentence_xlm-roberta_config.json", "10_Dense/model.safetensors"]
    module_files = [
        "config.json",
        "vocab.txt",
        "tokenizer_config.json",
        "sentence_bert_config.json",
        "model.safetensors",
    ]
    required = {*names, *(f"0_Transformer/{name}" for name in module_files)}
    server.models["tiny/bert"] = dict.fromkeys(
        [*required, "flax_model.msgpack", "onnx/0_Transformer/config.json"], b"x"
    )
    assert set(files_in(fetch("tiny/bert"))) == required


def test_a_name_without_an_owner_is_a_name_on_the_hub(server: Hub):
    server.models["bert-base-chinese"] = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    assert set(files_in(fetch("bert-base-chinese"))) == {"config.json", "model.safetensors"}


def test_sharded_weights_are_downloaded_with_their_index(server: Hub):
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    server.models["tiny/bert"] = dict.fromkeys([*shards, "model.fp16.safetensors"], b"x")
    assert set(files_in(fetch("tiny/bert"))) == set(shards)


def test_torch_weights_are_downloaded_only_without_safetensors(server: Hub):
    del server.models["tiny/bert"]["model.safetensors"]
    files = set(files_in(fetch("tiny/bert")))
    assert "pytorch_model.bin" in files
    assert "bert_model.ckpt.index" not in files


def test_a_tensorflow_checkpoint_is_downloaded_only_without_other_weights(server: Hub):
    for name in ("model.safetensors", "pytorch_model.bin"):
        del server.models["tiny/bert"][name]
    assert {"bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"} < set(files_in(fetch("tiny/bert")))


def test_a_vocabulary_without_weights_is_downloaded(server: Hub):
    server.models["tiny/bert"] = {"vocab.txt": b"[PAD]\n"}
    assert files_in(fetch("tiny/bert")) == {"vocab.txt": b"[PAD]\n"}


def test_a_name_without_any_file_of_a_model_is_refused(server: Hub):
    server.models["tiny/bert"] = {"README.md": b"soon"}
    with pytest.raises(InputError, match=r"'tiny/bert' on http://127.0.0.1:.* has none of the files of a model"):
        fetch("tiny/bert")


def test_a_second_fetch_downloads_nothing(server: Hub):
    first = fetch("tiny/bert")
    server.requests.clear()
    assert fetch("tiny/bert") == first
    assert server.downloads == []


def test_a_commit_in_the_cache_needs_no_network(server: Hub):
    first = fetch("tiny/bert")
    server.requests.clear()
    assert fetch("tiny/bert", COMMIT) == first
    assert server.requests == []


def test_offline_the_cache_is_used(server: Hub, monkeypatch: pytest.MonkeyPatch):
    first = fetch("tiny/bert")
    server.requests.clear()
    go_offline(monkeypatch)
    assert fetch("tiny/bert") == first
    assert server.requests == []


def test_offline_without_a_cached_copy_is_refused(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    go_offline(monkeypatch)
    with pytest.raises(InputError) as caught:
        fetch("tiny/bert")
    assert str(caught.value) == (
        f"cannot fetch 'tiny/bert': offline mode is on (HF_HUB_OFFLINE) and it is not in the cache {tmp_path}/cache; "
        "go online, or give a folder that exists"
    )
    assert server.requests == []
    assert caught.value.__suppress_context__  # not the chain of the client's exceptions, which fills screens


def test_offline_with_an_incomplete_cached_copy_is_refused(server: Hub, monkeypatch: pytest.MonkeyPatch):
    (fetch("tiny/bert") / "model.safetensors").unlink()
    go_offline(monkeypatch)
    with pytest.raises(InputError, match="only a part of it is in the cache"):
        fetch("tiny/bert")


def test_without_network_the_cache_is_used(server: Hub, monkeypatch: pytest.MonkeyPatch):
    first = fetch("tiny/bert")
    close_session()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert fetch("tiny/bert") == first


def test_without_network_and_cached_copy_endpoint_and_remedies_are_named(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(InputError) as caught:
        fetch("tiny/bert")
    message = str(caught.value)
    assert message.startswith("cannot fetch 'tiny/bert': http://127.0.0.1:1 cannot be reached (")
    assert "Connection refused) and it is not in the cache" in message
    assert message.endswith(
        f"{tmp_path}/cache; check the network, set HF_ENDPOINT to a mirror, or give a folder that exists"
    )


def test_a_server_error_of_the_hub_is_reported(server: Hub):
    server.refusal = (503, {})
    with pytest.raises(InputError, match=r"cannot be reached .*503 Service Unavailable.* and it is not in the cache"):
        fetch("tiny/bert")


def test_an_unknown_name_is_refused_with_the_remedy(server: Hub):
    with pytest.raises(InputError) as caught:
        fetch("tiny/brt")
    assert str(caught.value) == (
        f"there is no 'tiny/brt' on {server.address}: check the name, or give a folder that exists; "
        "if the model is private, log in with `hf auth login` or set HF_TOKEN"
    )


def test_an_unauthorized_response_without_token_means_an_unknown_name(server: Hub):
    server.refusal = (
        401,
        {"X-Error-Message": "Invalid username or password."},
    )
    with pytest.raises(InputError, match=r"there is no 'tiny/brt' on .*: check the name"):
        fetch("tiny/brt")


def test_an_unknown_revision_is_refused(server: Hub):
    with pytest.raises(
        InputError, match=r"'tiny/bert' on http.* has no revision 'v9'; check the branch, tag or commit"
    ):
        fetch("tiny/bert", "v9")


def test_a_gated_model_names_the_page_that_grants_access(server: Hub):
    server.refusal = (403, {"X-Error-Code": "GatedRepo"})
    with pytest.raises(InputError, match=f"is gated: ask for access at {server.address}/tiny/bert, then log in"):
        fetch("tiny/bert")


def test_the_token_is_sent(server: Hub, monkeypatch: pytest.MonkeyPatch):
    server.token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert files_in(fetch("tiny/bert"))["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize("status", [401, 403])
def test_a_rejected_token_is_reported(server: Hub, monkeypatch: pytest.MonkeyPatch, status: int):
    server.refusal = (status, {"X-Error-Message": "Invalid credentials in Authorization header"})
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(SettingsError) as caught:
        fetch("tiny/bert")
    assert "does not let you read 'tiny/bert' with your token; log in anew" in str(caught.value)
    assert "hf_wrong" not in str(caught.value)


def test_an_interrupted_download_resumes(server: Hub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # of stored data, by default 10 MB
    server.break_off_at = 4500
    assert files_in(fetch("tiny/bert"))["model.safetensors"] == WEIGHTS
    assert [line for line in server.downloads if "safetensors" in line] == [
        "model.safetensors",
        "model.safetensors bytes=4000-",
    ]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("IO Error: No space left on device (28)")]
)
def test_a_full_disk_is_reported_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception):
    def disk_full(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(hub_download, "snapshot_download", disk_full)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = f"in {tmp_path}: no space left on that disk; free some space, or set HF_HUB_CACHE"
    with pytest.raises(FolderError, match=message):
        fetch("tiny/bert")


def test_other_errors_are_reported_in_one_line(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> str:
        raise OSError("Consistency check failed: too short.\nPlease retry with `force_download=True`.")

    monkeypatch.setattr(hub_download, "snapshot_download", fail)
    with pytest.raises(FolderError) as caught:
        fetch("tiny/bert")
    assert "failed (Consistency check failed: too short.); run the same command again" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mirror_and_cache_of_the_environment_are_used(server: Hub, tmp_path: Path):
    code = "from bertworks.models.hub import fetch; print(fetch('tiny/bert'))"
    environment = os.environ | {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "home")}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    folder = Path(printed.stdout.strip())
    assert folder.is_relative_to(tmp_path / "home")
    assert files_in(folder)["model.safetensors"] == WEIGHTS


def test_an_unknown_name_that_resembles_one_of_our_models_is_answered_with_it(server: Hub):
    with pytest.raises(InputError, match=r"there is no 'en_small' on .*; did you mean 'en-small'\?"):
        fetch("en_small")
