"""Reservations by address: whose is one that a system has given out again?"""

import pytest

from madl.backends.kept import KeptReservations


class Piece:
    """What a system gives: here always at the same address."""

    address = 4096

    def __init__(self) -> None:
        self.is_released = False

    def release(self) -> None:
        """Give it back."""
        self.is_released = True


def test_an_address_that_is_given_out_again_is_of_the_new_reservation() -> None:
    kept = KeptReservations[Piece]("here")
    old = kept.keep(Piece(), 512)
    kept.release(old)
    piece = Piece()
    new = kept.keep(piece, 512)

    for use in (kept.find, kept.release):
        with pytest.raises(ValueError, match=r"that was not released yet"):
            use(old)

    assert not piece.is_released
    assert kept.find(new) is piece
