"""The workloads as programs in the frontend language: they ask what those of `bench.paper` ask, in
the same order, and are called with the same content as text.
"""

from __future__ import annotations

from radixlm.bench.paper.tree_search import Search
from radixlm.lang.api import gen
from radixlm.lang.program import function
from radixlm.lang.program_state import State


@function
def shared_prompt(s: State, prompt: str, out: int) -> str:
    s += prompt + gen("answer", max_tokens=out)
    return str(s["answer"])


@function
def chat(s: State, history: str, turns: list[str], out: int) -> str:
    s += history
    for turn in turns:
        s += turn + gen("answer", max_tokens=out)
        s["answer"]  # an agent acts on it before it goes on
    return s.text()


@function
def tree_of_thought(
    s: State, root: str, levels: list[list[tuple[int, str]]], branching: int, out: int, verdict: int
) -> str:
    s += root
    leaves = [s]
    for level in levels:
        leaves = [child for leaf in leaves for child in leaf.fork(branching)]
        for leaf in leaves:
            leaf += gen("thought", max_tokens=out, temperature=1.0)
        thoughts = [leaf["thought"] for leaf in leaves]
        judges = [leaf.fork()[0] for leaf in leaves]
        for judge, (_, question) in zip(judges, level, strict=True):
            judge += question + gen("verdict", max_tokens=verdict)
        verdicts = [judge["verdict"] for judge in judges]
    return str(max(zip(verdicts, thoughts, strict=True))[1])


@function
def tree_search(s: State, trunk: str, moves: list[str], search: Search, out: int) -> str:
    s += trunk
    states = [s]
    for stage in search.stages():
        for parent, node in stage:
            child = states[parent].fork()[0]
            child += moves[node - 1] + gen("answer", max_tokens=out)
            states.append(child)
        for _, node in stage:
            states[node]["answer"]
    return states[search.best].text()


@function
def skeleton_of_thought(s: State, question: str, marks: list[str], outline: int, out: int) -> str:
    s += question + gen("outline", max_tokens=outline)
    forks = s.fork(len(marks))
    forks += [mark + gen("point", max_tokens=out) for mark in marks]
    forks.join()
    return "".join(s["point"])


@function
def branch_solve_merge(s: State, article: str, marks: list[str], out: int) -> str:
    s += article
    forks = s.fork(len(marks))
    forks += [mark + gen("judgement", max_tokens=out) for mark in marks]
    forks.join()
    for mark, judgement in zip(marks, s["judgement"], strict=True):
        s += mark + judgement
    s += gen("merged", max_tokens=out)
    return str(s["merged"])
