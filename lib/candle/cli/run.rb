# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle run`.
    #
    # @api private
    class Run < Verb
      include GenerationOptions

      # @param prompt [String, nil]
      # @return [void]
      def call(prompt)
        text = [prompt, piped].compact.reject(&:empty?).join("\n\n")
        raise ArgumentError, "run needs a prompt, as an argument or on standard input" if text.empty?

        llm = load_model(:llm, options[:model])
        completion = llm.complete(options[:raw] ? text : messages(text), config: generation_config, **form) do |piece|
          print_now(piece) unless options[:json]
        end
        show(completion.to_h) { puts }
      end

      private

      def piped
        $stdin.tty? || $stdin.closed? ? nil : $stdin.read.to_s.strip
      end

      def messages(text)
        [*([{ role: "system", content: options[:system] }] if options[:system]), { role: "user", content: text }]
      end

      def form
        options[:schema] ? { schema: File.read(options[:schema]) } : {}
      end

      def print_now(piece)
        print piece
        $stdout.flush
      end
    end
  end
end
