# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # `red-candle read`.
    #
    # @api private
    class Read < Verb
      # @param files [Array<String>]
      # @return [void]
      # @raise [ArgumentError] without a file
      def call(files)
        raise ArgumentError, "name at least one image" if files.empty?

        model = load_model(:document_reader, options[:model])
        files.each { |file| write(file, model.read(file, **settings)) }
      end

      private

      def settings
        { format: options[:format], task: options[:task], text: options[:text], prompt: options[:prompt],
          max_length: options[:max_tokens] }.compact
      end

      def write(file, found)
        line = options[:json] ? JSON.generate({ file: file, text: found }) : shown(found)
        return puts(line) unless options[:output]

        File.write(options[:output], "#{line}\n", mode: "a")
      end

      # A text as it is, and what was found one line each.
      def shown(found)
        return found if String === found

        found.map { |one| JSON.generate(one) }.join("\n")
      end
    end
  end
end
