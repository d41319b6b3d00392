"""The recipe of a comparison: a TOML file in; members, tasks, seeds and a budget out, and the recipe of each run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.datasets.published import DATASETS
from bertworks.errors import SettingsError
from bertworks.settings import from_table, merge_tables, parse_duration, recipe_path, recipe_table
from bertworks.vocabulary.training import VocabularySettings

BUILTIN_RECIPES = ("family", "ablations", "masking", "sizes", "convergence")
_FOLDER = "compare"  # of the built-in ones among the recipes
_MULTIPLIERS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}
UNITS = ("steps", "pieces", "flops")


@dataclass(frozen=True, slots=True)
class Budget:
    """How much each pretraining may take. `unit` is one of UNITS, or "seconds"; "" for what a recipe says itself."""

    amount: float = 0.0
    unit: str = ""


def parse_budget(text: str) -> Budget:
    """Return the budget of "800 steps", "2M pieces", "5e12 flops", or of a time such as 30m; none for nothing."""
    found = re.fullmatch(rf"(\d[\d_]*(?:\.\d+)?(?:e\d+)?) ?([kMB]?) ({'|'.join(UNITS)})", text)
    if found is None:
        seconds = parse_duration(text)
        return Budget() if seconds is None else Budget(seconds, "seconds")
    amount = float(found[1]) * _MULTIPLIERS[found[2]]
    if amount <= 0:
        raise SettingsError(f"a budget of {text} is nothing; give more")
    return Budget(amount, found[3])


@dataclass(frozen=True, slots=True)
class TaskRecipe:
    """A labelled set on which every member is fine-tuned and scored.

    task      classify, regress, choose, tag or answer with files of one's own; or a published set such as glue/MRPC
    name      what the table calls it; by default the set, or the task
    columns   where they have no usual names: text, pair, label
    tuning    settings of fine-tuning for this task
    """

    task: str
    name: str = ""
    train: Path | None = None
    dev: Path | None = None
    columns: dict[str, str] = field(default_factory=dict)
    finetune: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.name or self.task


@dataclass(frozen=True, slots=True)
class MemberRecipe:
    """Who takes part.

    recipe       a pretraining recipe: a .toml file, or the name of a built-in one
    like         instead of a recipe, the member whose pretrained model this one takes: only its fine-tuning differs
    vocabulary   one of the corpus, by its path or hash; where the comparison begins with texts, a kind to learn
    changes      what is different from its recipe, as in a recipe
    tuning       settings of fine-tuning for this member
    """

    name: str
    recipe: str = ""
    base_member: str = ""
    vocabulary: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    finetune: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.recipe) == bool(self.base_member):
            raise SettingsError(f"member '{self.name}' needs either a recipe or the name of one it is like")
        if self.base_member and (self.overrides or self.vocabulary):
            raise SettingsError(
                f"member '{self.name}' takes the model of '{self.base_member}'; changes and vocabulary belong there, or give "
                f"it a recipe of its own"
            )


@dataclass(frozen=True, slots=True)
class CompareRecipe:
    """Members on one corpus with one budget, scored by the same tasks.

    corpus             a prepared corpus, and `corpus_vocabulary` one of its vocabularies if it has several; or
    texts              sources of text: a vocabulary is learned and a corpus prepared of them first
    vocabulary         what is learned from texts
    sets               the folder of the published sets among the tasks
    budget             of each pretraining: "800 steps", "2M pieces", "5e12 flops", a time; "": what its recipe says
    seeds              each member is run once with every one
    measured_at        shares of the budget after which a model is fine-tuned and scored: points of a curve
    changes, tuning    what is different for all members and tasks; their own go before
    """

    members: tuple[MemberRecipe, ...]
    tasks: tuple[TaskRecipe, ...] = ()
    corpus: Path | None = None
    corpus_vocabulary: str = ""
    texts: tuple[str, ...] = ()
    vocabulary: VocabularySettings = field(default_factory=lambda: VocabularySettings(vocab_size=8_000))
    sets: Path | None = None
    budget: str = ""
    seeds: tuple[int, ...] = (0,)
    eval_ratios: tuple[float, ...] = (1.0,)
    overrides: dict[str, Any] = field(default_factory=dict)
    finetune: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, names in (
            ("members", [one.name for one in self.members]),
            ("tasks", [one.title for one in self.tasks]),
            ("seeds", [str(seed) for seed in self.seeds]),
        ):
            files = [folder_name(name) for name in names]
            wrong = [name for name, file in zip(names, files, strict=True) if not file or files.count(file) > 1]
            if wrong:
                raise SettingsError(f"of the {what}, '{wrong[0]}' is there twice, or is no name; give each its own")
        if not self.members or not self.seeds:
            raise SettingsError("a comparison needs at least one member and one seed; add [[members]]")
        self._check_base_members()
        self._check_eval_ratios()

    def _check_base_members(self) -> None:
        roots = {one.name for one in self.members if not one.base_member}
        for one in self.members:
            if one.base_member and one.base_member not in roots:
                known = ", ".join(sorted(roots))
                raise SettingsError(
                    f"member '{one.name}' is like '{one.base_member}', which has no recipe; choose: {known}"
                )

    def _check_eval_ratios(self) -> None:
        budget = parse_budget(self.budget)
        if not self.eval_ratios or list(self.eval_ratios) != sorted(set(self.eval_ratios)):
            raise SettingsError("measured_at has to rise, such as [0.25, 0.5, 1.0]")
        if not 0 < self.eval_ratios[0] <= self.eval_ratios[-1] <= 1:
            raise SettingsError("measured_at are shares of the budget, from above 0 to 1.0")
        if self.eval_ratios[0] < 1 and budget.unit == "seconds":
            raise SettingsError("at which step a share of time is over is not known before; count steps or pieces")

    @property
    def pretrained_members(self) -> list[MemberRecipe]:
        """The members that are pretrained."""
        return [one for one in self.members if not one.base_member]

    def members_with_base(self, base_member: str) -> list[MemberRecipe]:
        """Return all members that take the pretrained model of that one, itself first."""
        return sorted(
            (one for one in self.members if base_member in (one.name, one.base_member)),
            key=lambda one: bool(one.base_member),
        )

    def pretrain_recipe(self, member: MemberRecipe, seed: int) -> PretrainRecipe:
        """Return the recipe of a member's pretraining, its length still its own."""
        table = recipe_table(recipe_path(member.recipe))
        for changes in (self.overrides, member.overrides, {"seed": seed}):
            table = merge_tables(table, changes)
        if self.budget:  # then steps follow from it, and the warm-up is the recipe's share of them
            phases = [{"steps": 1, **phase} for phase in table.get("phases", [])]
            table = {**table, "warmup": 0, **({"phases": phases} if phases else {})}
        return from_table(PretrainRecipe, table, f"member '{member.name}', recipe {member.recipe}")

    def finetune_recipe(self, member: MemberRecipe, task: TaskRecipe, seed: int) -> FinetuneRecipe:
        """Return the settings of a member's fine-tuning on a task."""
        table: dict[str, Any] = {}
        for changes in (self.finetune, task.finetune, member.finetune, {"seed": seed}):
            table = merge_tables(table, changes)
        return from_table(FinetuneRecipe, table, f"member '{member.name}', task '{task.title}'")

    def with_overrides(
        self,
        task_names: Sequence[str],
        member_names: Sequence[str],
        overrides: Mapping[str, Any],
        finetune: Mapping[str, Any],
    ) -> CompareRecipe:
        """Return the comparison with other tasks, of some members only, and with more changes for all of them."""
        unknown = [name for name in member_names if name not in {one.name for one in self.members}]
        if unknown:
            names = ", ".join(one.name for one in self.members)
            raise SettingsError(f"there is no member '{unknown[0]}'; choose one of: {names}")
        wanted = {one.name for one in self.members if not member_names or one.name in member_names}
        wanted |= {one.base_member for one in self.members if one.name in wanted and one.base_member}
        known = {one.title: one for one in self.tasks}
        return replace(
            self,
            members=tuple(
                replace(one, overrides=merge_tables(one.overrides, dict(overrides)) if one.recipe else {})
                for one in self.members
                if one.name in wanted
            ),
            tasks=tuple(known.get(name, TaskRecipe(name)) for name in task_names) or self.tasks,
            finetune=merge_tables(self.finetune, dict(finetune)),
        )

    def check(self) -> None:
        """Refuse, before anything runs, what no member could do: no text, no task, settings that cannot be."""
        if (self.corpus is None) == (not self.texts):
            raise SettingsError("name the corpus folder with --data (or corpus = … or texts = […] in the recipe)")
        if not self.tasks:
            raise SettingsError("there is nothing to score by; name a task with --task, or add [[tasks]] to the recipe")
        for task in self.tasks:
            own = task.train is not None and task.dev is not None
            if not own and (task.task not in DATASETS or self.sets is None):
                raise SettingsError(
                    f"task '{task.title}' needs train and dev files, or to be a published set ({', '.join(DATASETS)}) "
                    f"whose folder is given with --sets"
                )
        for member in self.members:
            if member.recipe:
                self.pretrain_recipe(member, self.seeds[0])
            for task in self.tasks:
                self.finetune_recipe(member, task, self.seeds[0])

    def to_dict(self) -> dict[str, Any]:
        """Return the whole recipe as JSON can hold it."""
        table: dict[str, Any] = asdict(self)
        return {name: _to_json_value(value) for name, value in table.items()}


def read_compare_recipe(name: str, overrides: Mapping[str, Any] | None = None) -> CompareRecipe:
    """Return a comparison: a .toml file, or one that is built in; what is told besides goes before."""
    path = recipe_path(name, _FOLDER)
    found = from_table(CompareRecipe, recipe_table(path), str(path))
    return replace(found, **dict(overrides or {}))


def folder_name(name: str) -> str:
    """Return a member's or task's name as a folder may have it."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: _to_json_value(one) for name, one in value.items()}
    return [_to_json_value(one) for one in value] if isinstance(value, list | tuple) else value
