//! Models that read speech.

mod hubert;
mod parakeet;
mod wav2vec2;
mod wav2vec2_bert;
mod wavlm;
mod whisper;

use super::*;

pub const FAMILIES: &[Family<SpeechConfig>] = &[
    whisper::FAMILY,
    wav2vec2::FAMILY,
    hubert::FAMILY,
    wavlm::FAMILY,
    wav2vec2_bert::FAMILY,
    parakeet::FAMILY,
];
