"""Fuzzing of every reader: mutated files end in success or in a BertworksError of one line, in bounded time and memory.

`make test` runs a fixed selection of mutations; `make soak` draws random ones for an hour.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign import Campaigns
from fuzz_readers import READERS, Reader
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutations import MUTATIONS, TOML_VALUES, mutated_bytes, mutated_json
from outcomes import bounded_machine, check_outcome
from pydantic import BaseModel

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.models import tf1_checkpoint
from bertworks.serving import schemas, tei_schemas
from bertworks.serving.errors import RequestError
from bertworks.serving.routing import parse_body
from bertworks.settings import apply_overrides, from_table

SOAK_SECONDS = 3_600
BODIES = {
    name: body
    for name, body in {**vars(schemas), **vars(tei_schemas)}.items()
    if isinstance(body, type)
    and issubclass(body, BaseModel)
    and name.endswith("Body")
    and name not in ("Body", "TeiBody")
}
KEYS = ("batch_size", "learning_rate", "model.hidden_size", "model.num_hidden_layers", "optimizer.weight_decay", "seed")


class AnyChecksum:
    """Equals every checksum, so that mutations reach what lies behind it."""

    def __ne__(self, other: object) -> bool:
        return False


def fuzz(strategy: st.SearchStrategy[object], run: Callable[..., None], num_examples: int, seconds: float = 0) -> None:
    """Run a function on drawn values: a fixed selection, or random ones for so many seconds."""
    options = settings(
        max_examples=num_examples,
        derandomize=not seconds,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,) if not seconds else (Phase.generate, Phase.shrink),
    )
    end = time.monotonic() + seconds
    while True:
        options(given(strategy)(run))()
        if time.monotonic() >= end:
            return


def fuzz_reader(reader: Reader, folder: Path, seconds: float = 0) -> int:
    """Mutate one file of a valid folder at a time, and read the folder; return how often."""
    reader.build(folder)
    reader.read(folder)  # valid as it is
    contents = {
        path.relative_to(folder): (path.read_bytes(), kinds)
        for pattern, kinds in reader.files.items()
        for path in folder.glob(pattern)
    }
    assert len(contents) == len(reader.files)
    strategies = [
        st.tuples(st.just(file), MUTATIONS[kind](data)) for file, (data, kinds) in contents.items() for kind in kinds
    ]

    num_reads = itertools.count()

    def run(mutation: tuple[Path, bytes]) -> None:
        file, data = mutation
        next(num_reads)
        try:
            (folder / file).write_bytes(data)
            with bounded_machine():
                check_outcome(lambda: reader.read(folder))
        finally:
            (folder / file).write_bytes(contents[file][0])

    fuzz(st.one_of(strategies), run, reader.num_examples, seconds)
    return next(num_reads)


@pytest.fixture(autouse=True)
def checksums_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf1_checkpoint, "masked_crc32c", lambda data: AnyChecksum())


@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused_in_one_sentence(name: str, tmp_path: Path, one_thread: None):
    fuzz_reader(READERS[name], tmp_path / "folder")


@pytest.mark.soak
@pytest.mark.parametrize("name", READERS)
def test_random_mutations(name: str, tmp_path: Path, one_thread: None, campaigns: Campaigns):
    campaign, counts = campaigns.start("fuzz/readers", SOAK_SECONDS, part=name), list[int]()
    with campaign.recording("read or refused in a sentence", lambda: sum(counts), planned=0):
        counts.append(fuzz_reader(READERS[name], tmp_path / "folder", campaign.size / len(READERS)))
    shutil.rmtree(tmp_path / "folder")


@pytest.mark.parametrize("recipe", [PretrainRecipe, FinetuneRecipe])
def test_an_assignment_is_applied_or_refused_in_one_sentence(recipe: type):
    values = st.one_of(st.sampled_from(TOML_VALUES), st.text(max_size=30))
    keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=10), st.just("a." * 1_000))

    def run(assignment: tuple[str, str]) -> None:
        with bounded_machine():
            check_outcome(lambda: from_table(recipe, apply_overrides({}, ["=".join(assignment)], recipe), "options"))

    fuzz(st.tuples(keys, values), run, 200)


@pytest.mark.parametrize("name", BODIES)
def test_a_mutated_body_is_parsed_or_refused_in_one_sentence(name: str):
    body_class = BODIES[name]
    example = body_class.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index,call-overload]

    def read(data: bytes) -> None:
        body = parse_body(body_class, data)
        if isinstance(body, schemas.Body):
            list(body.texts())

    def run(data: bytes) -> None:
        with bounded_machine():
            check_outcome(lambda: read(data), RequestError)

    fuzz(st.one_of(mutated_json(example), mutated_bytes(json.dumps(example).encode())), run, 60)
