# frozen_string_literal: true

require_relative "soft"

module Tasks
  module Metal
    # Counts what the device does for one token and for one batch of texts, beside candle-transformers on the same
    # weights, and holds ours to limits.
    class Budget
      PAGE = File.join(Build::ROOT, "docs/internals/metal.md")
      MARKS = ["<!-- rake metal:budget:write writes from here -->\n", "<!-- to here -->\n"].freeze
      # The same model with so many layers: what a layer costs is the difference.
      LAYERS = [1, 2].freeze
      MODELS = {
        "llama" => "a token of llama, f16", "sampled" => "a token of llama by top_k: 40, f16",
        "gguf" => "a token of llama, Q4_K and Q6_K", "bert" => "five texts in BERT, f16"
      }.freeze
      # Models that candle-transformers runs, too. The device does not translate candle's products with blocks.
      COMPARED = %w[llama bert].freeze
      # What one run of a model made the device do. `commands` are dispatches and copies; `floor` is the size of the
      # weights and of the cache, `copied` what blits move, which is what the host reads.
      Cost = Struct.new(:commands, :barriers, :encoders, :command_buffers, :waits, :buffers, :read, :written, :copied,
                        :floor, :kernels, keyword_init: true) do
        def -(other)
          numbers = to_h.except(:kernels).to_h { |name, number| [name, number - other[name]] }
          kernels = self.kernels.to_h { |name, count| [name, count - other.kernels.fetch(name, 0)] }
          Cost.new(**numbers, kernels: kernels.reject { |_, count| count.zero? })
        end
      end
      # The device's names for them.
      EVENTS = { barriers: "barriers", encoders: "encoders", command_buffers: "command buffers", waits: "host waits",
                 buffers: "buffers" }.freeze
      # Of a model: what a layer costs, and what all of it costs with the most layers.
      Count = Struct.new(:layer, :whole)

      # What ours may cost: commands and buffers of a layer, waits, bytes read by the size of what must be read, bytes
      # copied, and commands by candle's.
      Limits = Struct.new(:commands, :buffers, :waits, :read, :copied, :share, keyword_init: true)
      # A logit and its token.
      PAIR = 8
      LIMITS = {
        "llama" => Limits.new(commands: 9, buffers: 0, waits: 1, read: 1.1, copied: PAIR, share: 0.5),
        "sampled" => Limits.new(commands: 9, buffers: 0, waits: 1, read: 1.1, copied: 41 * PAIR),
        "gguf" => Limits.new(commands: 9, buffers: 0, waits: 1, read: 1.1, copied: PAIR),
        "bert" => Limits.new(commands: 9, buffers: 0, waits: 1)
      }.freeze

      def initialize(soft = Soft.new)
        @soft = soft
      end

      # @return [Boolean] whether ours keeps within the limits, and does not where every dispatch is made twice
      def run
        counts = count
        puts table(counts), "", kernels(counts)
        broken = MODELS.keys.flat_map { |model| self.class.exceeded(model, *counts.fetch(model)) }
        broken.each { |text| puts "EXCEEDED: #{text}" }
        broken.empty? && noticed?(counts)
      end

      # Puts the table into the documentation.
      #
      # @return [void]
      def write
        before, first, rest = File.read(PAGE).partition(MARKS.first)
        _, last, after = rest.partition(MARKS.last)
        File.write(PAGE, [before, first, "\n", table(count), "\n", last, after].join)
      end

      # @param model [String] a key of {MODELS}
      # @param ours [Count]
      # @param theirs [Count, nil]
      # @return [Array<String>] what is more than allowed
      def self.exceeded(model, ours, theirs = nil, limits: LIMITS.fetch(model))
        found = {
          "commands of a layer" => [ours.layer.commands, limits.commands],
          "buffers of a layer" => [ours.layer.buffers, limits.buffers],
          "waits" => [ours.whole.waits, limits.waits],
          "bytes read, by weights and cache" => [ours.whole.read.fdiv(ours.whole.floor), limits.read],
          "bytes copied" => [ours.whole.copied, limits.copied]
        }
        found["commands, by candle's"] = [ours.whole.commands.fdiv(theirs.whole.commands), limits.share] if theirs
        found.select { |_, (number, limit)| limit && number > limit }.map do |what, (number, limit)|
          format("%<model>s: %<what>s: %<number>.3g, not %<limit>.3g", model:, what:, number:, limit:)
        end
      end

      # @param output [String] what the program printed
      # @return [Cost]
      def self.parse(output)
        lines = output.lines(chomp: true).grep(/\t/).map { |line| line.split("\t") }
        kernels, events = lines.partition { |words| words.first == "kernel" }
        kernels = kernels.to_h { |_, name, *numbers| [name, numbers.map(&:to_i)] }
        events = Hash.new(0).merge(events.to_h.transform_values(&:to_i))
        Cost.new(**work(kernels), **EVENTS.transform_values { |name| events[name] },
                 floor: events["weights"] + events["cache"], kernels: kernels.transform_values(&:first))
      end

      # @param kernels [Hash{String => Array<Integer>}] dispatches, bytes read and bytes written of each
      # @return [Hash{Symbol => Integer}]
      def self.work(kernels)
        commands, read, written = (0..2).map { |column| kernels.values.sum { |numbers| numbers[column] } }
        { commands:, read:, written:, copied: kernels.fetch("blit copy", []).fetch(2, 0) }
      end
      private_class_method :work

      private

      # @return [Hash{String => Array<Count>}] ours of each model, and candle's of those that are compared
      def count
        cases = MODELS.keys.product(%w[ours]) + COMPARED.product(%w[candle])
        jobs = cases.product(LAYERS).map { |(model, whose), layers| -> { cost("#{whose}-#{model}", layers) } }
        costs = Soft.in_parallel(jobs).each_slice(LAYERS.size).map { |few, many| counted(few, many) }
        pairs = cases.zip(costs).group_by { |(model, _), _| model }
        pairs.transform_values { |found| found.map(&:last) }
      end

      def counted(few, many)
        layers = LAYERS.last - LAYERS.first
        layer = many - few
        (layer.members - [:kernels]).each { |name| layer[name] = Rational(layer[name], layers) }
        layer.kernels = layer.kernels.transform_values { |count| Rational(count, layers) }
        Count.new(layer, many)
      end

      def cost(model, layers, **settings)
        run = @soft.run(@soft.program("budget"), model, layers.to_s, check: 1, **settings)
        abort "budget #{model} #{layers} failed: #{run.output}" unless run.status.success?
        self.class.parse(run.output)
      end

      # Whether the limits would notice what costs twice as much.
      def noticed?(counts)
        ours = counted(*LAYERS.map { |layers| cost("ours-llama", layers, plant: "twice") })
        found = self.class.exceeded("llama", ours, counts.fetch("llama").last)
        puts "#{found.any? ? "noticed" : "NOT NOTICED"}: every dispatch made twice: #{found.first}"
        found.any?
      end

      def table(counts)
        heads = ["", "whose", "commands of a layer", "barriers", "buffers", "commands of all", "encoders",
                 "command buffers", "host waits", "bytes read / (weights + cache)", "bytes written",
                 "bytes copied"]
        lines = [heads, heads.map { "---" }]
        counts.each do |model, pair|
          pair.zip(%w[ours candle-transformers]) do |count, whose|
            layer, whole = *count
            lines << [MODELS.fetch(model), whose, plain(layer.commands), plain(layer.barriers), plain(layer.buffers),
                      whole.commands, whole.encoders, whole.command_buffers, whole.waits,
                      format("%.2f", whole.read.fdiv(whole.floor)), whole.written, whole.copied]
          end
        end
        lines.map { |words| "| #{words.join(" | ")} |\n" }.join
      end

      def kernels(counts)
        counts.flat_map do |model, pair|
          pair.zip(%w[ours candle]).map do |count, whose|
            named = count.layer.kernels.map { |name, number| "#{plain(number)} #{name}" }
            "#{model}, a layer of #{whose}: #{named.join(", ")}"
          end
        end
      end

      def plain(number)
        number.denominator == 1 ? number.to_i : number.to_f
      end
    end
  end
end
