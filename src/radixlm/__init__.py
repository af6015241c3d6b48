"""RadixLM: shared prefixes are computed once, read once, and never a mystery.

The public names are those of `__init__.pyi`. Each is imported when it is first used, so that
`import radixlm` does not load torch. Nothing else is imported here: the command does not handle
Ctrl-C in good order before this has run.
"""

from importlib import import_module


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("radixlm")  # it takes a while itself
    with open(f"{__file__}i", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from radixlm")]
    homes = {line[3]: line[1] for line in lines}  # from `home` import `name` as `name`
    if name == "__all__":
        return list(homes)
    if name not in homes:
        raise AttributeError(f"module 'radixlm' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(homes[name]), name))
