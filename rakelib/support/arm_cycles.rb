# frozen_string_literal: true

require "json"
require "open3"
require_relative "arm"

module Tasks
  # How busy the inner loops of the CPU's kernels keep the multiply pipes of ARM processors: llvm-mca runs the loops
  # that the compiler made on its models of these processors. No such processor is needed.
  class ArmCycles
    ANALYZER = "llvm-mca-19"
    DISASSEMBLER = "llvm-objdump-19"
    SYMBOLS = "llvm-nm-19"
    DEBIAN_PACKAGES = %w[llvm-19].freeze
    ITERATIONS = 200
    # A loop's share of the multiply pipes, at least.
    GOAL = 0.85
    FEATURES = "+dotprod,+i8mm,+bf16,+fullfp16"

    # What a vector's instruction multiplies and adds, and what it multiplies.
    PRODUCTS = { "fmla" => 4, "sdot" => 16, "smmla" => 32, "bfmmla" => 16 }.freeze
    FACTORS = { "fmla" => ["v30.4s, v31.4s", "v30.4s, v31.s[0]"], "sdot" => ["v30.16b, v31.16b", "v30.16b, v31.4b[0]"],
                "smmla" => ["v30.16b, v31.16b"], "bfmmla" => ["v30.8h, v31.8h"] }.freeze

    # A loop with an instruction that it is there for.
    #
    # work:: what it is for; loops of the same are compared
    # symbol:: of its function
    # instruction:: the multiply
    # goal:: its share of the multiply pipes, at least; nil where the loop has more to do than multiply
    # planes:: multiplies of one weight with one input; a row of x for GGUF blocks has two planes of bytes
    # multiplies:: in the loop, where it is not the one with the most
    Kernel = Struct.new(:work, :symbol, :instruction, :goal, :planes, :multiplies) do
      def library = "ours"
    end
    DOTS = /\d+neon_dot\w*6format/
    MATRICES = /\d+neon_matrices\w*6format/
    # One row of x with four panels, of four outputs each: the shape of decode.
    ROW = { "sdot" => 64, "smmla" => 32 }.freeze
    KERNELS = [
      Kernel.new("f32", /multiply_singles/, "fmla", GOAL, 1),
      Kernel.new("int8, dot products", /multiply_dots/, "sdot", GOAL, 1),
      Kernel.new("int8, matrices", /multiply_matrices_of_bytes/, "smmla", GOAL, 1),
      Kernel.new("bf16, matrices", /multiply_matrices_of_bf16/, "bfmmla", GOAL, 1),
      *%w[Q4_0 Q4_1 Q8_0].flat_map do |type|
        [["dot products", DOTS, "sdot"], ["matrices", MATRICES, "smmla"]].flat_map do |by, symbol, instruction|
          symbol = /#{symbol}#{type.size}#{type}/
          [Kernel.new("#{type}, #{by}", symbol, instruction, nil, 2),
           Kernel.new("#{type}, #{by}, one row", symbol, instruction, nil, 2, ROW[instruction])]
        end
      end
    ].freeze

    # A model of LLVM's, and which of the instructions the processor doesn't have.
    Processor = Struct.new(:name, :model, :missing)
    PROCESSORS = [
      Processor.new("Neoverse N1", "neoverse-n1", %w[smmla bfmmla]),
      Processor.new("Neoverse V1", "neoverse-v1", []),
      Processor.new("Neoverse V2", "neoverse-v2", []),
      # LLVM describes all of Apple's by its oldest, which has half as many vector pipes.
      Processor.new("Apple M1", "apple-m1", %w[smmla bfmmla])
    ].freeze

    # What llvm-mca says of a loop on a processor: cycles of one turn, multiplies in it, and their share of the pipes.
    Result = Struct.new(:kernel, :processor, :cycles, :multiplies, :share) do
      def passed? = kernel.goal.nil? || share >= kernel.goal

      # Products of a weight with an input in a cycle.
      def products = multiplies * PRODUCTS.fetch(kernel.instruction) / kernel.planes / cycles
    end

    # What llvm-objdump says, by function.
    class Disassembly
      FUNCTION = /\A\h+ <(.+)>:/
      INSTRUCTION = /\A\s*(\h+):\s+(\S.*)/
      BRANCH = /\A(?:b\.\w+|cbn?z|tbn?z|b)\s.*?0x(\h+) <.*>/

      # @param text [String]
      def initialize(text)
        @functions = Hash.new { |functions, name| functions[name] = [] }
        name = nil
        text.each_line(chomp: true) do |line|
          name = line[FUNCTION, 1] || name
          address, instruction = line.match(INSTRUCTION)&.captures
          @functions[name] << [address.hex, instruction] if instruction
        end
      end

      # @return [Array<Array<String>>] the innermost loops of the functions whose symbols match
      def loops(symbol)
        @functions.filter_map { |name, lines| innermost(lines) if name&.match?(symbol) }.flatten(1)
      end

      private

      def innermost(lines)
        ranges = backward(lines)
        inner = ranges.reject { |range| ranges.any? { |other| other != range && range.cover?(other) } }
        # An assembler takes labels as targets, no addresses.
        inner.map { |range| lines[range].map { |_, instruction| instruction.sub(/0x\h+ <.*>/, "target") } }
      end

      # From the target of every branch backward to the branch.
      def backward(lines)
        places = lines.each_with_index.to_h { |(address, _), at| [address, at] }
        branches = lines.each_with_index.map { |(_, instruction), at| [places[instruction[BRANCH, 1]&.hex], at] }
        branches.filter_map { |first, last| first..last if first && first < last }
      end
    end

    # @param disassembly [String] as llvm-objdump prints it
    # @param kernels [Array<Kernel, ArmPeers::Loop>] that are in it
    def initialize(disassembly, kernels = KERNELS)
      @disassembly = Disassembly.new(disassembly)
      @kernels = kernels
      @peaks = {}
    end

    # @raise [Tools::Missing] when a tool is missing and may not be installed
    def self.prepare
      return if Tools.find(ANALYZER) || (Build.continuous_integration? && Tools.install(DEBIAN_PACKAGES))

      raise Tools::Missing, "needs Debian's packages #{DEBIAN_PACKAGES.join(" ")}"
    end

    # @param library [String] with the kernels, or an object
    # @param symbols [Array<Regexp>] of functions
    # @return [String] those functions
    def self.disassemble(library, symbols = KERNELS.map(&:symbol))
      names = output(SYMBOLS, "--defined-only", "--just-symbol-name", library).split
      wanted = names.select { |name| symbols.any? { |symbol| name.match?(symbol) } }
      output(DISASSEMBLER, "-d", "--no-show-raw-insn", "--disassemble-symbols=#{wanted.join(",")}", library)
    end

    def self.output(*command)
      text, errors, status = Open3.capture3(*command)
      raise ArgumentError, "#{command.first} failed: #{errors}" unless status.success?

      text
    end
    private_class_method :output

    # @return [Array<Result>]
    def results
      @kernels.flat_map do |kernel|
        body = main_loop(kernel)
        PROCESSORS.filter_map { |processor| result(kernel, processor, body) }
      end
    end

    # Products in a cycle, and the share of the multiply pipes; loops of the same work follow each other.
    #
    # @return [Array<String>] the rows of a table
    def self.table(results)
      rows = results.group_by(&:kernel).sort_by.with_index do |(kernel, _), number|
        [results.index { |other| other.kernel.work == kernel.work }, number]
      end
      names = PROCESSORS.map(&:name)
      ["| loop | by | #{names.join(" | ")} |", "|#{"---|" * (names.size + 2)}",
       *rows.map { |kernel, of_kernel| row(kernel, of_kernel) }]
    end

    def self.row(kernel, results)
      cells = PROCESSORS.map do |processor|
        result = results.find { |one| one.processor == processor }
        result && "#{result.products.round(1)}, #{(100 * result.share).round} %"
      end
      "| #{[kernel.work, kernel.library, *cells].join(" | ")} |"
    end
    private_class_method :row

    # @return [Numeric] cycles of one turn
    # @raise [ArgumentError] when the model doesn't have an instruction
    def self.cycles(instructions, processor)
      output, error, status = Open3.capture3(ANALYZER, "-mtriple=aarch64", "-mcpu=#{processor.model}",
                                             "-mattr=#{FEATURES}", "-iterations=#{ITERATIONS}", "-json",
                                             stdin_data: "#{instructions.join("\n")}\n")
      raise ArgumentError, "#{ANALYZER} on #{processor.model}: #{error[/error: .*/] || error}" unless status.success?

      summary = JSON.parse(output).fetch("CodeRegions").first.fetch("SummaryView")
      summary.fetch("TotalCycles").fdiv(summary.fetch("Iterations"))
    end

    private

    # The one with the most multiplies is that of the tallest tile.
    def main_loop(kernel)
      loops = @disassembly.loops(kernel.symbol)
      loops = loops.select { |body| multiplies(kernel, body) == kernel.multiplies } if kernel.multiplies
      body = loops.max_by { |instructions| multiplies(kernel, instructions) }
      return body if body && multiplies(kernel, body).positive?

      raise ArgumentError, "no loop with #{kernel.instruction} in #{kernel.symbol.source}"
    end

    def multiplies(kernel, instructions)
      instructions.count { |line| line.match?(/\A#{kernel.instruction}\s/) }
    end

    def result(kernel, processor, body)
      return if processor.missing.include?(kernel.instruction)

      cycles = self.class.cycles(body, processor)
      count = multiplies(kernel, body)
      Result.new(kernel, processor, cycles, count, count / cycles / peak(kernel.instruction, processor))
    end

    # Multiplies that a processor begins in a cycle when nothing else is to be done, by vectors or by a vector's lane.
    def peak(instruction, processor)
      @peaks[[instruction, processor]] ||= FACTORS.fetch(instruction).map do |factors|
        independent = (0...28).map { |sum| "#{instruction} v#{sum}.4s, #{factors}" }
        independent.size / self.class.cycles(independent, processor)
      end.max
    end
  end
end
