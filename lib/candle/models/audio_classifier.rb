# frozen_string_literal: true

Candle::Native.complete(:AudioClassifier)

module Candle
  # Labels for audio, by wav2vec 2.0, HuBERT, WavLM or wav2vec2-bert with a classifier on top: commands, emotions,
  # languages, speakers.
  #
  # @example
  #   classifier = Candle::AudioClassifier.from_pretrained("spec/fixtures/tiny/speech/wav2vec2-classifier")
  #   classifier.classify("spec/fixtures/audio/tones.wav", top_k: 1).first.keys # => [:label, :score]
  class AudioClassifier
    include Model
    extend ImageLoading

    # A second of silence at 16 kHz.
    SILENCE = ("\0" * 64_000).b.freeze
    private_constant :SILENCE

    # @param input [String, Pathname, IO, Audio, Array] an audio or several, as {Transcriber#transcribe} takes them
    # @param top_k [Integer, nil] how many labels to return; nil is all
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @return [Array<Hash>, Array<Array<Hash>>] `{label:, score:}`, best first: softmax over the labels, or a sigmoid of
    #   each where an audio may have several. One list for an audio, one per audio for an Array
    # @raise [InvalidInputError] for what isn't audio, naming its index
    def classify(input, top_k: nil, sample_rate: nil)
      audios, single = Audio.inputs(input, sample_rate: sample_rate)
      top_k = Arguments.count(top_k, "top_k")
      lists = _classify(audios).map { |row| Arguments.ranked(labels, row, top_k) }
      single ? lists.first : lists
    end

    # @return [Array<String>] in the order of the model's outputs
    def labels
      looked_up(:labels) { _labels.freeze }
    end

    # @return [Integer] the rate of the audio that it reads; other audio is resampled
    def sample_rate
      looked_up(:sample_rate) { _sample_rate }
    end

    private

    def smoke_test
      classify(SILENCE, sample_rate: 16_000)
    end
  end
end
