//! The seven kinds of vocabulary that GGUF knows, as pipelines of the `tokenizers` crate.

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip as StripDecoder;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::{BertNormalizer, Prepend, Sequence, Strip, NFC};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{DecoderWrapper, NormalizerWrapper};

use super::pre_tokenizer::{lines, Rules};
use super::{kind, Flags, Vocabulary};
use crate::text::tokenizer::load::boundary_template;
use crate::text::tokenizer::longest_match::{unescaped, LongestMatch};
use crate::text::tokenizer::sentence_piece::scored_merges;
use crate::text::tokenizer::stream::characters_of;
use crate::text::tokenizer::viterbi::Viterbi;
use crate::text::tokenizer::{engine_error, guard};
use crate::{Error, Result};

/// What SentencePiece writes for a space.
const SPACE: char = '▁';

pub(super) fn byte_level_bpe(vocabulary: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer> {
    let metadata = vocabulary.metadata;
    let name = metadata.opt_str("tokenizer.ggml.pre")?.unwrap_or("default");
    let rules = Rules::named(name).ok_or_else(|| {
        Error::unsupported(
            metadata.file(),
            format_args!(
                "its pre-tokenizer {name:?} is unknown, and a wrong one would give wrong tokens. \
                 Pass tokenizer: with the id of the original model"
            ),
        )
    })?;
    let flags = vocabulary.flags(Flags {
        add_bos: rules.adds_bos,
        add_eos: false,
        add_space_prefix: false,
    })?;
    let vocab: Vocab = vocabulary
        .entries()
        .map(|(id, token)| (token.to_owned(), id))
        .collect();
    let merges = metadata
        .opt_strings("tokenizer.ggml.merges")?
        .unwrap_or_default();
    let merges = known_merges(&merges, &vocab);
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(rules.ignore_merges)
        .build()
        .map_err(|error| Error::corrupt(metadata.file(), error))?;
    let mut core = tokenizers::Tokenizer::new(model);
    if rules.composes {
        core.with_normalizer(Some(NFC)).map_err(engine_error)?;
    }
    core.with_pre_tokenizer(Some(rules.pre_tokenizer(flags.add_space_prefix)?));
    core.with_decoder(Some(ByteLevel::default()));
    add_boundaries(&mut core, vocabulary, flags)?;
    Ok(core)
}

/// Pairs of tokens, best first; those that lead out of the vocabulary are of no use.
fn known_merges(merges: &[&str], vocab: &Vocab) -> Merges {
    let mut known = Merges::with_capacity(merges.len());
    let mut whole = String::new();
    known.extend(merges.iter().filter_map(|merge| {
        // The second token may begin with a space where a file was not written byte-level.
        let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ')?.0;
        let (left, right) = (merge.get(..at)?, merge.get(at + 1..)?);
        whole.clear();
        whole.extend([left, right]);
        let known = [left, right, whole.as_str()];
        known
            .into_iter()
            .all(|token| vocab.contains_key(token))
            .then(|| (left.to_owned(), right.to_owned()))
    }));
    known
}

pub(super) fn sentence_piece_bpe(vocabulary: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer> {
    let flags = vocabulary.flags(Flags {
        add_bos: true,
        add_eos: false,
        add_space_prefix: true,
    })?;
    let vocab: Vocab = vocabulary
        .entries()
        .map(|(id, token)| (token.to_owned(), id))
        .collect();
    let pieces = vocabulary
        .entries()
        .filter(|(id, _)| {
            let kind = vocabulary.kind(*id);
            !matches!(kind, kind::CONTROL | kind::UNKNOWN | kind::BYTE)
        })
        .map(|(id, token)| (id, token, vocabulary.score(id)));
    let merges = scored_merges(pieces, &vocab);
    spaced(vocabulary, flags, vocab, merges)
}

/// Gemma 4's: spaces are marked as SentencePiece marks them, and merges are listed.
pub(super) fn spaced_bpe(vocabulary: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer> {
    let flags = vocabulary.flags(Flags {
        add_bos: true,
        add_eos: false,
        add_space_prefix: false,
    })?;
    let vocab: Vocab = vocabulary
        .entries()
        .map(|(id, token)| (token.to_owned(), id))
        .collect();
    let merges = vocabulary.metadata.opt_strings("tokenizer.ggml.merges")?;
    let merges = known_merges(&merges.unwrap_or_default(), &vocab);
    let mut core = spaced(vocabulary, flags, vocab, merges)?;
    core.with_pre_tokenizer(Some(lines()?));
    Ok(core)
}

/// A vocabulary of characters in which a mark stands for spaces; other characters become bytes.
fn spaced(
    vocabulary: &Vocabulary<'_>,
    flags: Flags,
    vocab: Vocab,
    merges: Merges,
) -> Result<tokenizers::Tokenizer> {
    let has_bytes = vocabulary
        .entries()
        .any(|(id, _)| vocabulary.kind(id) == kind::BYTE);
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .byte_fallback(has_bytes)
        .fuse_unk(true);
    if let Some((unknown, _)) = vocabulary.named(&["unknown_token_id"])? {
        builder = builder.unk_token(unknown.to_owned());
    }
    let model = builder
        .build()
        .map_err(|error| Error::corrupt(vocabulary.metadata.file(), error))?;
    let mut core = tokenizers::Tokenizer::new(model);
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if flags.add_space_prefix {
        normalizers.push(Prepend::new(SPACE.to_string()).into());
    }
    normalizers.push(replacement(" ", SPACE)?.into());
    core.with_normalizer(Some(Sequence::new(normalizers)))
        .map_err(engine_error)?;
    let mut decoders: Vec<DecoderWrapper> = vec![
        replacement(&SPACE.to_string(), ' ')?.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if flags.add_space_prefix {
        decoders.push(StripDecoder::new(' ', 1, 0).into());
    }
    core.with_decoder(Some(DecoderSequence::new(decoders)));
    add_boundaries(&mut core, vocabulary, flags)?;
    Ok(core)
}

/// GGUF writes WordPiece the other way round: words begin with a marked space, continuations are
/// bare.
pub(super) fn word_piece(vocabulary: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer> {
    let metadata = vocabulary.metadata;
    let vocab: Vocab = vocabulary
        .entries()
        .map(|(id, token)| {
            let text = match token.strip_prefix(SPACE) {
                Some(word) => word.to_owned(),
                None if token.starts_with('[') && token.ends_with(']') => token.to_owned(),
                None if vocabulary.kind(id) == kind::CONTROL => token.to_owned(),
                None => format!("##{token}"),
            };
            (text, id)
        })
        .collect();
    let required = |what: &str, keys: &[&str]| {
        let (token, id) = vocabulary.named(keys)?.ok_or_else(|| {
            Error::corrupt(metadata.file(), format_args!("it names no {what} token"))
        })?;
        Ok::<(String, u32), Error>((token.to_owned(), id))
    };
    let cls = required("CLS", &["cls_token_id", "bos_token_id"])?;
    let sep = required(
        "SEP",
        &["seperator_token_id", "separator_token_id", "eos_token_id"],
    )?;
    let unknown = match vocabulary.named(&["unknown_token_id"])? {
        Some((token, _)) => token.to_owned(),
        None => "[UNK]".to_owned(),
    };
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(unknown)
        .build()
        .map_err(engine_error)?;
    let mut core = tokenizers::Tokenizer::new(model);
    core.with_normalizer(Some(BertNormalizer::new(true, true, None, true)))
        .map_err(engine_error)?;
    core.with_pre_tokenizer(Some(BertPreTokenizer));
    core.with_post_processor(Some(BertProcessing::new(sep, cls)));
    core.with_decoder(Some(WordPieceDecoder::default()));
    Ok(core)
}

pub(super) fn unigram(vocabulary: &Vocabulary<'_>) -> Result<tokenizers::Tokenizer> {
    let metadata = vocabulary.metadata;
    let flags = vocabulary.flags(Flags {
        add_bos: false,
        add_eos: true,
        add_space_prefix: true,
    })?;
    let pieces: Vec<(String, f64)> = vocabulary
        .entries()
        .map(|(id, token)| (token.to_owned(), f64::from(vocabulary.score(id))))
        .collect();
    let unknown = vocabulary
        .named(&["unknown_token_id"])?
        .and_then(|(_, id)| usize::try_from(id).ok());
    let model = Unigram::from(pieces, unknown, false)
        .map_err(|error| Error::corrupt(metadata.file(), error))?;
    let mut core = tokenizers::Tokenizer::new(model);
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if let Some(map) = metadata.opt_i64s("tokenizer.ggml.precompiled_charsmap")? {
        // Written as signed or unsigned bytes.
        let bytes: Vec<u8> = map.iter().map(|value| value.to_le_bytes()[0]).collect();
        guard::check_characters(&bytes, metadata.file())?;
        let precompiled = Precompiled::from(&bytes).map_err(|_| {
            Error::corrupt(metadata.file(), "its table of characters does not parse")
        })?;
        normalizers.push(precompiled.into());
    }
    if metadata
        .opt_bool("tokenizer.ggml.remove_extra_whitespaces")?
        .unwrap_or(true)
    {
        normalizers.push(Strip::new(true, true).into());
        let spaces = ReplacePattern::Regex(" {2,}".to_owned());
        normalizers.push(Replace::new(spaces, " ").map_err(engine_error)?.into());
    }
    core.with_normalizer(Some(Sequence::new(normalizers)))
        .map_err(engine_error)?;
    let scheme = if flags.add_space_prefix {
        PrependScheme::Always
    } else {
        PrependScheme::Never
    };
    core.with_pre_tokenizer(Some(Metaspace::new(SPACE, scheme, true)));
    core.with_decoder(Some(Metaspace::new(SPACE, scheme, true)));
    add_boundaries(&mut core, vocabulary, flags)?;
    Ok(core)
}

/// RWKV's: tokens are bytes, and texts are cut into the longest that fit.
pub(super) fn longest_match(
    vocabulary: &Vocabulary<'_>,
) -> Result<(tokenizers::Tokenizer, LongestMatch)> {
    let flags = vocabulary.flags(Flags {
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
    })?;
    let vocab: Vocab = vocabulary
        .entries()
        .map(|(id, token)| (characters_of(&unescaped(token)), id))
        .collect();
    let longest = LongestMatch::new(vocab.keys());
    let model = BPE::builder()
        .vocab_and_merges(vocab, Merges::new())
        .build()
        .map_err(|error| Error::corrupt(vocabulary.metadata.file(), error))?;
    let mut core = tokenizers::Tokenizer::new(model);
    core.with_pre_tokenizer(Some(ByteLevel::new(false, false, false)));
    core.with_decoder(Some(ByteLevel::default()));
    add_boundaries(&mut core, vocabulary, flags)?;
    Ok((core, longest))
}

/// PLaMo 2's: texts are cut where scores add up to most, and keep their spaces.
pub(super) fn viterbi(vocabulary: &Vocabulary<'_>) -> Result<(tokenizers::Tokenizer, Viterbi)> {
    let file = vocabulary.metadata.file();
    let flags = vocabulary.flags(Flags {
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
    })?;
    let vocab: Vocab = vocabulary
        .entries()
        .map(|(id, token)| (token.to_owned(), id))
        .collect();
    let bytes = (0..=u8::MAX).map(|byte| {
        let token = format!("<0x{byte:02X}>");
        let id = vocab.get(&token).copied();
        id.ok_or_else(|| Error::corrupt(file, format_args!("it has no token {token}")))
    });
    let bytes = bytes.collect::<Result<Vec<u32>>>()?;
    let pieces = vocabulary
        .entries()
        .filter(|(id, _)| vocabulary.kind(*id) != kind::BYTE)
        .map(|(id, token)| (token, id, vocabulary.score(id)));
    let viterbi = Viterbi::new(pieces, bytes);
    let model = BPE::builder()
        .vocab_and_merges(vocab, Merges::new())
        .byte_fallback(true)
        .build()
        .map_err(|error| Error::corrupt(file, error))?;
    let mut core = tokenizers::Tokenizer::new(model);
    let decoders = vec![ByteFallback::new().into(), Fuse::new().into()];
    core.with_decoder(Some(DecoderSequence::new(decoders)));
    add_boundaries(&mut core, vocabulary, flags)?;
    Ok((core, viterbi))
}

fn replacement(pattern: &str, content: char) -> Result<Replace> {
    Replace::new(pattern, content).map_err(engine_error)
}

fn add_boundaries(
    core: &mut tokenizers::Tokenizer,
    vocabulary: &Vocabulary<'_>,
    flags: Flags,
) -> Result<()> {
    let named = |wanted: bool, key: &str| {
        if wanted {
            vocabulary.named(&[key])
        } else {
            Ok(None)
        }
    };
    let bos = named(flags.add_bos, "bos_token_id")?;
    let eos = named(flags.add_eos, "eos_token_id")?;
    match (bos, eos) {
        (None, None) => {}
        // Encoders that read pairs, XLM-RoBERTa's family.
        (Some((bos, bos_id)), Some((eos, eos_id))) => {
            let processor =
                RobertaProcessing::new((eos.to_owned(), eos_id), (bos.to_owned(), bos_id))
                    .trim_offsets(false);
            core.with_post_processor(Some(processor));
        }
        (bos, eos) => {
            core.with_post_processor(Some(boundary_template(bos, eos)?));
        }
    }
    Ok(())
}
