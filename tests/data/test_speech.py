"""Speech Commands from wave files, split by speaker, and log-mel features."""

import wave

import numpy as np
import pytest

from jaxeff import data
from jaxeff.data import DataError
from jaxeff.data._speech import RATE, WORDS


def write(path, audio, rate=RATE):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, len(audio), "NONE", ""))
        file.writeframes(audio.tobytes())


@pytest.fixture
def folder(tmp_path):
    for label, word in enumerate(WORDS):
        for speaker in range(12):
            audio = np.full(16_000 - 100 * (speaker % 2), label + 1, np.int16)
            write(tmp_path / "speech-commands" / word / f"s{speaker:03}_nohash_0.wav", audio)
    return tmp_path


@pytest.mark.slow
def test_speakers_are_on_one_side(folder):
    found = data.speech_commands(folder)
    assert found.train_audio.shape[1] == found.test_audio.shape[1] == 16_000
    assert len(found.train_labels) + len(found.test_labels) == 12 * len(WORDS)
    # every speaker says every word, so that sides hold whole speakers
    assert len(found.test_labels) % len(WORDS) == 0
    for audio, labels in (
        (found.train_audio, found.train_labels), (found.test_audio, found.test_labels)
    ):  # fmt: skip
        np.testing.assert_array_equal(audio[:, 0], labels + 1)
    assert "classes=12" in repr(found)


def test_what_is_missing_is_named(tmp_path, folder, monkeypatch):
    monkeypatch.delenv("JAXEFF_DATA", raising=False)
    with pytest.raises(DataError, match="JAXEFF_DATA is not set"):
        data.speech_commands()
    with pytest.raises(DataError, match="expected a folder speech-commands"):
        data.speech_commands(tmp_path / "speech-commands")
    for file in (folder / "speech-commands" / "yes").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"expected wave files in .*yes"):
        data.speech_commands(folder)
    write(folder / "speech-commands" / "yes" / "a_nohash_0.wav", np.zeros(8000, np.int16), 8000)
    with pytest.raises(DataError, match="expected 16 kHz"):
        data.speech_commands(folder)
    (folder / "speech-commands" / "yes" / "a_nohash_0.wav").write_bytes(b"RIFF")
    with pytest.raises(DataError, match="expected a wave file"):
        data.speech_commands(folder)


def test_words_of_ones_own_come_before_what_is_none_of_them(tmp_path):
    for value, word in enumerate(("stop", "_noise_", "go")):
        for speaker in range(12):
            audio = np.full(16_000, value + 1, np.int16)
            write(tmp_path / word / f"s{speaker:03}_nohash_0.wav", audio)
    found = data.recordings(tmp_path)
    assert found.words == ("go", "stop", "_noise_")
    values = np.array([3, 1, 2])
    np.testing.assert_array_equal(found.train_audio[:, 0], values[found.train_labels])
    assert len(found.train_speakers) == len(found.train_labels)
    with pytest.raises(DataError, match="of two words or more, found none"):
        data.recordings(tmp_path / "go")
