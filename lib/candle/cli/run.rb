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

        @kind = kind_of(options[:model], :llm, :vlm, :seq2seq)
        check_options
        model = load_model(@kind, options[:model])
        completion = complete(model, text) { |piece| print_now(piece) unless options[:json] }
        show(completion.to_h) { puts }
      end

      private

      def complete(model, text, &block)
        return model.complete(text, **given_options, **task, **form, &block) if @kind == :seq2seq

        prompted = options[:raw] ? text : messages(text)
        model = model.llm if @kind == :vlm && options[:raw]
        model.complete(prompted, config: generation_config, **form, &block)
      end

      def check_options
        raise ArgumentError, "--image needs a vision-language model" if options[:image] && @kind != :vlm
        raise ArgumentError, "--raw does not support images" if options[:image] && options[:raw]
        return if @kind == :seq2seq || task.empty?

        raise ArgumentError, "--#{task.keys.first} is for seq2seq models"
      end

      def task
        options.slice(:task, :from, :to).compact
      end

      def piped
        $stdin.tty? || $stdin.closed? ? nil : $stdin.read.to_s.strip
      end

      def messages(text)
        images = Array(options[:image]).map { |path| { type: "image", image: path } }
        content = images.empty? ? text : [*images, { type: "text", text: text }]
        [*([{ role: "system", content: options[:system] }] if options[:system]), { role: "user", content: content }]
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
