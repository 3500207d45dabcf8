import pytest

from calibrant import files


@pytest.fixture
def refused():
    """Check that reading a file is an error of one line that names it."""

    def check(path, words, requested=("logits",), **limits):
        with pytest.raises(ValueError, match=words) as caught:
            files.read(path, list(requested), **limits)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    return check
