"""`radixlm explain`: where two requests part, and what would keep the prefix that they share.

The comparison is in `comparison`.
"""

from __future__ import annotations

import json

import click

from radixlm.cli.start import later

compared = later("radixlm.cli.comparison:compared")


@click.command("explain")
@click.argument("first", metavar="A.json", type=click.Path(exists=True, dir_okay=False))
@click.argument("second", metavar="B.json", type=click.Path(exists=True, dir_okay=False))
@click.option("--model", help="The model's folder; without it, the embedded demo model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(first: str, second: str, model: str | None, as_json: bool) -> None:
    """Compare two request bodies, of any routes that compute a prompt, each with one prompt.

    Where its fields do not tell whose a body is, the field `route` does, as for /cache/explain.

    Tells up to where the second one's prompt would come from the cache after the first one's: the
    message, the token and the text, and what to do. Only the tokenizer and the chat template are
    loaded; no server is asked.
    """
    result = compared(first, second, model)
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
        return
    click.echo(f"{result['shared_tokens']} of {result['prompt_tokens']} tokens are shared.")
    for name in ("where", "what", "context", "advice"):
        if result[name]:
            click.echo(f"{name:8} {result[name]}")
