"""Why a device is not found, in words."""


def how_many(count: int, noun: str) -> str:
    """Return how many devices there are, as the reason why one is not found."""
    if count == 0:
        return f"there is no {noun}"
    there = f"there is 1 {noun}" if count == 1 else f"there are {count} {noun}s"
    return f"{there}, counted from 0"
