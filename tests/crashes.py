"""What a crash can leave of a folder, before every system call that changes it; and calls that fail there.

with Crashes(folder) as crashes:
    write()
for crash in crashes.found: ...
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}  # what sys.audit reports
_CALLS = ("fsync", "fdatasync", "pwrite")  # what it does not
_watching = []  # an audit hook cannot be removed


def _hook(event, arguments):
    if _watching and event in _EVENTS and (event != "open" or arguments[2] & _WRITING):
        paths = arguments[:2] if event == "os.rename" else arguments[:1]
        if all(isinstance(path, str | Path) for path in paths):
            call = "truncate" if event == "open" and arguments[2] & os.O_TRUNC else event
            _watching[-1].heard(call, *(Path(os.path.abspath(path)) for path in paths))


sys.addaudithook(_hook)


@dataclass(frozen=True)
class Crash:
    """What is left by a crash before a call. files: content by path from the folder; None of a folder.

    kind: `process`, where the system goes on and keeps what it was given. `contents`, where the machine stops: files
    have their names, but only as much content as was synced. `names`, where folders, too, are as they were synced.
    """

    call: str
    kind: str
    files: dict

    @property
    def key(self):
        """The same for the same files."""
        return tuple(sorted((path, id(content)) for path, content in self.files.items()))

    def leave_in(self, folder):
        """Make the folder what the crash left."""
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, content in sorted(self.files.items()):
            if content is None:
                (folder / path).mkdir()
            else:
                (folder / path).write_bytes(content)


class _File:
    """A file, whatever its names: as much of its content as was synced."""

    synced = b""


class Crashes:
    """Watches a folder while something writes there. folder: exists; what is in it counts as synced.

    calls: that change something. found: every Crash that differs from the one before. wholes: for each path the
    contents that it had, each as it was in the end. fault: called before the call of number `at`, which raises what it
    raises; then `found` and `wholes` stay empty.
    """

    def __init__(self, folder, fault=None, at=-1):
        self.folder, self._fault, self._at = folder.resolve(), fault, at
        self.found, self.calls, self.wholes = [], [], {}
        self._files, self._folders, self._contents, self._last = {}, {}, {}, {}
        self._good = {name: getattr(os, name) for name in _CALLS}

    def __enter__(self):
        if not self._fault:
            for path in (self.folder, *self.folder.rglob("*")):
                self._sync(path)
        for name, good in self._good.items():
            setattr(os, name, self._wrapped(name, good))
        _watching.append(self)
        return self

    def __exit__(self, *_):
        _watching.pop()
        for name, good in self._good.items():
            setattr(os, name, good)
        if self._fault:
            return
        self._note("the end")
        for path in self.folder.rglob("*"):
            if path.is_file():
                self._end(path)

    def _wrapped(self, name, good):
        def call(number, *arguments):
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            self.heard(name, path)
            result = good(number, *arguments)
            if name != "pwrite" and path.is_relative_to(self.folder) and not self._fault:
                self._sync(path)
            return result

        return call

    def heard(self, call, path, to=None):
        """A call is about to change something."""
        changes = {"os.mkdir": not path.exists(), "os.remove": path.exists()}.get(call, True)
        if not path.is_relative_to(self.folder) or not changes:
            return
        name = f"{len(self.calls)}: {call} {path.relative_to(self.folder)}"
        watching, _watching[:] = _watching[:], []  # not what is read here
        try:
            self.calls.append(name)
            if self._fault:
                if len(self.calls) - 1 == self._at:
                    self._fault()
                return
            self._note(name)
            if call == "truncate" and path.is_file():
                self._file(path).synced = b""
            elif call == "os.remove" and path.is_file():
                self._end(path)
            elif call == "os.rename" and to.is_file():
                self._end(to)
        finally:
            _watching[:] = watching

    def _file(self, path):
        return self._files.setdefault(path.stat().st_ino, _File())

    def _content(self, content):
        return self._contents.setdefault(content, content)

    def _end(self, path):
        """The file of this name comes to its end."""
        self.wholes.setdefault(str(path.relative_to(self.folder)), []).append(self._content(path.read_bytes()))
        self._files.pop(path.stat().st_ino, None)

    def _sync(self, path):
        if path.is_dir():
            self._folders[path] = {p.name: None if p.is_dir() else self._file(p) for p in path.iterdir()}
        elif path.is_file():
            self._file(path).synced = self._content(path.read_bytes())

    def _note(self, call):
        live = {path: None if path.is_dir() else self._file(path) for path in self.folder.rglob("*")}
        read = {path: file and self._content(path.read_bytes()) for path, file in live.items()}
        names = {}

        def visit(folder):
            for name, file in self._folders.get(folder, {}).items():
                names[folder / name] = file and file.synced
                if file is None:
                    visit(folder / name)

        visit(self.folder)
        kinds = {"process": read, "contents": {path: f and f.synced for path, f in live.items()}, "names": names}
        for kind, files in kinds.items():
            crash = Crash(call, kind, {str(path.relative_to(self.folder)): files[path] for path in files})
            if crash.key != self._last.get(kind):
                self._last[kind] = crash.key
                self.found.append(crash)
