# frozen_string_literal: true

require_relative "build"

module Tasks
  # Completions for shells, written from the definition of the command line.
  class Completions
    SHELLS = %w[bash zsh fish].freeze
    DIRECTORY = File.join(Build::ROOT, "completions")

    # One option of a command.
    Option = Struct.new(:name, :description, :choices, keyword_init: true)

    def initialize
      $LOAD_PATH.unshift(File.join(Build::ROOT, "lib")) unless $LOAD_PATH.include?(File.join(Build::ROOT, "lib"))
      require "candle/cli"
      @verbs = Candle::CLI.verbs
    end

    # Writes the files.
    def write
      SHELLS.each { |shell| File.write(path(shell), text(shell)) }
    end

    # @param shell [String] one of {SHELLS}
    # @return [String] where its completions lie
    def path(shell) = File.join(DIRECTORY, "red-candle.#{shell}")

    # @param shell [String] one of {SHELLS}
    # @return [String] its completions
    def text(shell) = public_send(shell)

    def bash
      cases = @verbs.keys.map do |verb|
        listed = options(verb).select(&:choices)
        [listed.map { |option| bash_case("#{verb}:--#{option.name}", option.choices) }.join,
         bash_case("#{verb}:*", choices(verb))]
      end
      <<~SHELL
        # bash completion for red-candle; source it, or put it where bash-completion looks.
        # Written by rake completions.
        _red_candle() {
          local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} before=${COMP_WORDS[COMP_CWORD-1]} choices
          if [ "$COMP_CWORD" = 1 ]; then
            choices="#{@verbs.keys.join(" ")}"
          else
            case $verb:$before in
        #{cases.transpose.flatten.join.chomp}
            esac
          fi
          mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
          [ "$COMP_CWORD" = 1 ] || [ "${word#-}" != "$word" ] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
        }
        complete -o filenames -F _red_candle red-candle
      SHELL
    end

    def zsh
      cases = @verbs.keys.map { |verb| zsh_case(verb) }
      <<~SHELL
        #compdef red-candle
        # zsh completion for red-candle; put it into a directory of $fpath under the name _red-candle.
        # Written by rake completions.
        local -a verbs
        verbs=(
        #{@verbs.map { |verb, command| "  '#{verb}:#{quoted(command.description)}'" }.join("\n")}
        )
        if (( CURRENT == 2 )); then
          _describe command verbs
          return
        fi
        case $words[2] in
        #{cases.join("\n")}
        esac
      SHELL
    end

    def fish
      commands = @verbs.map do |verb, command|
        "complete -c red-candle -n __fish_use_subcommand -f -a #{verb} -d '#{quoted(command.description)}'"
      end
      of_commands = @verbs.keys.flat_map do |verb|
        seen = "complete -c red-candle -n '__fish_seen_subcommand_from #{verb}'"
        options(verb).map { |option| "#{seen} #{fish_option(option)}" }
      end
      head = "# fish completion for red-candle; put it into ~/.config/fish/completions.\n# Written by rake completions."
      "#{[head, *commands, *of_commands].join("\n")}\n"
    end

    private

    def options(verb)
      @verbs.fetch(verb).options.values.map do |option|
        Option.new(name: option.name.to_s.tr("_", "-"), description: option.description, choices: option.enum)
      end
    end

    def choices(verb)
      verb == "help" ? @verbs.keys - ["help"] : options(verb).map { |option| "--#{option.name}" }
    end

    def bash_case(pattern, words) = "      #{pattern}) choices=\"#{words.join(" ")}\" ;;\n"

    def zsh_case(verb)
      return "  #{verb}) _describe command verbs ;;" if verb == "help"

      "  #{verb}) _arguments #{[*options(verb).map { |option| zsh_option(option) }, "'*:file:_files'"].join(" ")} ;;"
    end

    def zsh_option(option)
      text = "--#{option.name}"
      text += "[#{quoted(option.description).gsub(/[\[\]:]/) { |sign| "\\#{sign}" }}]" if option.description
      text += ":#{option.name}:(#{option.choices.join(" ")})" if option.choices
      "'#{text}'"
    end

    def fish_option(option)
      text = "-l #{option.name}"
      text += " -x -a '#{option.choices.join(" ")}'" if option.choices
      text += " -d '#{quoted(option.description)}'" if option.description
      text
    end

    # For a text in single quotes; none of ours needs one in it.
    def quoted(text) = text.tr("'", "’")
  end
end
