"""Wake-ups between the processes of one file: a datagram socket beside it for each that listens.

A datagram is a hint: what a commit made possible. It may be lost, and a process that has no socket,
or none that can be reached, looks for others in its own time.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import selectors
import socket
import stat
import threading
import time
from pathlib import Path

from flowfabric.loggers import logger_of
from flowfabric.store.hints import Hint, Listener
from flowfabric.store.notices import decode_notice, encode_notice
from flowfabric.store.sqlite.watch import Watch

logger = logger_of("flowfabric.store")

ENDING = "-wake-"
# The process, and a text that no other socket had or will have.
NAME = r"[0-9]+-[0-9a-f]{8}"
# What every system allows for the address of a socket.
ADDRESS_BYTES = 103
# More than a notice has.
NOTICE_BYTES = 32_768
# Of so many at once, others may have found no room in the queue: that of Linux has ten places.
CROWD = 10
# Its queue is full of wake-ups that it has not heard yet.
_WOKEN = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS})
# A folder that changes all the time is listed for at most a tenth of the time.
LISTING_SHARE = 10


class Place:
    """The folder of the file, and how the sockets in it are addressed."""

    def __init__(self, path: str) -> None:
        # Where SQLite keeps the other files beside it.
        real = Path(path).resolve()
        self._folder = str(real.parent)
        self._prefix = f"{real.name}{ENDING}"
        self._pattern = re.compile(re.escape(self._prefix) + NAME)
        self._handle: int | None = None

    def new_name(self) -> str:
        return f"{self._prefix}{os.getpid()}-{secrets.token_hex(4)}"

    def path_of(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def names(self) -> list[str]:
        return [name for name in os.listdir(self._folder) if self._pattern.fullmatch(name)]  # noqa: PTH208

    def remove(self, name: str) -> None:
        """The socket of a process that is gone; no other process uses its name."""
        path = Path(self.path_of(name))
        try:
            # What is no socket cannot be reached either.
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        except OSError as error:
            logger.debug("could not remove the socket of an ended process: %s", error)

    def address_of(self, name: str) -> str:
        """Where the path is too long for a socket, it leads through the open folder."""
        path = self.path_of(name)
        if len(os.fsencode(path)) <= ADDRESS_BYTES:
            return path
        if self._handle is None:
            self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        short = f"/proc/self/fd/{self._handle}/{name}"
        if len(os.fsencode(short)) > ADDRESS_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        return short

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _new_socket() -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


class Ear:
    """The socket of this process, and the thread that waits at it."""

    def __init__(self, place: Place, on_hint: Listener) -> None:
        self.name = place.new_name()
        self._path = place.path_of(self.name)
        self._pid = os.getpid()
        self._on_hint = on_hint
        self._socket = _new_socket()
        try:
            # On Linux the mode of the file that is made, from its first moment on.
            os.fchmod(self._socket.fileno(), 0o600)
            self._socket.bind(place.address_of(self.name))
            Path(self._path).chmod(0o600)
            self._ending, self._end = socket.socketpair()
        except OSError:
            self._socket.close()
            Path(self._path).unlink(missing_ok=True)
            raise
        self._thread = threading.Thread(target=self._listen, name="flowfabric-ear", daemon=True)
        self._thread.start()

    def close(self) -> None:
        # A forked child has copies of the sockets, but neither the thread nor the name.
        if os.getpid() == self._pid:
            self._end.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            Path(self._path).unlink(missing_ok=True)
        for each in (self._socket, self._ending, self._end):
            each.close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._ending, selectors.EVENT_READ)
            while all(key.fileobj is self._socket for key, _ in selector.select()):
                self._hear()

    def _hear(self) -> None:
        heard = 0
        try:
            while True:
                _, hint = decode_notice(self._socket.recv(NOTICE_BYTES))
                heard += 1
                self._on_hint(hint)
        except BlockingIOError:
            if heard >= CROWD:
                self._on_hint(Hint(foreign=True))


class Wakes:
    """Used by the thread that writes, except where it says otherwise."""

    def __init__(self, watch: Watch, on_hint: Listener) -> None:
        self._watch = watch
        self._on_hint = on_hint
        self._place = Place(watch.path)
        self._ear: Ear | None = None
        self._mouth: socket.socket | None = None
        self._others: list[str] = []
        self._listed: object = None
        self._list_after = 0.0
        self._is_deaf = False

    def listen(self) -> bool:
        """Be woken from now on; True when that has just begun."""
        if self._ear is not None or self._is_deaf:
            return False
        try:
            self._ear = Ear(self._place, self._on_hint)
        except OSError as error:
            self._is_deaf = True
            logger.info(
                "cannot create a wake-up socket beside the file, polling instead: %s", error
            )
            return False
        return True

    def tell(self, hint: Hint) -> None:
        """This was written, and the folder was looked at since."""
        if self._watch.changed is not self._listed:
            self._list()
        if self._others:
            notice = encode_notice("", hint)
            for name in self._others:
                self._send(notice, name)

    def close(self) -> None:
        if self._ear is not None:
            self._ear.close()
            self._ear = None
        if self._mouth is not None:
            self._mouth.close()
            self._mouth = None
        self._place.close()

    def _list(self) -> None:
        now = time.monotonic()
        if now < self._list_after:
            return
        own = None if self._ear is None else self._ear.name
        seen = self._watch.changed
        try:
            self._others = [name for name in self._place.names() if name != own]
        except OSError as error:
            logger.debug("cannot list other processes to wake: %s", error)
            self._others = []
        self._listed = seen
        self._list_after = now + LISTING_SHARE * (time.monotonic() - now)

    def _send(self, notice: bytes, name: str) -> None:
        try:
            if self._mouth is None:
                self._mouth = _new_socket()
            self._mouth.sendto(notice, self._place.address_of(name))
        except ConnectionRefusedError:
            # Its process is gone.
            self._forget(name)
            self._place.remove(name)
        except OSError as error:
            if error.errno not in _WOKEN:
                self._forget(name)
                logger.debug("cannot wake another process: %s", error)

    def _forget(self, name: str) -> None:
        self._others = [other for other in self._others if other != name]
