"""Lines of workers and what the console makes of them: bytes in, bytes out."""

import pytest

from phalanx.launch.console import ERR, OUT, Console
from phalanx.launch.lines import Lines, Tail, last_drawing, port_taken, shown

BAR = (
    "\x1b[1m313/313\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 2ms/step"
    " - accuracy: 0.9876 - loss: 1.2345e-04 - val_loss: nan   "
)


def test_lines_are_cut_wherever_the_bytes_are():
    text = b"one\ntwo\r\n\nthree"
    for size in range(1, len(text) + 1):
        lines = Lines()
        got = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]
        assert got + lines.flush() == [b"one", b"two\r", b"", b"three"]
        assert lines.flush() == []


def test_a_line_without_an_end_does_not_grow_for_ever():
    lines = Lines()
    pieces = [piece for _ in range(300) for piece in lines.feed(b"x" * 10_000)] + lines.flush()
    assert b"".join(pieces) == b"x" * 3_000_000
    assert max(map(len, pieces)) <= 1024 * 1024


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"plain", b"plain"),
        (b"windows\r", b"windows"),
        (b"\r10%\r20%", b"20%"),
        (("\b" * 40 + "\r" + BAR).encode(), None),
        (b"\r 3/10 [====>....]", b" 3/10 [====>....]"),
        (b"\r  7/Unknown \x1b[1m1s\x1b[0m 3ms/step - loss: 0.5000", None),
        (BAR.encode(), BAR.encode()),  # a print that looks like a bar and draws nothing again stays
        (("\r" + BAR.rstrip() + "mine 0").encode(), b"mine 0"),  # printed in the middle of an epoch
        (("\r" + BAR.replace("nan   ", "1.25001 done")).encode(), b"1 done"),
        (b"\r3/4 10s of files", b"3/4 10s of files"),
        (b"\r3/4 of the way", b"3/4 of the way"),
        (b"\xff\xfe", b"\xff\xfe"),
        (b"\r" + b"1/1 " * 100_000, b"1/1 " * 100_000),
        (b"", b""),
    ],
)
def test_of_another_worker_everything_is_shown_but_the_bar_of_keras(line, seen):
    assert shown(line) == seen


def test_the_tail_keeps_the_last_lines_as_text():
    tail = Tail(2)
    tail.add([b"one", b"10%\r99%", b"\xff"])
    assert tail.text() == "99%\n\\xff"
    assert last_drawing(b"\r") == b""


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("OSError: [Errno 98] Address already in use: 127.0.0.1:7001", 7001),
        ("Failed to bind to port 127.0.0.1:7002", 7002),
        ("loss 7001 in use", 7001),
        ("Address already in use: 17001, 70011, 6006", None),
        ("connected to 127.0.0.1:7001\nAddress already in use: 127.0.0.1:6006", None),
        ("", None),
    ],
)
def test_a_taken_port_is_one_of_ours_on_the_line_that_says_so(text, port):
    assert port_taken(text, [7001, 7002]) == port


def drain(console, stream=OUT):
    data = console.pending(stream)
    console.written(stream, len(data))
    return data


def test_the_chiefs_bytes_pass_at_once():
    console = Console(joined=False)
    console.chief(OUT, b"\r1/2 \xff", now=0)
    assert (drain(console), console.due) == (b"\r1/2 \xff", None)


def test_a_line_waits_for_the_end_of_the_chiefs_line():
    console = Console(joined=True)
    console.chief(OUT, b"half a ", now=0)
    console.other(ERR, 1, [b"first", b"second"], now=0.01)
    console.chief(OUT, b"line\nand the next", now=0.02)
    assert drain(console) == b"half a line\n[worker 1] first\n[worker 1] second\nand the next"
    assert console.due is None


def test_a_line_does_not_wait_for_a_bar_that_stays():
    console = Console(joined=True)
    console.chief(OUT, b"\r1/2", now=0)
    console.other(OUT, 1, [b"first"], now=0.01)
    assert console.due == 0.05
    console.settle(now=0.05)
    assert drain(console) == b"\r1/2\n[worker 1] first\n"


def test_a_line_waits_longer_for_a_line_that_is_no_bar():
    console = Console(joined=True)
    console.chief(OUT, b"\rbar\nhalf a ", now=0)
    console.other(OUT, 1, [b"first"], now=0.01)
    console.settle(now=0.9)
    assert (drain(console), console.due) == (b"\rbar\nhalf a ", 1.01)
    console.settle(now=1.01)
    assert drain(console) == b"\n[worker 1] first\n"


def test_a_bar_is_known_from_any_part_of_its_line():
    console = Console(joined=True)
    console.chief(OUT, b"\r1/2", now=0)
    console.chief(OUT, b" loss", now=0)
    console.other(OUT, 1, [b"first"], now=0)
    assert console.due == 0.05


def test_a_line_does_not_wait_for_ever_for_a_bar_that_moves():
    console = Console(joined=True)
    console.other(OUT, 1, [b"before"], now=0)
    for step in range(100):
        console.chief(OUT, b"\r%d" % step, now=step / 100)
        console.other(OUT, 1, [b"line"], now=step / 100)
    text = drain(console)
    assert text.startswith(b"[worker 1] before\n\r0\r1\r2")
    assert 1 <= text.count(b"\n[worker 1] line\n\r") <= 3


def test_streams_that_lead_elsewhere_do_not_wait_for_each_other():
    console = Console(joined=False)
    console.chief(OUT, b"\r1/2", now=0)
    console.other(ERR, 1, [b"first"], now=0)
    assert drain(console, ERR) == b"[worker 1] first\n"


def test_the_launcher_speaks_behind_all_that_came_before():
    console = Console(joined=True)
    console.chief(OUT, b"\r1/2", now=0)
    console.other(OUT, 1, [b"first"], now=0)
    console.say("the end\nof it")
    assert drain(console) == b"\r1/2\n[worker 1] first\nphalanx: the end\nof it\n"
    assert console.waiting == []


def test_a_console_that_nobody_reads_is_full_and_can_be_dropped():
    console = Console(joined=False)
    console.chief(OUT, b"x" * 300_000, now=0)
    assert console.full and console.waiting == [OUT]
    assert len(console.pending(OUT, most=10)) == 10
    console.drop(OUT)
    assert not console.full and console.waiting == []
