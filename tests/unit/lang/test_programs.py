"""What a program writes and reads: words, roles, variables, and errors that name its line."""

from __future__ import annotations

import asyncio
import threading

import pytest

import radixlm as rl
from radixlm.core.errors import ConfigError, InvalidRequestError, ProgramError, UnknownVariableError
from radixlm.lang import api, ir
from radixlm.lang.interpreter import Value
from tests.lang_support import FakeBackend, no_threads_left
from tests.server_support import until


@pytest.fixture
def backend():
    made = FakeBackend()
    yield made
    assert no_threads_left()
    assert made.running == made.sessions == 0


def run(backend, body, **options):
    """`body` as a program, to its end."""
    return rl.function(lambda s: body(s)).run(backend=backend, **options)


def test_text_and_answers_alternate(backend):
    def body(s):
        s += "one " + rl.gen("a") + " two "
        s += rl.gen("b")

    state = run(backend, body)
    assert (state["a"], state["b"]) == ("<4>", "<12>")
    assert state.text() == "one <4> two <12>"
    assert backend.asked == ["one ", "one <4> two "]
    assert state.error() is None


def test_arguments_default_to_what_the_program_is_run_with(backend):
    def body(s):
        s += rl.gen("a", max_tokens=3, stop="x") + rl.gen("b")

    run(backend, body, temperature=0, stop=["y"], max_new_tokens=7).sync()
    first, second = backend.params
    assert (first.max_new_tokens, first.stop, first.temperature) == (3, ("x",), 0)
    assert (second.max_new_tokens, second.stop) == (7, ("y",))
    run(backend, body).sync()
    assert backend.params[-1].max_new_tokens == 128
    assert backend.params[-1].temperature == 1.0


WRITTEN = "SYSTEM:be brief\nUSER:hi\nASSISTANT:<34>\n"


def as_values(s):
    s += rl.system("be brief") + rl.user("hi")
    s += rl.assistant(rl.gen("a"))


def as_methods(s):
    s.system("be brief")
    s.user("hi")
    s.assistant(rl.gen("a"))


def as_contexts(s):
    with s.system():
        s += "be brief"
    with s.user():
        s += "hi"
    with s.assistant():
        s += rl.gen("a")


def as_ends(s):
    s += rl.system_begin() + "be brief" + rl.system_end()
    s += rl.user_begin() + "hi" + rl.user_end()
    s += rl.assistant_begin() + rl.gen("a") + rl.assistant_end()


@pytest.mark.parametrize("body", [as_values, as_methods, as_contexts, as_ends])
def test_roles(backend, body):
    state = run(backend, body)
    assert state.text() == WRITTEN
    assert state.messages() == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "<34>"},
    ]


def test_variables(backend):
    def body(s):
        s["mine"] = 5
        with s.var_scope("both"):
            s += "a" + rl.gen("x")
        s += "!"
        with s.copy() as other:
            other += rl.gen("inner")
        return s["both"]

    state = run(backend, body)
    assert state.ret_value == state["both"] == "a<1>"
    assert state["mine"] == state.get_var("mine") == 5
    assert state["inner"] == ["<5>"]
    assert "x" in state
    assert "y" not in state
    assert state.get_meta_info("x") == {"chars": 3}
    assert state.get_meta_info("mine") is None


def test_several_answers_and_the_first_goes_on(backend):
    state = run(backend, lambda s: s.__iadd__("q" + rl.gen("a", n=3)))
    assert state["a"] == ["<1>"] * 3
    assert state.text() == "q<1>"
    assert backend.most == 3


def test_an_answer_ends_behind_what_a_pattern_matches(backend):
    backend.reply = lambda text: "Yes. No."
    state = run(backend, lambda s: s.__iadd__(rl.gen("a", stop_regex=["[.!]"])))
    assert state["a"] == state.text() == "Yes."
    assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": "[.!]"}


@pytest.mark.parametrize(
    ("dtype", "regex", "stop"),
    [(int, "[0-9]+", (" ", "\n")), ("float", "[0-9]", (" ", "\n")), (bool, "True", None)],
)
def test_types_are_patterns(backend, dtype, regex, stop):
    run(backend, lambda s: s.__iadd__(rl.gen("a", dtype=dtype))).sync()
    [params] = backend.params
    assert regex in params.regex
    assert params.stop == (stop or ())
    run(backend, lambda s: s.__iadd__(rl.gen_int("a", 4) + rl.gen_string("b"))).sync()
    assert backend.params[1].max_new_tokens == 4
    assert backend.params[2].regex.startswith('"')


def test_a_choice_is_selected(backend):
    def body(s):
        s += "pick " + rl.select("a", ["long", "no"]) + rl.gen("b", choices=["xx", "y"])

    state = run(backend, body)
    assert (state["a"], state["b"]) == ("no", "y")
    assert state.text() == "pick noy"
    assert state.get_meta_info("a")["normalized_prompt_logprobs"] == [-4.0, -2.0]


def test_values_come_as_text_grows(backend):
    state = rl.function(as_values).run(backend=backend, stream=True)
    assert "".join(state.text_iter("a")) == "<34>"
    assert "".join(state.text_iter()) == WRITTEN
    pieces = list(rl.function(as_values).run(backend=backend, stream=True).text_iter("a"))
    assert pieces == ["<3", "4>"]


async def _collect(iterator):
    return [piece async for piece in iterator]


def test_values_come_to_coroutines_too(backend):
    async def read():
        state = rl.function(as_values).run(backend=backend, stream=True)
        pairs = await _collect(state.text_async_iter("a", return_meta_data=True))
        return pairs, await _collect(state.text_async_iter())

    pairs, texts = asyncio.run(read())
    assert [text for text, _ in pairs] == ["<3", "4>"]
    assert pairs[-1][1] == {"chars": 4}
    assert "".join(texts) == WRITTEN


def test_a_stream_waits_for_what_the_program_has_not_come_to(backend):
    go = threading.Event()

    def body(s):
        go.wait(60)
        s += rl.gen("late")

    state = rl.function(lambda s: body(s)).run(backend=backend, stream=True)
    threading.Timer(0.05, go.set).start()
    assert state["late"] == "<0>"
    with pytest.raises(UnknownVariableError, match="there is no variable 'never'"):
        state["never"]


def test_a_streamed_program_that_raises_is_told_to_the_reader(backend):
    def body(s):
        s += rl.gen("a")
        raise KeyError("oops")

    state = rl.function(lambda s: body(s)).run(backend=backend, stream=True)
    with pytest.raises(ProgramError, match="KeyError: 'oops'"):
        list(state.text_iter())


def test_errors_surface_where_a_value_is_read_and_name_the_line(backend):
    def reply(text):
        if "bad" in text:
            raise InvalidRequestError("no such thing")
        return "ok"

    backend.reply = reply
    read = []

    def body(s):
        s += rl.gen("fine")
        s += "bad " + rl.gen("a")  # this line
        s += rl.gen("b")
        read.append(s["fine"])

    state = run(backend, body)
    assert read == [state["fine"]] == ["ok"]
    for reading in (lambda: state["a"], lambda: state["b"], state.text, state.messages):
        with pytest.raises(ProgramError, match=r"no such thing") as caught:
            reading()
        assert "test_programs.py" in caught.value.line
        assert "# this line" in caught.value.line
    assert isinstance(state.error(), ProgramError)
    assert len(backend.asked) == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda s: s["nope"], "there is no variable 'nope' .known: none"),
        (lambda s: s.__iadd__(None), "only text and expressions"),
        (lambda s: s.__iadd__(f"{rl.gen('a')}"), "append it to a program's state"),
        (lambda s: str(rl.user("a")), "has no text of its own"),
        (lambda s: rl.select("a", []), "choices is a list of texts, one at least"),
        (lambda s: rl.select("a"), "choices is a list of texts, one at least"),
        (lambda s: rl.gen("a", choices=[]), "choices is a list of texts, one at least"),
        (lambda s: rl.select("a", ["x", ""]), "each choice is a text that is not empty"),
        (lambda s: rl.select("a", ["x", "x"]), "a choice stands twice"),
        (lambda s: rl.select("a", ["x"], temperature=1), "its temperature is 0"),
        (lambda s: rl.gen("a", dtype=list), "dtype is one of int, float, bool, str"),
        (lambda s: rl.gen("a", dtype=int, regex="a"), "give dtype or regex, not both"),
        (lambda s: rl.gen("a", stop=[""]), "stop is a text, or a list"),
        (lambda s: rl.gen("a", stop_regex="("), "stop_regex '.' is no regular expression"),
        (lambda s: s.fork(0), "a state is forked into 1 or more"),
        (lambda s: s.fork(2).__iadd__(["a"]), "2 forks are given one expression"),
        (lambda s: s.fork(2).join("sideways"), "the mode of a join is 'gather_variable'"),
    ],
)
def test_what_is_wrong_is_said_at_its_line(backend, body, reason):
    with pytest.raises(ProgramError, match=reason) as caught:
        run(backend, body)
    assert caught.value.line.startswith("test_programs.py:")


@pytest.mark.parametrize("use", [str, "{}".format, lambda word: "".join([str(word)])])
def test_a_word_outside_of_a_program_is_told_at_its_line(use):
    word = rl.gen("a")
    with pytest.raises(ProgramError, match="append it to a program's state") as caught:
        use(word)
    assert caught.value.line.startswith("test_programs.py:")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda s: s.__iadd__(rl.user(rl.assistant("x"))), "begins within one of user"),
        (lambda s: s.__iadd__(rl.user_end()), "a message of user ends, but none is open"),
    ],
)
def test_roles_that_do_not_fit_fail_when_read(backend, body, reason):
    with pytest.raises(ProgramError, match=reason):
        run(backend, body).text()


def test_a_state_takes_no_more_once_its_program_is_over(backend):
    state = run(backend, lambda s: s.__iadd__("x"))
    with pytest.raises(ProgramError, match="the program is over") as caught:
        state += rl.gen("a")
    assert "state += rl.gen" in caught.value.line
    assert state.text() == "x"


def test_an_unknown_variable_is_a_key_error_that_reads_well(backend):
    with pytest.raises(KeyError) as caught:
        run(backend, lambda s: s["nope"])
    assert not str(caught.value).startswith('"')


def test_a_program_that_raises_leaves_nothing_running():
    backend = FakeBackend(hangs=True)

    def body(s):
        s += rl.gen("a")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run(backend, body)
    assert backend.running == backend.sessions == 0
    assert no_threads_left()


def test_a_cancelled_program_ends_at_the_backend_too():
    backend = FakeBackend(hangs=True)
    state = rl.function(as_values).run(backend=backend, stream=True)
    threading.Timer(0.05, state.cancel).start()
    with pytest.raises(ProgramError, match="the program was cancelled"):
        state["a"]
    assert no_threads_left()
    assert backend.running == 0


def test_a_backend_is_needed():
    with pytest.raises(ConfigError, match="no backend: call set_default_backend"):
        rl.function(as_values).run()
    with pytest.raises(ConfigError, match="is no backend"):
        rl.set_default_backend(5)


def test_programs_are_bound_and_their_arguments_checked(backend):
    @rl.function
    def program(s, question, style="plain"):
        s += f"{question} {style} " + rl.gen("a")

    bound = program.bind(style="odd")
    assert bound.run("what", backend=backend).text() == "what odd <9>"
    assert bound(question="who", backend=backend)["a"] == "<8>"
    with pytest.raises(ConfigError, match="has no argument colour"):
        program.bind(colour=1)
    with pytest.raises(ConfigError, match="must be `s`"):
        rl.function(lambda state: None)


def test_what_a_program_begins_with_is_cached(backend):
    ran = []

    @rl.function(num_api_spec_tokens=3)
    def program(s, question):
        s += rl.system("always the same") + "and this, "
        s += "Q: " + question + rl.gen("a")
        ran.append(question)

    program.cache(backend)
    assert backend.computed == ["SYSTEM:always the same\nand this, "]
    assert not ran


def test_the_default_backend(backend, monkeypatch):
    monkeypatch.setattr(api, "DEFAULT", api.Default())
    rl.set_default_backend(backend)
    assert rl.function(as_values).run()["a"] == "<34>"
    assert rl.flush_cache()


def test_a_scope_is_not_read_or_opened_inside_itself(backend):
    def body(s):
        with s.var_scope("a"):
            s += "x"
            for state in (s, s.fork(1)[0]):
                with pytest.raises(ProgramError, match="'a' is read inside its own scope"):
                    state["a"]
            with pytest.raises(ProgramError, match="the scope 'a' is open"), s.var_scope("a"):
                pass
        return s["a"]

    assert run(backend, body).ret_value == "x"


def test_joined_variables_come_to_coroutines_as_text(backend):
    def body(s):
        forks = s.fork(2)
        forks += rl.gen("a")
        forks.join()

    state = run(backend, body)
    assert asyncio.run(_collect(state.text_async_iter("a"))) == ["['<0>', '<0>']"]


def test_a_variable_that_is_set_wakes_who_waits_for_it(backend):
    go, asked, over = threading.Event(), threading.Event(), threading.Event()

    def body(s):
        go.wait(60)
        s["late"] = 5
        asked.wait(60)
        over.set()

    state = rl.function(lambda s: body(s)).run(backend=backend, stream=True)
    threading.Timer(0.05, go.set).start()
    assert state["late"] == 5
    assert not over.is_set()
    asked.set()


def test_exceptions_and_cancels_name_the_program_s_line(backend):
    def raises(s):
        int("many")  # this line

    def cancels(s):
        s.cancel()

    for program, line in ((raises, "# this line"), (cancels, "in cancels")):
        state = rl.function(program).run(backend=backend, stream=True)
        with pytest.raises(ProgramError):  # the program has its own thread
            state.text()
        assert line in state.error().line


def test_steps_that_are_done_are_not_looked_through_at_each_step(backend, monkeypatch):
    looks, done = [], Value.done
    monkeypatch.setattr(Value, "done", lambda value: looks.append(1) or done(value))

    def body(s):
        s += rl.gen("a")
        for _ in range(200):
            s += "x"

    run(backend, body).sync()
    assert len(looks) < 1000


def test_a_read_is_not_refused_by_a_close_that_comes_between(backend, monkeypatch):
    def closed_meanwhile():
        closing = threading.Thread(target=state.stream_executor.close, args=("closed",))
        closing.start()
        closing.join(0.1)
        return line()

    def body(s):
        s += "x"
        go.wait(60)

    go, line = threading.Event(), ir.caller_line
    state = rl.function(lambda s: body(s)).run(backend=backend, stream=True)
    until(lambda: state.text() == "x")
    monkeypatch.setattr(ir, "caller_line", closed_meanwhile)
    assert state.text() == "x"
    go.set()
