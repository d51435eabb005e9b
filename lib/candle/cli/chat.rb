# frozen_string_literal: true

require "fileutils"
require "json"
require "reline"

module Candle
  class CLI
    # `red-candle chat`.
    #
    # @api private
    class Chat < Verb
      include GenerationOptions

      HELP = "/system TEXT sets instructions, /reset clears the conversation, /save FILE saves it, /quit ends."
      IMAGE_HELP = "Paths of images in your messages are loaded."
      HISTORY = 1000
      private_constant :HELP, :IMAGE_HELP, :HISTORY

      # @param source [String]
      # @return [void]
      def call(source)
        @kind = kind_of(source, :llm, :vlm)
        @llm = load_model(@kind, source)
        @system = options[:system]
        start
        Terminal.note(HELP)
        Terminal.note(IMAGE_HELP) if @kind == :vlm
        with_history { talk }
      end

      private

      def start
        @session = @llm.session(system: @system)
      end

      def talk
        while (line = read)
          line = line.strip
          next if line.empty?
          break if line == "/quit"

          line.start_with?("/") ? command(*line.split(" ", 2)) : say(line)
        end
      end

      def read
        $stdin.tty? ? Reline.readline("> ", true) : $stdin.gets
      end

      # Ctrl-C ends the answer, not the conversation.
      def say(text)
        text, images = @kind == :vlm ? ImagePaths.split(text) : [text, []]
        text = VLM::DESCRIBE if text.empty?
        @session.say(text, images: images, config: generation_config) { |piece| print_now(piece) }
        puts
      rescue Interrupt
        raise unless $stdin.tty?

        puts
      rescue InvalidInputError => e
        warn e.message
      end

      def print_now(piece)
        print piece
        $stdout.flush
      end

      def command(name, argument = nil)
        case name
        when "/system" then instruct(argument)
        when "/reset" then start
        when "/save" then save(argument)
        when "/help" then puts HELP
        else warn "unknown command #{name}. #{HELP}"
        end
      end

      def instruct(text)
        @system = text
        start
      end

      def save(path)
        return warn("/save needs the name of a file") unless path

        File.write(path, "#{JSON.pretty_generate(@session.messages)}\n")
        Terminal.note("saved to #{path}")
      rescue SystemCallError => e
        warn e.message
      end

      def with_history
        path = history_path
        Reline::HISTORY.concat(File.readlines(path, chomp: true)) if $stdin.tty? && File.file?(path)
        yield
      ensure
        keep_history(path) if $stdin.tty?
      end

      def keep_history(path)
        FileUtils.mkdir_p(File.dirname(path))
        File.write(path, "#{Reline::HISTORY.to_a.last(HISTORY).join("\n")}\n", perm: 0o600)
      rescue SystemCallError
        nil
      end

      def history_path
        File.join(ENV.fetch("XDG_STATE_HOME") { File.join(Dir.home, ".local", "state") }, "red-candle", "history")
      end
    end
  end
end
