"""Whether settings of sampling changed the log-probabilities that a server reported."""

from collections.abc import Iterable, Mapping
from typing import Any

from calibrant.files.checks import one_line

# What vLLM calls log-probabilities before and after temperature, penalties, top-k and top-p.
MODE, RAW, PROCESSED = "logprobs_mode", "raw_logprobs", "processed_logprobs"
# Settings that change processed log-probabilities, and the values that change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
}
# Where a line may hold its request.
PLACES = ("request", "body", "params", "sampling_params", "extra_body", "response")


def check_untouched(record: Mapping[str, Any]) -> bool:
    """Refuse log-probabilities that sampling changed; True if that cannot be told.

    `logprobs_mode` says which kind they are. Processed ones are accepted if the temperature is 1
    and no other setting changes them. Without a mode they are those before sampling at OpenAI and
    in vLLM since its version 1 engine; other servers differ, so a temperature other than 0 and 1,
    or another setting that changes processed ones, leaves a doubt.
    """
    found = list(_requests(record))
    modes = {one_line(each[MODE], 40) for each in found if each.get(MODE) is not None}
    given = {
        name: each[name]
        for each in found
        for name in ("temperature", *NEUTRAL)
        if each.get(name) is not None
    }
    temperature = given.pop("temperature", None)
    changed = [name for name, value in given.items() if value not in NEUTRAL[name]]
    if not modes:
        return temperature not in (None, 0, 1) or bool(changed)
    if modes == {RAW}:
        return False
    if modes != {PROCESSED}:
        said = " and ".join(sorted(modes))
        raise ValueError(
            f"{MODE} is {said}: these are no log-probabilities; run the server with "
            f"--logprobs-mode {RAW}"
        )
    if temperature != 1 or changed:
        why = f"temperature {'unknown' if temperature is None else one_line(temperature, 20)}"
        why = ", ".join([why, *(f"{name} {one_line(given[name], 20)}" for name in changed)])
        raise ValueError(
            f"sampling changed the log-probabilities ({MODE} {PROCESSED}, {why}): run the server "
            f"with --logprobs-mode {RAW}, or sample with temperature 1"
        )
    return False


def _requests(record: Mapping[str, Any], depth: int = 3) -> Iterable[Mapping[str, Any]]:
    yield record
    for name in PLACES if depth else ():
        inner = record.get(name)
        if isinstance(inner, Mapping):
            yield from _requests(inner, depth - 1)
