//! Encoder-decoders.

mod bart;
mod m2m_100;
mod marian;
mod pegasus;
mod t5;

use super::*;

pub const FAMILIES: &[Family<Seq2SeqConfig>] = &[
    t5::FAMILY,
    bart::FAMILY,
    marian::FAMILY,
    m2m_100::FAMILY,
    pegasus::FAMILY,
];
