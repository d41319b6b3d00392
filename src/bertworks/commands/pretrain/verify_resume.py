"""Verify exact resume of a recipe: a recipe and a corpus in, the first difference, or none, out.

The recipe is run twice in child processes: once uninterrupted, once killed (SIGKILL) at random moments and resumed. An
observer in each writes a digest of every batch and, after every step, of every weight and optimizer moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.disk import write_text
from bertworks.errors import BertworksError, SettingsError
from bertworks.sampling.batch import Batch
from bertworks.training.optimizer import BertAdam

BATCH = "the batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """The recipe and corpus to verify, shortened to `num_steps` steps and killed `num_kills` times."""

    recipe: PretrainRecipe
    corpus: Path
    vocabulary: str | None = None
    num_steps: int = 30
    num_kills: int = 3
    seed: int = 0  # of the moments at which the run is killed


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result. `first_difference` names the first step and what is not bit-identical there; None: identical."""

    num_steps: int
    num_kills: int  # those before the end of the run
    first_difference: tuple[int, str] | None


def verify_resume(request: VerifyRequest, log: Callable[[str], None] = lambda text: None) -> Verdict:
    """Run the shortened recipe both ways in a temporary folder and compare; progress messages go to `log`."""
    recipe = shorten_recipe(request.recipe, request.num_steps, request.num_kills)
    with tempfile.TemporaryDirectory(prefix="bertworks-verify-") as name:
        reference = _Session(replace(request, recipe=recipe), Path(name), "uninterrupted")
        log(f"{request.num_steps} steps uninterrupted")
        started = time.monotonic()
        reference.finish()
        step_seconds = (time.monotonic() - started) / request.num_steps
        # Only its digests are needed, and two runs of a large model may not fit on the disk.
        shutil.rmtree(reference.output)
        killed = _Session(reference.request, Path(name), "killed")
        num_kills = _kill(killed, step_seconds, log)
        log("running to the end")
        killed.finish()
        return Verdict(request.num_steps, num_kills, _first_difference(reference.digests, killed.digests))


def shorten_recipe(recipe: PretrainRecipe, num_steps: int, num_kills: int) -> PretrainRecipe:
    """Return the recipe with phases and warmup scaled down to `num_steps`, and checkpoints between the kills.

    A time budget becomes steps: two runs with a time budget never do the same steps.
    """
    min_steps = max(len(recipe.phases), num_kills + 1, 2)
    if num_steps < min_steps or num_kills < 1:
        raise SettingsError(
            f"{num_steps} steps and {num_kills} kills are too few to verify this recipe; use at least --steps "
            f"{min_steps} and --kills 1"
        )
    weights = [phase.budget_ratio if recipe.budget else phase.steps for phase in recipe.phases]
    steps = [max(1, int(num_steps * weight / sum(weights))) for weight in weights]
    steps[steps.index(max(steps))] += num_steps - sum(steps)
    warmup_ratio = recipe.warmup_ratio if recipe.budget else min(1.0, recipe.warmup_steps / sum(weights))
    return replace(
        recipe,
        phases=tuple(replace(phase, steps=num) for phase, num in zip(recipe.phases, steps, strict=True)),
        budget="",
        warmup_steps=round(warmup_ratio * num_steps),
        save_steps=max(1, num_steps // (2 * num_kills + 2)),
        eval_steps=max(1, num_steps // 3),
        num_eval_examples=min(8, recipe.num_eval_examples),
    )


@dataclass(slots=True)
class DigestObserver:
    """A StepObserver: batches and parameters in, one line of JSON with their digests per step out.

    It kills its process `kill_delay` seconds after step `kill_step`, if there is one.
    """

    path: Path
    kill_step: int | None = None
    kill_delay: float = 0.0
    batch_digest: str = ""

    def on_batches(self, batches: Sequence[Batch]) -> None:
        self.batch_digest = digest_of(batches)

    def on_step(self, step: int, module: nn.Module, optimizer: BertAdam) -> None:
        tensors = {**module.state_dict(), **optimizer.state()}
        digests = {name: digest_of(tensor) for name, tensor in tensors.items()}
        line = json.dumps({"step": step, "batch": self.batch_digest, "tensors": digests})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}")  # newline first: it also ends a line that a kill left incomplete
        if self.kill_step is not None and step >= self.kill_step:
            self.kill_step = None
            threading.Timer(self.kill_delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


def digest_of(value: Any) -> str:
    """Return a digest of a tensor, or of a dataclass, dict or list of them: equal only if every bit is."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        digest = hashlib.blake2b(tensor.reshape(-1).view(torch.uint8).numpy().data, digest_size=12)
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        return digest.hexdigest()
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        value = [part for item in value.items() for part in item]
    text = repr([digest_of(item) for item in value]) if isinstance(value, list | tuple) else repr(value)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class _Session:
    """A run folder and the digests of its observer, processed by one child process after another."""

    def __init__(self, request: VerifyRequest, folder: Path, name: str) -> None:
        self.request = request
        self.output = folder / name
        self.digests = folder / f"{name}.jsonl"
        self._error_path = folder / f"{name}.error"

    @contextlib.contextmanager
    def _start_process(self, kill_step: int | None, kill_delay: float) -> Iterator[BaseProcess]:
        """Start a process that starts or resumes the run; the block's end kills it, and its error is raised here."""
        request = PretrainRequest(
            recipe=self.request.recipe,
            corpus=self.request.corpus,
            output=self.output,
            vocabulary=self.request.vocabulary,
            observer=DigestObserver(self.digests, kill_step, kill_delay),
        )
        # A forkserver with torch preloaded: children start at once and inherit no threads.
        context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload([__name__, "torch._dynamo"])  # the optimizer imports torch._dynamo, slowly
        process = cast(Any, context).Process(target=_run, args=(request, self._error_path), daemon=True)
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join()
        if self._error_path.exists():
            raise BertworksError(self._error_path.read_text(encoding="utf-8"))

    def finish(self) -> None:
        if exit_code := self.run():
            raise BertworksError(
                f"a training process exited with code {exit_code}; -9 most likely means that memory ran out"
            )

    def run(self, kill_step: int | None = None, kill_delay: float = 0.0) -> int:
        """Run to the end, or until it is killed some seconds after step `kill_step`; return the exit code."""
        with self._start_process(kill_step, kill_delay) as process:
            process.join()
        return cast(int, process.exitcode)

    def last_step(self) -> int:
        """Return the last step of which the digests are complete."""
        return int(_parse_complete_lines(self.digests.read_text(encoding="utf-8"))[-1]["step"])


def _run(request: PretrainRequest, error_file: Path) -> None:
    try:
        for _ in run_pretrain(request):
            pass
    except BertworksError as error:
        write_text(error_file, str(error))


def _kill(session: _Session, step_seconds: float, log: Callable[[str], None]) -> int:
    """Kill the run shortly after randomly chosen steps; return the number of kills before its end."""
    rng = random.Random(session.request.seed)  # noqa: S311 (no secret)
    kill_steps = sorted(rng.sample(range(1, session.request.num_steps), session.request.num_kills))
    num_kills = 0
    for kill_step in kill_steps:
        if session.run(kill_step, rng.random() * step_seconds) == -signal.SIGKILL:
            num_kills += 1
            log(f"killed after step {session.last_step()}")
    return num_kills


def _first_difference(expected: Path, actual: Path) -> tuple[int, str] | None:
    """Return the first step at which something differs, and its name. Steps that were repeated are compared twice."""
    expected_lines = {line["step"]: line for line in _parse_complete_lines(expected.read_text(encoding="utf-8"))}
    lines = sorted(_parse_complete_lines(actual.read_text(encoding="utf-8")), key=lambda line: int(line["step"]))
    for line in lines:
        step = line["step"]
        if line["batch"] != expected_lines[step]["batch"]:
            return step, BATCH
        for name, digest in expected_lines[step]["tensors"].items():
            if line["tensors"].get(name) != digest:
                return step, name
    completed_steps = {line["step"] for line in lines}
    return next(
        ((step, "the step itself, which is missing") for step in expected_lines if step not in completed_steps), None
    )


def _parse_complete_lines(text: str) -> list[dict[str, Any]]:
    lines = []
    for line in text.split("\n"):
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines
