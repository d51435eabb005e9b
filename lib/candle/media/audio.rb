# frozen_string_literal: true

require "pathname"

Candle::Native.complete(:Audio)

module Candle
  # Decoded audio, mixed down to one channel: WAV (PCM, float, ADPCM), FLAC, MP3, OGG with Vorbis, M4A with AAC, WebM
  # and MKV with Vorbis or AAC. Methods that take audio decode it themselves; audio that goes to several of them is
  # decoded once this way. The samples stay outside of Ruby's memory.
  #
  # Nothing is decoded beyond {max_seconds} and {max_bytes}. Nothing is fetched either: an address is refused.
  #
  # @example
  #   audio = Candle::Audio.open(Array.new(8000) { |i| Math.sin(i / 10.0) }, sample_rate: 8000)
  #   audio.duration # => 1.0
  #   audio.resample(16_000).samples.shape # => [16000]
  class Audio
    include Uncopyable

    # The forms that {#samples} gives.
    FORMS = %i[tensor array packed].freeze
    private_constant :FORMS

    extend EncodedInput

    class << self
      # @param source [String, Pathname, IO, Audio, Array<Numeric>] a path, the bytes of a file, what they can be read
      #   from, or samples between -1 and 1: an Array, or a String as `pack("e*")` makes it
      # @param sample_rate [Integer, nil] of samples, in Hz; with it a String is packed samples
      # @param channels [Integer] of samples, which are interleaved where there are several
      # @return [Audio]
      # @raise [InvalidInputError] for what can't be read, and beyond the limits
      def open(source, sample_rate: nil, channels: 1)
        return source if Audio === source

        found = input(source, sample_rate: sample_rate, channels: channels)
        Audio === found ? found : _decode(found)
      end

      # @return [Integer] the most seconds that audio may last; six hours unless set
      def max_seconds
        _limits.last
      end

      # @param count [Integer]
      # @raise [ArgumentError] for anything but a positive Integer
      def max_seconds=(count)
        send(:_limits=, max_bytes, limit(count, "max_seconds"))
      end

      # @return [Integer] the most bytes that encoded audio may have; 2 GiB unless set
      def max_bytes
        _limits.first
      end

      # @param count [Integer]
      # @raise [ArgumentError] for anything but a positive Integer
      def max_bytes=(count)
        send(:_limits=, limit(count, "max_bytes"), max_seconds)
      end

      # One audio or several, as the native code takes them.
      #
      # @api private
      # @return [Array(Array, Boolean)] the audios, and whether a single one was given
      def inputs(audios, sample_rate: nil)
        return [[input(audios, sample_rate: sample_rate)], true] unless list?(audios)

        [audios.each_with_index.map { |audio, at| input(audio, "audios[#{at}]", sample_rate: sample_rate) }, false]
      end

      private

      # An Array of numbers is one audio.
      def list?(audios)
        Array === audios && !(Numeric === audios.first)
      end

      def input(audio, name = "audio", sample_rate: nil, channels: 1)
        raise InvalidInputError, "#{name} must be audio, not #{Arguments.shown(audio)}" unless Object === audio
        return audio if audio.is_a?(Audio)
        return samples_of(audio, name, sample_rate, channels) if audio.is_a?(Array)
        return [:bytes, read(audio, name)] if audio.respond_to?(:read) && !audio.is_a?(Pathname)

        audio = audio.to_path if audio.respond_to?(:to_path)
        unless audio.respond_to?(:to_str)
          raise InvalidInputError, "#{name} must be a path, the bytes of a file, an IO, samples or a Candle::Audio, " \
                                   "not a #{audio.class}"
        end

        string(TextInput.string_of(audio, name), name, sample_rate, channels)
      end

      def string(audio, name, sample_rate, channels)
        packed = sample_rate && !_encoded(audio) && !file?(audio)
        return _from_samples(audio, rate(sample_rate), channels) if packed

        bytes_or_file(audio, name)
      end

      def file?(string)
        !string.b.include?("\0") && string.bytesize < 4096 && File.file?(string)
      end

      def samples_of(samples, name, sample_rate, channels)
        unless sample_rate
          raise InvalidInputError, "#{name} is an Array of samples, and their rate is missing: give sample_rate:"
        end
        if (at = samples.index { |sample| !(Numeric === sample) })
          raise InvalidInputError, "#{name}[#{at}] must be a number, not #{Arguments.shown(samples[at])}"
        end

        _from_samples(samples.pack("e*"), rate(sample_rate), Arguments.count(channels, "channels") || 1)
      end

      def rate(value)
        Arguments.count(value, "sample_rate")
      end
    end

    # @!method sample_rate
    #   @return [Integer] samples per second

    # @!method channels
    #   @return [Integer] how many channels the source had; the samples are their mean

    # @!method duration
    #   @return [Float] in seconds

    # @param as [Symbol] `:tensor`, `:array`, or `:packed` for little-endian 32-bit floats
    # @return [Tensor, Array<Float>, String] of one channel, between -1 and 1
    # @raise [ArgumentError] for an unknown form
    def samples(as: :tensor)
      case Arguments.choice(as, "as", FORMS)
      when :tensor then _tensor
      when :array then _packed.unpack("e*")
      else _packed
      end
    end

    # The same audio at another rate, by a windowed sinc filter.
    #
    # @param rate [Integer] in Hz
    # @return [Audio]
    # @raise [ArgumentError] for anything but a positive Integer
    def resample(rate)
      _resampled(Arguments.count(rate, "rate") || raise(ArgumentError, "rate must be a positive Integer, not nil"))
    end

    # A part of it.
    #
    # @example
    #   audio = Candle::Audio.open("spec/fixtures/audio/tones.wav")
    #   audio.slice(0.2, 0.5).duration.round(3) # => 0.3
    #
    # @param from [Numeric] in seconds
    # @param to [Numeric] in seconds
    # @return [Audio]
    # @raise [ArgumentError] for what isn't a number
    def slice(from, to)
      _slice(Arguments.float(from, "from"), Arguments.float(to, "to"))
    end

    # @return [String] one line
    def inspect
      format("#<%<class>s %<duration>.2f s at %<rate>d Hz>", class: self.class, duration: duration, rate: sample_rate)
    end

    alias to_s inspect
  end
end
