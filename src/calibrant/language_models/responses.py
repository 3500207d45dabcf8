"""Tokens with log-probabilities in responses of OpenAI's interfaces, also as vLLM writes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.files.checks import one_line

# Servers write so, or less, for a token that is not among the most likely.
UNREPORTED = -9999.0


@dataclass(frozen=True)
class Position:
    """A generated token, and the log-probabilities that were reported in its place."""

    token: str
    reported: dict[str, float]
    limit: float


def positions_of(body: Mapping[str, Any]) -> list[Position]:
    """The generated tokens of a response, whichever of three interfaces it is of."""
    if isinstance(body.get("output"), list):
        parts = [
            part
            for item in body["output"]
            if isinstance(item, dict) and isinstance(item.get("content"), list)
            for part in item["content"]
            if isinstance(part, dict)
        ]
        return [_chat(each) for part in parts for each in _listed(part.get("logprobs"))]
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("no 'choices'; expected the response of a completion")
    if len(choices) > 1:
        raise ValueError(f"{len(choices)} samples of an answer: request one, n=1")
    held = choices[0].get("logprobs")
    if not isinstance(held, dict):
        raise ValueError("no log-probabilities: request logprobs and top_logprobs")
    if "content" in held:
        return [_chat(each) for each in _listed(held["content"])]
    tokens, own, top = (_listed(held.get(n)) for n in ("tokens", "token_logprobs", "top_logprobs"))
    if not len(tokens) == len(own) == len(top):
        raise ValueError("tokens, token_logprobs and top_logprobs differ in length")
    return [
        _position(token, value, list(others.items()) if isinstance(others, dict) else [])
        for token, value, others in zip(tokens, own, top, strict=True)
    ]


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError("no log-probabilities: request logprobs and top_logprobs")
    return value


def _chat(item: Any) -> Position:
    others = item.get("top_logprobs") if isinstance(item, dict) else None
    if not isinstance(others, list) or not all(isinstance(each, dict) for each in others):
        raise ValueError("no 'top_logprobs' of a token")
    pairs = [(each.get("token"), each.get("logprob")) for each in others]
    return _position(item.get("token"), item.get("logprob"), pairs)


def _position(token: Any, value: Any, pairs: Sequence[tuple[Any, Any]]) -> Position:
    """Check tokens and numbers; leave out tokens whose log-probability was not reported."""
    reported: dict[str, float] = {}
    # The sampled token may be less likely than tokens that are not reported.
    own = [] if value is None else [(token, value)]
    for name, given in (*own, *pairs):
        number = isinstance(given, int | float) and not isinstance(given, bool)
        # Written so that NaN fails; servers round up to a little above 0.
        if not isinstance(name, str) or not number or not given <= 1e-3:
            raise ValueError(
                f"a log-probability must be a number of at most 0, got {one_line(repr(given), 40)} "
                f"of token {one_line(repr(name), 40)}"
            )
        if given > UNREPORTED:
            reported[name] = min(float(given), 0.0)
    limit = min((lp for name, lp in reported.items() if name != token), default=0.0)
    if not isinstance(token, str):
        raise ValueError("a token must be text")
    return Position(token, reported, limit)
