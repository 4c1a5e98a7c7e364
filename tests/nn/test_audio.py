"""Features of sound: SciPy's and the definitions of the mel scales are the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
import scipy.signal

from jaxeff import data, nn

RATE = 16_000


def sound():
    """Tones from loud to quiet in a little noise: int16 [3, 1600], 4 frames each."""
    rng = np.random.default_rng(0)
    loud = data.tones(jax.random.key(0), 3)[:, :1600] * np.array([[1.0], [0.1], [0.01]])
    return np.round(loud + rng.normal(0, 30, loud.shape)).astype(np.int16)


@pytest.mark.parametrize("cepstra", [None, 10])
def test_features_are_scipys(cepstra):
    front, audio = nn.LogMel(cepstra=cepstra), sound()
    window = scipy.signal.get_window("hann", 480)
    windows = np.lib.stride_tricks.sliding_window_view(audio / 2**15, 480, axis=1)[:, ::320]
    energy = np.abs(scipy.fft.rfft(windows * window, 512)) ** 2
    expected = np.log(np.maximum(energy @ nn.mel_filters(40, 512), front.floor))
    if cepstra:
        expected = scipy.fft.dct(expected, norm="ortho")[..., :cepstra]
    features = jax.jit(front)(audio)
    # float32 sums of 257 energies, whose logarithms have relative errors of 1e-4 where the
    # spectrum is 120 dB below its peak.
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=2e-3)
    fixed = jax.jit(front.fixed)(audio)
    assert fixed.dtype == jnp.int32
    assert fixed.shape == features.shape == (3, 4, cepstra or 40)
    # Spectra have 16 bits: what lies further below the peak than they reach is rounded.
    wrong = np.abs(np.asarray(fixed) * front.step - np.asarray(features))
    assert np.median(wrong) < 0.05
    assert wrong.max() < 4


@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_mel_filters_meet_at_the_centres_of_their_neighbours(scale):
    filters = nn.mel_filters(20, 4096, RATE, 100, 6000, scale)
    f = np.fft.rfftfreq(4096, 1 / RATE)
    mels = 2595 * np.log10(1 + f / 700)
    if scale == "slaney":  # 15 mels to 1 kHz, then 27 to a factor of 6.4
        above = 15 + 27 * np.log(np.maximum(f, 1e-9) / 1000) / np.log(6.4)
        mels = np.where(f < 1000, f * 0.015, above)
    centres = mels[filters.argmax(0)]
    # Evenly spaced, up to a bin of 3.9 Hz.
    bin_ = np.diff(mels[f > 100]).max()
    assert np.abs(np.diff(centres, 2)).max() < 4 * bin_
    # Inside, two neighbours make 1.
    inside = (f > f[filters[:, 0].argmax()]) & (f < f[filters[:, -1].argmax()])
    np.testing.assert_allclose(filters[inside].sum(1), 1, atol=1e-9)


def test_a_stream_of_frames_is_the_recording():
    front, audio = nn.LogMel(cepstra=10), sound()
    fixed = jax.jit(front.fixed)
    frames = [fixed(audio[:, at : at + 480])[:, 0] for at in range(0, 1600 - 480 + 1, 320)]
    np.testing.assert_array_equal(np.stack(frames, 1), fixed(audio))
    assert (front.frames(RATE), front.frames(479)) == (49, 0)


def test_silence_and_the_loudest_sound_are_numbers():
    front = nn.LogMel()
    audio = np.stack([np.zeros(480), np.full(480, -(2**15)), np.full(480, 2**15 - 1)])
    audio = audio.astype(np.int16)
    fixed = np.asarray(jax.jit(front.fixed)(audio))[:, 0] * front.step
    features = np.asarray(jax.jit(front)(audio))[:, 0]
    np.testing.assert_allclose(fixed[0], np.log(front.floor), atol=front.step)
    np.testing.assert_allclose(features[0], np.log(front.floor), rtol=1e-6)
    # A constant lies in the lowest bands, where both agree.
    np.testing.assert_allclose(fixed[1:, :1], features[1:, :1], atol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hop": 0}, "hop=0 has to be positive"),
        ({"cepstra": 41}, "cepstra=41 of 40 bands"),
        ({"bands": 200}, "are 31.25 Hz apart; take fewer bands"),
        ({"high": 9000.0}, "at most half the rate"),
        ({"floor": 0.0}, "floor=0.0 has to be positive"),
    ],
)
def test_settings_without_features_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        nn.LogMel(**settings)


def test_other_sounds_are_refused():
    with pytest.raises(TypeError, match="audio is float32; it has to be int16"):
        nn.LogMel()(np.zeros(480, np.float32))
    with pytest.raises(ValueError, match="100 samples are fewer than a frame's 480"):
        nn.LogMel().fixed(np.zeros(100, np.int16))


def test_log_mel_finds_the_pitch():
    time = np.arange(16_000) / 16_000
    pitches = np.array([300.0, 1000.0, 3000.0])
    audio = (8000 * np.sin(2 * np.pi * pitches[:, None] * time)).astype(np.int16)
    features = nn.log_mel(audio)
    assert features.shape == (3, 32, 32)
    assert (features >= 0).all()
    mel = np.linspace(*(2595 * np.log10(1 + f / 700) for f in (60.0, 7600.0)), 34)[1:-1]
    centres = 700 * (10 ** (mel / 2595) - 1)
    bands = features.mean(1).argmax(1)
    np.testing.assert_array_equal(bands, np.abs(centres - pitches[:, None]).argmin(1))
    assert nn.log_mel(np.zeros((1, 16_000), np.int16)).max() == 0
    with pytest.raises(TypeError, match="expected int16"):
        nn.log_mel(np.zeros((1, 16_000)))


@pytest.mark.parametrize("period", [2, 3, 4, 16, 512])
def test_the_loudest_waves_fit_16_bits_between_passes(period):
    front = nn.LogMel(floor=1e-3, high=8_000.0)
    # All that a sample may be, with the signs that add up in one bin.
    wave = np.where(np.arange(480) // max(period // 2, 1) % 2, 2**15 - 1, -(2**15))
    audio = np.stack([wave, np.sign(np.sin(2 * np.pi * np.arange(480) / period)) * 32767])
    audio = audio.astype(np.int16)
    fixed = np.asarray(jax.jit(front.fixed)(audio)) * front.step
    features = np.asarray(jax.jit(front)(audio))
    # Down to 52 dB below the loudest band, where rounding to 16 bits isn't seen: a number that
    # overflowed would lie in other bands.
    loud = features > features.max() - 12
    np.testing.assert_allclose(fixed[loud], features[loud], atol=0.1)
