"""Help under headings: an option says under which it stands."""

from __future__ import annotations

from typing import Any

import click


class HeadedOption(click.Option):
    """An option with its heading in the help of a HeadedCommand."""

    def __init__(self, *args: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.heading = heading


class HeadedCommand(click.Command):
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
