# frozen_string_literal: true

Candle::Native.complete(:Transcriber)

module Candle
  # Speech to text: Whisper in all sizes, Moonshine, and CTC models (wav2vec 2.0, HuBERT, WavLM, wav2vec2-bert,
  # Parakeet).
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

      # @!method position
      #   @return [Array(Float, Float)] how many seconds are written, and of how many

      # @!method release
      #   Ends the run.
      #   @return [void]

      # Only a model begins a run.
      private_class_method :new
    end

    # What a call may say beside its own keywords, and what counts where it does not.
    OPTIONS = { timestamp_tokens: false, initial_prompt: nil, hotwords: nil, vocabulary: nil, suppress_tokens: nil,
                temperature: nil, compression_ratio_threshold: 2.4, logprob_threshold: -1.0, no_speech_threshold: 0.6,
                condition_on_previous_text: true, max_new_tokens: nil, num_beams: nil, seed: nil }.freeze
    # Seconds of what is spoken together, with `vad:`.
    LONGEST = 30.0
    MOST_BEAMS = 64
    TASKS = %i[transcribe translate].freeze
    TIMESTAMPS = %i[segment word].freeze
    # A second of silence at 16 kHz.
    SILENCE = ("\0" * 64_000).b.freeze
    private_constant :OPTIONS, :LONGEST, :MOST_BEAMS, :TASKS, :TIMESTAMPS, :SILENCE

    class << self
      # @param source [String, Pathname] a Hugging Face id, a directory, or a file of OpenAI's (`tiny.en.pt`) or of
      #   whisper.cpp (`ggml-base.bin`)
      # @param positional_device [Device, String, nil] the same as `device:`
      # @param device [Device, String, Symbol, nil] nil is the best one
      # @param dtype [Symbol, nil] `:f32`, `:f16`, `:bf16`, or on the CPU `:int8`; nil is f32 on the CPU and the
      #   checkpoint's on a GPU
      # @param tokenizer [Tokenizer, String, nil] instead of the model's own
      # @param max_length [Integer, nil] as for other models
      # @param gguf_file [String, nil] which file of a repository with several, such as `ggml-base-q5_1.bin`
      # @param revision [String, nil] a branch, tag or commit of the hub
      # @param verify [Boolean, nil] whether to compare the device with the CPU first; nil does so on GPUs
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @return [Transcriber]
      # @raise [ModelNotFoundError, DownloadError, OfflineError] when it can't be found or fetched
      # @raise [CorruptModelError, UnsupportedModelError] when it can't be read, with the reason
      # @raise [TokenizerError] when nothing holds its vocabulary
      # @raise [ArgumentError] for an unknown keyword
      def from_pretrained(source, positional_device = nil, device: nil, dtype: nil, tokenizer: nil, max_length: nil,
                          gguf_file: nil, revision: nil, verify: nil, token: nil, cache_dir: nil, **unknown)
        refuse(unknown)
        load_model(source, device: device || positional_device, dtype: dtype, tokenizer: tokenizer,
                           max_length: Arguments.count(max_length, "max_length"), gguf_file: gguf_file,
                           revision: revision, verify: verify, token: token, cache_dir: cache_dir)
      end
    end

    # Writes what is spoken.
    #
    # Audio of at most one window (30 seconds) is decoded as transformers' `generate` does with its defaults: without
    # tokens for times, greedily, and becomes one segment. `timestamp_tokens: true` decodes it with tokens for times, as
    # openai-whisper does: its segments then have times of their own. Longer audio goes window by window with tokens for
    # times, at rising temperatures where a window comes out repetitive or unlikely, as openai-whisper does.
    #
    # @param audio [String, Pathname, IO, Audio, Array] a path, the bytes of a file, what they can be read from, an
    #   {Audio}, samples with `sample_rate:`, or an Array of these
    # @param language [String, Symbol, nil] a code or an English name; nil detects it. CTC models take no notice,
    #   Moonshine takes none but English
    # @param task [Symbol] `:transcribe`, or `:translate` for English text
    # @param timestamps [Symbol, false] `:segment`, `:word` for times of words too, or false
    # @param sample_rate [Integer, nil] of samples, in Hz
    # @param vad [VoiceActivityDetector, nil] finds speech: only that is transcribed, in parts of at most 30
    #   seconds that are computed together
    # @param progress [Boolean, #call] true shows a bar on a terminal; a Proc gets `(done, total)` in seconds of audio
    # @param options [Hash] `timestamp_tokens:` see above; `initial_prompt:` text whose spelling is followed;
    #   `hotwords:` text that every window is shown, with names that are likely to be spoken; `vocabulary:` an Array of
    #   words and phrases of which alone a text is made, with a space between them; `suppress_tokens:` ids that are not
    #   written; `temperature:` a number or an Array of those to try; `compression_ratio_threshold:`,
    #   `logprob_threshold:` and `no_speech_threshold:` of long audio, nil for none; `condition_on_previous_text:`;
    #   `max_new_tokens:` of a window; `num_beams:` texts that are followed at once where the temperature is 0, nil for
    #   the checkpoint's number; `seed:`
    # @yieldparam segment [Hash] as in {Transcription#segments}, as soon as it is written; with `vad:` at the end
    # @return [Transcription, Array<Transcription>] one for an audio, one per audio for an Array
    # @raise [InvalidInputError] for what isn't audio, and for a language that the model does not know
    # @raise [ArgumentError] for an unknown option or an impossible value, and for a block with several audios
    def transcribe(audio, language: nil, task: :transcribe, timestamps: :segment, sample_rate: nil, vad: nil,
                   progress: false, **options, &block)
      audios, single = Audio.inputs(audio, sample_rate: sample_rate)
      if block && !single
        raise ArgumentError,
              "a block streams the segments of a single audio: pass one audio, or no block"
      end

      settings = settings(language, task, timestamps, options).merge(progress: Progress.for(progress))
      results = vad ? run_spoken(audios, vad, settings, &block) : run(audios, settings, &block)
      results = results.map { |outcome| Transcription.new(outcome) }
      single ? results.first : results
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

    # @return [Array<Hash>] what has become of each audio
    def run(audios, settings, &block)
      run = _begin(audios, settings.except(:progress))
      while (found = run.step)
        found.each { |_, segments| segments.each(&block) } if block
        settings[:progress]&.call(*run.position.map(&:round))
      end
      run.outcomes
    ensure
      run&.release
    end

    # The same of the parts of audios that have speech.
    def run_spoken(audios, vad, settings, &block)
      unless VoiceActivityDetector === vad
        raise ArgumentError, "vad must be a VoiceActivityDetector, not #{Arguments.shown(vad)}"
      end

      whole = audios.map { |audio| whole_audio(audio) }
      parts = whole.map { |audio| spoken_parts(vad.detect(audio)) }
      cut = whole.zip(parts).flat_map { |audio, spans| spans.map { |from, to| audio.slice(from, to) } }
      outcomes = run(cut, settings)
      whole.zip(parts).map do |audio, spans|
        joined(audio, spans.zip(outcomes.shift(spans.size)), settings[:language]).tap do |outcome|
          outcome[:segments].each(&block) if block
        end
      end
    end

    # Of one of {Audio.inputs}.
    def whole_audio(input)
      (Audio === input ? input : Audio.open(input.last)).resample(sample_rate)
    end

    # Neighbouring spans become one as long as that is not too long.
    def spoken_parts(spans)
      spans.each_with_object([]) do |span, parts|
        from, to = span.values_at(:start, :end)
        parts.any? && to - parts.last[0] <= LONGEST ? parts.last[1] = to : parts << [from, to]
      end
    end

    def joined(audio, parts, language)
      outcomes = parts.map(&:last)
      segments = parts.flat_map { |(from, _), outcome| outcome[:segments].map { |segment| later(segment, from) } }
      { text: one_text(outcomes.map { |outcome| outcome[:text] }),
        language: outcomes.any? ? outcomes.first[:language] : language,
        duration: audio.duration, segments: segments, token_ids: outcomes.flat_map { |outcome| outcome[:token_ids] } }
    end

    def one_text(texts)
      texts.reject(&:empty?).reduce(+"") do |all, text|
        all << (all.empty? || text.start_with?(" ") ? text : " #{text}")
      end
    end

    def later(segment, seconds)
      words = segment[:words].map { |word| word.merge(start: word[:start] + seconds, end: word[:end] + seconds) }
      segment.merge(start: segment[:start] + seconds, end: segment[:end] + seconds, words: words)
    end

    def settings(language, task, timestamps, options)
      Hints.refuse(options.except(*OPTIONS.keys), OPTIONS.keys) unless (options.keys - OPTIONS.keys).empty?

      given = OPTIONS.merge(options)
      { language: language && Arguments.label(language, "language"),
        task: Arguments.choice(task, "task", TASKS).to_s,
        timestamps: timestamps ? Arguments.choice(timestamps, "timestamps", TIMESTAMPS).to_s : nil,
        temperatures: temperatures(given[:temperature]), **tokens(given), **texts(given), **thresholds(given),
        condition_on_previous_text: given[:condition_on_previous_text] ? true : false,
        timestamp_tokens: given[:timestamp_tokens] ? true : false,
        max_new_tokens: Arguments.count(given[:max_new_tokens], "max_new_tokens"),
        num_beams: beams(given[:num_beams]), seed: given[:seed] && Arguments.integer(given[:seed], "seed") }
    end

    def tokens(given)
      { vocabulary: vocabulary(given[:vocabulary]), suppress_tokens: suppressed(given[:suppress_tokens]) }
    end

    def texts(given)
      %i[initial_prompt hotwords].to_h { |name| [name, given[name] && TextInput.utf8(given[name], name.to_s)] }
    end

    def vocabulary(words)
      return if NilClass === words

      found = TextInput.utf8_all(TextInput.text?(words) ? [words] : words, "vocabulary").map(&:strip).uniq
      raise ArgumentError, "vocabulary must have at least one word" if found.empty?

      found
    end

    def suppressed(ids)
      return if NilClass === ids

      found = Arguments.list(ids)
      raise ArgumentError, "suppress_tokens must be an Array of token ids" unless Array === found

      found.each_with_index.map do |id, at|
        next id if Integer === id && id.between?(0, (2**32) - 1)

        raise ArgumentError, "suppress_tokens[#{at}] must be a token id, not #{Arguments.shown(id)}"
      end
    end

    def beams(value)
      return if NilClass === value

      count = Arguments.integer(value, "num_beams")
      return count if count.between?(1, MOST_BEAMS)

      raise ArgumentError, "num_beams must be between 1 and #{MOST_BEAMS}, not #{count}"
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

    def smoke_test
      transcribe(SILENCE, sample_rate: 16_000, max_new_tokens: 1, timestamps: false)
    end
  end
end
