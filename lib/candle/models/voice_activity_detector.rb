# frozen_string_literal: true

Candle::Native.complete(:VoiceActivityDetector)

module Candle
  # Finds speech, by Silero's detector: a directory with `silero_vad_16k.safetensors`, as the Python
  # package silero-vad has it, or with the same weights as `model.safetensors`.
  #
  # @example
  #   detector = Candle::VoiceActivityDetector.from_pretrained("spec/fixtures/tiny/speech/silero")
  #   detector.probabilities("spec/fixtures/audio/tones.wav").size # => 400
  class VoiceActivityDetector
    include Model
    extend ImageLoading

    # Speech that begins and ends while probabilities come in.
    #
    # @api private
    class Speeches
      # Speech begins at `begins` and ends below `ends`; `speech` and `silence` are the least of each, in samples.
      def initialize(begins, ends, speech, silence)
        @begins = begins
        @ends = ends
        @speech = speech
        @silence = silence
        @found = []
      end

      # @param sample [Integer] the first one that the probability is about
      # @param probability [Float]
      # @return [void]
      def hear(sample, probability)
        if probability >= @begins
          @quiet = nil
          @from ||= sample
        elsif @from && probability < @ends
          @quiet ||= sample
          close(@quiet) if sample - @quiet >= @silence
        end
      end

      # @param length [Integer] of the audio, in samples
      # @return [Array<Array(Integer, Integer)>] first sample of each speech, and the one after its last
      def finish(length)
        close(length) if @from
        @found
      end

      private

      def close(sample)
        @found << [@from, sample] if sample - @from > @speech
        @from = @quiet = nil
      end
    end
    private_constant :Speeches

    # A second of silence at 16 kHz.
    SILENCE = ("\0" * 64_000).b.freeze
    # How far below the threshold speech may fall before it ends, and the least that it ends at.
    HYSTERESIS = 0.15
    LEAST = 0.01
    private_constant :SILENCE, :HYSTERESIS, :LEAST

    # @param audio [String, Pathname, IO, Audio, Array] one audio, as {Transcriber#transcribe} takes it
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @return [Array<Float>] the probability of speech, one number for each {#step}
    # @raise [InvalidInputError] for what isn't audio
    def probabilities(audio, sample_rate: nil)
      _probabilities(one(audio, sample_rate)).first
    end

    # Speech begins where it is as likely as `threshold:`, and ends where it stays less likely than that by 0.15 for
    # `min_silence:`.
    #
    # @param audio [String, Pathname, IO, Audio, Array] one audio, as {Transcriber#transcribe} takes it
    # @param threshold [Float] between 0 and 1
    # @param min_speech [Float] shorter speech is left out, in seconds
    # @param min_silence [Float] shorter silence is a part of speech, in seconds
    # @param padding [Float] what is added before and after, in seconds
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @return [Array<Hash>] `{start:, end:}` in seconds
    # @raise [InvalidInputError] for what isn't audio
    def detect(audio, threshold: 0.5, min_speech: 0.25, min_silence: 0.1, padding: 0.03, sample_rate: nil)
      threshold = Arguments.float(threshold, "threshold")
      raise ArgumentError, "threshold must be between 0 and 1, not #{threshold}" unless threshold.between?(0, 1)

      limits = { "min_speech" => min_speech, "min_silence" => min_silence, "padding" => padding }
      speech, silence, padding = limits.map { |name, seconds| (seconds(seconds, name) * self.sample_rate) }
      found, duration = _probabilities(one(audio, sample_rate))
      length = (duration * self.sample_rate).round
      spans = padded(spans(found, threshold, [speech, silence], length), padding, length)
      spans.map { |from, to| { start: from.to_f / self.sample_rate, end: to.to_f / self.sample_rate } }
    end

    # @return [Float] how many seconds one of {#probabilities} stands for
    def step
      looked_up(:step) { _step }.to_f / sample_rate
    end

    # @return [Integer] the rate of the audio that it reads; other audio is resampled
    def sample_rate
      looked_up(:sample_rate) { _sample_rate }
    end

    private

    def one(audio, sample_rate)
      audios, single = Audio.inputs(audio, sample_rate: sample_rate)
      raise InvalidInputError, "expected one audio, not a list of #{audios.size}" unless single

      audios.first
    end

    def seconds(value, name)
      number = Arguments.float(value, name)
      return number if number >= 0 && number.finite?

      raise ArgumentError, "#{name} must be a number of seconds, not #{number}"
    end

    # @return [Array<Array(Integer, Integer)>] first sample of each speech, and the one after its last
    def spans(probabilities, threshold, (speech, silence), length)
      speeches = Speeches.new(threshold, [threshold - HYSTERESIS, LEAST].max, speech, silence)
      samples = looked_up(:step) { _step }
      probabilities.each_with_index { |probability, number| speeches.hear(number * samples, probability) }
      speeches.finish(length)
    end

    # Neighbours share what lies between them where that is short.
    def padded(spans, padding, length)
      spans.each_cons(2) do |before, after|
        gap = after[0] - before[1]
        room = gap < 2 * padding ? gap / 2 : padding.to_i
        before[1] += room
        after[0] -= room
      end
      return spans if spans.empty?

      spans.first[0] = [spans.first[0] - padding, 0].max.to_i
      spans.last[1] = [spans.last[1] + padding, length].min.to_i
      spans
    end

    def smoke_test
      probabilities(SILENCE, sample_rate: 16_000)
    end
  end
end
