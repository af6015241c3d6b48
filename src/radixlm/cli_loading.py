"""What commands say before they load a model, since that takes seconds."""

from __future__ import annotations

import click

from radixlm.text.folder import DEMO_NAME


def say_loading(model: str | None) -> None:
    """On stderr, as all that is no answer."""
    click.secho(f"Loading {model or DEMO_NAME} ...", dim=True, err=True)
