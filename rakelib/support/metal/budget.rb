# frozen_string_literal: true

require_relative "soft"

module Tasks
  module Metal
    # Counts what the device does for a step of 1, 8 and 64 sequences and for one batch of texts, beside
    # candle-transformers on the same weights, and compares ours with limits.
    class Budget
      PAGE = File.join(Build::ROOT, "docs/internals/metal.md")
      MARKS = ["<!-- rake metal:budget:write writes from here -->\n", "<!-- to here -->\n"].freeze
      # The same model with so many layers: what a layer costs is the difference.
      LAYERS = [1, 2].freeze
      MODELS = {
        "llama" => "a token of llama, f16", "llama8" => "a token of llama for 8 sequences, f16",
        "llama64" => "a token of llama for 64 sequences, f16",
        "sampled" => "a token of llama by top_k: 40, f16", "drawn" => "a token of llama by temperature: 0.7, f16",
        "gguf" => "a token of llama, Q4_K and Q6_K", "bert" => "five texts in BERT, f16"
      }.freeze
      # How many sequences a step of these models has.
      SEQUENCES = { "llama" => 1, "llama8" => 8, "llama64" => 64 }.freeze
      # Models that candle-transformers runs, too. The device does not translate candle's products with blocks.
      COMPARED = %w[llama bert].freeze
      # What one run of a model made the device do. `commands` are dispatches and copies; `floor` is the size of the
      # weights and of the cache, `copied` what blits move, which is what the host reads; `left` are the autoreleased
      # objects that were not released after some more runs.
      Cost = Struct.new(:commands, :barriers, :encoders, :command_buffers, :waits, :buffers, :read, :written, :copied,
                        :floor, :left, :kernels, keyword_init: true) do
        def -(other)
          numbers = to_h.except(:kernels).to_h { |name, number| [name, number - other[name]] }
          kernels = self.kernels.to_h { |name, count| [name, count - other.kernels.fetch(name, 0)] }
          Cost.new(**numbers, kernels: kernels.reject { |_, count| count.zero? })
        end
      end
      # The device's names for them.
      EVENTS = { barriers: "barriers", encoders: "encoders", command_buffers: "command buffers", waits: "host waits",
                 buffers: "buffers", left: "objects left" }.freeze
      # Of a model: what a layer costs, and what all of it costs with the most layers.
      Count = Struct.new(:layer, :whole)

      # What ours may cost: commands and buffers of a layer, command buffers, waits, bytes read by the size of what must
      # be read, bytes copied, commands by candle's, and autoreleased objects that are left.
      Limits = Struct.new(:commands, :buffers, :command_buffers, :waits, :read, :copied, :share, :left,
                          keyword_init: true) do
        # A layer of nine commands that needs no buffer of its own, and a step of one command buffer and one wait.
        def self.of(**others)
          new(commands: 9, buffers: 0, command_buffers: 1, waits: 1, left: 0, **others)
        end
      end
      # A logit and its token.
      PAIR = 8
      LIMITS = {
        "llama" => Limits.of(read: 1.1, copied: PAIR, share: 0.5),
        "llama8" => Limits.of(read: 1.1, copied: 8 * PAIR),
        # Its products are candle's: queries, keys and values one by one, and tiles that read their rows again.
        "llama64" => Limits.of(commands: 12, read: 1.5, copied: 64 * PAIR),
        "sampled" => Limits.of(read: 1.1, copied: 41 * PAIR),
        "drawn" => Limits.of(read: 1.1, copied: 2 * PAIR),
        "gguf" => Limits.of(read: 1.1, copied: PAIR),
        "bert" => Limits.of
      }.freeze
      # What the limits must notice: a bug, its setting of the device, the models that have it, and what is exceeded.
      PLANTS = [
        ["every dispatch made twice", "twice", SEQUENCES.keys, "commands of a layer"],
        ["pools that drain nothing", "no-pools", %w[llama bert], "autoreleased objects left"]
      ].freeze

      def initialize(soft = Soft.new)
        @soft = soft
      end

      # @return [Boolean] whether ours keeps within the limits, and does not with a planted bug
      def run
        counts = count
        puts table(counts), "", tokens(counts), "", kernels(counts)
        broken = MODELS.keys.flat_map { |model| self.class.exceeded(model, *counts.fetch(model)) }
        broken.each { |text| puts "EXCEEDED: #{text}" }
        broken.empty? & noticed?
      end

      # Puts the tables into the documentation.
      #
      # @return [void]
      def write
        before, first, rest = File.read(PAGE).partition(MARKS.first)
        _, last, after = rest.partition(MARKS.last)
        counts = count
        File.write(PAGE, [before, first, "\n", table(counts), "\n", tokens(counts), "\n", last, after].join)
      end

      # @param model [String] a key of {MODELS}
      # @param ours [Count]
      # @param theirs [Count, nil]
      # @return [Array<String>] what is more than allowed
      def self.exceeded(model, ours, theirs = nil, limits: LIMITS.fetch(model))
        found = costs(ours.layer, ours.whole, limits)
        found["commands, by candle's"] = [ours.whole.commands.fdiv(theirs.whole.commands), limits.share] if theirs
        found.select { |_, (number, limit)| limit && number > limit }.map do |what, (number, limit)|
          format("%<model>s: %<what>s: %<number>.3g, not %<limit>.3g", model:, what:, number:, limit:)
        end
      end

      # @return [Hash{String => Array<Numeric>}] what is limited, and its limit
      def self.costs(layer, whole, limits)
        named = { "command buffers" => :command_buffers, "waits" => :waits, "bytes copied" => :copied,
                  "autoreleased objects left" => :left }
        { "commands of a layer" => [layer.commands, limits.commands],
          "buffers of a layer" => [layer.buffers, limits.buffers],
          "bytes read, by weights and cache" => [whole.read.fdiv(whole.floor), limits.read],
          **named.transform_values { |name| [whole[name], limits[name]] } }
      end
      private_class_method :costs

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

      # Whether the limits would notice planted bugs.
      def noticed?
        cases = PLANTS.flat_map { |title, plant, models, told| models.map { |model| [title, plant, model, told] } }
        found = Soft.in_parallel(cases.map { |_, plant, model, told| -> { planted(plant, model, told) } })
        cases.zip(found) do |(title, _, model, _), said|
          puts "#{said ? "noticed" : "NOT NOTICED"}: #{title}: #{said || model}"
        end
        found.all?
      end

      # What the limits of a model say of a bug.
      def planted(plant, model, told)
        ours = counted(*LAYERS.map { |layers| cost("ours-#{model}", layers, plant:) })
        self.class.exceeded(model, ours).find { |text| text.include?(told) }
      end

      def table(counts)
        lines = [["", "whose", "commands of a layer", "barriers", "buffers", "commands of all", "encoders",
                  "command buffers", "host waits", "bytes read / (weights + cache)", "bytes written",
                  "bytes copied", "objects left"]]
        counts.each do |model, pair|
          pair.zip(%w[ours candle-transformers]) do |count, whose|
            layer, whole = *count
            lines << [MODELS.fetch(model), whose, plain(layer.commands), plain(layer.barriers), plain(layer.buffers),
                      whole.commands, whole.encoders, whole.command_buffers, whole.waits,
                      format("%.2f", whole.read.fdiv(whole.floor)), whole.written, whole.copied, whole.left]
          end
        end
        lines_of(lines)
      end

      # What a step of so many sequences costs, and each of its tokens.
      def tokens(counts)
        lines = [["sequences", "commands of a step", "of a token", "command buffers", "host waits",
                  "new buffers", "bytes read of a step", "of a token", "bytes written of a token",
                  "bytes copied of a token"]]
        SEQUENCES.each do |model, sequences|
          cost = counts.fetch(model).first.whole
          read, written, copied = %i[read written copied].map { |name| (cost[name] / sequences.to_f).round }
          lines << [sequences, cost.commands, cost.commands.fdiv(sequences).round(2), cost.command_buffers, cost.waits,
                    cost.buffers, cost.read, read, written, copied]
        end
        lines_of(lines)
      end

      def lines_of(lines)
        lines.insert(1, lines.first.map { "---" }).map { |words| "| #{words.join(" | ")} |\n" }.join
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
