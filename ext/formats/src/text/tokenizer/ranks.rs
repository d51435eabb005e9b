//! Byte-level vocabularies that are a list of tokens, the first merged before all others, as tiktoken has them.

use std::collections::HashMap;
use std::path::Path;

use base64::engine::general_purpose::STANDARD_NO_PAD;
use base64::Engine;
use tokenizers::models::bpe::{Vocab, BPE};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::AddedToken;

use super::load::{read_text, Parts};
use super::stream::characters_of;
use super::{engine_error, SpecialTokens, Tokenizer};
use crate::{Error, Result};

/// Longer than every token in use.
const MOST_BYTES: usize = 512;

pub(super) fn load(
    tokens: &[&[u8]],
    (special, others): (&[String], &[String]),
    source: &Path,
) -> Result<Tokenizer> {
    let mut ranks = HashMap::with_capacity(tokens.len());
    for (rank, &token) in tokens.iter().enumerate() {
        if token.len() > MOST_BYTES {
            let reason = format!("its token {rank} has {} bytes", token.len());
            return Err(Error::corrupt(source, reason));
        }
        if ranks.insert(token, rank).is_some() {
            let reason = format!("its token {rank} is there twice");
            return Err(Error::corrupt(source, reason));
        }
    }
    let vocabulary: Vocab = ranks
        .iter()
        .map(|(token, rank)| (characters_of(token), *rank as u32))
        .collect();
    let merges = tokens.iter().enumerate().filter_map(|(rank, token)| {
        let (left, right) = halves(token, rank, &ranks)?;
        Some((characters_of(left), characters_of(right)))
    });
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges.collect::<Vec<_>>())
        .build()
        .map_err(|error| Error::corrupt(source, error))?;
    let mut core = tokenizers::Tokenizer::new(model);
    core.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    core.with_decoder(Some(ByteLevel::default()));
    let added = |content: &String, special: bool| AddedToken::from(content.clone(), special);
    core.add_special_tokens(special.iter().map(|token| added(token, true)))
        .map_err(engine_error)?;
    core.add_tokens(
        others
            .iter()
            .map(|token| added(token, false).normalized(false)),
    )
    .map_err(engine_error)?;
    Parts {
        core,
        special_tokens: SpecialTokens::default(),
        model_max_length: None,
        chat_templates: None,
        bytes: tokens.iter().map(|token| 4 * (token.len() + 48)).sum(),
        source: source.to_owned(),
        one_type: false,
        unknown: None,
        segmenter: None,
    }
    .into_tokenizer()
}

/// The two tokens that merge into this one; `None` where earlier tokens do not lead to it.
fn halves<'a>(
    token: &'a [u8],
    rank: usize,
    ranks: &HashMap<&[u8], usize>,
) -> Option<(&'a [u8], &'a [u8])> {
    let mut parts: Vec<&[u8]> = token.chunks(1).collect();
    while parts.len() > 2 {
        let mut best: Option<(usize, usize)> = None;
        let mut start = 0;
        for (at, pair) in parts.windows(2).enumerate() {
            let joined = &token[start..start + pair[0].len() + pair[1].len()];
            start += pair[0].len();
            let found = ranks.get(joined).copied().filter(|&found| found < rank);
            if let Some(found) = found.filter(|&found| best.is_none_or(|(least, _)| found < least))
            {
                best = Some((found, at));
            }
        }
        let (_, at) = best?;
        let start: usize = parts[..at].iter().map(|part| part.len()).sum();
        let length = parts[at].len() + parts[at + 1].len();
        parts[at] = &token[start..start + length];
        parts.remove(at + 1);
    }
    match parts[..] {
        [left, right] => Some((left, right)),
        _ => None,
    }
}

/// The tokens of a `.tiktoken` file: a line for each, its bytes in base 64 and its rank.
pub fn read_tiktoken(path: &Path) -> Result<Vec<Vec<u8>>> {
    let text = read_text(path)?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .enumerate()
        .map(|(at, line)| {
            let wrong = || Error::corrupt(path, format!("line {} is not token {at}", at + 1));
            let (token, rank) = line.split_once(' ').ok_or_else(wrong)?;
            if rank.trim().parse() != Ok(at) {
                return Err(wrong());
            }
            let token = token.trim_end_matches('=');
            STANDARD_NO_PAD.decode(token).map_err(|_| wrong())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_tokens_lead_to_later_ones() {
        let tokens: Vec<&[u8]> = vec![b"t", b"h", b"e", b" ", b"th", b" t", b"the", b" the"];
        let special = ["<|end|>".to_owned()];
        let tokenizer = load(&tokens, (&special, &[]), Path::new("tokens")).unwrap();
        assert_eq!(tokenizer.ids("the the", false).unwrap(), [6, 7]);
        assert_eq!(tokenizer.ids("he<|end|>", false).unwrap(), [1, 2, 8]);
        assert_eq!(tokenizer.decode(&[6, 7, 8], true).unwrap(), "the the");
        let twice: Vec<&[u8]> = vec![b"t", b"t"];
        let error = load(&twice, (&[], &[]), Path::new("tokens")).unwrap_err();
        assert!(matches!(error, Error::CorruptModel(_)));
    }
}
