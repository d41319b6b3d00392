"""Folders of training: a run, a checkpoint, a sweep, a comparison or a bundle in, its FolderInfo out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bertworks.disk import read_json, sha256
from bertworks.errors import FolderError
from bertworks.folder_info.kind import FINISHED, UNFINISHED, FolderInfo, known, read_object, total_bytes
from bertworks.folder_info.model_kinds import describe_finetuned, describe_pretrained, is_ours
from bertworks.models.provenance import BASE_FOLDER, CORPUS_FOLDER
from bertworks.packages import MODEL_FOLDER
from bertworks.reading import parse_toml
from bertworks.serving.bundle_manifest import BUNDLE, read_bundle_manifest
from bertworks.serving.run_records import METRICS, RECIPE, RUN_INFO, RunMonitor, Tail, is_run

SWEEP, COMPARISON = "sweep.json", "compare.json"
_STATE, _MANIFEST = "state.json", "manifest.json"
_SWEEP_RUN = re.compile(r"bs\d+-lr.+-epochs.+-seed\d+")


def describe_run(folder: Path) -> FolderInfo:
    """Read recipe, run.json and the records of a run; of a finished one also its model."""
    summary = RunMonitor(folder.name, folder, Tail(path=folder / METRICS)).summary()
    recipe, run_info = _recipe(folder), read_object(folder / RUN_INFO, "a run folder")
    is_finetuning = summary["kind"] == "finetune"
    model = folder / MODEL_FOLDER
    is_finished = "finished" in run_info and is_ours(model)
    info = None
    if is_finished:
        info = describe_finetuned(model) if is_finetuning else describe_pretrained(model)
    machine = run_info.get("machine")
    facts = {
        "step": summary["step"],
        "steps of the recipe": sum(phase.get("steps", 0) for phase in recipe.get("phases", [])) or None,
        "started at": summary["started"],
        "finished at": summary["finished"],
        "checkpoints": sorted(path.name for path in (folder / "checkpoints").glob("step-*")),
        **({} if info is None else info.facts),
        "corpus": run_info.get(CORPUS_FOLDER),
        "warnings": run_info.get("warnings"),
    }
    if not is_finished:
        facts |= {"task": recipe.get("task"), "objective": recipe.get("objective")}
    recorded = machine.get("bertworks", "") if isinstance(machine, dict) else ""
    return FolderInfo(
        folder=folder,
        kind="fine-tuning run" if is_finetuning else "pretraining run",
        command="bertworks finetune" if is_finetuning else _pretrain_command(run_info),
        version=info.version if info is not None else str(recorded),
        facts=known(facts),
        state=FINISHED if is_finished else UNFINISHED,
        next_command=_continue_command(folder, recipe, run_info) if info is None else info.next_command,
    )


def _recipe(folder: Path) -> dict[str, Any]:
    try:
        return parse_toml((folder / RECIPE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder / RECIPE} cannot be read ({error}); copy it again") from None


def _pretrain_command(run_info: dict[str, Any]) -> str:
    return "bertworks adapt" if BASE_FOLDER in run_info else "bertworks pretrain"


def _continue_command(folder: Path, recipe: dict[str, Any], run_info: dict[str, Any]) -> str:
    """Return the command that resumes a run: with its own recipe it gives the same bits."""
    if "task" in recipe:
        return f"bertworks finetune {recipe['task']} --model MODEL --train TRAIN --output {folder}"
    corpus = run_info.get(CORPUS_FOLDER, "CORPUS")
    if BASE_FOLDER in run_info:
        recipe_option = f"--recipe {folder / RECIPE}"
        return f"bertworks adapt {run_info[BASE_FOLDER]} --data {corpus} {recipe_option} --output {folder}"
    return f"bertworks pretrain {folder / RECIPE} --data {corpus} --output {folder}"


def is_checkpoint(folder: Path) -> bool:
    return (folder / _STATE).is_file() and (folder / _MANIFEST).is_file()


def describe_checkpoint(folder: Path) -> FolderInfo:
    """Compare all files of a checkpoint with its hashes."""
    for name, digest in read_object(folder / _MANIFEST, "the manifest of a checkpoint").items():
        if not (folder / name).is_file():
            raise FolderError(f"{folder} lacks {name}, which its {_MANIFEST} lists; resume from an earlier checkpoint")
        if sha256(folder / name) != digest:
            raise FolderError(f"{folder / name} is damaged: its sha256 is not the one in {_MANIFEST}")
    state = read_object(folder / _STATE, "the state of a checkpoint")
    run = folder.absolute().parent.parent
    facts = {
        "step": state.get("step"),
        "tokens": state.get("num_tokens"),
        "seconds": state.get("seconds"),
        "run": str(run) if is_run(run) else None,
        "disk space": total_bytes(folder),
    }
    return FolderInfo(
        folder=folder,
        kind="checkpoint",
        command="bertworks finetune" if is_run(run) and "task" in _recipe(run) else "bertworks pretrain",
        facts=known(facts),
        next_command=f"bertworks info {run}" if is_run(run) else "",
    )


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).is_file() or bool(_sweep_runs(folder))


def _sweep_runs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("bs*") if _SWEEP_RUN.fullmatch(path.name) and is_run(path))


def describe_sweep(folder: Path) -> FolderInfo:
    """Read the runs of a grid or of several seeds, and the best of the finished ones."""
    runs = _sweep_runs(folder)
    finished = [run for run in runs if (run / RUN_INFO).is_file()]
    is_finished = (folder / SWEEP).is_file()
    rows = read_json(folder / SWEEP, "a sweep") if is_finished else []
    best = max(rows, key=lambda row: row["score"], default=None)
    facts = {
        "runs": len(runs),
        "finished runs": len(finished),
        "best run": best and best["folder"],
        "best dev score": best and best["score"],
        "disk space": total_bytes(folder),
    }
    infos = [describe_finetuned(run / MODEL_FOLDER) for run in finished[:1]]
    next_command = f"bertworks finetune TASK --model MODEL --train TRAIN --dev DEV --sweep --output {folder}"
    return FolderInfo(
        folder=folder,
        kind="sweep",
        command="bertworks finetune",
        version=infos[0].version if infos else "",
        facts=known(facts),
        state=FINISHED if is_finished else UNFINISHED,
        next_command=f"bertworks predict {folder / best['folder'] / MODEL_FOLDER} TEXTS" if best else next_command,
    )


def is_comparison(folder: Path) -> bool:
    return (folder / COMPARISON).is_file()


def describe_comparison(folder: Path) -> FolderInfo:
    """Read the members, tasks and results of a comparison; it is finished when every member has every seed."""
    content = read_object(folder / COMPARISON, "a comparison")
    comparison, results = content.get("comparison", {}), content.get("results", [])
    members = [member.get("name") for member in comparison.get("members", [])]
    seeds = comparison.get("seeds", [])
    tasks = [task.get("name") or task.get("task") for task in comparison.get("tasks", [])]
    counted = "mean_score" if tasks else "held_out_loss"
    done = {result["member"] for result in results if len(result[counted]["values"]) >= len(seeds)}
    machine = content.get("machine", {})
    facts = {
        "members": members,
        "finished members": sorted(name for name in done if name in members),
        "tasks": tasks,
        "seeds": seeds,
        "failures": content.get("failures"),
        "report": str(folder / "report.html"),
        "disk space": total_bytes(folder),
    }
    is_finished = set(members) <= done
    return FolderInfo(
        folder=folder,
        kind="comparison",
        command="bertworks compare",
        version=str(machine.get("bertworks", "")),
        facts=known(facts),
        state=FINISHED if is_finished else UNFINISHED,
        next_command=(
            f"bertworks serve --runs {folder / 'runs'} MODEL"
            if is_finished
            else f"bertworks compare RECIPE --output {folder}"
        ),
    )


def is_bundle(folder: Path) -> bool:
    return (folder / BUNDLE).is_file()


def describe_bundle(folder: Path) -> FolderInfo:
    """Read the manifest of a bundle and look for every file; `bertworks serve` compares the hashes."""
    manifest = read_bundle_manifest(folder)
    for name in manifest["files"]:
        if not (folder / name).is_file():
            raise FolderError(f"{folder} lacks {name}, which its {BUNDLE} lists; copy or build it again")
    index = manifest["index"]
    facts = {
        "models": list(manifest["models"]),
        "origins": [f"{link['later']} ← {link['earlier']}" for link in manifest["chain"] if link.get("earlier")],
        "corpus": manifest["corpus"] is not None,
        "search index by": None if index is None else index["model"],
        "files": len(manifest["files"]),
        "disk space": total_bytes(folder),
    }
    return FolderInfo(
        folder=folder,
        kind="bundle",
        command="bertworks bundle",
        version=str(manifest.get("created_by", "")).removeprefix("bertworks "),
        facts=known(facts),
        next_command=f"bertworks serve {folder}",
    )
