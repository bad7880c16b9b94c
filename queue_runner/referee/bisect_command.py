"""mpsq bisect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner.cli.common import Json, new_app, new_home, print_json, say
from queue_runner.cli.run import Verbose, follow_again, follow_to_the_end
from queue_runner.cli.typer_options import with_options
from queue_runner.errors import MpsqError, UsageError
from queue_runner.referee.judge_command import OfCommand

if TYPE_CHECKING:
    from queue_runner.paths import Layout
    from queue_runner.referee.bisect_search import StoredSearch, VersionSearch
    from queue_runner.referee.bisection import VersionPair

app = new_app()

EPILOG = (
    "First, rounds of the ends show whether they differ in the time or in --metric, in either direction. Then the "
    "version in the middle runs in rounds with the good one, until it is like good or like bad, and so on. No "
    "intermediate answer is final: each round counts for all. Last, rounds of two neighbours confirm the step. If they "
    "do not, the answer is: cannot tell. Commits are those along first parents. One that fails is skipped. With "
    "--versions torch=2.9..2.13 the ends are the first and the last version, each with its newest patch; uv installs "
    "those that are needed in environments of mpsq env. --budget is for the whole search (8h by default). After Ctrl-C "
    "or a crash, the same command continues from the stored rounds."
)


@app.command("bisect", cls=OfCommand, epilog=EPILOG)
@with_options
def bisect(
    ctx: typer.Context,
    fields: dict[str, Any],
    good: Annotated[str | None, typer.Option(metavar="REF", help="A commit before the step.")] = None,
    bad: Annotated[str | None, typer.Option(metavar="REF", help="A commit after the step.")] = None,
    versions: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE=RANGE", help="Versions of a package: torch=2.9..2.13 or torch=2.9,2.10.1."),
    ] = None,
    pip: Annotated[
        str, typer.Option(metavar="WORDS", help="With --versions: further arguments of uv pip install.")
    ] = "",
    anew: Annotated[bool, typer.Option("--anew", help="Begin again, without the rounds of the same command.")] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Find the commit, or the version of a package, from which on a command is slower or faster.

    Exit codes: 0 the step was found, 3 cannot tell.
    """
    from queue_runner.referee import bisect_search, bisect_versions, request

    cwd = request.folder_of(fields)
    if versions is not None:
        if good is not None or bad is not None or "env_name" in fields:
            raise UsageError("--versions cannot be combined with --good, --bad or --env-name", "leave these out")
        listed = bisect_versions.packages(versions, pip)
    elif good is None or bad is None or pip:
        raise UsageError("mpsq bisect needs two versions", "give --good REF and --bad REF, or --versions alone")
    else:
        listed = bisect_versions.commits(good, bad, cwd)
    search = bisect_search.of_command(listed, cwd, pip, fields)
    _Follower(new_home(), search, verbose, json).follow(anew)


class _Follower(Struct):
    """Follows a search to its end. `missing` says why a version has no environment."""

    layout: Layout
    search: VersionSearch
    verbose: bool
    json: bool
    missing: dict[int, str] = field(default_factory=dict)

    def follow(self, anew: bool) -> None:
        """Measure pairs until there is an answer; print it, and exit with its code."""
        from queue_runner.referee import bisect_search

        so_far = bisect_search.stored(self.layout, self.search, anew=anew)
        if so_far.groups:
            say(f"continuing from {', '.join(f'g{group}' for group in so_far.groups)}; --anew starts over")
        while not isinstance(
            answer := bisect_search.answer(self.search, so_far, self.missing), bisect_search.BisectAnswer
        ):
            before = so_far
            if so_far.open_group is not None and so_far.until is not None:
                follow_again(self.layout, so_far.open_group, so_far.until, verbose=self.verbose, json=self.json)
            elif answer is not None and not self._measure(so_far, answer):
                continue
            so_far = bisect_search.stored(self.layout, self.search)
            self._refuse_end(before, so_far)
            say(f"{self.search.versions[so_far.last.newer].name}: {so_far.last_why}" if so_far.last else "")
        if self.json:
            print_json("mpsq.bisect/1", **answer.as_json())
        else:
            print(answer.text())
        raise typer.Exit(0 if answer.step is not None else 3)

    def _measure(self, so_far: StoredSearch, pair: VersionPair) -> bool:
        """Submit and follow rounds of a pair. Return whether its environments could be made and its commits copied. The
        stored submissions alone decide what follows."""
        from queue_runner.referee import bisect_search, bisect_versions
        from queue_runner.source.snapshot import NotCopied

        environments = []
        for number in (pair.older, pair.newer):
            version = self.search.versions[number]
            if version.is_commit:
                continue
            try:
                python = self.search.fields.get("python")
                environments.append(bisect_versions.environment(self.layout, version, python))
            except MpsqError as error:
                self._skip(number, error)
                return False
        known = replace(so_far, bisection=so_far.bisection.without(self.missing))

        def plan(layout: Layout) -> Any:
            return bisect_search.plan(self.search, known, pair, environments)

        try:
            follow_to_the_end(self.layout, plan, verbose=self.verbose, json=self.json, finish=lambda *_: None)
        except NotCopied as error:
            self._skip([version.identity for version in self.search.versions].index(error.commit), error)
            return False
        return True

    def _skip(self, number: int, error: MpsqError) -> None:
        """Note why a version cannot be measured. Raises: the error, if it is an end."""
        if number in (0, len(self.search.versions) - 1):
            raise error
        self.missing[number] = error.message

    def _refuse_end(self, before: StoredSearch, after: StoredSearch) -> None:
        """Raise MpsqError where a submission was cancelled or brought nothing, so that the next would not, either."""
        group = after.groups[-1]
        if after.last_why == "cancelled":
            raise MpsqError(f"g{group} was cancelled", "repeat the same command to continue")
        is_new = after.bisection.n_rounds > before.bisection.n_rounds or len(after.skipped) > len(before.skipped)
        if not is_new and before.open_group is None and after.elapsed_s < self.search.budget_s:
            raise MpsqError(f"no round of g{group} is valid: {after.last_why}", f"mpsq why g{group}")
