//! Texts from images, by models of an image encoder and a decoder of texts.

use crate::generation::{FinishReason, Search, SearchSettings};
use crate::models::image_to_text::ImageToText;
use crate::models::seq2seq::{Cache, Memory, Rows};
use crate::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use formats::files::raw_config::RawConfig;
use formats::image::Processor;
use formats::text::tokenizer::{Detail, Tokenizer};

use super::loading::{Checkpoint, LoadOptions, ModelInfo, ModelShape};
use super::seq2seq::GenerationDefaults;
use super::vision::{self, Picture};

/// Tokens of a text, where neither a call nor the checkpoint says how many.
const USUAL_LENGTH: usize = 512;

pub struct ReadModel {
    model: ImageToText,
    processor: Processor,
    tokenizer: Tokenizer,
    defaults: GenerationDefaults,
    info: ModelInfo,
}

/// What was read in an image.
#[derive(Clone, Debug)]
pub struct Reading {
    pub text: String,
    pub tokens: Vec<u32>,
    pub finish_reason: FinishReason,
    /// (width, height) of the image.
    pub size: (usize, usize),
}

/// One image on its way to a text.
struct Running {
    number: usize,
    memory: Memory,
    cache: Cache,
    search: Search,
}

/// What a text begins with: what stands behind the image, and what the decoder is given.
struct Prompt {
    behind: Vec<u32>,
    start: Vec<u32>,
}

impl ReadModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        if options.int8 {
            return Err(Error::InvalidInput(
                "generative models do not support dtype int8: use f32, bf16 or f16".into(),
            ));
        }
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let raw = checkpoint.required_config("images")?;
        let source = checkpoint.source.as_ref();
        let place = (&checkpoint.opened, checkpoint.dtype);
        let model = ImageToText::load(raw, source, place, cancel)?;
        let tokenizer = checkpoint.tokenizer(files, options, cancel)?;
        let tokenizer = tokenizer.with_padding(None).with_truncation(None);
        let generation = files.file("generation_config.json", cancel)?;
        let generation = generation.map(|path| RawConfig::read(&path)).transpose()?;
        let text = raw.opt_nested(["decoder", "text_config"])?;
        let said = [generation.as_ref(), Some(raw), text.as_ref()];
        let start = tokenizer.special_tokens().id("bos_token").unwrap_or(0);
        let defaults = GenerationDefaults::read(&said, start, &tokenizer)?;
        let processor = vision::processor(files, None, cancel)?;
        let stack = &model.shape().stack;
        let shape = ModelShape {
            family: match model.family() {
                "donut-swin" if processor.is_nougat() => "nougat",
                "donut-swin" => "donut",
                "florence2" => "florence2",
                _ => stack.family,
            },
            hidden_size: stack.hidden_size,
            layers: model.layer_count(),
            attention_heads: stack.head_count,
            vocabulary: model.shape().vocab_size,
        };
        let (inventory, verified) = (model.inventory()?, false);
        let info = ModelInfo {
            max_length: model.decoder().max_target().unwrap_or(usize::MAX),
            ..ModelInfo::of(&checkpoint, &shape, inventory, verified)?
        };
        Ok(Self {
            processor,
            model,
            tokenizer,
            defaults,
            info,
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What the checkpoint says of generating.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }

    /// How many tokens a text has where a call does not say it.
    pub fn usual_length(&self) -> usize {
        let most = self.model.decoder().max_target().unwrap_or(usize::MAX);
        match self.defaults.rules.max_new_tokens {
            0 => USUAL_LENGTH.min(most),
            said => said.min(most),
        }
    }

    /// The texts of pictures, in their order. `first` is what errors call the first one.
    pub fn read(
        &self,
        pictures: &[Picture],
        prompt: Option<&str>,
        settings: &SearchSettings,
        first: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<Reading>> {
        let prompt = self.prompt(prompt, cancel)?;
        let settings = self.limited(settings, &prompt)?;
        let memory = |picture: &Picture| self.memory(picture, &prompt, cancel);
        let memories = vision::each(pictures, first, cancel, memory)?;
        self.info
            .device
            .compute(|| self.write(memories, &prompt.start, &settings, cancel))?
    }

    /// The logits of the first token.
    pub fn first_logits(
        &self,
        picture: &Picture,
        prompt: Option<&str>,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let prompt = self.prompt(prompt, cancel)?;
        let (memory, _) = self.memory(picture, &prompt, cancel)?;
        let last = prompt.start.len().saturating_sub(1) as u32;
        self.info.device.compute(|| {
            let decoder = self.model.decoder();
            let (logits, _) = decoder.begin(&prompt.start, &memory, &[last], cancel)?;
            Ok(logits.flatten_all()?.to_vec1()?)
        })?
    }

    fn memory(
        &self,
        picture: &Picture,
        prompt: &Prompt,
        cancel: &CancelToken,
    ) -> Result<(Memory, (usize, usize))> {
        let image = picture.decode()?;
        let view = self.processor.process(&image, cancel)?;
        let memory = self
            .info
            .device
            .compute(|| self.model.read(&view, &prompt.behind, cancel))??;
        Ok((memory, (image.width(), image.height())))
    }

    /// Donut's prompts take the place of the token that texts begin with; those of others stand behind it.
    fn prompt(&self, text: Option<&str>, cancel: &CancelToken) -> Result<Prompt> {
        let encode = |text: &str| -> Result<Vec<u32>> {
            let encoding = self.tokenizer.encode(text, false, Detail::Ids, cancel)?;
            Ok(encoding.get_ids().to_vec())
        };
        let start = self.defaults.start;
        if text.is_some() && self.processor.has_header() {
            return Err(Error::InvalidInput(
                "this model reads a question in the image: draw it above the image, and pass no prompt".into(),
            ));
        }
        if self.model.reads_text() {
            let special = self.tokenizer.special_tokens();
            let mut behind: Vec<u32> = special.id("bos_token").into_iter().collect();
            behind.extend(encode(text.unwrap_or_default())?);
            behind.extend(special.id("eos_token"));
            return Ok(Prompt {
                behind,
                start: vec![start],
            });
        }
        let mut given = match text {
            Some(text) => encode(text)?,
            None => Vec::new(),
        };
        let replaces = self.model.family() == "donut-swin";
        if given.is_empty() || !replaces && given[0] != start {
            given.insert(0, start);
        }
        Ok(Prompt {
            behind: Vec::new(),
            start: given,
        })
    }

    /// Settings that end where the decoder's positions do.
    fn limited(&self, settings: &SearchSettings, prompt: &Prompt) -> Result<SearchSettings> {
        settings.check(false)?;
        let vocabulary = self.model.decoder().vocabulary();
        settings.config.logit_bias.check(vocabulary)?;
        let most = self.model.decoder().max_target().unwrap_or(usize::MAX);
        let room = (most.saturating_add(1)).saturating_sub(prompt.start.len());
        if room == 0 {
            return Err(Error::InvalidInput(format!(
                "the prompt has {} tokens, and the model writes texts of {most}",
                prompt.start.len()
            )));
        }
        let mut settings = settings.clone();
        settings.config.max_new_tokens = settings.config.max_new_tokens.min(room);
        settings.rules.max_new_tokens = settings.config.max_new_tokens;
        Ok(settings)
    }

    /// Writes all texts together, each in rows of its own: what comes of one does not depend on the others.
    fn write(
        &self,
        memories: Vec<(Memory, (usize, usize))>,
        start: &[u32],
        settings: &SearchSettings,
        cancel: &CancelToken,
    ) -> Result<Vec<Reading>> {
        let sizes: Vec<_> = memories.iter().map(|(_, size)| *size).collect();
        let mut written: Vec<Option<Reading>> = vec![None; sizes.len()];
        let mut running = Vec::with_capacity(sizes.len());
        for (number, (memory, _)) in memories.into_iter().enumerate() {
            let search = Search::new(settings, start, &self.tokenizer, None)?;
            let cache = self.begun(&memory, start, settings.num_beams, cancel)?;
            running.push(Running {
                number,
                memory,
                cache,
                search,
            });
        }
        loop {
            let (over, going): (Vec<_>, Vec<_>) =
                running.into_iter().partition(|run| run.search.is_over());
            for run in over {
                let reading = self.reading(&run.search, settings, sizes[run.number])?;
                written[run.number] = Some(reading);
            }
            running = going;
            if running.is_empty() {
                break;
            }
            self.step(&mut running, start, settings, cancel)?;
        }
        let missing = || Error::Internal("an image was not read".to_owned());
        let written = written.into_iter();
        written.map(|one| one.ok_or_else(missing)).collect()
    }

    /// The cache of all tokens of a prompt but the last.
    fn begun(
        &self,
        memory: &Memory,
        start: &[u32],
        width: usize,
        cancel: &CancelToken,
    ) -> Result<Cache> {
        let before = &start[..start.len().saturating_sub(1)];
        if before.is_empty() {
            return Ok(Cache::default());
        }
        let (_, cache) = self.model.decoder().begin(before, memory, &[0], cancel)?;
        cache.of(&vec![0; width])
    }

    /// One more token of every text.
    fn step(
        &self,
        running: &mut [Running],
        start: &[u32],
        settings: &SearchSettings,
        cancel: &CancelToken,
    ) -> Result<()> {
        cancel.check()?;
        let last = start.last().copied().unwrap_or(0);
        let latest = |run: &Running| {
            let mut ids = Vec::with_capacity(settings.num_beams);
            run.search.last_tokens(last, &mut ids);
            ids
        };
        let ids: Vec<Vec<u32>> = running.iter().map(latest).collect();
        let groups = running.iter().zip(&ids).map(|(run, ids)| Rows {
            ids,
            cache: &run.cache,
            memory: &run.memory,
        });
        let groups: Vec<Rows<'_>> = groups.collect();
        let (logits, caches) = self.model.decoder().write_together(&groups, cancel)?;
        let rows: Vec<Vec<f32>> = logits.to_vec2()?;
        let chunks = rows.chunks(settings.num_beams);
        for ((run, cache), rows) in running.iter_mut().zip(caches).zip(chunks) {
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            let text = (start, &self.tokenizer);
            let piece = run.search.take(&settings.rules, text, &rows)?;
            let parents: Vec<u32> = piece.parents.iter().map(|&parent| parent as u32).collect();
            run.cache = cache.of(&parents)?;
        }
        Ok(())
    }

    fn reading(
        &self,
        search: &Search,
        settings: &SearchSettings,
        size: (usize, usize),
    ) -> Result<Reading> {
        let tokens: Vec<u32> = match search {
            Search::Tokens(run) => run.choices().iter().map(|choice| choice.token).collect(),
            Search::Beams(search) => search.tokens().to_vec(),
        };
        let ends = &settings.rules.end_ids;
        let ended = tokens.last().is_some_and(|last| ends.contains(last));
        let text = match search {
            Search::Tokens(run) => run.text().to_owned(),
            Search::Beams(_) => self.tokenizer.decode(&tokens, true)?,
        };
        let reason = match search {
            Search::Tokens(run) => run.finish_reason(),
            Search::Beams(_) => None,
        };
        Ok(Reading {
            text,
            tokens,
            finish_reason: reason.unwrap_or(if ended {
                FinishReason::Stop
            } else {
                FinishReason::Length
            }),
            size,
        })
    }
}
