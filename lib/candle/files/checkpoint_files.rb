# frozen_string_literal: true

module Candle
  # Which files of a repository a load would read.
  #
  # @api private
  module CheckpointFiles
    # What models need besides weights.
    SMALL = /\.(json|txt|model|spm|jinja)\z/
    # Copies in formats that are not read.
    FOREIGN = %r{\A(onnx|openvino|coreml|flax|tf)/}
    # The weights of a module of sentence-transformers, as in `2_Dense/model.safetensors`.
    MODULE_WEIGHTS = %r{\A[^/]*\d+_[^/]+/[^/]+\.(safetensors|bin)\z}
    private_constant :SMALL, :FOREIGN, :MODULE_WEIGHTS

    class << self
      # @param names [Array<String>]
      # @return [Array<String>] the small files, and the weights: safetensors, else one GGUF file
      #   with its vision tower, else a pickle
      def of(names)
        names = names.grep_v(FOREIGN)
        weights = some(names, %r{\A[^/]*\.safetensors\z}) || gguf(names) || some(names, %r{\A[^/]*\.bin\z}) || []
        names.grep(SMALL) | weights | names.grep(MODULE_WEIGHTS)
      end

      # @param name [String]
      # @return [Boolean] whether a GGUF file is the vision tower of those beside it
      def tower?(name)
        File.basename(name).match?(/mmproj.*\.gguf\z/i)
      end

      private

      def some(names, pattern)
        found = names.grep(pattern)
        found.empty? ? nil : found
      end

      def gguf(names)
        towers, found = names.grep(/\.gguf\z/i).partition { |name| tower?(name) }
        best = found.grep(/q4_k_m/i).min || found.min or return
        # A file in parts needs all of them.
        start = best[/\A.*(?=-\d{5}-of-\d{5})/]
        parts = start ? found.select { |name| name.start_with?(start) } : [best]
        parts + [towers.grep(/(?<!b)f16/i).min || towers.min].compact
      end
    end
  end
end
