"""Machines that do not mean the same run: which of them, what differs, and what to do."""

import copy
import json
from pathlib import Path

import pytest
from small_run import RECIPE, prepare_corpus

from bertworks.commands.pretrain import consistency as agreement
from bertworks.commands.pretrain.consistency import RunFingerprint, check_consistency, run_fingerprint
from bertworks.corpus.corpus import Corpus
from bertworks.errors import SettingsError


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> RunFingerprint:
    corpus = Corpus.open(prepare_corpus(tmp_path_factory.mktemp("agreement"), 10), None)
    return run_fingerprint(RECIPE, corpus, "", {"shard": True})


def other(monkeypatch: pytest.MonkeyPatch, facts: RunFingerprint, kind: str, part: str, value: str | None) -> None:
    """Let a second machine say the same but for one thing, or leave that out."""
    changed = copy.deepcopy(facts)
    if value is None:
        del changed[kind][part]
    else:
        changed[kind][part] = value
    told = json.dumps({"node": "node 1 (beta)", "facts": changed})
    monkeypatch.setattr(agreement, "all_gather", lambda text: [text, text, told])
    monkeypatch.setattr(agreement.socket, "gethostname", lambda: "alpha")
    monkeypatch.setenv("GROUP_RANK", "0")


@pytest.mark.parametrize(
    ("kind", "part", "value", "told"),
    [
        ("recipe", "model.dropout", "0.2", "recipe, model.dropout is 0.1 on node 0 (alpha), but 0.2 on node 1 (beta)"),
        (
            "recipe",
            "optimizer.beta2",
            None,
            "optimizer.beta2 is 0.999 on node 0 (alpha), but not there on node 1",
        ),
        ("corpus", "vocabulary", "30,522", "corpus, vocabulary is 19 on node 0 (alpha), but 30,522 on node 1 (beta)"),
        ("corpus", "sha256", "0123", "0123 on node 1 (beta); give all machines the same corpus folder"),
        ("start", "weights", "abcd", "abcd on node 1 (beta); give all machines the same model to start from"),
        ("version", "torch", "1.0", "1.0 on node 1 (beta); install the same versions on all machines"),
        ("version", "bertworks", "ffff", "version, bertworks is"),
    ],
)
def test_what_differs_is_named_with_its_machine_and_a_way_out(facts, monkeypatch, kind, part, value, told):
    other(monkeypatch, facts, kind, part, value)
    with pytest.raises(SettingsError) as caught:
        check_consistency(facts)
    assert str(caught.value).startswith("the machines do not mean the same run: ")
    assert told in str(caught.value)


def test_where_all_say_the_same_nothing_is_said(facts: RunFingerprint, monkeypatch: pytest.MonkeyPatch):
    other(monkeypatch, facts, "run", "shard", "True")
    check_consistency(facts)
    monkeypatch.undo()
    check_consistency(facts)  # alone


def test_another_corpus_has_other_facts(facts: RunFingerprint, tmp_path: Path):
    corpus = Corpus.open(prepare_corpus(tmp_path, 11), None)
    found = run_fingerprint(RECIPE, corpus, "", {"shard": True})
    assert found["corpus"]["sha256"] != facts["corpus"]["sha256"]
    assert {kind: found[kind] for kind in found if kind != "corpus"} == {k: facts[k] for k in facts if k != "corpus"}
