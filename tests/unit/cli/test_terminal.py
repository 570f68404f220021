"""Can what a model writes steer the screen it is shown on?"""

from thinwire.cli.terminal import printable


def test_text_stays_and_what_would_steer_the_screen_does_not() -> None:
    assert printable("naïve\ttext\n".encode()) == "naïve\ttext\n"
    assert printable(b"a\x1b[31mred\x00\x07\xff") == "a\ufffd[31mred\ufffd\ufffd\ufffd"
