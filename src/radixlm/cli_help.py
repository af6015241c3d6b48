"""Help under headings: an option says under which it stands. Hints for flags that are not ours."""

from __future__ import annotations

from typing import Any

import click

from radixlm.cli_others import hint_for


class HeadedOption(click.Option):
    """An option with its heading in the help of a HeadedCommand."""

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading


class HintingCommand(click.Command):
    """Knows what other engines' flags are called here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [argument.partition("=")[0] for argument in args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Of `-ngl 9` click has looked for `-n` only.
            likely = [flag for flag in given if flag.startswith(error.option_name)]
            for flag in likely:
                if (hint := hint_for(flag)) is not None:
                    raise click.UsageError(f"There is no option {flag!r}: {hint}.", ctx) from None
            raise


class HeadedCommand(HintingCommand):
    """Lists its options by heading, in the order in which headings and options first come."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                heading = param.heading if isinstance(param, HeadedOption) else "Other"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
