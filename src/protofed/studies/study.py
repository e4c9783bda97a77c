"""A study: several runs in one folder that answer one question. Every command with more than one run plays one."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from protofed.data.federation import Federation
from protofed.errors import UserError, misused
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_text
from protofed.internal.digests import yaml_with_digest
from protofed.runs.failure import FailedRun
from protofed.runs.folder import make_folder
from protofed.runs.progress import Progress
from protofed.runs.result import Result
from protofed.runs.setup import prepare
from protofed.studies.workers import Ending, Task, play_all

SEEDS = 3
"""How many seeds a study has unless told otherwise: what a spread needs at least."""
MOST_SEEDS = 1000


class Finding(Protocol):
    """What comes out of a study; `report.outcome_tables` has a table for each kind."""

    def to_json(self) -> str:
        """The text of the file that ends the study."""

    @property
    def results(self) -> Sequence[Result]:
        """The runs that came to their end."""

    @property
    def failures(self) -> Sequence[FailedRun]:
        """The runs that did not."""

    def notes(self) -> list[str]:
        """What a reader of the numbers has to know, a sentence each."""

    def files(self) -> Mapping[str, str]:
        """The texts that are written into the study's folder, by the names of their files."""


FindingT = TypeVar("FindingT", bound=Finding)


class Study(ABC, Generic[FindingT]):
    """What is asked for; with its folder it is all that is needed to go on.

    A subclass is a frozen dataclass, whose making must not run a user's code: who watches a folder makes it too.
    """

    command: ClassVar[str]
    """The word of the command line; COMMAND.yaml in the folder is the study itself."""
    end: ClassVar[str]
    """The file that ends the folder."""
    reported: ClassVar[bool] = False
    """Whether the command line writes report.html into the folder."""

    jobs: int | None

    @classmethod
    def config(cls, folder: Path) -> Path:
        """The YAML file of a study in a folder."""
        return folder / f"{cls.command}.yaml"

    @classmethod
    @abstractmethod
    def open(cls, folder: Path) -> Self:
        """The study that a folder was begun with.

        Raises:
            UserError: its YAML file cannot be read as one.
        """

    @abstractmethod
    def to_yaml(self) -> str:
        """The text of the YAML file that `open` reads."""

    @abstractmethod
    def with_threads(self) -> Self:
        """The same with the CPU threads of a run decided, by how many runs go on at a time."""

    @abstractmethod
    def size(self) -> int | None:
        """How many runs it has; none where that would take a user's code to say."""

    @abstractmethod
    def tasks(self, folder: Path | None) -> list[Task]:
        """The runs that are known from the beginning, each with its folder in the study's own, if that has one.

        Raises:
            UserError: the study cannot be run here; found without its data, as far as that is possible.
        """

    def further(self, endings: Sequence[Ending], folder: Path | None) -> list[Task]:  # noqa: ARG002 - most have none
        """The runs that the first ones, by how they ended, decide; most studies have none."""
        return []

    def chooses(self, experiment: Experiment) -> bool:  # noqa: ARG002 - most do not
        """Whether a run is there to choose something by its validation accuracy."""
        return False

    def total(self, folder: Path | None) -> int:
        """How many runs are played in all."""
        return len(self.tasks(folder))

    @abstractmethod
    def assemble(self, endings: Sequence[Ending], folder: Path | None) -> FindingT:
        """What all tasks come to, in their order, the further ones at the end."""

    def again(self, folder: Path) -> str:
        """The command that a reader of the folder types to get the same."""
        return f"protofed {self.command} --config {shlex.quote(str(self.config(folder)))}"

    def begin(self, folder: Path | None) -> Self:
        """Check every run and make the folder, if there is to be one; wrong input leaves none behind.

        Args:
            folder: a new one, or none for a study that lives in memory only.

        Returns:
            The study as it is played. Threads touch the last bits of a result, so they are decided here and part of
            the folder: whoever goes on with it, with however many runs at a time, gets the same results.

        Raises:
            UserError: a run cannot be played here, or the folder cannot be made.
        """
        decided = self.with_threads()
        experiments = [task.experiment for task in decided.tasks(folder)]
        different: dict[str, Experiment] = {}
        for experiment in experiments:  # seeds differ in nothing that can be wrong
            different.setdefault(str(replace(experiment, seed=0)), experiment)
        for experiment in different.values():
            setup = prepare(experiment)
            if decided.chooses(experiment):
                _check_validation(setup.federation)
        if folder is not None:
            make_folder(folder, self.config(folder).name, yaml_with_digest(decided.to_yaml()))
        return decided

    def play(self, folder: Path | None, progress: Progress, jobs: int | None = None) -> FindingT:
        """Play what the folder does not hold yet, and write what came out.

        Args:
            folder: that the study was begun with.
            progress: is told how far the runs are.
            jobs: runs at a time, in place of the study's own number.

        Returns:
            What came out; its files are in the folder.
        """
        at_a_time = self.jobs if jobs is None else jobs
        endings = play_all(self.tasks(folder), progress, at_a_time)
        if further := self.further(endings, folder):
            endings += play_all(further, progress, at_a_time)
        outcome = self.assemble(endings, folder)
        if folder is not None:
            for name, text in outcome.files().items():
                write_text(folder / name, text)
        return outcome


def _check_validation(federation: Federation) -> None:
    """A client with one sample trains on it, and has none to hold out."""
    lacking = [number for number, client in federation.members.items() if client.validation is None]
    if lacking:
        why = f"of {len(lacking)} clients, such as client {lacking[0]}, no sample can be held out for validation"
        raise misused("--val-fraction", why, hint="give every client two samples or more")


def check_seeds(seeds: int) -> None:
    """A typing error should not plan runs for years."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError("--seeds", seeds, f"it must be from 1 to {MOST_SEEDS}")
