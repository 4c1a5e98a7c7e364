"""Speech Commands: recordings of one second of a spoken word, split by speaker.

```python
import wave
from pathlib import Path

import jax

from jaxeff import data

words = (*"yes no up down left right on off stop go".split(), "_unknown_", "_silence_")
for i, word in enumerate(words):                            # a folder like that of the data set
    for speaker, tone in enumerate(data.tones(jax.random.key(0), 10)):
        path = Path("data/speech-commands", word, f"{speaker}_nohash_0.wav")
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(tone.tobytes())
recordings = data.speech_commands("data")
assert len(recordings.train_labels) + len(recordings.test_labels) == 120
assert recordings.words == words and recordings.train_audio.shape[1] == 16_000
assert {*data.recordings("data/speech-commands").words} == {*words}      # or folders of your own
```
"""

import dataclasses
import hashlib
import io
import os
import tarfile
import wave
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import jax
import numpy as np
from jaxtyping import Int, Int16, PRNGKeyArray

from jaxeff.core import path_like, static_integer, validate
from jaxeff.data._formats import DataError

RATE, LENGTH = 16_000, 16_000
FOLDERS = ("speech-commands", "speech_commands_test_set_v0.02", "SpeechCommands")
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "_unknown_",
         "_silence_")  # fmt: skip
HELD_OUT = 5
"""Every fifth speaker is for testing."""


@dataclasses.dataclass(frozen=True, eq=False)
class Recordings:
    """Recordings with their labels, on the host.

    Attributes:
        train_audio: int16 `[n, 16000]`, at 16 kHz.
        train_labels: int32 `[n]`, places in `words`.
        test_audio: int16 `[m, 16000]`, of other speakers.
        test_labels: int32 `[m]`.
        words: The classes.
        train_speakers: Name of the speaker of each recording `[n]`, by which to split further.
    """

    train_audio: Int16[np.ndarray, "train samples"]
    train_labels: Int[np.ndarray, " train"]
    test_audio: Int16[np.ndarray, "test samples"]
    test_labels: Int[np.ndarray, " test"]
    words: tuple[str, ...] = WORDS
    train_speakers: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, "<U1"))

    def __repr__(self) -> str:
        return (
            f"Recordings(train={len(self.train_labels)}, test={len(self.test_labels)}, "
            f"classes={len(self.words)})"
        )


@validate(root=path_like)
def speech_commands(root: str | os.PathLike[str] | None = None) -> Recordings:
    """Loads the twelve classes of Speech Commands.

    Wave files are looked for in `speech-commands/<word>/` under the folder named by `JAXEFF_DATA`;
    where there are none, a `*.flac.tar` archive there is read if the package `soundfile` is
    installed.

    Warden, "Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition",
    arXiv:1804.03209. Folders are the classes, files are 16 kHz, 16 bit, mono; what is before
    ``_nohash_`` in a name is the speaker.

    Sharp edges:
        The official split needs the training archive. Here a fifth of the speakers is held out, by
        a hash of their names, so that no speaker is on both sides, whatever part of the set is
        there.
        The recordings of ``_silence_`` have no speaker: there each file is one.

    Args:
        root: The folder to look in; the one named by `JAXEFF_DATA` if None.

    Raises:
        DataError: Nothing is there, or a file isn't what its name promises; the message names the
            file and the way out.
    """
    return _split_by_speaker(_folder(root), WORDS)


@validate(folder=path_like)
def recordings(folder: str | os.PathLike[str]) -> Recordings:
    """Loads recordings of your own words: a folder of wave files for each.

    Args:
        folder: Has `<word>/*.wav`, 16 kHz, 16 bit, one channel, cut to a second. Folders whose
            names begin with an underscore, such as `_silence_`, stand for none of the words and
            come last. What is before `_nohash_` in a file's name is the speaker. Where there are
            no wave files, those of `speech_commands` are looked for.

    Returns:
        A fifth of the speakers is for testing.

    Raises:
        DataError: There are no two words, or too few recordings; the message names the way out.
    """
    folder = Path(folder).expanduser()
    names = {path.parent.name for path in folder.glob("*/*.wav")}
    words = tuple(sorted(names, key=lambda name: (name.startswith("_"), name)))
    if not words and any(folder.glob("*.flac.tar")):
        return _split_by_speaker(folder, WORDS)
    if len(words) < 2:
        raise DataError(
            f"recordings: expected {folder}/<word>/*.wav of two words or more, found "
            f"{', '.join(words) or 'none'}"
        )
    return _split_by_speaker(folder, words)


@validate(path=path_like)
def recording(path: str | os.PathLike[str]) -> Int16[np.ndarray, " samples"]:
    """Loads one recording: a wave file of 16 kHz, 16 bit, one channel, cut or filled to a second.

    ```python
    from jaxeff import data

    try:
        sound = data.recording("yes/0a_nohash_0.wav")                  # [16000]
    except data.DataError as error:
        print(error)                                                   # it isn't there
    ```

    Raises:
        DataError: It is no such file; the message says what it is.
    """
    path = Path(path).expanduser()
    try:
        with wave.open(str(path)) as file:
            form = (file.getframerate(), file.getsampwidth(), file.getnchannels())
            content = file.readframes(file.getnframes())
    except (wave.Error, EOFError, OSError) as error:
        raise DataError(f"{path}: expected a wave file, but {error or 'it ends'}") from error
    if form != (RATE, 2, 1):
        raise DataError(f"{path}: expected 16 kHz, 16 bit and one channel, found {form}")
    return _second(np.frombuffer(content, np.int16))


def _split_by_speaker(folder: Path, words: tuple[str, ...]) -> Recordings:
    """Reads a folder; a fifth of its speakers is for testing."""
    by_held_out: dict[bool, tuple[list[np.ndarray], list[int]]] = {True: ([], []), False: ([], [])}
    speakers: list[str] = []
    has_waves = any(next((folder / word).glob("*.wav"), None) is not None for word in words)
    for name, label, audio in _waves(folder, words) if has_waves else _archived(folder):
        audios, labels = by_held_out[held := _held_out(name)]
        audios.append(audio)
        labels.append(label)
        speakers += [] if held else [_speaker(name)]
    # With few speakers, all of their hashes may fall on one side.
    if not (by_held_out[True][0] and by_held_out[False][0]):
        raise DataError(f"speech-commands: {folder} holds too few recordings for a split")
    (test, test_labels), (train, train_labels) = by_held_out[True], by_held_out[False]
    return Recordings(
        np.stack(train), np.array(train_labels, np.int32), np.stack(test),
        np.array(test_labels, np.int32), words, train_speakers=np.array(speakers),
    )  # fmt: skip


def _folder(root: str | os.PathLike[str] | None) -> Path:
    chosen = root if root is not None else os.environ.get("JAXEFF_DATA")
    if not chosen:
        raise DataError(
            "speech-commands: JAXEFF_DATA is not set; set it to the folder that holds "
            f"{FOLDERS[0]}/"
        )
    for name in FOLDERS:
        folder = Path(chosen).expanduser() / name
        if folder.is_dir():
            return folder
    raise DataError(
        f"speech-commands: expected a folder {' or '.join(FOLDERS)} in {chosen}, found none; put "
        "<word>/*.wav there"
    )


def _waves(folder: Path, words: tuple[str, ...]) -> Iterator[tuple[str, int, np.ndarray]]:
    for label, word in enumerate(words):
        # Sorted: the order of a folder's entries differs from one file system to another.
        paths = sorted((folder / word).glob("*.wav"))
        if not paths:
            raise DataError(
                f"speech-commands: expected wave files in {folder / word}, found none; the classes "
                f"are {', '.join(words)}"
            )
        for path in paths:
            yield path.name, label, recording(path)


def _archived(folder: Path) -> Iterator[tuple[str, int, np.ndarray]]:
    archive = next(iter(sorted(folder.glob("*.flac.tar"))), None)
    if archive is None:
        raise DataError(f"speech-commands: expected <word>/*.wav in {folder}, found none")
    try:
        import soundfile
    except ImportError:
        raise DataError(
            f"speech-commands: {archive} holds FLAC, which takes the package soundfile to read: "
            f"pip install 'jaxeff[speech]', or unpack it to {folder}/<word>/*.wav"
        ) from None
    # Members are read in place: nothing is extracted, so no name in the archive can lead out of the
    # folder.
    with tarfile.open(archive) as members:
        for member in members:
            path = PurePosixPath(member.name)
            file = members.extractfile(member)
            if file is not None and path.parent.name in WORDS:
                audio, _ = soundfile.read(io.BytesIO(file.read()), dtype="int16")
                yield path.name, WORDS.index(path.parent.name), _second(audio)


def _second(audio: np.ndarray) -> np.ndarray:
    """Cuts a recording to one second, or fills it up with silence."""
    return np.pad(audio[:LENGTH], (0, max(LENGTH - len(audio), 0)))


def _speaker(name: str) -> str:
    return name.split("_nohash_")[0]


def _held_out(name: str) -> bool:
    # SHA-256, not `hash`, which Python seeds per process. 52 of the 256 first bytes are multiples
    # of 5: about a fifth of the speakers.
    return hashlib.sha256(_speaker(name).encode()).digest()[0] % HELD_OUT == 0


@validate(count=static_integer())
def tones(key: PRNGKeyArray, count: int) -> Int16[np.ndarray, "count samples"]:
    """Makes tones in the form of recordings, for examples and tests.

    Args:
        key: Random key of their frequencies.
        count: Number of recordings.
    """
    time = np.arange(LENGTH) / RATE
    pitch = np.asarray(jax.random.uniform(key, (count, 1), minval=200.0, maxval=4000.0))
    return (8000 * np.sin(2 * np.pi * pitch * time)).astype(np.int16)
