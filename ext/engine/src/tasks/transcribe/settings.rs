//! How audio is transcribed, and what comes of it.

/// What a model writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Transcribe,
    /// Into English.
    Translate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    None,
    Segments,
    Words,
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub struct TranscribeSettings {
    /// `None` is detected.
    pub language: Option<String>,
    pub task: Task,
    pub timestamps: Timestamps,
    /// Whether short audio is written with tokens for times too, as long audio is.
    pub timestamp_tokens: bool,
    /// Text before the audio's, whose spelling the model follows.
    pub initial_prompt: Option<String>,
    /// Words that are likely to be spoken, which every window is shown.
    pub hotwords: Option<String>,
    /// Tokens that are not written, beside those of the checkpoint.
    pub suppress_tokens: Vec<u32>,
    /// Words and phrases that texts are made of alone; any where there are none.
    pub vocabulary: Vec<String>,
    /// One after the other, until a window is good enough; `None`: 0, and more for long audio.
    pub temperatures: Option<Vec<f32>>,
    pub compression_ratio_threshold: Option<f32>,
    pub logprob_threshold: Option<f32>,
    pub no_speech_threshold: Option<f32>,
    /// Whether windows of long audio read the text before them.
    pub condition_on_previous_text: bool,
    /// Tokens of a window.
    pub max_new_tokens: Option<usize>,
    /// Texts that are followed at once, at a temperature of 0; `None`: what the checkpoint says.
    pub num_beams: Option<usize>,
    pub seed: u64,
}

impl Default for TranscribeSettings {
    fn default() -> Self {
        Self {
            language: None,
            task: Task::Transcribe,
            timestamps: Timestamps::Segments,
            timestamp_tokens: false,
            initial_prompt: None,
            hotwords: None,
            suppress_tokens: Vec::new(),
            vocabulary: Vec::new(),
            temperatures: None,
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            condition_on_previous_text: true,
            max_new_tokens: None,
            num_beams: None,
            seed: 0,
        }
    }
}

/// A part of an audio and its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// In seconds.
    pub start: f64,
    pub end: f64,
    pub text: String,
    pub tokens: Vec<u32>,
    /// Of the window that it stands in.
    pub avg_logprob: f32,
    pub no_speech_prob: f32,
    pub temperature: f32,
    pub words: Vec<Word>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    pub start: f64,
    pub end: f64,
    pub text: String,
    pub probability: f32,
}

/// What has become of an audio.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    pub text: String,
    /// `None` where the model does not say.
    pub language: Option<String>,
    /// In seconds.
    pub duration: f64,
    pub segments: Vec<Segment>,
    pub token_ids: Vec<u32>,
}
