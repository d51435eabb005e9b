# frozen_string_literal: true

require "open3"
require "ripper"
require "shellwords"
require "tmpdir"
require "yard"
require_relative "build"
require_relative "models"
require_relative "../../spec/support/tiny_folder"

module Tasks
  # Runs the documentation: Ruby blocks of the Markdown files, `@example`s of
  # lib/, every file in examples/, and shell blocks that call red-candle. Each runs in a process of its own, off
  # line, with the hub's cache replaced by the pinned real models.
  #
  # A line `value # => text` is also checked: the inspected value must match the
  # text, in which `...` stands for anything. A block with the comment
  # `# needs the hub` is only checked for its syntax, and so is one with `# needs Rails`, which `rake rails:spec` runs.
  class DocExamples
    ONLY_PARSED = /# needs (the hub|Rails)\b/
    COMMAND = /^(?:.*\| )?red-candle /
    Example = Struct.new(:title, :code, :language) do
      def shell?
        language == "sh"
      end
    end

    def run
      failures = examples.reject { |example| passes?(example) }
      puts "#{examples.size} examples, #{failures.size} failures"
      abort if failures.any?
    end

    # @return [Array<Example>]
    def examples
      @examples ||= markdown_examples + yard_examples + example_files
    end

    # @return [String] the code with its `# =>` lines turned into checks
    def self.instrument(code)
      code.each_line.with_index(1).map do |line, number|
        expression, expected = line.chomp.split(/\s+# => /, 2)
        next line if expected.nil? || !checkable?(expression)

        "doc_check((#{expression.strip}), #{expected.strip.dump}, #{number})\n"
      end.join
    end

    # @return [Boolean] whether the text is a whole expression of one line
    def self.checkable?(expression)
      !expression.match?(/\A\s*(puts|print|pp|end\b|\}|#)/) && !Ripper.sexp("doc_check((#{expression}), 0)").nil?
    end

    private

    def markdown_examples
      files = Dir[File.join(Build::ROOT, "{README.md,docs/**/*.md}")].sort
      files.flat_map do |file|
        blocks = File.read(file).scan(/^```(ruby|sh)[^\n]*\n(.*?)^```/m)
        blocks = blocks.select { |language, code| language == "ruby" || code.match?(COMMAND) }
        blocks.each_with_index.map do |(language, code), index|
          Example.new("#{relative(file)} block #{index + 1}", code, language)
        end
      end
    end

    def yard_examples
      YARD::Logger.instance.level = ::Logger::ERROR
      YARD.parse(Dir[File.join(Build::ROOT, "lib/**/*.rb")].sort)
      YARD::Registry.all.flat_map do |object|
        object.tags(:example).map do |tag|
          Example.new("#{object.path} (#{relative(object.file)}) #{tag.name}".strip, tag.text)
        end
      end
    end

    def example_files
      Dir[File.join(Build::ROOT, "examples/**/*.rb")].sort.map { |file| Example.new(relative(file), File.read(file)) }
    end

    def relative(file)
      File.expand_path(file, Build::ROOT).delete_prefix("#{Build::ROOT}/")
    end

    def passes?(example)
      output, passed = example.code.match?(ONLY_PARSED) ? check_syntax(example) : execute(example)
      puts "#{passed ? "ok" : "FAILED"}  #{example.title}"
      puts example.code.gsub(/^/, "    "), output.gsub(/^/, "  | ") unless passed
      passed
    end

    def check_syntax(example)
      if example.shell?
        output, status = Open3.capture2e("bash", "-n", stdin_data: example.code)
        return [output, status.success?]
      end

      RubyVM::InstructionSequence.compile(example.code)
      ["", true]
    rescue SyntaxError => e
      [e.message, false]
    end

    def execute(example)
      Models.fetch_mentioned(example.code)
      Dir.mktmpdir do |directory|
        # Examples name small models from the root, or from where they lie.
        Dir.mkdir(File.join(directory, "spec"))
        File.symlink(TinyFolder.fixtures, File.join(directory, "spec/fixtures"))
        next execute_shell(example, directory) if example.shell?

        Dir.mkdir(File.join(directory, "examples"))
        script = File.join(directory, "examples", "example.rb")
        File.write(script, self.class.instrument(example.code))
        prelude = File.join(__dir__, "doc_prelude.rb")
        command = [RbConfig.ruby, "-I", File.join(Build::ROOT, "lib"), "-r", prelude, script]
        output, status = Open3.capture2e(Models.environment, *command, chdir: directory)
        [output, status.success?]
      end
    end

    # The command is that of this tree.
    def execute_shell(example, directory)
      bin = File.join(directory, "bin")
      Dir.mkdir(bin)
      call = [RbConfig.ruby, "-I", File.join(Build::ROOT, "lib"), File.join(Build::ROOT, "exe", "red-candle")]
      File.write(File.join(bin, "red-candle"), "#!/bin/sh\nexec #{call.shelljoin} \"$@\"\n", perm: 0o755)
      environment = Models.environment.merge("PATH" => "#{bin}:#{ENV.fetch("PATH")}")
      output, status = Open3.capture2e(environment, "bash", "-euo", "pipefail", "-c", example.code, chdir: directory)
      [output, status.success?]
    end
  end
end
