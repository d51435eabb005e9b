# frozen_string_literal: true

require "open3"
require "tmpdir"
require_relative "arm"

module Tasks
  # Instructions of a prompt and of decoding on an emulated ARM processor, beside llama.cpp's for the same file. They
  # don't depend on what else the machine does.
  class ArmInstructions
    SOURCES = File.join(Build::ROOT, "bench/instructions")
    # Folder with llama.cpp/count_LEVEL for each level: bench/instructions/llama.cpp, linked with a llama.cpp that was
    # compiled for that level's instructions.
    SETTING = "CANDLE_ARM_PEERS"
    PROMPT = 64
    NEW = 8
    GOAL = 0.8

    # name:: of ours
    # processor:: that is emulated: the first that has it, without what comes after it where weights are packed
    Level = Struct.new(:name, :processor)
    LEVELS = [Level.new("dotprod", "neoverse-n1"), Level.new("i8mm", "max")].freeze

    # What a program did in a phase, by function.
    Phase = Struct.new(:functions) do
      def instructions = functions.values.sum

      # @return [Array<Array(String, Integer)>] the functions with the most
      def most(count) = functions.max_by(count) { |_, instructions| instructions }
    end

    # Instructions of a token; `theirs` is nil without llama.cpp.
    Row = Struct.new(:file, :level, :phase, :ours, :theirs) do
      def ratio = theirs && ours.fdiv(theirs)

      def verdict
        return unless theirs

        "#{ratio.round(2)}, #{ratio <= GOAL ? "pass" : "miss"}"
      end
    end

    # @param text [String] what the plugin wrote: phase, instructions and function, with tabs
    # @return [Array<Phase>] load, prompt, decoding, and what came after
    def self.phases(text)
      rows = text.lines(chomp: true).map { |line| line.split("\t", 3) }
      last = rows.map { |phase, *| phase.to_i }.max || -1
      (0..last).map do |number|
        of_phase = rows.select { |phase, *| phase.to_i == number }
        Phase.new(of_phase.to_h { |_, instructions, function| [function, instructions.to_i] })
      end
    end

    # @param rows [Array<Row>]
    # @return [Array<String>] a table
    def self.table(rows)
      lines = rows.map do |row|
        counts = [row.ours, row.theirs].map { |count| count && "#{(count / 1e6).round(1)} M" }
        "| #{[row.file, row.level, row.phase, *counts, row.verdict].join(" | ")} |"
      end
      ["| file | level | of | ours | llama.cpp | ratio |", "|---|---|---|---|---|---|", *lines]
    end

    # @param peers [String, nil] the folder of `SETTING`
    # @param folder [String] for the plugin
    def initialize(arm, peers, folder)
      @arm = arm
      @peers = peers
      @folder = folder
    end

    # @param files [Array<String>] GGUF files
    # @yieldparam row [Row] as soon as it is known
    # @yieldparam most [Array<Array(String, Integer)>] our functions with the most instructions
    def measure(files)
      program = @arm.program("count_instructions")
      files.product(LEVELS).each do |file, level|
        ours = run(program, level, file)
        theirs = peer(level)&.then { |peer| run(peer, level, file) }
        { "a token of a prompt of #{PROMPT}" => [1, PROMPT], "a decoded token" => [2, NEW] }.each do |name, (at, count)|
          counts = [ours, theirs].map { |phases| phases && (phases[at].instructions / count) }
          yield Row.new(File.basename(file, ".gguf"), level.name, name, *counts), ours[at].most(5)
        end
      end
    end

    private

    def peer(level)
      path = @peers && File.join(@peers, "llama.cpp", "count_#{level.name}")
      path if path && File.exist?(path)
    end

    # @return [Array<Phase>]
    def run(program, level, file)
      counts = File.join(@folder, "counts")
      command = [Arm::EMULATOR, "-cpu", level.processor, "-d", "plugin", "-D", File::NULL,
                 "-plugin", "#{plugin},out=#{counts}", program, file, PROMPT.to_s, NEW.to_s]
      output, status = Open3.capture2e({ "CANDLE_CPU_ISA" => level.name }, *command)
      raise ArgumentError, "#{File.basename(program)} failed on #{level.processor}: #{output}" unless status.success?

      self.class.phases(File.read(counts))
    end

    # The interface of plugins changed with qemu 9.
    def plugin
      @plugin ||= File.join(@folder, "count.so").tap do |path|
        major = `#{Arm::EMULATOR} --version`[/version (\d+)/, 1].to_i
        command = ["cc", "-O2", "-shared", "-fPIC", "-DPLUGIN_VERSION=#{major < 9 ? 1 : 2}",
                   "-o", path, File.join(SOURCES, "count.c")]
        raise ArgumentError, "#{command.join(" ")} failed" unless system(*command)
      end
    end
  end
end
