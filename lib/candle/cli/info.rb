# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # `red-candle info`.
    #
    # @api private
    class Info < Verb
      # Bytes of a value in memory, by its type in the file; quantized blocks stay as they are.
      CPU_BYTES = { f32: 4, f16: 4, bf16: 4, f64: 4 }.freeze
      private_constant :CPU_BYTES

      # @param source [String]
      # @return [void]
      def call(source)
        kind = ModelKind.of(source)
        path = local(source)
        facts = { source: source, kind: kind, architecture: architecture(path) }.merge(weights(path))
        show(facts) { write(facts) }
      end

      private

      # What a directory or file of this machine is; an id stands for its files in the cache, fetched first.
      def local(source)
        return source if File.exist?(source)

        (_, pack), = ModelGems.packs([source])
        return File.join(pack, "model") if pack

        Hub.snapshot(source, files: Hub.files(source).grep(/\.(json|txt|safetensors|gguf)\z/)
                                       .reject { |name| name.include?("/") }.first(64))
      end

      def architecture(path)
        config = File.join(path, "config.json")
        return Array(JSON.parse(File.read(config))["architectures"]).first if File.file?(config)

        Weights.open(path).metadata["general.architecture"]
      end

      def weights(path)
        found = Weights.open(path)
        tensors = found.map { |_, info| info }
        counts = tensors.map { |info| info[:shape].inject(1, :*) }
        types = tensors.group_by { |info| info[:dtype] }.transform_values { |list| list.sum { |info| info[:bytes] } }
        { parameters: counts.sum, tensors: tensors.size, stored_as: types.max_by(&:last)&.first,
          files: found.files.map { |file| { name: File.basename(file), bytes: File.size(file) } },
          device: Device.best.to_s, memory_bytes: memory(tensors, counts) }
      end

      def memory(tensors, counts)
        return tensors.sum { |info| info[:bytes] } unless Device.best.kind == :cpu

        tensors.zip(counts).sum do |info, count|
          CPU_BYTES.key?(info[:dtype]) ? count * CPU_BYTES[info[:dtype]] : info[:bytes]
        end
      end

      def write(facts)
        files = facts[:files].map { |file| "#{file[:name]} (#{Terminal.size(file[:bytes])})" }
        Terminal.table([["source", facts[:source]], ["kind", facts[:kind]], ["architecture", facts[:architecture]],
                        ["parameters", facts[:parameters]], ["stored as", facts[:stored_as]],
                        ["files", files.join(", ")], ["would run on", facts[:device]],
                        ["memory for weights", "about #{Terminal.size(facts[:memory_bytes])}"]])
      end
    end
  end
end
