"""The corpus of a run against its hashes: damaged shards stop it before a checkpoint, in the background too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import flip_bit, zero_bytes
from small_run import RECIPE, prepare_corpus, run

from bertworks.commands.pretrain import corpus_check
from bertworks.commands.pretrain.corpus_check import CorpusCheck
from bertworks.commands.pretrain.request import PretrainRequest, TrainEvent
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.corpus.corpus import Corpus
from bertworks.errors import FolderError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("check"))


@pytest.fixture
def corpus(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "corpus"))


def shard_of(corpus: Path) -> Path:
    (path,) = corpus.glob("tokens/*/*.safetensors")
    return path


def flipped(position: int) -> Callable[[Path], None]:
    return lambda path: flip_bit(path, position)


def zeroed(position: int, count: int) -> Callable[[Path], None]:
    return lambda path: zero_bytes(path, position, count)


def truncated(ratio: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(ratio * path.stat().st_size))


DAMAGE = {
    **{f"a bit flipped at {position}": flipped(position) for position in (0, 9, 40, 300, 1000, 2000, 3000, -1)},
    **{f"{count} bytes zeroed at {position}": zeroed(position, count) for position, count in ((8, 64), (400, 16))},
    **{f"4 bytes zeroed at {position}": zeroed(position, 4) for position in (700, 2500)},
    **{f"truncated to {ratio}": truncated(ratio) for ratio in (0, 0.1, 0.5, 0.999)},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_shard_stops_a_run_before_it_trains(corpus: Path, tmp_path: Path, damage: Callable[[Path], None]):
    assert len(DAMAGE) == 16
    damage(shard_of(corpus))
    with pytest.raises(FolderError) as caught:
        run(corpus, tmp_path / "run")
    assert str(caught.value).startswith(f"{shard_of(corpus)} is damaged or was changed: its sha256 is not the one in ")
    assert "`bertworks prepare --verify`" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


class SlowVerification:
    """A verification that finds nothing until the run waits for its end."""

    def __init__(self, corpus: Corpus) -> None:
        self.error = ""

    def wait(self, seconds: float | None = None) -> bool:
        if seconds is not None:
            return False
        self.error = "000000.safetensors is damaged"
        return True


def collect_events(corpus: Path, output: Path, on_step: Callable[[], None] = lambda: None) -> list[TrainEvent]:
    """Run until an error; it is in the last of the returned events, as its warning."""
    events: list[TrainEvent] = []
    try:
        for event in run_pretrain(PretrainRequest(recipe=RECIPE, corpus=corpus, output=output)):
            events.append(event)
            if event.step:
                on_step()
    except FolderError as error:
        events.append(TrainEvent(warning=str(error)))
    return events


def test_a_run_waits_for_the_rest_of_the_corpus_before_its_first_checkpoint(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(corpus_check, "CorpusVerification", SlowVerification)
    events = collect_events(corpus, tmp_path / "run")
    assert [event.step.number for event in events if event.step] == [1, 2, 3]  # save_steps is 3
    assert events[-2].note == "comparing the rest of the corpus with its hashes before the first checkpoint"
    assert events[-1].warning == "000000.safetensors is damaged"
    assert list((tmp_path / "run").glob("checkpoints/*")) == []


def test_damage_found_in_the_background_stops_the_next_step(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    verifications: list[SlowVerification] = []

    def create(corpus: Corpus) -> SlowVerification:
        verifications.append(SlowVerification(corpus))
        return verifications[0]

    def find_damage() -> None:
        verifications[0].error = "000000.safetensors is damaged"

    monkeypatch.setattr(corpus_check, "CorpusVerification", create)
    events = collect_events(corpus, tmp_path / "run", find_damage)
    assert [event.step.number for event in events if event.step] == [1]
    assert events[-1].warning == "000000.safetensors is damaged"


def test_an_undamaged_corpus_passes_and_is_compared_once(prepared: Path, monkeypatch: pytest.MonkeyPatch):
    check = CorpusCheck(Corpus.open(prepared))
    check.finish()
    assert not check.is_running

    def fail(text: str) -> list[str]:
        raise AssertionError(text)

    monkeypatch.setattr(corpus_check, "all_gather", fail)
    check.finish()


def test_only_the_first_process_of_a_node_hashes_and_all_raise_its_error(corpus: Path, monkeypatch: pytest.MonkeyPatch):
    flip_bit(shard_of(corpus), 0)
    monkeypatch.setattr(corpus_check, "is_first_of_node", lambda: False)
    monkeypatch.setattr(corpus_check, "all_gather", lambda text: [text, "shard 7 of node 1 is damaged"])
    check = CorpusCheck(Corpus.open(corpus))
    check.raise_error()
    with pytest.raises(FolderError, match=r"^shard 7 of node 1 is damaged$"):
        check.finish()
