"""Write calibrated scores into a copy of the file that they were read from."""

import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from calibrant.prediction_files import PredictionArrays


def write_calibrated(
    output: Path,
    arrays: "PredictionArrays",
    log_probs: "torch.Tensor",
    kind: str,
    *,
    ignored: Sequence[str],
    read: Sequence[str] = (),
) -> None:
    """Write scores under the names they had, and whatever else the file can keep.

    Args:
        output: the new file.
        arrays: what was read.
        log_probs: (m, k), of all positions.
        kind: probs or logits; if the file held the other, the array is named by its new kind.
        ignored: names or patterns of arrays that were not read and are copied.
        read: other columns whose values the arrays hold, such as those of several labels.
    """
    from calibrant import files

    values = shaped(arrays, log_probs, kind)
    parts, names = arrays.parts, arrays.names
    same_format = all(each.suffix.lower() == output.suffix.lower() for each in parts)
    if same_format and files.is_table(parts[0]):
        files.rewrite(output, parts, _columns(arrays, values, kind))
        return
    single = len(names.scores) == 1 and kind == names.kind
    found: dict[str, Any] = {names.scores[0] if single else kind: values}
    if arrays.labels is not None:
        found[names.labels] = arrays.labels
    found |= arrays.extras | arrays.slices
    held = files.names(parts[0]) if parts[0].suffix.lower() in files.FORMATS else []
    left = [each for each in held if each not in (*found, *names.scores, *read)]
    copied = [each for each in left if any(fnmatchcase(each, pattern) for pattern in ignored)]
    if copied and len(parts) == 1 and not files.is_table(parts[0]):
        found |= files.read(parts[0], copied, text=copied)
    lost = [each for each in left if each not in found]
    if lost:
        where = ", ".join(lost[:5]) + (", ..." if len(lost) > 5 else "")
        warnings.warn(
            f"not kept: {where}; other columns are kept if {output.name} has the format of the "
            "input",
            stacklevel=2,
        )
    files.write(output, found)


def shaped(
    arrays: "PredictionArrays", log_probs: "torch.Tensor", kind: str
) -> "np.ndarray[Any, Any]":
    """Calibrated scores in the shape of those that were read: (n,), (n, k) or (n, k, ...)."""
    given = arrays.scores.shape
    if len(given) == 1 or given[1] == 1:
        odds = log_probs[:, 1] - log_probs[:, 0]
        one = log_probs[:, 1].exp() if kind == "probs" else odds
        return one.reshape(given).numpy()
    scores = log_probs.exp() if kind == "probs" else log_probs
    dense = scores.reshape(given[0], *given[2:], given[1]).movedim(-1, 1)
    return dense.contiguous().numpy()


def _columns(
    arrays: "PredictionArrays", values: "np.ndarray[Any, Any]", kind: str
) -> "dict[str, np.ndarray[Any, Any] | None]":
    """Columns of a table to replace; None for those to leave out, which hold other scores."""
    from calibrant import files
    from calibrant.array_names import SCORES

    first, scores = arrays.parts[0], arrays.names.scores
    held, known = files.columns(first), files.names(first)
    old = [column for name in scores for column in files.array_columns(first, held, name)]
    stale = [name for name in SCORES if name in known and name not in scores]
    gone = [column for name in stale for column in files.array_columns(first, held, name)]
    gone = [column for column in gone if column not in old]
    if gone:
        warnings.warn(f"not kept, because not calibrated: {', '.join(stale)}", stacklevel=3)
    new = old
    if kind != arrays.names.kind:
        gone += old
        new = [kind] if values.ndim == 1 else [f"{kind}_{i}" for i in range(values.shape[1])]
    if len(new) == 1:
        return dict.fromkeys(gone) | {new[0]: values}
    return dict.fromkeys(gone) | {name: values[:, i] for i, name in enumerate(new)}
