//! Models that read speech and other audio.

mod audio_spectrogram_transformer;
mod hubert;
mod moonshine;
mod parakeet;
mod wav2vec2;
mod wav2vec2_bert;
mod wavlm;
mod whisper;

use super::*;

pub const FAMILIES: &[Family<SpeechConfig>] = &[
    whisper::FAMILY,
    moonshine::FAMILY,
    wav2vec2::FAMILY,
    hubert::FAMILY,
    wavlm::FAMILY,
    wav2vec2_bert::FAMILY,
    parakeet::FAMILY,
    audio_spectrogram_transformer::FAMILY,
];
