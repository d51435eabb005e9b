# frozen_string_literal: true

Candle::Native.complete(:Transcriber)

module Candle
  # Speech to text: Whisper in all sizes, and CTC models (wav2vec 2.0, HuBERT, WavLM, wav2vec2-bert, Parakeet).
  #
  # @example
  #   model = Candle::Transcriber.from_pretrained("spec/fixtures/tiny/speech/whisper")
  #   result = model.transcribe("spec/fixtures/audio/tones.wav", language: "en")
  #   result.duration # => 0.8
  #   result.language # => "en"
  class Transcriber
    include Model

    # Audio under way.
    #
    # @api private
    class Run
      # @!method step
      #   Computes the next window of each audio.
      #   @return [Array<Array>, nil] pairs of an audio's index and its new segments; nil once all are over

      # @!method outcomes
      #   @return [Array<Hash>] what has become of each audio: `text language duration segments token_ids`

      # @!method release
      #   Ends the run.
      #   @return [void]

      # Only a model begins a run.
      private_class_method :new
    end

    # What a call may say beside its own keywords, and what counts where it does not.
    OPTIONS = { initial_prompt: nil, temperature: nil, compression_ratio_threshold: 2.4, logprob_threshold: -1.0,
                no_speech_threshold: 0.6, condition_on_previous_text: true, max_new_tokens: nil, seed: nil }.freeze
    TASKS = %i[transcribe translate].freeze
    TIMESTAMPS = %i[segment word].freeze
    # A second of silence at 16 kHz.
    SILENCE = ("\0" * 64_000).b.freeze
    private_constant :OPTIONS, :TASKS, :TIMESTAMPS, :SILENCE

    # Writes what is spoken.
    #
    # Audio of at most one window (30 seconds) is decoded as transformers' `generate` does with its defaults: without
    # tokens for times, greedily. Longer audio goes window by window with tokens for times, at rising temperatures where
    # a window comes out repetitive or unlikely, as openai-whisper does.
    #
    # @param audio [String, Pathname, IO, Audio, Array] a path, the bytes of a file, what they can be read from, an
    #   {Audio}, samples with `sample_rate:`, or an Array of these
    # @param language [String, Symbol, nil] a code or an English name; nil detects it. CTC models take no notice
    # @param task [Symbol] `:transcribe`, or `:translate` for English text
    # @param timestamps [Symbol, false] `:segment`, `:word` for times of words too, or false
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @param options [Hash] `initial_prompt:` text whose spelling is followed; `temperature:` a number or an Array of
    #   those to try; `compression_ratio_threshold:`, `logprob_threshold:` and `no_speech_threshold:` of long audio, nil
    #   for none; `condition_on_previous_text:`; `max_new_tokens:` of a window; `seed:`
    # @yieldparam segment [Hash] as in {Transcription#segments}, as soon as it is written
    # @return [Transcription, Array<Transcription>] one for an audio, one per audio for an Array
    # @raise [InvalidInputError] for what isn't audio, and for a language that the model does not know
    # @raise [ArgumentError] for an unknown option or an impossible value, and for a block with several audios
    def transcribe(audio, language: nil, task: :transcribe, timestamps: :segment, sample_rate: nil, **options,
                   &block)
      audios, single = Audio.inputs(audio, sample_rate: sample_rate)
      raise ArgumentError, "a block takes the segments of a single audio" if block && !single

      run = _begin(audios, settings(language, task, timestamps, options))
      while (found = run.step)
        found.each { |_, segments| segments.each(&block) } if block
      end
      results = run.outcomes.map { |outcome| Transcription.new(outcome) }
      single ? results.first : results
    ensure
      run&.release
    end

    # @param audio [String, Pathname, IO, Audio, Array] as {#transcribe} takes it; its first window is heard
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @return [String] the code of the likeliest language
    # @raise [InvalidInputError] for a model that does not tell languages
    def detect_language(audio, sample_rate: nil)
      audios, = Audio.inputs(audio, sample_rate: sample_rate)
      _detect_language(audios.first).first
    end

    # What the model reads of an audio: log-mel bands for Whisper, normalized samples for wav2vec 2.0.
    #
    # @param audio [String, Pathname, IO, Audio, Array] as {#transcribe} takes it
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @return [Tensor] `[frames, numbers of a frame]`
    def features(audio, sample_rate: nil)
      audios, = Audio.inputs(audio, sample_rate: sample_rate)
      _features(audios.first)
    end

    # @return [Array<String>] the codes of the languages that it has tokens for
    def languages
      looked_up(:languages) { _languages.freeze }
    end

    # @return [Integer] the rate of the audio that it reads; other audio is resampled
    def sample_rate
      looked_up(:sample_rate) { _sample_rate }
    end

    private

    def settings(language, task, timestamps, options)
      Hints.refuse(options.except(*OPTIONS.keys), OPTIONS.keys) unless (options.keys - OPTIONS.keys).empty?

      given = OPTIONS.merge(options)
      { language: language && Arguments.label(language, "language"),
        task: Arguments.choice(task, "task", TASKS).to_s,
        timestamps: timestamps ? Arguments.choice(timestamps, "timestamps", TIMESTAMPS).to_s : nil,
        initial_prompt: given[:initial_prompt] && TextInput.utf8(given[:initial_prompt], "initial_prompt"),
        temperatures: temperatures(given[:temperature]), **thresholds(given),
        condition_on_previous_text: given[:condition_on_previous_text] ? true : false,
        max_new_tokens: Arguments.count(given[:max_new_tokens], "max_new_tokens"),
        seed: given[:seed] && Arguments.integer(given[:seed], "seed") }
    end

    def thresholds(given)
      %i[compression_ratio_threshold logprob_threshold no_speech_threshold].to_h do |name|
        [name, given[name] && Arguments.float(given[name], name.to_s)]
      end
    end

    def temperatures(value)
      return if NilClass === value

      given = Arguments.list(value)
      (Array === given ? given : [given]).map do |temperature|
        number = Arguments.float(temperature, "temperature")
        raise ArgumentError, "temperature must be between 0 and 2, not #{number}" unless number.between?(0, 2)

        number
      end
    end

    def prove
      transcribe(SILENCE, sample_rate: 16_000, max_new_tokens: 1, timestamps: false)
    end
  end
end
