# frozen_string_literal: true

module Candle
  class CLI
    # What the command line says of its commands, and of commands and options that it does not have.
    #
    # @api private
    module Usage
      # Commands of other programs.
      ELSEWHERE = {
        "list" => "models", "ls" => "models", "show" => "info", "download" => "pull", "fetch" => "pull",
        "remove" => "rm", "delete" => "rm", "prompt" => "run", "complete" => "run", "encode" => "embed",
        "start" => "serve", "server" => "serve", "ner" => "entities", "benchmark" => "bench", "query" => "search",
        "status" => "ps", "repl" => "chat"
      }.freeze
      private_constant :ELSEWHERE

      # @return [Hash{String => Thor::Command}] the commands by what users type
      def verbs
        all_commands.to_h { |_, command| [command.usage.split.first, command] }
      end

      # Prints all commands, each on one line of at most 80 columns.
      #
      # @param shell [Thor::Shell]
      # @return [void]
      def help(shell, *)
        width = verbs.keys.map(&:size).max
        shell.say("Usage: red-candle COMMAND [ARGUMENTS] [--OPTIONS]\n\nCommands:")
        verbs.each { |name, command| shell.say("  #{name.ljust(width)}  #{command.description}") }
        shell.say("\nred-candle help COMMAND describes a command and its options.")
      end

      private

      # @return [String] what is wrong with a command line, and what was meant
      def usage_problem(error)
        first = error.message.lines.first.to_s.chomp
        case error
        when Thor::UndefinedCommandError then Hints.with(first.chomp("."), meant_command(error.command))
        when Thor::UnknownArgumentError then Hints.with(first, meant_options(error))
        else first
        end
      end

      def meant_command(name)
        found = ELSEWHERE[name] || Hints.similar(name, verbs.keys)
        [found ? "Did you mean #{found}?" : "red-candle help lists the commands"]
      end

      def meant_options(error)
        error.unknown.filter_map do |option|
          found = Hints.similar(option.tr("_", "-"), error.switches.map(&:to_s))
          "Did you mean #{found}?" if found
        end
      end
    end
  end
end
