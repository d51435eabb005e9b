# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # `red-candle transcribe`.
    #
    # @api private
    class Transcribe < Verb
      # Files of which the windows are computed together.
      TOGETHER = 8
      private_constant :TOGETHER

      # @param files [Array<String>]
      # @return [void]
      # @raise [ArgumentError] without a file
      def call(files)
        raise ArgumentError, "name at least one audio file" if files.empty?

        model = load_model(:speech, options[:model])
        return write(files.first, model) if files.size == 1

        files.each_slice(TOGETHER) { |slice| write_all(slice, model) }
      end

      private

      def write(file, model)
        # Text goes out as it comes.
        live = options[:format] == "txt" && !options[:output]
        return put(file, model.transcribe(file, progress: true, **settings)) unless live

        model.transcribe(file, **settings) { |segment| $stdout.print(segment[:text]) }
        puts
      end

      # Their windows are computed together.
      def write_all(files, model)
        results = model.transcribe(files, progress: true, **settings)
        files.zip(results) { |file, result| put(file, result) }
      rescue Candle::Error
        raise if files.one?

        # What is wrong with one file doesn't keep those before it from their texts.
        files.each { |file| write_all([file], model) }
      end

      def put(file, result)
        return puts(formatted(file, result)) unless options[:output]

        File.write(options[:output], formatted(file, result), mode: "a")
      end

      def settings
        { language: options[:language], task: options[:translate] ? :translate : :transcribe,
          timestamps: options[:words] ? :word : :segment, initial_prompt: options[:prompt],
          hotwords: options[:hotwords]&.join(", "), vocabulary: options[:vocabulary],
          num_beams: options[:num_beams] || 1, timestamp_tokens: %w[srt vtt].include?(options[:format]) }
      end

      def formatted(file, result)
        case options[:format]
        when "srt" then result.to_srt
        when "vtt" then result.to_vtt
        when "json" then "#{JSON.generate({ file: file, **result.to_h })}\n"
        else "#{result.text.strip}\n"
        end
      end
    end
  end
end
