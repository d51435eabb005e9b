# frozen_string_literal: true

Candle::Native.complete(:AudioEmbeddingModel)
# Its native half makes them.
require "candle/tensor"

module Candle
  # Audio to vectors: by wav2vec 2.0, HuBERT, WavLM or wav2vec2-bert as the mean of the encoder's states, by an audio
  # spectrogram transformer as its pooled state, by CLAP in one space with texts. Checkpoints that were trained to tell
  # voices apart (`ForXVector`) give the vectors that they compare.
  #
  # @example
  #   model = Candle::AudioEmbeddingModel.from_pretrained("spec/fixtures/tiny/speech/hubert-embedding")
  #   model.embed("spec/fixtures/audio/tones.wav").size # => 16
  class AudioEmbeddingModel
    include Model
    extend ImageLoading

    FORMS = %i[array tensor packed int8 binary].freeze
    # A second of silence at 16 kHz.
    SILENCE = ("\0" * 64_000).b.freeze
    private_constant :FORMS, :SILENCE

    # @example
    #   model = Candle::AudioEmbeddingModel.from_pretrained("spec/fixtures/tiny/speech/hubert-embedding")
    #   audios = ["spec/fixtures/audio/tones.wav", "spec/fixtures/audio/short.flac"]
    #   model.embed(audios, as: :tensor).shape # => [2, 16]
    #
    # @param input [String, Pathname, IO, Audio, Array] an audio or several, as {Transcriber#transcribe} takes them
    # @param normalize [Boolean] whether vectors get length 1
    # @param as [Symbol] as {EmbeddingModel#embed} takes it
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @param progress [Boolean, #call] true shows a bar on a terminal; a Proc gets `(done, total)`
    # @return [Array<Float>, Array<Array<Float>>, Tensor, String, Array<String>] one vector for an audio, one per audio
    #   for an Array
    # @raise [InvalidInputError] for what isn't audio, naming its index
    def embed(input, normalize: true, as: :array, sample_rate: nil, progress: false)
      audios, single = Audio.inputs(input, sample_rate: sample_rate)
      form = Arguments.choice(as, "as", FORMS)
      vectors = _embed(audios, normalize ? true : false, form.to_s, Progress.for(progress))
      single && form != :tensor ? vectors.first : vectors
    end

    # Texts to vectors of the same space, by CLAP.
    #
    # @example
    #   model = Candle::AudioEmbeddingModel.from_pretrained("spec/fixtures/tiny/speech/clap")
    #   model.embed_text(["a dog", "rain"], as: :tensor).shape # => [2, 8]
    #
    # @param input [String, Array<String>] cut at the model's length
    # @param normalize [Boolean] whether vectors get length 1
    # @param as [Symbol] as {EmbeddingModel#embed} takes it
    # @return [Array<Float>, Array<Array<Float>>, Tensor, String, Array<String>] one vector for a String, one per text
    #   for an Array
    # @raise [InvalidInputError] for what isn't a text, naming its index, and for a model that reads audio alone
    def embed_text(input, normalize: true, as: :array)
      texts, single = Arguments.texts(input)
      form = Arguments.choice(as, "as", FORMS)
      vectors = _embed_texts(texts, normalize ? true : false, form.to_s)
      single && form != :tensor ? vectors.first : vectors
    end

    # Judges which text fits an audio, by CLAP.
    #
    # @example
    #   model = Candle::AudioEmbeddingModel.from_pretrained("spec/fixtures/tiny/speech/clap")
    #   found = model.classify_audio("spec/fixtures/audio/tones.wav", %w[dog rain])
    #   found.sum { |entry| entry[:score] }.round(5) # => 1.0
    #
    # @param input [String, Pathname, IO, Audio, Array] an audio or several, as {#embed} takes them
    # @param labels [Array<String>]
    # @param template [String] with `{}` where the label goes
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:}`, best first: softmax over the labels. One list for an
    #   audio, one per audio for an Array
    # @raise [InvalidInputError] for no labels, for a template without `{}`, and for a model that reads audio alone
    def classify_audio(input, labels, template: "This is a sound of {}.", sample_rate: nil)
      audios, single = Audio.inputs(input, sample_rate: sample_rate)
      labels = TextInput.utf8_all(TextInput.text?(labels) ? [labels] : labels, "labels")
      rows = _match_texts(audios, Arguments.filled(labels, TextInput.utf8(template, "template"), "template"))
      lists = rows.map { |row| Arguments.ranked(labels, row) }
      single ? lists.first : lists
    end

    # @return [Integer] how many components a vector has
    def dimension
      model_info.fetch(:hidden_size)
    end

    # @return [Integer] the rate of the audio that it reads; other audio is resampled
    def sample_rate
      looked_up(:sample_rate) { _sample_rate }
    end

    private

    def smoke_test
      embed(SILENCE, sample_rate: 16_000)
    end
  end
end
