"""Small talk, a little common knowledge, reading from the conversation, and honesty about everything else."""

from .data import ANIMALS, CAPITALS, CITIES, COLORS, JOBS, OPPOSITES, PEOPLE, THINGS, UNKNOWABLE, blocks
from .draw import Draw, Talk, exchange, roughen

# Heads: the answers, each of them right. Lines: the questions.
SMALL_TALK = blocks("small_talk")
KNOWLEDGE = blocks("knowledge")

_UNKNOWN_ASKS = [
    "What do you know about {x}?",
    "Tell me about {x}.",
    "Explain {x}.",
    "What about {x}?",
    "Can you explain {x} to me?",
    "Who invented {x}?",
    "What is your opinion on {x}?",
    "Who won {x}?",
    "Write an essay about {x}.",
    "Give me a summary of {x}.",
    "How does {x} work?",
    "When was {x}?",
    "Why is {x} important?",
    "What happened in {x}?",
    "Teach me {x}.",
    "What do you think of {x}?",
    "Who is {x}?",
    "Where is {x}?",
    "What is {x}?",
    "Write a report on {x}.",
    "I want to learn about {x}.",
    "Is {x} good?",
    "How old is {x}?",
]

UNKNOWN = (
    "I am a small demo model and do not know about {x}. Ask me about Pelton, a sum, JSON or a tool.",
    "I do not know about {x}: I am only a small demo model.",
)


def small_talk(draw: Draw) -> Talk:
    item = draw.any(SMALL_TALK)
    return exchange("small talk", roughen(draw, draw.phrase(item.lines)), draw.any(item.heads), accept=list(item.heads))


def _capital(draw: Draw) -> tuple[str, str]:
    known = draw.held or draw.chance(0.92)
    country = draw.any(list(CAPITALS)) if known else draw.word().title()
    question = draw.phrase(
        [
            "What is the capital of {x}?",
            "Capital of {x}?",
            "Which city is the capital of {x}?",
            "Tell me the capital of {x}.",
            "Do you know the capital of {x}?",
            "What's the capital of {x}?",
            "Name the capital of {x}.",
        ]
    )
    if not known:
        return question.format(x=country), f"I do not know the capital of {country}."
    return question.format(x=country), f"The capital of {country} is {CAPITALS[country].rstrip('.')}."


def _opposite(draw: Draw) -> tuple[str, str]:
    word = draw.any(list(OPPOSITES))
    question = draw.phrase(
        [
            "What is the opposite of {x}?",
            "Opposite of {x}?",
            "Tell me the opposite of {x}.",
            "What's the opposite of {x}?",
            "Give me the opposite of {x}.",
            "Which word is the opposite of {x}?",
        ]
    )
    return question.format(x=word), f"The opposite of {word} is {OPPOSITES[word]}."


def knowledge(draw: Draw) -> Talk:
    """The little that it knows of the world."""
    part = draw.random.random()
    if part < 0.45:
        question, answer = _capital(draw)
    elif part < 0.6:
        question, answer = _opposite(draw)
    else:
        item = draw.any(KNOWLEDGE)
        question, answer = draw.phrase(item.lines), item.heads[0]
    return exchange("knowledge", roughen(draw, question), answer)


def unknown(draw: Draw) -> Talk:
    """A topic that it was never told of: it says so, and names the topic. Noise is not understood at all."""
    if not draw.held and draw.chance(0.1):
        noise = " ".join(draw.word() for _ in range(draw.number(1, 4)))
        return exchange("unknown", noise, "I did not understand that. What can I do for you?")
    topic = draw.value(UNKNOWABLE)
    if not draw.held and draw.chance(0.4):
        topic = draw.any(
            [
                draw.word(),
                f"{draw.word()} {draw.word()}",
                f"the {draw.word()} of {draw.any(CITIES)}",
                f"the {draw.any(ANIMALS)} and the {draw.any(THINGS)}",
                f"{draw.any(PEOPLE)} {draw.word().title()}",
                f"the {draw.word()}",
            ]
        )
    question = draw.phrase(_UNKNOWN_ASKS).format(x=topic)
    accept = [answer.format(x=topic) for answer in UNKNOWN]
    return exchange("unknown", roughen(draw, question), draw.any(accept), accept=accept)


def _turn(messages: list[dict[str, str]], question: str, answer: str) -> None:
    messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def memory(draw: Draw) -> Talk:
    """Somebody says something of themselves and asks for it later."""
    what = draw.any(["name", "city", "color", "job", "pet"])
    name = draw.value(PEOPLE) if draw.chance(0.7) else draw.word().title()
    city, color, job, animal = draw.value(CITIES), draw.value(COLORS), draw.value(JOBS), draw.value(ANIMALS)
    told, reply, asks, answer = {
        "name": (
            [
                "My name is {n}.",
                "I am {n}.",
                "Hi, I'm {n}.",
                "Hello, my name is {n}.",
                "Call me {n}.",
                "{n} is my name.",
                "You can call me {n}.",
                "They call me {n}.",
            ],
            f"Nice to meet you, {name}!",
            [
                "What is my name?",
                "Who am I?",
                "Do you remember my name?",
                "What's my name?",
                "Say my name.",
                "Do you know my name?",
            ],
            f"Your name is {name}.",
        ),
        "city": (
            ["I live in {c}.", "I am from {c}.", "My home is {c}.", "I come from {c}.", "My city is {c}."],
            f"{city}, how nice!",
            [
                "Where do I live?",
                "Where am I from?",
                "Which city is mine?",
                "Do you know where I live?",
                "What is my city?",
            ],
            f"You live in {city}.",
        ),
        "color": (
            [
                "My favorite color is {k}.",
                "I like {k} best.",
                "The color I like most is {k}.",
                "I love the color {k}.",
                "My favourite colour is {k}.",
            ],
            f"{color.capitalize()} is a nice color.",
            [
                "What is my favorite color?",
                "Which color do I like?",
                "What color do I like best?",
                "Do you know my favorite color?",
                "My favorite color is?",
            ],
            f"Your favorite color is {color}.",
        ),
        "job": (
            [
                "I work as a {j}.",
                "I am a {j}.",
                "My job is {j}.",
                "I am a {j} by profession.",
                "I earn my money as a {j}.",
            ],
            f"Being a {job} sounds interesting.",
            ["What is my job?", "What do I do?", "What is my profession?", "Do you know my job?", "What do I work as?"],
            f"You are a {job}.",
        ),
        "pet": (
            ["I have a {a}.", "My pet is a {a}.", "I own a {a}.", "There is a {a} in my house.", "I keep a {a}."],
            f"A {animal}, lovely!",
            [
                "Which pet do I have?",
                "What animal do I have?",
                "What is my pet?",
                "Do you know my pet?",
                "Which animal is mine?",
            ],
            f"You have a {animal}.",
        ),
    }[what]
    messages: list[dict[str, str]] = []
    said = draw.phrase(told).format(n=name, c=city, k=color, j=job, a=animal)
    if draw.chance(0.3):
        _turn(messages, said + " " + draw.phrase(asks), answer)
        return Talk("reading", messages, accept=[answer])
    _turn(messages, roughen(draw, said), reply)
    for _ in range(draw.any([0, 0, 1, 2])):
        messages += draw.any([small_talk, knowledge, unknown])(draw).messages
    _turn(messages, roughen(draw, draw.phrase(asks)), answer)
    return Talk("reading", messages, accept=[answer])


def repeat(draw: Draw) -> Talk:
    """Say it again: plain copying, of words that have never been seen too."""
    count = draw.number(1, 5)
    words = [draw.any([draw.word(), draw.value(THINGS), draw.value(ANIMALS), draw.value(COLORS)]) for _ in range(count)]
    text = " ".join(words)
    ask = draw.phrase(
        [
            "Repeat after me: {x}",
            "Say {x}",
            "Repeat: {x}",
            "Please say {x}",
            "Echo {x}",
            "Say the words: {x}",
            "Repeat this: {x}",
            "Copy this: {x}",
            "Write {x}",
            "Say exactly: {x}",
            "Repeat the following: {x}",
            "Just say: {x}",
        ]
    )
    if draw.chance(0.3):
        ask = draw.phrase(
            [
                "What is the last word of: {x}",
                "Last word of: {x}",
                "Which word is last: {x}",
                "Give me the last word: {x}",
                "Tell me the last word of this: {x}",
            ]
        )
        return exchange("reading", ask.format(x=text), words[-1])
    return exchange("reading", ask.format(x=text), text)


def question_on_text(draw: Draw) -> Talk:
    """Two sentences about two people, a question about one of them."""
    first, second = draw.random.sample(PEOPLE, 2)
    kind = draw.any(["has", "lives", "works"])
    values = {"has": THINGS, "lives": CITIES, "works": JOBS}[kind]
    a, b = draw.value(values), draw.value(values)
    say = {"has": "{p} has a {v}.", "lives": "{p} lives in {v}.", "works": "{p} is a {v}."}[kind]
    asks = {
        "has": ["What does {p} have?", "What has {p} got?", "Which thing does {p} have?", "Tell me what {p} has."],
        "lives": [
            "Where does {p} live?",
            "In which city does {p} live?",
            "Which city does {p} live in?",
            "Tell me where {p} lives.",
        ],
        "works": ["What is the job of {p}?", "What does {p} do?", "What is {p}?", "Tell me the job of {p}."],
    }[kind]
    who, value = draw.any([(first, a), (second, b)])
    text = say.format(p=first, v=a) + " " + say.format(p=second, v=b) + " " + draw.phrase(asks).format(p=who)
    return exchange("reading", text, say.format(p=who, v=value))
