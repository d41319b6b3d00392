"""Prove exact resume on a person's own recipe: a recipe and a corpus in, the first difference, or none, out.

The recipe is run twice in processes of its own: once undisturbed, once killed (SIGKILL) at random moments and resumed.
A witness in each writes down a digest of every batch and, after every step, of every weight and optimizer moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.commands.pretrain.run import PretrainRequest, pretrain
from bertworks.disk import write_text
from bertworks.errors import BertworksError, SettingsError
from bertworks.sampling.batch import Batch
from bertworks.training.optimizer import BertAdam

BATCH = "the batch that was drawn"


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to prove: that this recipe on this corpus, killed so many times within so many steps, resumes exactly."""

    recipe: PretrainRecipe
    corpus: Path
    vocabulary: str | None = None
    num_steps: int = 30
    num_kills: int = 3
    seed: int = 0  # of the moments at which it is killed


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it went. `differs` names the first thing that is not the same to the bit, and the step; None: identical."""

    num_steps: int
    num_kills: int  # those that came before the end
    first_difference: tuple[int, str] | None


def verify_resume(request: VerifyRequest, log: Callable[[str], None] = lambda text: None) -> Verdict:
    """Run the recipe, shortened, both ways in a temporary folder and compare; `watch` is told what is going on."""
    recipe = shorten_recipe(request.recipe, request.num_steps, request.num_kills)
    with tempfile.TemporaryDirectory(prefix="bertworks-verify-") as name:
        whole = _Session(replace(request, recipe=recipe), Path(name), "undisturbed")
        log(f"{request.num_steps} steps undisturbed")
        started = time.monotonic()
        whole.finish()
        step_seconds = (time.monotonic() - started) / request.num_steps
        shutil.rmtree(
            whole.output
        )  # only its digests are needed, and two runs of a large model would not fit everywhere
        parts = _Session(whole.request, Path(name), "killed")
        num_kills = _kill(parts, step_seconds, log)
        log("running to the end")
        parts.finish()
        return Verdict(request.num_steps, num_kills, _first_difference(whole.digests, parts.digests))


def shorten_recipe(recipe: PretrainRecipe, num_steps: int, num_kills: int) -> PretrainRecipe:
    """Return the recipe with its phases and warm-up scaled down to so many steps, saved often enough to be killed.

    A budget becomes steps: the clock never runs the same way twice, so two runs by it have nothing to compare.
    """
    least = max(len(recipe.phases), num_kills + 1, 2)
    if num_steps < least or num_kills < 1:
        raise SettingsError(
            f"{num_steps} steps and {num_kills} kills prove nothing here; ask for at least {least} --steps and "
            f"1 --kills"
        )
    weights = [phase.budget_ratio if recipe.budget else phase.steps for phase in recipe.phases]
    steps = [max(1, int(num_steps * weight / sum(weights))) for weight in weights]
    steps[steps.index(max(steps))] += num_steps - sum(steps)
    warmup_rate = recipe.warmup_ratio if recipe.budget else min(1.0, recipe.warmup_steps / sum(weights))
    return replace(
        recipe,
        phases=tuple(replace(phase, steps=count) for phase, count in zip(recipe.phases, steps, strict=True)),
        budget="",
        warmup_steps=round(warmup_rate * num_steps),
        save_steps=max(1, num_steps // (2 * num_kills + 2)),
        eval_steps=max(1, num_steps // 3),
        num_eval_examples=min(8, recipe.num_eval_examples),
    )


@dataclass(slots=True)
class DigestObserver:
    """The witness of a run: batches and parameters in, a line of JSON for each step out."""

    path: Path
    batch_digest: str = ""

    def on_batches(self, batches: Sequence[Batch]) -> None:
        self.batch_digest = digest_of(batches)

    def on_step(self, step: int, module: nn.Module, optimizer: BertAdam) -> None:
        tensors = {**module.state_dict(), **optimizer.state()}
        found = {name: digest_of(tensor) for name, tensor in tensors.items()}
        line = json.dumps({"step": step, "batch": self.batch_digest, "tensors": found})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}")  # the newline comes first: it also ends a line that a kill has torn


def digest_of(value: Any) -> str:
    """Return a digest of tensors and whatever holds them: equal only if every bit is."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        digest = hashlib.blake2b(plain.reshape(-1).view(torch.uint8).numpy().data, digest_size=12)
        digest.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        return digest.hexdigest()
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        value = [part for item in value.items() for part in item]
    told = repr([digest_of(one) for one in value]) if isinstance(value, list | tuple) else repr(value)
    return hashlib.blake2b(told.encode(), digest_size=12).hexdigest()


class _Session:
    """One run folder with its witness, worked on by one process after another."""

    def __init__(self, request: VerifyRequest, folder: Path, name: str) -> None:
        self.request = request
        self.output = folder / name
        self.digests = folder / f"{name}.jsonl"
        self._error_path = folder / f"{name}.error"

    @contextlib.contextmanager
    def start_process(self) -> Iterator[BaseProcess]:
        """Start a process that begins or resumes the run; it does not outlive the block. Its error becomes ours."""
        told = self.request
        witness = DigestObserver(self.digests)
        request = PretrainRequest(told.recipe, told.corpus, self.output, told.vocabulary, observer=witness)
        # A server that has torch loaded forks the processes: each starts at once, and none has threads of ours.
        context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload([__name__, "torch._dynamo"])  # an optimizer loads the latter, slowly
        process = cast(Any, context).Process(target=_run, args=(request, self._error_path), daemon=True)
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.combine()
        if self._error_path.exists():
            raise BertworksError(self._error_path.read_text(encoding="utf-8"))

    def finish(self) -> None:
        with self.start_process() as process:
            process.join()
        if process.exitcode:
            raise BertworksError(
                f"a process of the proof ended with code {process.exitcode}; if that is -9, memory most likely ran out"
            )

    def read_steps(self, offset: int = 0) -> list[dict[str, Any]]:
        """Return what the witness wrote down after the byte `start`; lines torn by a kill are left out."""
        if not self.digests.exists():
            return []
        with self.digests.open(encoding="utf-8") as file:
            file.seek(offset)
            return _parse_complete_lines(file.read())


def _run(request: PretrainRequest, error_file: Path) -> None:
    try:
        for _ in pretrain(request):
            pass
    except BertworksError as error:
        write_text(error_file, str(error))


def _kill(session: _Session, step_seconds: float, log: Callable[[str], None]) -> int:
    """Kill the run shortly after steps drawn at random; return how many kills came before its end."""
    draw = random.Random(session.request.seed)  # noqa: S311 (no secret)
    moments = sorted(draw.sample(range(1, session.request.num_steps), session.request.num_kills))
    num_kills = 0
    for moment in moments:
        start = session.digests.stat().st_size if session.digests.exists() else 0
        with session.start_process() as process:
            while process.is_alive() and not any(line["step"] >= moment for line in session.read_steps(start)):
                process.join(0.01)
            process.join(draw.random() * step_seconds)
            process.kill()
            process.join()
        if process.exitcode == -signal.SIGKILL:
            num_kills += 1
            log(f"killed after step {session.read_steps()[-1]['step']}")
    return num_kills


def _first_difference(expected: Path, actual: Path) -> tuple[int, str] | None:
    """Return the first step at which something differs, and its name. Steps done twice are looked at twice."""
    wanted = {line["step"]: line for line in _parse_complete_lines(expected.read_text(encoding="utf-8"))}
    lines = sorted(_parse_complete_lines(actual.read_text(encoding="utf-8")), key=lambda line: int(line["step"]))
    for line in lines:
        step = line["step"]
        if line["batch"] != wanted[step]["batch"]:
            return step, BATCH
        for name, digest in wanted[step]["tensors"].items():
            if line["tensors"].get(name) != digest:
                return step, name
    done = {line["step"] for line in lines}
    return next(((step, "the step itself, which was left out") for step in wanted if step not in done), None)


def _parse_complete_lines(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.split("\n"):
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
