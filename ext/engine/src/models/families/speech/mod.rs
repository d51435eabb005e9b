//! Models that read speech.

mod hubert;
mod wav2vec2;
mod whisper;

use super::*;

pub const FAMILIES: &[Family<SpeechConfig>] = &[whisper::FAMILY, wav2vec2::FAMILY, hubert::FAMILY];
