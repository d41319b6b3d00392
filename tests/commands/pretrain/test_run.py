"""Pretraining runs: from recipe to model folder; interrupted anywhere, the result is bit-identical."""

import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from killed_child import run_killed
from safetensors.torch import load_file
from small_run import RECIPE, assert_close, assert_same, assert_same_state, curve, prepare_corpus, run, state

import bertworks.training.checkpoint
from bertworks.commands.pretrain.recipe import PhaseRecipe, PretrainRecipe
from bertworks.commands.pretrain.request import PretrainRequest
from bertworks.commands.pretrain.run import run_pretrain
from bertworks.commands.pretrain.run_recipe import recipe_hash
from bertworks.corpus.corpus import Corpus
from bertworks.encoders import precision as precision_module
from bertworks.errors import BertworksError, FolderError, SettingsError
from bertworks.folder_lock import lock_folder
from bertworks.inference.model import load
from bertworks.settings import read_recipe, recipe_path
from bertworks.training.checkpoint import checkpoints_in
from bertworks.training.interrupt import STOP_MESSAGE

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare_corpus(tmp_path_factory.mktemp("pretraining"))


def test_transformers_loads_the_pretrained_model(corpus, tmp_path):
    from transformers import AutoTokenizer, BertForPreTraining

    steps = run(corpus, tmp_path / "run")
    assert [step.number for step in steps] == list(range(1, 13))
    assert [step.phase for step in steps] == [0] * 8 + [1] * 4
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {
        "recipe.toml",
        "metrics.jsonl",
        "report.html",
        "model",
    }
    peer = BertForPreTraining.from_pretrained(tmp_path / "run" / "model").eval()
    model = load(tmp_path / "run" / "model")
    encoded = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")("The river [MASK].", return_tensors="pt")
    assert encoded["input_ids"][0].tolist() == list(
        model.tokenizer.encode("The river [MASK].", parse_masks=True).input_ids
    )
    logits = peer(**encoded).prediction_logits[0, 3].detach()
    logits[list(model.tokenizer.specials.ids)] = float("-inf")
    best = logits.softmax(-1).max()
    assert model.fill_mask("The river [MASK].", 1).mask_candidates[0][0].probability == pytest.approx(
        float(best), abs=1e-5
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resumed_run_is_bit_identical(corpus, tmp_path, precision):
    recipe = replace(RECIPE, precision=precision)
    run(corpus, tmp_path / "whole", recipe)
    for num_steps in (2, 5, 3):
        run(corpus, tmp_path / "resumed", recipe, stop_after=num_steps)
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(tmp_path / "whole", tmp_path / "resumed")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resumed_run_with_averaged_weights_is_bit_identical(corpus, tmp_path, precision):
    recipe = replace(RECIPE, precision=precision, ema_decay=0.9)
    run(corpus, tmp_path / "whole", recipe)
    for num_steps in (2, 5):
        run(corpus, tmp_path / "resumed", recipe, stop_after=num_steps)
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(tmp_path / "whole", tmp_path / "resumed")
    assert any(name.startswith("optimizer/ema/") for name in state(tmp_path / "whole"))


def test_evaluations_and_model_use_the_averaged_weights_and_training_does_not(corpus, tmp_path):
    steps = run(corpus, tmp_path / "plain")
    averaged_steps = run(corpus, tmp_path / "averaged", replace(RECIPE, ema_decay=0.9))
    assert [step.losses for step in averaged_steps] == [step.losses for step in steps]
    plain, averaged = state(tmp_path / "plain"), state(tmp_path / "averaged")
    assert all(torch.equal(values, averaged[name]) for name, values in plain.items())
    model = load_file(tmp_path / "averaged" / "model" / "model.safetensors")
    assert torch.equal(model["bert.pooler.dense.weight"], averaged["optimizer/ema/encoder.pooler.weight"])
    assert not torch.equal(model["bert.pooler.dense.weight"], averaged["model/encoder.pooler.weight"])
    held_out, averaged_held_out = (
        [line["losses"] for line in curve(tmp_path / name) if line["kind"] == "held_out"]
        for name in ("plain", "averaged")
    )
    assert held_out[0] == averaged_held_out[0]  # the untrained model
    assert held_out[-1] != averaged_held_out[-1]
    report = (tmp_path / "averaged" / "report.html").read_text()
    assert "use the exponential moving average of the weights (0.9)" in report
    assert "exponential moving average" not in (tmp_path / "plain" / "report.html").read_text()


OWN_SETTINGS = replace(
    RECIPE,
    phases=(
        PhaseRecipe(16, steps=4, budget_ratio=0.3, mask_prob=0.3, batch_size=4),
        PhaseRecipe(16, steps=4, budget_ratio=0.3, learning_rate=2e-3),
        PhaseRecipe(32, steps=4, budget_ratio=0.4, batch_size=12),
    ),
)


def test_resumed_run_of_phases_with_own_settings_is_bit_identical(corpus, tmp_path):
    steps = run(corpus, tmp_path / "whole", OWN_SETTINGS)
    assert [step.learning_rate for step in steps[2:6]] == pytest.approx([1e-3, 8e-4 / 0.9, 14e-3 / 9, 12e-3 / 9])
    for num_steps in (3, 2):
        run(corpus, tmp_path / "resumed", OWN_SETTINGS, stop_after=num_steps)
    run(corpus, tmp_path / "resumed", OWN_SETTINGS)
    assert_same(tmp_path / "whole", tmp_path / "resumed")
    phases = [line["phase"] for line in curve(tmp_path / "whole") if line["kind"] == "step"]
    assert phases == ["16"] * 4 + ["16 (2)"] * 4 + ["32"] * 4


def test_run_shorter_than_eval_steps_is_evaluated_after_each_quarter(corpus, tmp_path):
    recipe = replace(RECIPE, eval_steps=500)
    run(corpus, tmp_path / "whole", recipe)
    held_out = [line["step"] for line in curve(tmp_path / "whole") if line["kind"] == "held_out"]
    assert held_out == [0, 3, 6, 9, 12]
    for num_steps in (4, 3):
        run(corpus, tmp_path / "resumed", recipe, stop_after=num_steps)
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(tmp_path / "whole", tmp_path / "resumed")


def test_run_of_an_earlier_version_whose_recipe_lacks_new_keys_is_continued(corpus, tmp_path):
    run(corpus, tmp_path / "run", stop_after=5)
    path = tmp_path / "run" / "recipe.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("decay_ratio", "ema_decay"))]
    path.write_text("\n".join(lines) + "\n")
    steps = run(corpus, tmp_path / "run")
    assert steps[0].number == 6
    with pytest.raises(FolderError, match="holds a run of another recipe"):
        run(corpus, tmp_path / "run", replace(RECIPE, schedule="wsd"))


def test_keys_that_earlier_versions_lacked_do_not_change_the_hash_of_a_recipe(corpus):
    """As before phases had their own settings, and there were decay_ratio, ema_decay, Muon, generators and a
    learning rate of embeddings."""
    opened = Corpus.open(corpus)
    assert recipe_hash(RECIPE, opened) == recipe_hash(replace(RECIPE, decay_ratio=0.5), opened)
    assert recipe_hash(replace(RECIPE, schedule="wsd"), opened) != recipe_hash(RECIPE, opened)
    later = ("micro_batch_size", "save_steps", "activation_checkpointing", "decay_ratio", "ema_decay")
    settings = {name: value for name, value in asdict(RECIPE).items() if name not in later}
    settings["phases"] = [
        {"max_length": 16, "steps": 8, "budget_ratio": 0.7},
        {"max_length": 32, "steps": 4, "budget_ratio": 0.3},
    ]
    del settings["layerwise"]["embedding_lr_ratio"]
    settings["optimizer"] = {
        key: settings["optimizer"][key] for key in settings["optimizer"].keys() - {"name", "momentum"}
    }
    for key in ("generator_size", "local_attention", "global_attn_every_n_layers"):
        del settings["model"][key]
    text = json.dumps([settings, opened.tokens_manifest["shards"], ""], sort_keys=True)
    assert recipe_hash(RECIPE, opened) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_time_budget_is_divided_among_phases_of_the_same_length(corpus, tmp_path):
    recipe = replace(OWN_SETTINGS, budget="2s", num_eval_examples=2)
    run(corpus, tmp_path / "run", recipe, stop_after=3)
    run(corpus, tmp_path / "run", recipe)
    phases = [line["phase"] for line in curve(tmp_path / "run") if line["kind"] == "step"]
    assert list(dict.fromkeys(phases)) == ["16", "16 (2)", "32"]


def test_losses_of_consecutive_phases_of_the_same_length_are_compared(corpus, tmp_path, monkeypatch):
    set_held_out_losses(monkeypatch, [3.0, 2.0, 1.0, 1.5, 2.5, 2.6, 2.4])  # at steps 0, 3, 5, 6, then 9, 10, 12
    run(corpus, tmp_path / "run", replace(RECIPE, phases=(PhaseRecipe(16, steps=6), PhaseRecipe(16, steps=6))))
    metadata = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())
    assert metadata["scores"] == {"held_out_loss": 1.0}


@pytest.mark.parametrize(("native", "precision"), [(True, "bf16"), (False, "fp32")])
def test_the_precision_follows_from_the_processor_and_is_kept_where_another_one_continues(
    corpus, tmp_path, monkeypatch, native, precision
):
    request = PretrainRequest(recipe=replace(RECIPE, precision="auto"), corpus=corpus, output=tmp_path, stop_after=2)
    for number in range(2):
        monkeypatch.setattr(precision_module, "has_native_bf16", lambda: native != bool(number))  # noqa: B023
        notes = [event.note for event in run_pretrain(request)]
        (note,) = (note for note in notes if note.startswith("precision"))
        assert note.startswith(f"precision {precision}" + (" (auto" if number == 0 else ", as this run began"))
        assert json.loads((tmp_path / "run.json").read_text())["precision"] == precision
        assert f'precision = "{precision}"' in (tmp_path / "recipe.toml").read_text()


def test_paper_recipes_of_one_device_are_fp32_and_the_others_choose_by_the_processor():
    paths = list(recipe_path("paper-base").parent.glob("*.toml"))
    assert len(paths) > 20
    for path in paths:
        precision = "auto" if not path.stem.startswith("paper-") else "bf16" if "gpu" in path.stem else "fp32"
        assert read_recipe(path, PretrainRecipe).precision == precision, path.name


def test_same_seed_is_bit_identical_and_another_seed_differs(corpus, tmp_path):
    run(corpus, tmp_path / "one")
    run(corpus, tmp_path / "two")
    assert_same(tmp_path / "one", tmp_path / "two")
    run(corpus, tmp_path / "three", replace(RECIPE, seed=1))
    assert curve(tmp_path / "three") != curve(tmp_path / "one")


def test_micro_batch_size_changes_only_rounding(corpus, tmp_path):
    recipe = replace(RECIPE, model=replace(RECIPE.model, hidden_dropout_prob=0.0))
    steps = run(corpus, tmp_path / "eight", replace(recipe, micro_batch_size=8))
    accumulated = run(corpus, tmp_path / "two", replace(recipe, micro_batch_size=2))
    assert_close(steps, accumulated)


def test_resumed_run_without_nsp_is_bit_identical(corpus, tmp_path):
    recipe = replace(RECIPE, objective="mlm")
    run(corpus, tmp_path / "whole", recipe)
    run(corpus, tmp_path / "resumed", recipe, stop_after=4)
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(tmp_path / "whole", tmp_path / "resumed")


def test_restarting_a_finished_run_changes_nothing(corpus, tmp_path):
    run(corpus, tmp_path / "run")
    records, tensors = curve(tmp_path / "run"), state(tmp_path / "run")
    assert run(corpus, tmp_path / "run") == []
    assert curve(tmp_path / "run") == records
    assert all(torch.equal(value, state(tmp_path / "run")[name]) for name, value in tensors.items())


def test_resumed_run_keeps_its_micro_batch_size(corpus, tmp_path, monkeypatch):
    recipe = replace(RECIPE, micro_batch_size=0)
    monkeypatch.setattr(
        "bertworks.commands.pretrain.micro_batch.largest_micro_batch_size",
        lambda config, batch_size, *others: min(batch_size, 2),
    )
    run(corpus, tmp_path / "resumed", recipe, stop_after=4)
    monkeypatch.undo()
    run(corpus, tmp_path / "resumed", recipe)
    run(corpus, tmp_path / "whole", replace(RECIPE, micro_batch_size=2))
    assert_same(tmp_path / "whole", tmp_path / "resumed")


def set_held_out_losses(monkeypatch, losses):
    """Replace the MLM loss of each held-out evaluation."""
    evaluate, values = bertworks.commands.pretrain.run.evaluate, iter(losses)

    def evaluate_with_loss(*arguments):
        scores = evaluate(*arguments)
        return replace(scores, losses={**scores.losses, "mlm": next(values)})

    monkeypatch.setattr("bertworks.commands.pretrain.run.evaluate", evaluate_with_loss)


def test_model_is_the_checkpoint_with_the_best_held_out_loss(corpus, tmp_path, monkeypatch):
    losses = {0: 0.5, 2: 3.0, 4: 2.0, 6: 2.5, 8: 2.6}
    set_held_out_losses(monkeypatch, losses.values())
    recipe = replace(RECIPE, phases=RECIPE.phases[:1], eval_steps=2, save_steps=1)
    notes = [
        event.note for event in run_pretrain(PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "run"))
    ]
    assert "the model is that of step-00000004, which had the best held-out loss" in notes
    names = [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")]
    assert names == ["step-00000004", "step-00000007", "step-00000008"]  # the best one and the last two
    best = load_file(tmp_path / "run" / "checkpoints" / "step-00000004" / "model.safetensors")
    model = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert torch.equal(model["bert.pooler.dense.weight"], best["encoder.pooler.weight"])
    metadata = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())
    assert metadata["scores"] == {"held_out_loss": 2.0}


@pytest.mark.parametrize(
    ("first", "last", "sentence"),
    [
        (9.0, 9.0, "below neither step 0 (9.00) nor the unigram entropy"),
        (9.0, 8.0, "1.00 nats below step 0 (9.00), but not below the unigram entropy"),
        (9.0, 1.0, "the model uses context"),
    ],
)
def test_console_and_report_say_whether_the_model_learned(corpus, tmp_path, monkeypatch, first, last, sentence):
    set_held_out_losses(monkeypatch, [first, last])
    recipe = replace(RECIPE, phases=(PhaseRecipe(16, steps=1),), warmup_steps=0)
    events = list(run_pretrain(PretrainRequest(recipe=recipe, corpus=corpus, output=tmp_path / "run")))
    notes = [event.note for event in events if sentence in event.note]
    warnings = [event.warning for event in events if sentence in event.warning]
    assert (len(notes), len(warnings)) == ((1, 0) if last == 1.0 else (0, 1))
    assert (notes + warnings)[0] in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_best_loss_is_chosen_within_the_last_phase(corpus, tmp_path, monkeypatch):
    # Evaluated at steps 0, 3, 5 and 6, then at 9, 10 and 12 with longer sequences.
    set_held_out_losses(monkeypatch, [3.0, 2.0, 1.0, 1.5, 2.5, 2.6, 2.4])
    run(corpus, tmp_path / "run")
    metadata = json.loads((tmp_path / "run" / "model" / "bertworks.json").read_text())
    assert metadata["scores"] == {"held_out_loss": 2.4}


def test_a_model_records_the_languages_of_its_corpus_if_that_knows_them(corpus, tmp_path):
    recipe = replace(RECIPE, phases=(PhaseRecipe(16, steps=4),))
    for name, languages in (("known", ["en", "zh"]), ("unknown", None)):
        copy = shutil.copytree(corpus, tmp_path / name)
        manifest = json.loads((copy / "manifest.json").read_text())
        manifest = {key: value for key, value in manifest.items() if key != "languages"}  # as of older corpora
        (copy / "manifest.json").write_text(json.dumps(manifest | ({"languages": languages} if languages else {})))
        run(copy, tmp_path / f"{name}-run", recipe)
        metadata = json.loads((tmp_path / f"{name}-run" / "model" / "bertworks.json").read_text())
        assert metadata.get("languages") == languages


def test_full_disk_while_saving_raises_and_the_run_can_be_resumed(corpus, tmp_path, monkeypatch):
    run(corpus, tmp_path / "whole")
    save_file, writes_left = bertworks.training.checkpoint.save_file, iter(range(5))

    def save_until_full(tensors, path):
        if next(writes_left, None) is None:
            Path(path).write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, path)

    monkeypatch.setattr("bertworks.training.checkpoint.save_file", save_until_full)
    with pytest.raises(FolderError, match=r"cannot write .*: no space left on the disk of .*; free some space"):
        run(corpus, tmp_path / "resumed")
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "resumed" / "checkpoints").iterdir()] != []
    run(corpus, tmp_path / "resumed")
    assert_same(tmp_path / "whole", tmp_path / "resumed")


def test_damaged_checkpoint_is_reported_and_the_previous_one_is_used(corpus, tmp_path):
    run(corpus, tmp_path / "whole")
    run(corpus, tmp_path / "resumed", stop_after=6)
    last = checkpoints_in(tmp_path / "resumed" / "checkpoints")[-1]
    optimizer = last / "optimizer.safetensors"
    optimizer.write_bytes(optimizer.read_bytes()[:-1] + b"?")
    request = PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "resumed")
    events = list(run_pretrain(request))
    assert any("step-00000006: the hash of optimizer.safetensors differs" in event.warning for event in events)
    assert any("continuing after step 5" in event.note for event in events)
    assert_same(tmp_path / "whole", tmp_path / "resumed")


def test_if_every_checkpoint_is_damaged_the_run_stops_and_keeps_its_records(corpus, tmp_path):
    run(corpus, tmp_path / "run", stop_after=6)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    folder = tmp_path / "run" / "checkpoints"
    for path in checkpoints_in(folder):
        (path / "manifest.json").write_text("{}")
    with pytest.raises(FolderError, match=rf"every checkpoint in {folder} is damaged .* or delete {folder} to train"):
        run(corpus, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics
    shutil.rmtree(folder)
    assert run(corpus, tmp_path / "run")[0].number == 1


def test_lines_after_the_checkpoint_may_be_damaged_by_a_power_failure(corpus, tmp_path):
    run(corpus, tmp_path / "whole")
    run(corpus, tmp_path / "resumed", stop_after=6)
    for name in ("metrics.jsonl", "samples.jsonl"):
        with (tmp_path / "resumed" / name).open("ab") as file:
            file.write(b"\0" * 100 + b"}\n")
    run(corpus, tmp_path / "resumed")
    assert_same(tmp_path / "whole", tmp_path / "resumed")


def test_two_runs_cannot_write_to_one_folder(corpus, tmp_path):
    folder = tmp_path / "run"
    with lock_folder(folder), pytest.raises(FolderError, match=f"another run is writing to {folder} .*wait for it"):
        run(corpus, folder)
    run(corpus, folder, stop_after=1)
    assert not (folder / ".lock").exists()


@pytest.mark.parametrize("number", range(1, 11))
def test_killed_at_any_of_its_first_changes_a_run_is_continued(corpus, tmp_path, number):
    folder = tmp_path / "run"
    assert run_killed(lambda: run(corpus, folder, stop_after=1), folder, number)
    assert [step.number for step in run(corpus, folder, stop_after=1)] == [1]
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_checkpoint_that_a_killed_run_did_not_remove_is_removed_at_the_end(corpus, tmp_path):
    run(corpus, tmp_path / "whole")
    run(corpus, tmp_path / "killed")
    # As if it had been killed just before: the last checkpoint is saved, an older one is not yet removed.
    checkpoints = tmp_path / "killed" / "checkpoints"
    shutil.copytree(checkpoints_in(checkpoints)[-1], checkpoints / "step-00000001")
    shutil.copytree(checkpoints_in(checkpoints)[-1], checkpoints / ".step-00000002.removed")
    shutil.rmtree(tmp_path / "killed" / "model")
    run(corpus, tmp_path / "killed")
    names = [sorted(path.name for path in (tmp_path / name / "checkpoints").iterdir()) for name in ("whole", "killed")]
    assert names[0] == names[1]


def test_folder_of_another_recipe_is_refused(corpus, tmp_path):
    run(corpus, tmp_path / "run", stop_after=2)
    with pytest.raises(FolderError, match="holds a run of another recipe"):
        run(corpus, tmp_path / "run", replace(RECIPE, learning_rate=1e-4))


STABLE = replace(
    RECIPE,
    schedule="wsd",
    decay_ratio=0.25,
    eval_steps=2,
    phases=(PhaseRecipe(16, steps=6), PhaseRecipe(32, steps=10)),
)


def test_run_is_continued_with_an_earlier_end_as_if_that_had_been_its_recipe(corpus, tmp_path):
    """The schedules agree on the first eight steps, which have no decay yet."""
    early = replace(STABLE, decay_ratio=0.4, phases=(PhaseRecipe(16, steps=6), PhaseRecipe(32, steps=4)))
    run(corpus, tmp_path / "whole", early)
    run(corpus, tmp_path / "changed", STABLE, stop_after=6)
    shutil.copytree(tmp_path / "changed", tmp_path / "killed")
    run(corpus, tmp_path / "changed", early)
    assert_same_state(tmp_path / "whole", tmp_path / "changed")
    assert (tmp_path / "changed" / "recipe.toml").read_text() == (tmp_path / "whole" / "recipe.toml").read_text()
    run(corpus, tmp_path / "killed", early, stop_after=1)
    for path in checkpoints_in(tmp_path / "killed" / "checkpoints")[-1:]:
        shutil.rmtree(path)  # the last checkpoint is lost: the run continues from one of its earlier recipe
    run(corpus, tmp_path / "killed", early)
    assert_same_state(tmp_path / "whole", tmp_path / "killed")


def test_run_is_not_continued_with_a_schedule_that_changes_its_past(corpus, tmp_path):
    run(corpus, tmp_path / "run", STABLE, stop_after=7)
    changes = {
        6: (PhaseRecipe(16, steps=5), PhaseRecipe(32, steps=11)),
        7: (PhaseRecipe(16, steps=6), PhaseRecipe(32, steps=10, batch_size=4)),
    }
    for step, phases in changes.items():
        with pytest.raises(FolderError, match=f"whose step {step} differs: only what follows step 7 can be changed"):
            run(corpus, tmp_path / "run", replace(STABLE, phases=phases))
    with pytest.raises(FolderError, match="whose step 5 differs"):  # 0.7 * 16 steps of decay
        run(corpus, tmp_path / "run", replace(STABLE, decay_ratio=0.7))
    assert run(corpus, tmp_path / "run", STABLE)[0].number == 8


def test_folder_with_other_files_is_refused(corpus, tmp_path):
    (tmp_path / "thesis.doc").write_text("ten years of work")
    with pytest.raises(FolderError, match="already holds other files"):
        run(corpus, tmp_path)


def test_checkpoint_of_another_corpus_is_refused(corpus, tmp_path):
    run(corpus, tmp_path / "run", stop_after=2)
    (tmp_path / "other").mkdir()
    other = prepare_corpus(tmp_path / "other", num_documents=30)
    with pytest.raises(
        FolderError, match="step-00000002 was written with another recipe or corpus; choose another --output"
    ):
        run(other, tmp_path / "run")


def test_misspelt_recipe_key_suggests_the_right_one(tmp_path):
    (tmp_path / "small.toml").write_text("batsch = 8\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"small.toml: there is no key 'batsch'; did you mean 'batch_size'\?"):
        read_recipe(tmp_path / "small.toml", PretrainRecipe)


def test_model_that_does_not_fit_into_memory_leaves_no_folder(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("bertworks.commands.pretrain.micro_batch.available_bytes", lambda device: 1000)
    with pytest.raises(
        SettingsError,
        match=r"one example of length 32 needs about .* choose activation_checkpointing = true, a smaller",
    ):
        run(corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unknown_vocabulary_of_the_corpus_is_refused(corpus, tmp_path):
    with pytest.raises(FolderError, match="vocabulary 0123"):
        list(run_pretrain(PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run", vocabulary="0123")))


def test_max_length_above_the_number_of_positions_is_refused():
    with pytest.raises(SettingsError, match="phase 1 has max_length 64, but the model has only 32 positions"):
        replace(RECIPE, phases=(PhaseRecipe(64, steps=1),))


def test_nan_loss_stops_the_run_with_the_reason(corpus, tmp_path):
    with pytest.raises(BertworksError, match=r"learning rate .* is too high"):
        run(corpus, tmp_path / "run", replace(RECIPE, learning_rate=1e30, warmup_steps=0))


def test_time_budget_ends_at_learning_rate_zero_and_resume_replays_the_recorded_steps(corpus, tmp_path, monkeypatch):
    recipe = replace(RECIPE, budget="2s", save_steps=4)
    steps = run(corpus, tmp_path / "run", recipe)
    assert steps[-2].seconds < 2.0 <= steps[-1].seconds  # the step in which the budget is spent is the last
    assert steps[-1].learning_rate == pytest.approx(RECIPE.learning_rate * (2.0 - steps[-2].seconds) / (0.95 * 2.0))
    assert [step.phase for step in steps] == sorted(step.phase for step in steps)
    records, tensors = curve(tmp_path / "run"), state(tmp_path / "run")
    assert [(line["phase"], line["learning_rate"]) for line in records if line["kind"] == "step"] == [
        (("16", "32")[step.phase], step.learning_rate) for step in steps
    ]
    last = checkpoints_in(tmp_path / "run" / "checkpoints")[-1]
    (last / "manifest.json").unlink()
    # Resumed from an earlier checkpoint with a clock that stands still: only the records say when to end.
    monkeypatch.setattr("bertworks.training.loop.time.perf_counter", lambda: 0.0)
    again = run(corpus, tmp_path / "run", recipe, stop_after=len(steps) - previous_step(last))
    assert [(step.phase, step.learning_rate) for step in again] == [
        (step.phase, step.learning_rate) for step in steps[-len(again) :]
    ]
    assert all(torch.equal(value, state(tmp_path / "run")[name]) for name, value in tensors.items())


def previous_step(last: Path) -> int:
    """Return the step of the checkpoint before `last`."""
    return int(checkpoints_in(last.parent)[-2].name.removeprefix("step-"))


def recipe_for_kills(num_kills: int) -> PretrainRecipe:
    """Return a recipe that saves after every step and does not end before the last kill."""
    phases = (PhaseRecipe(16, steps=10 * num_kills + 10), PhaseRecipe(32, steps=2 * num_kills + 2))
    return replace(RECIPE, save_steps=1, eval_steps=20, phases=phases)


def run_slowly(recipe: PretrainRecipe, corpus: Path, output: Path, sender) -> None:
    """Run with slow saving, so that most of the time goes into writing checkpoints; send the number of each step."""
    torch.set_num_threads(1)
    # The fork server may have been started while SIGINT was blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    save_file = bertworks.training.checkpoint.save_file

    def save_slowly(tensors, path):
        save_file(tensors, path)
        time.sleep(0.01)

    bertworks.training.checkpoint.save_file = save_slowly
    for event in run_pretrain(PretrainRequest(recipe=recipe, corpus=corpus, output=output)):
        if event.step is not None:
            sender.send(event.step.number)


@contextlib.contextmanager
def start_process(recipe: PretrainRecipe, corpus: Path, output: Path):
    """Run in a child process; yield it and the receiving end of a pipe with the number of each step."""
    context = multiprocessing.get_context("forkserver")  # with torch preloaded, so that it starts at once
    context.set_forkserver_preload(["bertworks.commands.pretrain.verify_resume", "torch._dynamo"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_slowly, args=(recipe, corpus, output, sender))
    process.start()
    sender.close()
    try:
        yield process, receiver
    finally:
        process.kill()
        process.join()
        receiver.close()


@pytest.mark.parametrize(("num_kills", "seed"), [(3, 0), pytest.param(20, 1, marks=pytest.mark.soak)])
def test_run_killed_at_random_moments_is_bit_identical(corpus, tmp_path, num_kills, seed):
    """Every step is saved slowly, so that most kills hit while a checkpoint is being written."""
    recipe = recipe_for_kills(num_kills)
    run(corpus, tmp_path / "whole", replace(recipe, save_steps=1000))
    rng = random.Random(seed)
    for _ in range(num_kills):
        with start_process(recipe, corpus, tmp_path / "resumed") as (process, receiver):
            receiver.recv()
            time.sleep(rng.uniform(0, 0.3))
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "resumed" / "model").exists()
    run(corpus, tmp_path / "resumed", recipe)
    assert_same(tmp_path / "whole", tmp_path / "resumed")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_saves_a_checkpoint_and_exits(corpus, tmp_path, signal_number):
    recipe = recipe_for_kills(20)  # ten seconds of work, so that the signal arrives in time on a busy machine
    with start_process(recipe, corpus, tmp_path / "run") as (process, receiver):
        last_step = receiver.recv()
        os.kill(process.pid, signal_number)
        with contextlib.suppress(EOFError):
            while True:
                last_step = receiver.recv()
        process.join()
    assert process.exitcode == 0
    assert last_step < sum(phase.steps for phase in recipe.phases)
    assert checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name == f"step-{last_step:08d}"


def test_stop_signal_marks_the_event_as_interrupted(corpus, tmp_path):
    events = []
    for event in run_pretrain(PretrainRequest(recipe=RECIPE, corpus=corpus, output=tmp_path / "run")):
        events.append(event)
        if event.step is not None and event.step.number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
    assert [event.note for event in events if event.is_interrupted] == [STOP_MESSAGE]
    assert max(event.step.number for event in events if event.step is not None) <= 3
