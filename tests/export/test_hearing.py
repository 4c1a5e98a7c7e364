"""The command `hear`: what a spotter is given step by step, and what it says of it."""

import json
import wave

import numpy as np
import pytest
from command_line import call, refused
from jaxeff_export.cli import _learning_spotter as learning
from jaxeff_export.cli._spotter import NEW, SAMPLES, SECOND

CLASSES = ["yes", "no", "_unknown_"]


class Spotter:
    """A session that says yes in its second recording, and alarms in its third."""

    def __init__(self):
        self.sounds, self.truths = [], []

    def step(self, sound, truth):
        self.sounds.append(sound)
        self.truths.append(int(truth[0]))
        which, at = divmod(len(self.sounds) - 1, SECOND)
        said = 0 if which == 1 and at == 10 else -1
        best = np.eye(3)[which % 3]
        return {"said": np.array([said]), "mean": best[None], "alarm": np.array(which >= 2)}


def test_each_recording_is_heard_whole_and_told_with_the_step_behind_it():
    sounds = np.arange(4 * 16_000).reshape(4, 16_000) % 2**15
    session = Spotter()
    heard = list(learning.words_heard(session, sounds.astype(np.int16), 1, CLASSES))
    assert heard == [
        ("yes", [], False),
        ("no", ["yes"], False),
        ("_unknown_", [], True),
        ("yes", [], False),
    ]
    told = [i for i, truth in enumerate(session.truths) if truth == 1]
    assert told == [SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND]
    assert set(session.truths) == {-1, 1}
    assert all(len(sound) == SAMPLES for sound in session.sounds)
    # From the second step of a recording on, what is new follows what was new before.
    for i in range(4):
        steps = session.sounds[i * SECOND + 1 : (i + 1) * SECOND]
        new = np.concatenate([sound[-NEW:] for sound in steps])
        begin = list(sounds[i]).index(new[0])
        np.testing.assert_array_equal(new, sounds[i, begin : begin + len(new)])


def test_nothing_is_told_where_nobody_says():
    session = Spotter()
    list(learning.words_heard(session, np.zeros((2, 16_000), np.int16), -1, CLASSES))
    assert session.truths == [-1] * 2 * SECOND


@pytest.fixture
def folder(tmp_path):
    """What `spotter` leaves, but for the bundle."""
    page = {"sections": {"spotter": {"classes": CLASSES}}}
    (tmp_path / "report.json").write_text(json.dumps(page))
    return tmp_path


def test_noise_rises_from_the_first_recording_to_the_last(folder):
    path = folder / "tone.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.full(16_000, 100, np.int16).tobytes())
    quiet = learning.sounds_of([path], 2, 0.0, 0)
    np.testing.assert_array_equal(quiet, np.full((2, 16_000), 100))
    levels = learning.sounds_of([path], 3, 2000.0, 0).std(1)
    np.testing.assert_allclose(levels, [0, 1000, 2000], rtol=4 / np.sqrt(2 * 16_000))


def test_what_is_no_spotter_no_class_or_no_recording_is_a_line(folder):
    board = "--board", "serial:/dev/none"
    wave = folder / "none.wav"
    assert refused(call("hear", folder / "none", wave, *board), "is no output of spotter")
    told = call("hear", folder, wave, *board, "--told", "maybe")
    assert refused(told, "--told maybe is no class; they are yes, no, _unknown_")
    assert refused(call("hear", folder, wave, *board), "none.wav: expected a wave file, but")
