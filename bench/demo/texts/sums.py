"""Arithmetic in words and digits: sums and differences up to a hundred, products and quotients of the small table."""

from .draw import Draw, Talk, exchange, roughen

_ONES = """zero one two three four five six seven eight nine ten eleven twelve
thirteen fourteen fifteen sixteen seventeen eighteen nineteen""".split()  # noqa: SIM905
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905

_ASKS = [
    "What is {e}?",
    "How much is {e}?",
    "{e}",
    "{e} = ?",
    "Calculate {e}.",
    "What's {e}?",
    "Compute {e}",
    "Can you tell me what {e} is?",
    "Tell me {e}.",
    "{e} is?",
    "{e} =",
    "Please calculate {e}.",
    "Work out {e}.",
    "What do I get for {e}?",
    "Solve {e}",
]

_STORIES = {
    "+": [
        "I have {a} apples and buy {b} more. How many apples do I have?",
        "{a} people are in a room and {b} more come in. How many people are there?",
        "A box has {a} books, another has {b}. How many books in total?",
        "A tank holds {a} liters and gets {b} more. How many liters now?",
    ],
    "-": [
        "I have {a} apples and eat {b}. How many are left?",
        "{a} people are in a room and {b} leave. How many stay?",
        "A tank holds {a} liters and loses {b}. How many liters are left?",
        "There are {a} birds and {b} fly away. How many birds are left?",
    ],
    "*": [
        "There are {a} boxes with {b} books each. How many books are there?",
        "I buy {a} bags with {b} apples each. How many apples do I have?",
        "{a} rows have {b} chairs each. How many chairs are there?",
        "{a} teams have {b} players each. How many players are there?",
    ],
}

_SAID = {
    "+": ["plus", "+", "and"],
    "-": ["minus", "-", "less"],
    "*": ["times", "*", "x", "multiplied by"],
    "/": ["divided by", "/", "over"],
}


def in_words(number: int) -> str:
    """42 is forty-two. Up to 199."""
    if number >= 100:
        rest = number - 100
        return "one hundred" + (f" and {in_words(rest)}" if rest else "")
    if number < 20:
        return _ONES[number]
    return _TENS[number // 10] + (f"-{_ONES[number % 10]}" if number % 10 else "")


def _task(draw: Draw) -> tuple[str, int, int, int]:
    op = draw.random.choices("+-*/", [40, 25, 25, 10])[0]
    if op in "+-":
        a, b = draw.pair(draw.any([12, 20, 50, 99, 99]))
        if op == "-" and a < b:
            a, b = b, a
        return op, a, b, a + b if op == "+" else a - b
    # The small table is too small to be divided; here only the wording is held out.
    a, b = draw.number(1, 12), draw.number(1, 12)
    return (op, a, b, a * b) if op == "*" else (op, a * b, a, b)


TOO_LARGE = "That is too large for me: I only do small sums. With a calculate tool I could do it."


def _ask(draw: Draw) -> tuple[str, str]:
    if not draw.held and draw.chance(0.06):
        a, b = draw.number(200, draw.any([999, 9999, 99999])), draw.number(30, draw.any([99, 999, 99999]))
        return draw.phrase(_ASKS).format(e=f"{a} {draw.any('+-*/x')} {b}"), TOO_LARGE
    op, a, b, result = _task(draw)
    answer = f"{a} {op} {b} = {result}."
    if op in _STORIES and draw.chance(0.15):
        return draw.phrase(_STORIES[op]).format(a=a, b=b), answer
    if draw.chance(0.3):
        left, right, said = (
            in_words(a),
            in_words(b),
            draw.any([s for s in _SAID[op] if s.isalpha() and len(s) > 1] or _SAID[op]),
        )
    else:
        left, right, said = str(a), str(b), draw.any(_SAID[op])
    expression = f"{left} {said} {right}"
    if said in "+-*/" and draw.chance(0.3):
        expression = expression.replace(" ", "")
    if op == "+" and draw.chance(0.06):
        return draw.any(["the sum of {a} and {b}", "add {a} and {b}"]).format(a=left, b=right), answer
    return draw.phrase(_ASKS).format(e=expression), answer


def arithmetic(draw: Draw) -> Talk:
    """One task, or in training several in a row."""
    question, answer = _ask(draw)
    talk = exchange("arithmetic", roughen(draw, question), answer)
    if not draw.held:
        for _ in range(draw.number(2, 8)):
            question, answer = _ask(draw)
            talk.messages += exchange("", roughen(draw, question), answer).messages
    return talk


def numbers(draw: Draw) -> Talk:
    """Counting, comparing, and numbers written as words."""
    kind = draw.any(["words", "digits", "count", "larger", "next"])
    n = draw.number(0, 99)
    if kind == "words":
        return exchange(
            "arithmetic",
            draw.phrase(
                [
                    "Write {n} in words.",
                    "How do you write {n} in words?",
                    "{n} in words",
                    "What is {n} in words?",
                    "Spell the number {n}.",
                ]
            ).format(n=n),
            in_words(n).capitalize() + ".",
        )
    if kind == "digits":
        return exchange(
            "arithmetic",
            draw.phrase(
                [
                    "Write {n} in digits.",
                    "{n} in digits",
                    "{n} as a number",
                    "What is {n} in digits?",
                    "Which number is {n}?",
                ]
            ).format(n=in_words(n)),
            f"{n}.",
        )
    if kind == "count":
        n = draw.number(3, 20)
        return exchange(
            "arithmetic",
            draw.phrase(
                [
                    "Count to {n}.",
                    "Can you count to {n}?",
                    "Count from 1 to {n}.",
                    "Please count to {n}",
                    "Count up to {n}.",
                ]
            ).format(n=n),
            ", ".join(str(i) for i in range(1, n + 1)) + ".",
        )
    if kind == "larger":
        a, b = draw.random.sample(range(100), 2)
        return exchange(
            "arithmetic",
            draw.phrase(
                [
                    "Which is larger, {a} or {b}?",
                    "What is bigger: {a} or {b}?",
                    "Which number is greater, {a} or {b}?",
                    "Is {a} or {b} larger?",
                ]
            ).format(a=a, b=b),
            f"{max(a, b)} is larger than {min(a, b)}.",
        )
    return exchange(
        "arithmetic",
        draw.phrase(
            [
                "What comes after {n}?",
                "Which number comes after {n}?",
                "The next number after {n}?",
                "What follows {n}?",
            ]
        ).format(n=n),
        f"{n + 1} comes after {n}.",
    )
