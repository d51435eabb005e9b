# frozen_string_literal: true

require "stringio"
require "zlib"

module Candle
  class Server
    # OpenAI's `/v1/audio/transcriptions` and `/v1/audio/translations`: a form with a file, or JSON whose `file` is
    # Base64.
    #
    # @api private
    class OpenAIAudio < OpenAI
      FORMATS = %w[json text srt verbose_json vtt].freeze
      # Those that show when a segment is spoken.
      TIMED = %w[srt verbose_json vtt].freeze
      TEXTS = %w[model language prompt response_format].freeze
      FORM = %r{\Amultipart/form-data}i
      # Whisper's frames per second, in which OpenAI counts where a segment begins.
      FRAMES = 100
      private_constant :FORMATS, :TIMED, :TEXTS, :FORM, :FRAMES

      # @param request [Request]
      # @return [Array] an answer of Rack: what is spoken
      def transcriptions(request)
        answer(request, :transcribe)
      end

      # @param request [Request]
      # @return [Array] an answer of Rack: what is spoken, in English
      def translations(request)
        answer(request, :translate)
      end

      private

      def answer(request, task)
        form = request.env["CONTENT_TYPE"].to_s.scrub.match?(FORM) ? uploaded(request) : fields(request)
        entry = models.fetch(text(form, "model"), :speech)
        file = form["file"] or raise invalid("file is missing", param: "file")
        format = choice(form, "response_format", FORMATS, "json")
        options = options(form, task).merge(timestamp_tokens: TIMED.include?(format))
        return streamed(request, entry, file, options) if text(form, "stream") == "true"

        result = compute(request) { entry.model.transcribe(StringIO.new(file), **options) }
        count_tokens(entry, input: 0, output: result.token_ids.size)
        written(result, format, task, form)
      end

      def uploaded(request)
        Multipart.read(request.env, limit: limits.file_bytes + (64 * 1024)) do |form|
          form.to_h { |name, value| [name.delete_suffix("[]"), value.is_a?(String) ? value : value.bytes] }
        end
      end

      # What a form would have.
      def fields(request)
        found = TEXTS.to_h { |name| [name, request.field(name, String, default: nil)] }
        granularities = request.field("timestamp_granularities", String, Array, default: [])
        found.merge("file" => file(request), "stream" => request.flag("stream", false).to_s,
                    "temperature" => request.field("temperature", Numeric, default: nil)&.to_s,
                    "timestamp_granularities" => Array(granularities).grep(String).join(","))
      end

      def file(request)
        encoded = request.field("file", String).sub(/\Adata:[^,]{0,100},/, "")
        encoded.unpack1("m0")
      rescue ArgumentError
        raise invalid("file must be Base64 in JSON", param: "file")
      end

      def options(form, task)
        temperature = number(form, "temperature")
        { task: task, language: text(form, "language"), initial_prompt: text(form, "prompt"),
          timestamps: words?(form) ? :word : :segment,
          temperature: temperature&.positive? ? temperature : nil }.compact
      end

      def words?(form)
        granularities(form).include?("word")
      end

      def granularities(form)
        given = form["timestamp_granularities"].to_s.split(",").map(&:strip) - [""]
        given.empty? ? %w[segment] : given
      end

      def written(result, format, task, form)
        case format
        when "json" then json({ text: result.text.strip, usage: { type: "duration", seconds: result.duration.ceil } })
        when "verbose_json" then json(verbose(result, task, form))
        when "srt" then plain(result.to_srt)
        when "vtt" then plain(result.to_vtt)
        else plain("#{result.text.strip}\n")
        end
      end

      def verbose(result, task, form)
        found = { task: task.to_s, language: LanguageNames.of(result.language), duration: result.duration,
                  text: result.text.strip }
        if words?(form)
          found[:words] = result.words.map { |word| { word: word[:text].strip, **word.slice(:start, :end) } }
        end
        return found unless granularities(form).include?("segment")

        found.merge(segments: result.segments.each_with_index.map { |segment, index| segment(segment, index) })
      end

      def segment(segment, index)
        { id: index, seek: (segment[:start] * FRAMES).floor, start: segment[:start], end: segment[:end],
          text: segment[:text], tokens: segment[:tokens], temperature: segment[:temperature],
          avg_logprob: segment[:avg_logprob], compression_ratio: compression_ratio(segment[:text]),
          no_speech_prob: segment[:no_speech_prob] }
      end

      # As Whisper measures how much a text repeats itself.
      def compression_ratio(text)
        text.bytesize.fdiv(Zlib::Deflate.deflate(text).bytesize)
      end

      def streamed(request, entry, file, options)
        failure = ->(problem) { Stream.event(error(problem)) }
        stream(request, "text/event-stream", failure: failure) do |emit|
          result = entry.model.transcribe(StringIO.new(file), **options) do |segment|
            emit.call(Stream.event({ type: "transcript.text.delta", delta: segment[:text] }))
          end
          count_tokens(entry, input: 0, output: result.token_ids.size)
          emit.call(Stream.event({ type: "transcript.text.done", text: result.text.strip }))
        end
      end

      def plain(text)
        [200, { "content-type" => "text/plain; charset=utf-8" }, [text]]
      end

      def text(form, name)
        value = form[name]&.dup&.force_encoding(Encoding::UTF_8)
        return if value.nil? || value.empty?
        raise invalid("#{name} is not valid UTF-8", param: name) unless value.valid_encoding?

        value
      end

      def choice(form, name, allowed, default)
        value = text(form, name) || default
        return value if allowed.include?(value)

        raise invalid("#{name} must be one of #{allowed.join(", ")}", param: name)
      end

      def number(form, name)
        value = text(form, name) or return
        Float(value, exception: false) || raise(invalid("#{name} must be a number", param: name))
      end
    end
  end
end
