"""Nodes that do not run the same thing: the error names the node, the difference and the remedy."""

import copy
import json
from pathlib import Path

import pytest
from small_run import RECIPE, prepare_corpus

from bertworks.commands.pretrain import consistency
from bertworks.commands.pretrain.consistency import RunFingerprint, check_consistency, run_fingerprint
from bertworks.corpus.corpus import Corpus
from bertworks.errors import SettingsError


@pytest.fixture(scope="module")
def fingerprint(tmp_path_factory: pytest.TempPathFactory) -> RunFingerprint:
    corpus = Corpus.open(prepare_corpus(tmp_path_factory.mktemp("consistency"), 10), None)
    return run_fingerprint(RECIPE, corpus, "", {"shard": True})


def add_node(
    monkeypatch: pytest.MonkeyPatch, fingerprint: RunFingerprint, part: str, name: str, value: str | None
) -> None:
    """Add a second node whose fingerprint has another value, or lacks it."""
    changed = copy.deepcopy(fingerprint)
    if value is None:
        del changed[part][name]
    else:
        changed[part][name] = value
    message = json.dumps({"node": "node 1 (beta)", "fingerprint": changed})
    monkeypatch.setattr(consistency, "all_gather", lambda text: [text, text, message])
    monkeypatch.setattr(consistency.socket, "gethostname", lambda: "alpha")
    monkeypatch.setenv("GROUP_RANK", "0")


@pytest.mark.parametrize(
    ("part", "name", "value", "message"),
    [
        (
            "recipe",
            "model.hidden_dropout_prob",
            "0.2",
            "recipe, model.hidden_dropout_prob is 0.1 on node 0 (alpha), but 0.2 on node 1 (beta)",
        ),
        ("recipe", "optimizer.beta2", None, "optimizer.beta2 is 0.999 on node 0 (alpha), but missing on node 1"),
        ("corpus", "vocabulary", "30,522", "corpus, vocabulary is 19 on node 0 (alpha), but 30,522 on node 1 (beta)"),
        ("corpus", "sha256", "0123", "0123 on node 1 (beta); use the same corpus folder on all nodes"),
        ("initial model", "weights", "abcd", "abcd on node 1 (beta); use the same initial model on all nodes"),
        ("version", "torch", "1.0", "1.0 on node 1 (beta); install the same versions on all nodes"),
        ("version", "bertworks", "ffff", "version, bertworks is"),
    ],
)
def test_difference_is_named_with_its_node_and_a_remedy(fingerprint, monkeypatch, part, name, value, message):
    add_node(monkeypatch, fingerprint, part, name, value)
    with pytest.raises(SettingsError) as caught:
        check_consistency(fingerprint)
    assert str(caught.value).startswith("the nodes do not run the same thing: ")
    assert message in str(caught.value)


def test_equal_fingerprints_pass(fingerprint: RunFingerprint, monkeypatch: pytest.MonkeyPatch):
    add_node(monkeypatch, fingerprint, "options", "shard", "True")
    check_consistency(fingerprint)
    monkeypatch.undo()
    check_consistency(fingerprint)  # a single process


def test_another_corpus_has_another_fingerprint(fingerprint: RunFingerprint, tmp_path: Path):
    corpus = Corpus.open(prepare_corpus(tmp_path, 11), None)
    other = run_fingerprint(RECIPE, corpus, "", {"shard": True})
    assert other["corpus"]["sha256"] != fingerprint["corpus"]["sha256"]
    for part in fingerprint.keys() - {"corpus"}:
        assert other[part] == fingerprint[part]
