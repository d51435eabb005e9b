# frozen_string_literal: true

Candle::Native.complete(:AudioEmbeddingModel)
# Its native half makes them.
require "candle/tensor"

module Candle
  # Audio to vectors, by wav2vec 2.0, HuBERT, WavLM or wav2vec2-bert: the mean of the encoder's states.
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

    # @return [Integer] how many components a vector has
    def dimension
      model_info.fetch(:hidden_size)
    end

    # @return [Integer] the rate of the audio that it reads; other audio is resampled
    def sample_rate
      looked_up(:sample_rate) { _sample_rate }
    end

    private

    def prove
      embed(SILENCE, sample_rate: 16_000)
    end
  end
end
