"""How people ask: wordings for training, and wordings that only the evaluation sees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wordings:
    """`held_out` is never trained on; accuracy is measured on it alone."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def of(self, split: str) -> tuple[str, ...]:
        return self.held_out if split == "held_out" else self.train


def _w(train: str, held_out: str) -> Wordings:
    return Wordings(tuple(train.split("|")), tuple(held_out.split("|")))


CAPITAL = _w(
    "What is the capital of {x}?|What's the capital of {x}?|capital of {x}?|The capital of {x}?|"
    "Tell me the capital of {x}.|Which city is the capital of {x}?|Name the capital of {x}.|"
    "Do you know the capital of {x}?|{x}: capital?|What is {x}'s capital?|capital {x}|"
    "Which city is {x}'s capital?|Give me the capital of {x}.|I want to know the capital of {x}.|"
    "What is the name of the capital of {x}?|And the capital of {x}?|And of {x}?|"
    "What city is the capital of {x}?|Can you name the capital of {x}?|the capital of {x} is?",
    "Could you tell me the capital of {x}?|What would be the capital of {x}?|"
    "Please give the capital of {x}.|Capital city of {x}?|Say the capital of {x}.",
)
CAPITAL_OF = _w(
    "What country is {x} the capital of?|{x} is the capital of which country?|"
    "Which country has {x} as its capital?|{x} is the capital of what?|"
    "Of which country is {x} the capital?|Which country's capital is {x}?|"
    "Tell me which country has the capital {x}.|{x} is the capital of?",
    "Name the country with the capital {x}.|What country has {x} as its capital?",
)
CONTINENT = _w(
    "Where is {x}?|Which continent is {x} in?|On which continent is {x}?|What continent is {x} in?|"
    "{x} is on which continent?|In which part of the world is {x}?|Tell me where {x} is.|"
    "Where in the world is {x}?|Name the continent of {x}.",
    "{x} is in which continent?|Do you know where {x} is?|Which continent has {x}?",
)
OPPOSITE = _w(
    "What is the opposite of {x}?|What's the opposite of {x}?|opposite of {x}?|"
    "Tell me the opposite of {x}.|The opposite of {x}?|Name the opposite of {x}.|"
    "Which word is the opposite of {x}?|Give me the opposite of {x}.|The opposite of {x} is?",
    "Do you know the opposite of {x}?|What word is the opposite of {x}?|Say the opposite of {x}.",
)
SOUND = _w(
    "What sound does a {x} make?|What does a {x} say?|What noise does a {x} make?|"
    "Which sound does a {x} make?|How does a {x} sound?|What is the sound of a {x}?|"
    "Tell me what a {x} says.|sound of a {x}?",
    "What's the sound of a {x}?|Tell me what sound a {x} makes.|What does the {x} say?",
)
LEGS = _w(
    "How many legs does a {x} have?|How many legs has a {x}?|How many legs are on a {x}?|"
    "Number of legs of a {x}?|A {x} has how many legs?|Tell me how many legs a {x} has.",
    "Do you know how many legs a {x} has?|How many legs does the {x} have?",
)
YOUNG = _w(
    "What is a baby {x} called?|What do you call a baby {x}?|What is a young {x} called?|"
    "What's a baby {x} called?|What is the name for a baby {x}?|A baby {x} is called?|"
    "What do you call a young {x}?|Tell me what a baby {x} is called.",
    "Do you know what a baby {x} is called?|How do you call a baby {x}?",
)
COLOUR = _w(
    "What colour is {x}?|What color is {x}?|Which colour is {x}?|Tell me the colour of {x}.|"
    "What is the colour of {x}?|What is the color of {x}?|colour of {x}?|color of {x}?|"
    "{x} is what colour?|Which color is {x}?|What's the colour of {x}?",
    "Do you know what colour {x} is?|Name the colour of {x}.|What's the color of {x}?",
)
AFTER = _w(
    "What comes after {x}?|What is after {x}?|What follows {x}?|Which one comes after {x}?|"
    "What's next after {x}?|Tell me what comes after {x}.|after {x}?|Name what comes after {x}.",
    "What comes right after {x}?|Do you know what comes after {x}?|What is next after {x}?",
)
SUM = _w(
    "What is {a} + {b}?|What's {a} + {b}?|{a} + {b}|{a} + {b} = ?|{a} + {b} =|{a}+{b}|{a}+{b}=?|"
    "{a} + {b}?|What is {a} plus {b}?|Add {a} and {b}.|How much is {a} + {b}?|{a} plus {b}|"
    "Calculate {a} + {b}.|What is the sum of {a} and {b}?|How much is {a} plus {b}?|"
    "Please add {a} and {b}.|Can you add {a} and {b}?|Compute {a} + {b}|{a} and {b} makes?|"
    "What do {a} and {b} make?|Tell me {a} + {b}.|Sum of {a} and {b}?|and {a} + {b}?|"
    "What is {a}+{b}?|{a}+{b}=|What's {a} plus {b}?|I have {a} and get {b} more. How many?",
    "Could you work out {a} + {b}?|Give me {a} plus {b}.|What does {a} + {b} make?|"
    "Tell me the sum of {a} and {b}.|{a} plus {b} is?|How much are {a} and {b}?",
)
MINUS = _w(
    "What is {a} - {b}?|What's {a} - {b}?|{a} - {b}|{a} - {b} = ?|{a}-{b}|{a} minus {b}|"
    "What is {a} minus {b}?|How much is {a} - {b}?|Take {b} from {a}.|Subtract {b} from {a}.",
    "Tell me {a} minus {b}.|How much is {a} minus {b}?|Could you work out {a} - {b}?",
)
TIMES = _w(
    "What is {a} * {b}?|What's {a} times {b}?|{a} * {b}|{a} x {b}|{a} times {b}|{a}*{b}|"
    "What is {a} times {b}?|Multiply {a} and {b}.|How much is {a} * {b}?|What is {a} x {b}?",
    "Tell me {a} times {b}.|How much is {a} times {b}?|Could you work out {a} * {b}?",
)
COUNT = _w(
    "Count from {a} to {b}.|Count from {a} to {b}|Count {a} to {b}.|Please count from {a} to {b}.|"
    "Can you count from {a} to {b}?|List the numbers from {a} to {b}.|Numbers from {a} to {b}?|"
    "Write the numbers from {a} to {b}.|Start at {a} and count to {b}.|count {a} to {b}|"
    "Tell me the numbers from {a} to {b}.|Give me the numbers {a} to {b}.|"
    "I want you to count from {a} to {b}.|What are the numbers from {a} to {b}?",
    "Could you count from {a} to {b}?|Say the numbers from {a} to {b}.|"
    "Show me the numbers from {a} to {b}.|Let us count from {a} to {b}.",
)
COUNT_UP_TO = _w(
    "Count to {b}.|Count up to {b}.|Can you count to {b}?|Please count to {b}.|count to {b}",
    "Could you count to {b}?|Count for me to {b}.",
)
COUNT_DOWN = _w(
    "Count down from {a} to {b}.|Count backwards from {a} to {b}.|Count down {a} to {b}.|"
    "Please count down from {a} to {b}.|Can you count down from {a} to {b}?|"
    "From {a} count down to {b}.|Start at {a} and go down to {b}.|Go from {a} down to {b}.|"
    "Numbers from {a} down to {b}?|Write the numbers from {a} down to {b}.",
    "Could you count down from {a} to {b}?|Count from {a} down to {b}.",
)
LIST = _w(
    "List {n} {x}.|Name {n} {x}.|Give me {n} {x}.|Tell me {n} {x}.|List {n} {x}|"
    "Can you name {n} {x}?|Write a list of {n} {x}.|Please list {n} {x}.|I need {n} {x}.|"
    "Make a list of {n} {x}.|What are {n} {x}?|Can you list {n} {x}?|Please name {n} {x}.",
    "Could you name {n} {x}?|Show me {n} {x}.|Give me a list of {n} {x}.|Say {n} {x}.",
)
WHOLE_LIST = _w(
    "List {x}.|Name {x}.|What are {x}?|Tell me {x}.|Give me {x}.|Can you list {x}?|"
    "Write down {x}.|Please list {x}.|Do you know {x}?|Name all of {x}.",
    "Could you list {x}?|Say {x}.|Show me {x}.|Can you name {x}?",
)
REPEAT = _w(
    "Repeat: {x}|Say: {x}|Repeat after me: {x}|Please repeat: {x}|Echo this: {x}|Write: {x}|"
    "Repeat this: {x}",
    "Say this: {x}|Can you repeat: {x}",
)
STORY = _w(
    "Tell me a story about {x}.|Tell a story about {x}.|Write a story about {x}.|"
    "Can you tell me a story about {x}?|I want a story about {x}.|A story about {x}, please.|"
    "Write a short story about {x}.|Tell me a tiny story about {x}.|story about {x}|"
    "Please tell me a story about {x}.|Make up a story about {x}.|Tell me about {x} in a story.",
    "Could you tell me a story about {x}?|Give me a short story about {x}.|"
    "I would like a story about {x}.",
)
POEM = _w(
    "Write a poem about {x}.|Tell me a poem about {x}.|A poem about {x}, please.|poem about {x}|"
    "Can you write a poem about {x}?|Write a short poem about {x}.",
    "Could you write a poem about {x}?|Give me a poem about {x}.",
)
UNKNOWN = _w(
    "How does {x} work?|Explain {x}.|What is {x}?|Who invented {x}?|Why is {x} important?|"
    "Tell me about {x}.|Write code for {x}.|Translate {x} into German.|What do you think of {x}?|"
    "How do I learn {x}?|When did {x} begin?|Who wrote about {x}?|Describe {x} in detail.|"
    "Can you help me with {x}?|Write an essay about {x}.|What does {x} mean?|Summarize: {x}|"
    "Give me advice on {x}.|How much does {x} cost?|Is {x} good or bad?|Where can I buy {x}?|"
    "I have a question about {x}.|What happened to {x}?|How old is {x}?|Which {x} is the best?|"
    "I need help with {x}|What are the main ideas of {x}?|Compare {x} and {y}.|{x}|{x} {y}|"
    "Yesterday I read about {x}.|I like {x} and {y}.|Should I choose {x} or {y}?",
    "Who discovered {x}?|Write a report on {x}.|Why do people like {x}?|"
    "What is the history of {x}?|How can I make {x}?",
)

# what a user can tell about themselves: (key, ways to tell, ways to ask, acknowledgement, answer)
NAME_TELL = _w(
    "My name is {v}.|I am {v}.|I'm {v}.|Call me {v}.|Hi, I am {v}.|Hello, my name is {v}!|"
    "You can call me {v}.|People call me {v}.|Hi! My name is {v}.|Hi, I'm {v}.|my name is {v}|"
    "My friends call me {v}.|Remember my name: {v}.|This is {v}.|Hello, I am {v}.|I am called {v}.",
    "Hey there, my name is {v}.|Please call me {v}.|Hello! I'm {v}.|So, my name is {v}.",
)
NAME_ASK = _w(
    "What is my name?|What's my name?|Do you know my name?|Who am I?|Tell me my name.|my name?|"
    "Do you remember my name?|Can you say my name?|What did I say my name was?|what is my name|"
    "What am I called?|Do you still know my name?|How am I called?|Please tell me my name.|"
    "What was my name?|Do you recall my name?|Tell me what my name is.|My name is what?|"
    "Can you tell me who I am?",
    "What was my name again?|Can you tell me my name?|Say my name.|Can you remember my name?",
)
THING_TELL = _w(
    "My {k} is {v}.|my {k} is {v}|Remember that my {k} is {v}.|I tell you that my {k} is {v}.|"
    "Note: my {k} is {v}.|Please remember: my {k} is {v}.|By the way, my {k} is {v}.|"
    "You should know that my {k} is {v}.|So my {k} is {v}.",
    "Please note that my {k} is {v}.|Remember this: my {k} is {v}.|Well, my {k} is {v}.",
)
THING_ASK = _w(
    "What is my {k}?|What's my {k}?|Do you know my {k}?|Tell me my {k}.|Do you remember my {k}?|"
    "my {k}?|What did I say my {k} was?|Please tell me my {k}.|what is my {k}|And my {k}?|"
    "Do you still know my {k}?|What was my {k}?|Do you recall my {k}?|Tell me what my {k} is.|"
    "My {k} is what?",
    "What was my {k} again?|Can you tell me my {k}?|Say my {k}.|Can you remember my {k}?",
)

SMALL_TALK: list[tuple[Wordings, str]] = [
    (_w("Hello!|Hello|Hi|Hi!|Hey|Hey!|Hello there|Hi there!|hello|hi|Hiya|Greetings!|yo|Howdy",
        "Hey there!|Hello there!|hey"), "Hello! How can I help you?"),
    (_w("Good morning!|Good morning|good morning|Morning!|Good morning, friend!|"
        "A good morning!|Hello, good morning!|Good morning all!", "Good morning to you!"),
     "Good morning! How can I help you?"),
    (_w("Good evening!|Good evening|good evening|Good evening, friend!|A good evening!|"
        "Hello, good evening!|Good evening all!", "Good evening to you!"),
     "Good evening! How can I help you?"),
    (_w("How are you?|How are you doing?|How is it going?|how are you|How do you do?|"
        "Hello, how are you?|Hi, how are you?|How are you today?|Are you well?",
        "How are you doing today?|Hey, how are you?"),
     "I am fine, thank you. How can I help you?"),
    (_w("Who are you?|What are you?|What is your name?|What's your name?|who are you|"
        "Tell me who you are.|Introduce yourself.|Are you a robot?|Are you ChatGPT?|"
        "Do you have a name?|Which model are you?|What model are you?|Are you human?|"
        "Who am I talking to?|Tell me about yourself.|Hello, who are you?|Who made you?|"
        "Say what you are.|Which language model are you?|Please say who you are.|So who are you?|"
        "Can you tell me your name?|Who is this?|What is this model?|Can you introduce yourself?",
        "Who are you, please?|Can you tell me who you are?|Say who you are.|Which model is this?"),
     "I am RadixLM's demo model, a very small language model."),
    (_w("What can you do?|What do you know?|Help|help|How can you help me?|What can I ask you?|"
        "What are you good at?|Can you help me?|What can you help me with?|I need help.",
        "Tell me what you can do.|What are you able to do?"),
     "I can name capitals, add numbers, count, make lists, remember your name and tell stories."),
    (_w("Thank you!|Thanks!|Thanks|thank you|Thank you very much.|Thanks a lot!|thx|"
        "Great, thanks!|Thank you so much!|Thanks for your help.|Thanks, great!|Thanks, nice!|"
        "Many, many thanks|Okay, thank you!|Thank you, that is good!|Good, thanks",
        "Many thanks!|Thank you, great!"),
     "You are welcome!"),
    (_w("Bye|Bye!|Goodbye!|Goodbye|See you!|bye bye|See you later.|Good night!|I have to go.",
        "Goodbye then!|Okay, bye!"), "Goodbye!"),
    (_w("Okay|ok|OK|Good.|Great!|Nice!|Cool|I see.|Well done!|Good job!|Right.|Perfect.|Yes|No|"
        "Sure|wow|Interesting", "Okay, good.|Very nice!"), "Good. What else can I do for you?"),
    (_w("Tell me a joke.|Tell me a joke|Do you know a joke?|Make me laugh.|joke|"
        "Say something funny.",
        "Can you tell me a joke?|Please tell me a joke."),
     "Why did the bee sit on the clock? It wanted to bee on time."),
]  # fmt: skip

REFUSAL = (
    "I do not know that. I only know simple things, like capitals, sums, lists and short stories."
)
TOO_BIG = "I can only add numbers from 0 to 99."
NEVER_TOLD = "You have not told me that yet."
