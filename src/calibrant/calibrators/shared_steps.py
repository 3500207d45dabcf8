"""Steps of a fit that several calibrators have in common, computed once for the same examples."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from calibrant.predictions import Predictions

Rest = ParamSpec("Rest")
T = TypeVar("T")


def once(
    step: Callable[Concatenate[Predictions, Rest], T],
) -> Callable[Concatenate[Predictions, Rest], T]:
    """Remember what a step found in these predictions for as long as they exist.

    The remaining arguments must follow from the predictions, like their logits.
    """
    found: WeakKeyDictionary[Predictions, Any] = WeakKeyDictionary()

    @wraps(step)
    def remembered(predictions: Predictions, *args: Rest.args, **given: Rest.kwargs) -> T:
        if predictions not in found:
            found[predictions] = step(predictions, *args, **given)
        result: T = found[predictions]
        return result

    return cast(Callable[Concatenate[Predictions, Rest], T], remembered)
