# frozen_string_literal: true

require "json"

module Candle
  # What was spoken, with all that is known of it. Frozen.
  class Transcription
    # @return [String] all segments
    attr_reader :text
    # @return [String, nil] the code of the language, such as `"en"`; nil for models that know only one
    attr_reader :language
    # @return [Float] of the audio, in seconds
    attr_reader :duration
    # @return [Array<Hash>] `{start:, end:, text:, tokens:, avg_logprob:, no_speech_prob:, temperature:, words:}`, times
    #   in seconds; `words` are `{start:, end:, text:, probability:}` where they were asked for
    attr_reader :segments
    # @return [Array<Integer>] the tokens of all segments, without those of the prompt and the one that ends a window;
    #   of a CTC model the labels, blanks and repetitions removed
    attr_reader :token_ids

    # @api private
    def initialize(outcome)
      @text = outcome.fetch(:text).freeze
      @language = outcome.fetch(:language)&.freeze
      @duration = outcome.fetch(:duration)
      @segments = outcome.fetch(:segments).each(&:freeze).freeze
      @token_ids = outcome.fetch(:token_ids).freeze
      freeze
    end

    # @return [Array<Hash>] the words of all segments
    def words
      segments.flat_map { |segment| segment[:words] }
    end

    # @return [String] the text
    def to_s
      text
    end

    # @return [Hash]
    def to_h
      { text: text, language: language, duration: duration, segments: segments, token_ids: token_ids }
    end

    # For pattern matching.
    #
    # @param _names [Array<Symbol>, nil]
    # @return [Hash]
    def deconstruct_keys(_names)
      to_h
    end

    # @return [String] all that {#to_h} has, as JSON
    def to_json(*state)
      to_h.to_json(*state)
    end

    # @return [String] subtitles in the SubRip format
    def to_srt
      segments.each_with_index.map do |segment, index|
        "#{index + 1}\n#{span(segment, ",")}\n#{segment[:text].strip}\n"
      end.join("\n")
    end

    # @return [String] subtitles in the WebVTT format
    def to_vtt
      cues = segments.map { |segment| "#{span(segment, ".")}\n#{segment[:text].strip.gsub("-->", "->")}\n" }
      ["WEBVTT\n", *cues].join("\n")
    end

    # @param other [Object]
    # @return [Boolean] whether the same was written
    def ==(other)
      other.is_a?(Transcription) && to_h == other.to_h
    end

    # @return [String] one line
    def inspect
      "#<#{self.class} #{duration.round(2)} s#{" #{language}" if language} #{text.inspect}>"
    end

    private

    def span(segment, mark)
      "#{clock(segment[:start], mark)} --> #{clock(segment[:end], mark)}"
    end

    def clock(seconds, mark)
      rest, milliseconds = (seconds * 1000).round.divmod(1000)
      rest, seconds = rest.divmod(60)
      hours, minutes = rest.divmod(60)
      Kernel.format("%<h>02d:%<m>02d:%<s>02d%<mark>s%<ms>03d", h: hours, m: minutes, s: seconds, mark: mark,
                                                               ms: milliseconds)
    end
  end
end
