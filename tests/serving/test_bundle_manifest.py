"""bundle.json: values of other types and names outside of the folder are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import BertworksError
from bertworks.serving.bundle_manifest import read_bundle_manifest

VALID: dict[str, Any] = {"format": 1, "files": {}, "models": {}, "chain": [], "corpus": None, "index": None}


def write(folder: Path, **changes: Any) -> Path:
    (folder / "bundle.json").write_text(json.dumps(VALID | changes))
    return folder


def test_a_valid_manifest_is_read(tmp_path: Path):
    assert read_bundle_manifest(write(tmp_path)) == VALID


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "does not have format 1"),
        ({"files": ["a"]}, "files: expected a table"),
        ({"chain": {"later": "a"}}, "chain: expected a list"),
        ({"models": {"films": {}}}, "films, sha256: expected a string, got None"),
        ({"index": {"model": 1}}, "index, model: expected a string, got 1"),
        ({"files": {"../secret": "0"}}, "names '../secret', which is outside of its folder"),
        ({"models": {"../films": {"sha256": "0"}}}, "which is outside of its folder"),
        ({"files": {"n" * 300: "0"}}, "its name is too long for a file"),
    ],
)
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, changes: dict[str, Any], message: str):
    with pytest.raises(BertworksError) as error:
        read_bundle_manifest(write(tmp_path, **changes))
    assert message in str(error.value)


def test_a_manifest_without_a_part_is_refused(tmp_path: Path):
    (tmp_path / "bundle.json").write_text('{"format": 1, "files": {}}')
    with pytest.raises(BertworksError, match="lacks models, chain, corpus, index; build the bundle again"):
        read_bundle_manifest(tmp_path)
