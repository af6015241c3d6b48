"""Several answers from one call, where calls cost."""

from __future__ import annotations

import pytest

import radixlm as rl
from radixlm.core.errors import ProgramError
from tests.lang_support import FakeBackend, no_threads_left

WHOLE = "Name: Ann\nAge: 7\nDone"


@pytest.fixture
def backend():
    made = FakeBackend(
        lambda text: WHOLE[len(text) - text.find("Q") - 1 :] if "Q" in text else WHOLE
    )
    made.calls_cost = True
    yield made
    assert no_threads_left()


@rl.function(num_api_spec_tokens=40)
def in_text(s):
    s += "Q"
    s += "Name:" + rl.gen("name", stop="\n") + "\nAge:" + rl.gen("age", stop="\n")
    s += "\n" + rl.gen("rest", max_tokens=5)


def test_plain_text_is_asked_for_once(backend):
    state = in_text.run(backend=backend)
    assert (state["name"], state["age"], state["rest"]) == (" Ann", " 7", "Done")
    assert state.text() == "Q" + WHOLE
    assert len(backend.asked) == 2
    assert backend.params[0].max_new_tokens == 128
    assert not backend.params[0].stop


def test_what_the_program_says_otherwise_is_asked_again(backend):
    @rl.function(num_api_spec_tokens=40)
    def program(s):
        s += "Q" + "Name:" + rl.gen("name", stop="\n") + "\nSize:" + rl.gen("size", stop="\n")

    program.run(backend=backend).sync()
    assert len(backend.asked) == 2


def test_backends_whose_calls_are_cheap_are_asked_each_time(backend):
    backend.calls_cost = False
    in_text.run(backend=backend).sync()
    assert len(backend.asked) == 3


@rl.function(num_api_spec_tokens=40)
def in_chat(s):
    s += rl.user("Who?")
    s += rl.assistant("Name:" + rl.gen("name", stop="\n") + "\nAge:" + rl.gen("age", stop="\n"))


def test_a_message_is_asked_for_once(backend):
    backend.answers_turns = True
    backend.reply = lambda text: "Name: Ann\nAge: 7"
    state = in_chat.run(backend=backend)
    assert (state["name"], state["age"]) == (" Ann", " 7")
    assert state.messages()[-1] == {"role": "assistant", "content": "Name: Ann\nAge: 7"}
    assert backend.messages == [[{"role": "user", "content": "Who?"}]]
    assert backend.params[0].max_new_tokens == 40


def test_an_answer_of_another_form_is_asked_for_again(backend):
    backend.answers_turns = True
    replies = iter(["Sure! Name: Ann", "Name: Bo\nAge: 8"])
    backend.reply = lambda text: next(replies)
    assert in_chat.run(backend=backend)["age"] == " 8"
    backend.reply = lambda text: "no"
    with pytest.raises(ProgramError, match="has not the form of this message, in 3 tries"):
        in_chat.run(backend=backend)["name"]


def test_a_value_that_is_read_within_its_message_is_not_waited_for_in_vain(backend):
    backend.answers_turns = True
    backend.reply = lambda text: "Ann"

    @rl.function(num_api_spec_tokens=40)
    def program(s):
        s += rl.user("Who?")
        with s.assistant():
            s += rl.gen("name")
            return s["name"]

    assert program.run(backend=backend).ret_value == "Ann"


def test_parameters_of_a_message_must_agree(backend):
    backend.answers_turns = True

    @rl.function(num_api_spec_tokens=40)
    def program(s):
        s += rl.assistant(rl.gen("a", temperature=0, stop="x") + "x" + rl.gen("b", temperature=1))

    with pytest.raises(ProgramError, match="all gens of a message have the same parameters"):
        program.run(backend=backend)["b"]


@pytest.mark.parametrize(("program", "answers_turns"), [(in_text, False), (in_chat, True)])
def test_what_is_streamed_is_what_is_said(backend, program, answers_turns):
    backend.answers_turns = answers_turns
    if answers_turns:
        backend.reply = lambda text: "Name: Ann\nAge: 7"
    state = program.run(backend=backend, stream=True)
    assert "".join(state.text_iter()) == state.text()


def test_a_scope_within_a_message_holds_what_is_said_in_it(backend):
    backend.answers_turns = True
    backend.reply = lambda text: "Name: Ann\nAge: 7"

    @rl.function(num_api_spec_tokens=40)
    def program(s):
        s += rl.user("Who?")
        with s.assistant():
            s += "Name:"
            with s.var_scope("both"):
                s += rl.gen("name", stop="\n")
                with s.var_scope("line"):
                    s += "\nAge:" + rl.gen("age")

    state = program.run(backend=backend)
    assert (state["both"], state["line"]) == (" Ann\nAge: 7", "\nAge: 7")
    assert len(backend.asked) == 1


def test_a_choice_within_a_message_comes_behind_what_was_put_off(backend):
    backend.answers_turns = True

    @rl.function(num_api_spec_tokens=40)
    def program(s):
        s += rl.assistant("Name:" + rl.select("name", ["Ann", "Bo"]))

    assert program.run(backend=backend).messages()[-1]["content"] == "Name:Bo"
