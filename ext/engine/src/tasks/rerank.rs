//! How well documents answer a query.

use crate::models::heads::HeadKind;
use crate::nn::Pooling;
use crate::{CancelToken, Error, Result};
use base::runtime::stats::Reading;
use base::runtime::threads;
use formats::files::model_files::ModelFiles;
use formats::text::tokenizer::{Detail, Input, Tokenizer};

use super::loading::{Checkpoint, LoadOptions, LoadedModel, ModelInfo};
use super::sequence_logits::SequenceModel;
use crate::serving::batching::{self, Excess, Tokens};

/// What the classifier is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScorePooling {
    /// What it was trained on: the model's own head.
    #[default]
    Pooler,
    /// The first token's hidden state, straight into the output matrix.
    Cls,
    /// The mean of the hidden states, likewise.
    Mean,
}

impl ScorePooling {
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "pooler" => Ok(Self::Pooler),
            "cls" => Ok(Self::Cls),
            "mean" => Ok(Self::Mean),
            other => Err(Error::InvalidInput(format!(
                "unknown pooling method {other:?}: use \"pooler\", \"cls\" or \"mean\""
            ))),
        }
    }

    fn pooling(self) -> Option<Pooling> {
        match self {
            Self::Pooler => None,
            Self::Cls => Some(Pooling::Cls),
            Self::Mean => Some(Pooling::Mean),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct RerankOptions {
    pub pooling: ScorePooling,
    /// The token budget of one forward.
    pub batch_tokens: Option<usize>,
}

pub struct RerankModel {
    model: SequenceModel,
    /// Set for language models that answer yes or no.
    question: Option<Question>,
}

/// The prompt around query and document, as tokens.
struct Question {
    before: Vec<u32>,
    after: Vec<u32>,
}

const QUESTION_BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query \
     and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const QUESTION_AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

impl RerankModel {
    pub fn load(files: &ModelFiles, options: &LoadOptions, cancel: &CancelToken) -> Result<Self> {
        let checkpoint = Checkpoint::open(files, options, cancel)?;
        let mut loaded = LoadedModel::load(&checkpoint, files, options, None, cancel)?;
        let head = if checkpoint.is_language_model()? {
            loaded.optional_head(&checkpoint, HeadKind::Sequence)?
        } else {
            Some(loaded.head(&checkpoint, HeadKind::Sequence)?)
        };
        let Some(head) = head else {
            return Self::with_question(&checkpoint, loaded, files);
        };
        if head.outputs() != 1 {
            return Err(Error::UnsupportedModel(format!(
                "{} gives {} scores per text, and a reranker gives one: load it with Classifier instead",
                files.id(),
                head.outputs()
            )));
        }
        Ok(Self {
            model: SequenceModel { loaded, head },
            question: None,
        })
    }

    /// A language model whose answer is read off its preference of "yes" over "no".
    fn with_question(
        checkpoint: &Checkpoint,
        mut loaded: LoadedModel,
        files: &ModelFiles,
    ) -> Result<Self> {
        let id = |token: &str| {
            loaded.tokenizer.token_to_id(token).ok_or_else(|| {
                Error::UnsupportedModel(format!(
                    "{} has no token {token:?}, which a reranking language model answers with",
                    files.id()
                ))
            })
        };
        let head = loaded.body.yes_or_no(
            &checkpoint.blueprint()?,
            checkpoint.source.as_ref(),
            [id("yes")?, id("no")?],
        )?;
        head.list(&mut loaded.info.inventory)?;
        let question = Question {
            before: loaded.tokenizer.ids(QUESTION_BEFORE, false)?,
            after: loaded.tokenizer.ids(QUESTION_AFTER, false)?,
        };
        if question.before.len() + question.after.len() >= loaded.max_length {
            return Err(Error::InvalidInput(format!(
                "a maximum length of {} tokens has no room for the prompt of this reranker: allow more",
                loaded.max_length
            )));
        }
        Ok(Self {
            model: SequenceModel { loaded, head },
            question: Some(question),
        })
    }

    pub fn info(&self) -> &ModelInfo {
        &self.model.loaded.info
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.model.loaded.tokenizer
    }

    /// What it counts of its calls, by name.
    pub fn stats(&self) -> Vec<(&'static str, Reading)> {
        self.model.loaded.batcher.stats.read()
    }

    /// The most tokens of query and document together that are read.
    pub fn max_length(&self) -> usize {
        self.model.loaded.max_length
    }

    /// One raw logit per document, in the order of the documents. Where both do not fit, the document
    /// is cut, and the query only if it alone is too long.
    pub fn score<T: AsRef<str> + Sync>(
        &self,
        query: &str,
        documents: &[T],
        options: &RerankOptions,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let pooling = options.pooling.pooling();
        let Some(question) = &self.question else {
            let pairs: Vec<Input<'_>> = documents
                .iter()
                .map(|document| Input::Pair(query, document.as_ref()))
                .collect();
            return self
                .model
                .logits(&pairs, Excess::Cut, pooling, options.batch_tokens, cancel);
        };
        let tokens = threads::map(documents, |_, document| {
            self.ask(question, query, document.as_ref(), cancel)
        })?;
        self.model
            .logits_of_tokens(&tokens, pooling, options.batch_tokens, cancel)
    }

    /// What the model reads for a query and a document: ids, and the part each belongs to.
    pub fn tokens(
        &self,
        query: &str,
        document: &str,
        cancel: &CancelToken,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let tokens = match &self.question {
            Some(question) => vec![self.ask(question, query, document, cancel)?],
            None => batching::tokenize(
                self.tokenizer(),
                &[Input::Pair(query, document)],
                self.max_length(),
                Excess::Cut,
                cancel,
            )?,
        };
        let read = tokens.into_iter().next();
        Ok(read.map_or_else(Default::default, |tokens| (tokens.ids, tokens.type_ids)))
    }

    fn ask(
        &self,
        question: &Question,
        query: &str,
        document: &str,
        cancel: &CancelToken,
    ) -> Result<Tokens> {
        let tokenizer = &self.model.loaded.tokenizer;
        let room = self.max_length() - question.before.len() - question.after.len();
        let document = batching::shorten_text(tokenizer, document, room, cancel)?;
        let text = format!("<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}");
        let encoding = tokenizer.encode(&text, false, Detail::Ids, cancel)?;
        let asked = &encoding.get_ids()[..encoding.len().min(room)];
        let ids = [question.before.as_slice(), asked, &question.after].concat();
        Ok(Tokens {
            type_ids: vec![0; ids.len()],
            ids,
        })
    }
}
