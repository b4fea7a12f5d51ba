"""When what was seen at one load says little of another."""

_OTHER_SIZE = 2.0  # times as many requests, or as few


def is_other_size(num_requests: int, num_before: int) -> bool:
    """Whether so many requests are a load of another size than so many, both at least 1."""
    less, more = sorted((num_requests, num_before))
    return more >= _OTHER_SIZE * less
