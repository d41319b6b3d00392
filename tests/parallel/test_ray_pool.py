"""Preparation on a Ray cluster of two nodes: the bytes of a local run, also when a node is lost in the middle."""

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import ray
from ray import cloudpickle

from bertworks.commands.doctor.run import examine
from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.commands.vocab import VocabularyRequest, train_vocabulary
from bertworks.errors import InputError, SettingsError
from bertworks.parallel.ray_pool import RayPool
from bertworks.text.sources import ReadSettings, TextSource
from bertworks.vocabulary.training import VocabularySettings

pytestmark = pytest.mark.xdist_group("ray")
READING = ReadSettings(block_bytes=1500)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Documents of three sentences, the first of them twice: eleven blocks."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    told = [f"w{n} w{n + 1} w{n + 2} is here.\nThen w{n} comes again.\nAnd w{n + 7} goes." for n in range(200)]
    path.write_text("\n\n".join([*told, told[0]]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def wanted(text, vocabulary, tmp_path_factory):
    """The corpus as this machine makes it alone."""
    return bytes_of(prepare(request(text, vocabulary, tmp_path_factory.mktemp("local") / "corpus"), 1))


def request(text: Path, vocabulary: Path, out: Path) -> PrepareRequest:
    return PrepareRequest((TextSource(str(text)),), vocabulary, out, read_settings=READING)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def by_value(*_: object) -> None:
    """Let tasks have the functions of this file, which the workers of a cluster cannot import."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def gated(unit, work, folder):
    """Do a unit, but end only when somebody opens the gate: half of them work before they wait, half after."""
    node = ray.get_runtime_context().get_node_id()
    name = str(getattr(unit, "number", unit))
    done = work(unit) if int(name) % 2 else None
    (folder / f"{name}.{node}").touch()
    while not (folder / "open").exists():
        time.sleep(0.05)
    return work(unit) if done is None else done


def test_a_lost_node_costs_nothing_but_time(ray_cluster, text, vocabulary, wanted, tmp_path):
    by_value()
    gate = tmp_path / "gate"
    gate.mkdir()
    pool = RayPool(ray)
    out = tmp_path / "corpus"

    def prepare_gated():
        prepare(request(text, vocabulary, out), lambda work, units: pool(partial(gated, work=work, folder=gate), units))

    thread = threading.Thread(target=prepare_gated)
    thread.start()
    (doomed,) = ray_cluster.worker_nodes
    wait_for(lambda: any(doomed.node_id in path.name for path in gate.iterdir()))
    ray_cluster.remove_node(doomed, allow_graceful=False)
    (lost,) = [path.name.split(".")[0] for path in gate.iterdir() if doomed.node_id in path.name]
    (gate / "open").touch()
    thread.join(120)
    ray_cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    assert not thread.is_alive()
    assert len(list(gate.glob(f"{lost}.*"))) == 2  # it was begun again, on the other node
    assert bytes_of(out) == wanted


def wait_for(is_so, seconds=120.0):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_the_command_joins_a_cluster_and_writes_the_same_bytes(ray_cluster, text, vocabulary, tmp_path):
    options = ["--vocab", str(vocabulary), "--out", "corpus", "--ray", ray_cluster.address]
    command = [sys.executable, "-m", "bertworks", "prepare", str(text), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    local = prepare(PrepareRequest((TextSource(str(text)),), vocabulary, tmp_path / "local"), 1)
    assert bytes_of(tmp_path / "corpus") == bytes_of(local)


def test_vocabulary_and_diagnosis_are_those_of_a_local_run(ray_cluster, text, vocabulary, tmp_path):
    pool = RayPool(ray, num_workers=2)
    learnt = []
    for workers in (1, pool):
        asked = VocabularyRequest((TextSource(str(text)),), tmp_path / f"vocabulary-{len(learnt)}", READING)
        train_vocabulary(asked, VocabularySettings(vocab_size=120), workers)
        learnt.append(bytes_of(asked.output))
    assert learnt[0] == learnt[1]
    told = [examine([TextSource(str(text))], [], vocabulary, READING, workers).to_dict() for workers in (1, pool)]
    assert told[0] == told[1]


def test_an_error_in_a_task_is_told_in_one_sentence_and_the_rest_is_left(ray_cluster):
    by_value()
    begun = []

    def units():
        for number in range(1000):
            begun.append(number)
            yield number

    with pytest.raises(InputError, match=r"^unit 3 is bad; mend it \(seen from [^ ]+; all machines .* same files\)$"):
        list(RayPool(ray)(refuse_third, units()))
    assert len(begun) < 50


def refuse_third(number):
    if number == 3:
        raise InputError("unit 3 is bad; mend it")
    return number


def test_units_are_drawn_no_further_ahead_of_the_oldest_than_there_is_room(ray_cluster, tmp_path):
    by_value()
    drawn = []

    def units():
        for number in range(100):
            drawn.append(number)
            yield number

    done = RayPool(ray, num_workers=2)(partial(hold_first, gate=tmp_path / "open"), units())
    assert [next(done) for _ in range(7)] == list(range(1, 8))
    assert drawn[-1] <= 8
    (tmp_path / "open").touch()
    assert sorted(done) == [0, *range(8, 100)]


def hold_first(number, gate):
    while number == 0 and not gate.exists():
        time.sleep(0.05)
    return number


def test_another_version_on_a_node_is_refused(ray_cluster, monkeypatch):
    monkeypatch.setattr("bertworks.__version__", "9.9")
    with pytest.raises(SettingsError, match=r"has bertworks 0\..*given with 9\.9; install the same version"):
        list(RayPool(ray)(abs, [1, 2]))
