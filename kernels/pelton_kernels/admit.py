"""Words of a parameter record (`Admit` in the frame): int32 columns, of which some hold float32 bits."""

from __future__ import annotations

from typing import Final

WORDS: Final = 24

FLAGS: Final = 1
TEMPERATURE: Final = 2
TOP_K: Final = 3
TOP_P: Final = 4
MIN_P: Final = 5
REPETITION: Final = 6
PRESENCE: Final = 7
FREQUENCY: Final = 8
SEED_LO: Final = 9
SEED_HI: Final = 10
TOP_LOGPROBS: Final = 11
SUPPRESS_UNTIL: Final = 13
BIAS_COUNT: Final = 15
SUPPRESS_COUNT: Final = 17
TOLD_COUNT: Final = 21

PENALTIES: Final = 1
"""Flag: the slot's counts are kept, and its penalties apply."""
LOGPROBS: Final = 2
"""Flag: the log-probability of each drawn token is wanted."""
NOT_FINITE: Final = 1
"""Flag of a result: the row's logits were not finite; its token means nothing."""
IN_PROMPT: Final = -(1 << 31)
"""Top bit of a count: the token stands in the prompt. The other bits: how often it stands in the output."""
