# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # `red-candle transcribe`.
    #
    # @api private
    class Transcribe < Verb
      # @param files [Array<String>]
      # @return [void]
      # @raise [ArgumentError] without a file
      def call(files)
        raise ArgumentError, "name at least one audio file" if files.empty?

        model = load_model(:speech, options[:model])
        files.each { |file| write(file, model) }
      end

      private

      def write(file, model)
        # Text goes out as it comes.
        live = options[:format] == "txt" && !options[:output]
        result = model.transcribe(file, **settings) { |segment| $stdout.print(segment[:text]) if live }
        return puts if live
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
