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
    documents = [f"w{n} w{n + 1} w{n + 2} is here.\nThen w{n} comes again.\nAnd w{n + 7} goes." for n in range(200)]
    path.write_text("\n\n".join([*documents, documents[0]]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def local_files(text, vocabulary, tmp_path_factory):
    """The files of the corpus, prepared on this node only."""
    return read_files(prepare(request(text, vocabulary, tmp_path_factory.mktemp("local") / "corpus"), 1))


def request(text: Path, vocabulary: Path, output: Path) -> PrepareRequest:
    return PrepareRequest(sources=(TextSource(str(text)),), vocabulary=vocabulary, output=output, read_settings=READING)


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def pickle_by_value(*_: object) -> None:
    """Pickle the functions of this file by value, because the workers of a cluster cannot import it."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def gated(unit, work, folder):
    """Run a unit and wait until the gate is open: half of the units work before they wait, half after."""
    node = ray.get_runtime_context().get_node_id()
    name = str(getattr(unit, "number", unit))
    result = work(unit) if int(name) % 2 else None
    (folder / f"{name}.{node}").touch()
    while not (folder / "open").exists():
        time.sleep(0.05)
    return work(unit) if result is None else result


def test_units_of_a_lost_node_run_again_on_another(ray_cluster, text, vocabulary, local_files, tmp_path):
    pickle_by_value()
    gate = tmp_path / "gate"
    gate.mkdir()
    pool = RayPool(ray)
    output = tmp_path / "corpus"

    def prepare_gated():
        prepare(
            request(text, vocabulary, output), lambda work, units: pool(partial(gated, work=work, folder=gate), units)
        )

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
    assert len(list(gate.glob(f"{lost}.*"))) == 2  # it ran again on the other node
    assert read_files(output) == local_files


def wait_for(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.05)


def test_the_prepare_command_on_a_cluster_writes_the_same_files(ray_cluster, text, vocabulary, tmp_path):
    options = ["--vocab", str(vocabulary), "--output", "corpus", "--ray", ray_cluster.address]
    command = [sys.executable, "-m", "bertworks", "prepare", str(text), *options]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    local = prepare(
        PrepareRequest(sources=(TextSource(str(text)),), vocabulary=vocabulary, output=tmp_path / "local"), 1
    )
    assert read_files(tmp_path / "corpus") == read_files(local)


def test_vocabulary_and_diagnosis_equal_those_of_a_local_run(ray_cluster, text, vocabulary, tmp_path):
    pool = RayPool(ray, num_workers=2)
    vocabularies = []
    for workers in (1, pool):
        vocabulary_request = VocabularyRequest(
            (TextSource(str(text)),), tmp_path / f"vocabulary-{len(vocabularies)}", READING
        )
        train_vocabulary(vocabulary_request, VocabularySettings(vocab_size=120), workers)
        vocabularies.append(read_files(vocabulary_request.output))
    assert vocabularies[0] == vocabularies[1]
    diagnoses = [examine([TextSource(str(text))], [], vocabulary, READING, workers).to_dict() for workers in (1, pool)]
    assert diagnoses[0] == diagnoses[1]


def test_an_error_in_a_task_ends_the_run(ray_cluster):
    pickle_by_value()
    started = []

    def units():
        for number in range(1000):
            started.append(number)
            yield number

    with pytest.raises(InputError, match=r"^unit 3 is bad \(on node [^ ]+; all nodes .* same files\)$"):
        list(RayPool(ray)(refuse_third, units()))
    assert len(started) < 50


def refuse_third(number):
    if number == 3:
        raise InputError("unit 3 is bad")
    return number


def test_units_are_consumed_only_a_bounded_number_ahead_of_the_oldest(ray_cluster, tmp_path):
    pickle_by_value()
    consumed = []

    def units():
        for number in range(100):
            consumed.append(number)
            yield number

    results = RayPool(ray, num_workers=2)(partial(hold_first, gate=tmp_path / "open"), units())
    assert [next(results) for _ in range(7)] == list(range(1, 8))
    assert consumed[-1] <= 8
    (tmp_path / "open").touch()
    assert sorted(results) == [0, *range(8, 100)]


def hold_first(number, gate):
    while number == 0 and not gate.exists():
        time.sleep(0.05)
    return number


def test_another_version_on_a_node_is_refused(ray_cluster, monkeypatch):
    monkeypatch.setattr("bertworks.__version__", "9.9")
    with pytest.raises(SettingsError, match=r"has bertworks 0\..*runs with 9\.9; install the same version"):
        list(RayPool(ray)(abs, [1, 2]))
