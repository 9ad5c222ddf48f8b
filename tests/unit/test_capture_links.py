"""What TCP connections carried, asked of the kernel, beside what the test itself has sent."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from ddptrace.capture.host import looks
from ddptrace.capture.host.looks import MOST_IN_SHORT, Carried, Links, carried_of

NBYTES = 3_000_000
HOST = "127.0.7.1"  # nobody else in this process, as other tests' groups, connects there
LOOPBACK = f"{HOST}>{HOST}"
ENDS = 2  # of a connection, in this one process; what opens and closes it counts as a byte on each


def descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


@contextmanager
def connection(family: int = socket.AF_INET, host: str = HOST) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket(family) as listening:
        listening.bind((host, 0))
        listening.listen(1)
        first = socket.create_connection((host, listening.getsockname()[1]), source_address=(host, 0))
        second, _ = listening.accept()
        with first, second:
            yield first, second


def send(pair: tuple[socket.socket, socket.socket], nbytes: int = NBYTES) -> None:
    """Until all of it has come, and the last acknowledgement with the answer."""
    first, second = pair
    sending = threading.Thread(target=first.sendall, args=(bytes(nbytes),))
    sending.start()
    got = 0
    while got < nbytes:
        got += len(second.recv(1 << 20))
    sending.join()
    second.sendall(b"!")
    assert first.recv(1) == b"!"


def sent(watch: Links, pair: str = LOOPBACK) -> int:
    return watch.look()[pair].sent_nbytes


def test_bytes_are_those_that_were_sent_and_acknowledged() -> None:
    watch = Links()
    with connection() as pair:
        send(pair)
        assert sent(watch) == pytest.approx(NBYTES, abs=3 * ENDS)
        send(pair)
        assert sent(watch) == pytest.approx(2 * NBYTES, abs=3 * ENDS)
        assert 0 < watch.look()[LOOPBACK].rtt_min_ns < 10**9


def test_connections_between_the_same_addresses_add_up_and_closed_ones_still_count() -> None:
    watch = Links()
    with connection() as first:
        send(first)
        with connection() as second:
            send(second)
            assert sent(watch) == pytest.approx(2 * NBYTES, abs=6 * ENDS)
        assert sent(watch) == pytest.approx(2 * NBYTES, abs=6 * ENDS)
    assert sent(watch) == pytest.approx(2 * NBYTES, abs=6 * ENDS)


def test_an_address_of_ip_4_is_told_alike_on_a_socket_of_ip_6() -> None:
    watch = Links()
    with connection() as plain:
        send(plain)
        with socket.socket(socket.AF_INET6) as six, socket.socket() as listening:
            listening.bind((HOST, 0))
            listening.listen(1)
            six.bind((f"::ffff:{HOST}", 0))
            six.connect((f"::ffff:{HOST}", listening.getsockname()[1]))
            accepted, _ = listening.accept()
            with accepted:
                send((six, accepted))
                assert set(watch.look()) == {LOOPBACK}


def test_what_carried_little_or_is_no_connection_is_not_told() -> None:
    watch = Links()
    one, other = socket.socketpair()  # of Unix
    with connection() as pair, one, other, socket.socket(type=socket.SOCK_DGRAM), socket.socket():
        send(pair, looks.LEAST_NBYTES // 2)
        sending = threading.Thread(target=one.sendall, args=(bytes(NBYTES),))
        sending.start()
        got = 0
        while got < NBYTES:
            got += len(other.recv(1 << 20))
        sending.join()
        assert watch.look() == {}


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_a_look_leaves_sockets_as_they_were_and_no_descriptor_behind(timeout_s: float | None) -> None:
    """Also where the program has a default timeout, of which Python makes sockets that do not block."""
    watch = Links()
    with connection() as pair:
        socket.setdefaulttimeout(timeout_s)
        try:
            before, blocking = descriptors(), [os.get_blocking(end.fileno()) for end in pair]
            for _ in range(3):
                watch.look()
            assert [os.get_blocking(end.fileno()) for end in pair] == blocking == [True, True]
            assert descriptors() == before
        finally:
            socket.setdefaulttimeout(None)
        send(pair)


def test_sockets_that_come_and_go_while_they_are_asked_do_no_harm() -> None:
    watch, stop = Links(), threading.Event()
    failures: list[BaseException] = []

    def come_and_go() -> None:
        try:
            while not stop.is_set():
                with connection() as pair:
                    send(pair, 1000)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    for _ in range(200):
        watch.look()
    stop.set()
    thread.join()
    assert not failures


def test_a_process_that_may_open_no_more_files_is_not_asked_further() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connection(), ExitStack() as held:
        count = len(descriptors())
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 1, hard))
        with suppress(OSError):
            while True:
                held.enter_context(Path(os.devnull).open())
        try:
            with pytest.raises(OSError, match="Too many open files"):
                Links().look()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_kernel_that_tells_less_is_read_as_far_as_it_goes() -> None:
    info = bytearray(200)
    for at, kind, value in ((100, "I", 3), (120, "Q", 7 * 10**9), (148, "I", 40), (168, "Q", 1_000_000)):
        struct.pack_into(f"={kind}", info, at, value)
    assert carried_of(bytes(info)) == Carried(7 * 10**9, 10**9, 40_000, 3)
    assert carried_of(bytes(info[:152])) == Carried(7 * 10**9, 0, 40_000, 3)
    assert carried_of(bytes(info[:104])) == Carried(0, 0, 0, 3)
    struct.pack_into("=I", info, 148, 2**32 - 1)
    assert carried_of(bytes(info)).rtt_min_ns == 0


def test_of_very_many_pairs_those_that_carried_little_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "MOST_PAIRS", 1)
    watch = Links()
    with connection() as pair:
        send(pair)
        watch.look()
    with connection(socket.AF_INET, "127.0.0.2") as pair:
        send(pair, 1000)
        watch.look()
    watch.look()
    assert set(watch._closed) == {LOOPBACK}


def test_a_look_that_nobody_is_to_wait_for_leaves_out_thousands_of_connections_and_one_under_way() -> None:
    watch = Links()
    with connection() as pair:
        send(pair)
        assert watch.look_in_short()[LOOPBACK].sent_nbytes == pytest.approx(NBYTES, abs=3 * ENDS)
        with watch._looking:
            assert watch.look_in_short() == {}
        many = [os.dup(0) for _ in range(MOST_IN_SHORT)]
        try:
            assert watch.look_in_short() == {}
        finally:
            for one in many:
                os.close(one)
