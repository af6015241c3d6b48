"""Deliberate faults in the cache: the stress run, or a unit test, must notice every one of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from radixlm.cache import RadixTree
from radixlm.core.errors import InvariantError
from tests.cache_model import Mismatch
from tests.cache_stress import SMALL, Stress
from tests.component_model import ComponentStress, setups
from tests.property.cache.faults import SEAMS
from tests.property.cache.faults_of_components import OF_COMPONENTS
from tests.property.cache.faults_of_use import FAULTS
from tests.unit.cache import (
    conftest,
    test_cache,
    test_cache_errors,
    test_pins,
    test_reuse,
    test_snapshot,
    test_why,
)
from tests.unit.cache.components import test_states, test_window_slots_of_cache
from tests.unit.cache.places import test_stored_windows
from tests.unit.cache.policies import test_named
from tests.unit.cache.radix import test_ghosts, test_merge, test_tree, test_tree_errors
from tests.unit.scheduler import test_restoring_windows

SETUPS = [setup for setup in SMALL if setup.enabled]
OPERATIONS = 800
# What a fault dies of that is wrong itself, say since what it patches takes other arguments now.
MISTAKES = (TypeError, AttributeError, NameError)
UNIT_TESTS = [
    test_tree,
    test_tree_errors,
    test_cache,
    test_cache_errors,
    test_ghosts,
    test_merge,
    test_named,
    test_pins,
    test_reuse,
    test_why,
    test_snapshot,
    test_states,
    test_window_slots_of_cache,
    test_stored_windows,
    test_restoring_windows,
]


def caught_by_the_stress() -> str | None:
    """Run the stress until something is noticed, and say what; else None. Raises MISTAKES."""
    spent = 0
    for seed, setup in enumerate(SETUPS):
        stress = Stress(seed, setup)
        if noticed := what_stops(lambda stress=stress: stress.run(OPERATIONS, check_every=1)):
            spent += stress.checked.counts["operations"]
            return f"stress, {spent} operations: {noticed}"
        spent += OPERATIONS
    return None


def caught_with_components() -> str | None:
    """The same with components and places."""
    for seed in range(2):
        for setup in setups():
            stress = ComponentStress(seed, setup)
            if noticed := what_stops(lambda stress=stress: stress.run(200)):
                return f"components, {setup[1:]}, seed {seed}: {noticed}"
    return None


def what_stops(run: Callable[[], object]) -> str | None:
    """What is noticed in a run; a crash is, too. Raises MISTAKES."""
    try:
        run()
    except MISTAKES:
        raise
    except Exception as error:
        crash = "" if isinstance(error, InvariantError | Mismatch) else "crash: "
        return f"{crash}{type(error).__name__}: {error}"
    return None


def caught_by_a_unit_test() -> str | None:
    """Call the unit tests that need no arguments, and those with parameters of their own. Raises
    MISTAKES.
    """
    for name, call in unit_tests():
        try:
            call()
        except MISTAKES:
            raise
        except (Exception, pytest.fail.Exception) as error:
            return f"{name}: {type(error).__name__}"
    return None


def unit_tests() -> Iterator[tuple[str, Callable[[], Any]]]:
    for module in UNIT_TESTS:
        for owner in (module, *(c for n, c in vars(module).items() if n.startswith("Test"))):
            for name, function in vars(owner).items():
                if name.startswith("test_"):
                    yield from with_arguments(module, owner, name, function)


def with_arguments(
    module: ModuleType, owner: Any, name: str, function: Callable[..., Any]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    wanted = [p for p in inspect.signature(function).parameters if p != "self"]
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    receiver = [] if owner is module else [owner()]
    where = f"{module.__name__.rpartition('.')[2]}.{name}"
    if not wanted:
        yield where, lambda: function(*receiver)
    elif len(marks) == 1 and marks[0].args[0] in (wanted[0], tuple(wanted)):
        for value in marks[0].args[1]:
            named = dict(zip(wanted, value if len(wanted) > 1 else (value,), strict=True))
            yield f"{where}[{value}]", lambda named=named: function(*receiver, **named)
    elif len(wanted) == 1 and (fixture := getattr(module, wanted[0], None) or shared(wanted[0])):
        make = fixture.__wrapped__
        yield where, lambda: function(*receiver, make())


def shared(fixture: str) -> Any:
    return getattr(conftest, fixture, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FAULTS[name](monkeypatch)
    stress = caught_with_components if name in OF_COMPONENTS else caught_by_the_stress
    caught = stress() or caught_by_a_unit_test()
    with capsys.disabled():
        print(f"\n{name:<50} {(caught or 'NOT CAUGHT')[:110]}", end="")
    assert caught is not None


@pytest.mark.slow
def test_nothing_is_caught_without_a_fault() -> None:
    assert caught_by_the_stress() is None
    assert caught_with_components() is None
    assert len(list(unit_tests())) > 120
    assert caught_by_a_unit_test() is None


@pytest.mark.parametrize(
    "caught", [caught_by_the_stress, caught_with_components, caught_by_a_unit_test]
)
def test_a_fault_that_is_wrong_itself_proves_nothing(
    caught: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RadixTree, "dec_lock_ref", lambda _tree, **_how: None)
    with pytest.raises(TypeError, match="1 positional argument but 2"):
        caught()


@pytest.mark.parametrize("name", SEAMS)
def test_a_fault_takes_what_its_seam_takes(name: str) -> None:
    """Else it would be caught for that alone, and only in the slow runs."""
    original, broken = SEAMS[name]
    taken = inspect.signature(original).parameters.values()
    keywords = [p.name for p in taken if p.kind is p.KEYWORD_ONLY]
    positional = [p for p in taken if p.kind is p.POSITIONAL_OR_KEYWORD]
    inspect.signature(broken).bind(original, *positional, **dict.fromkeys(keywords))


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 90
