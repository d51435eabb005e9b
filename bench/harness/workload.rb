# frozen_string_literal: true

module Bench
  # What a model has to do by its shape: operations, two for each multiplication
  # with its addition, and bytes of weights and cache that have to be read. Only
  # products are counted, with weights and of attention; norms, activations and
  # tables are a hundredth of them.
  module Workload
    # BERT and its kin: four square matrices and two of `inner` in each layer.
    Encoder = Struct.new(:layers, :hidden, :inner, keyword_init: true) do
      # @return [Integer] the numbers in its matrices
      def weights
        layers * ((4 * hidden * hidden) + (2 * hidden * inner))
      end

      # @param length [Numeric] tokens of a text
      # @return [Numeric] operations for one token of it
      def operations(length)
        (2 * weights) + (layers * 4 * hidden * length)
      end
    end

    # Llama and its kin: gated layers of grouped heads, and a head for every token of the vocabulary.
    Decoder = Struct.new(:layers, :hidden, :inner, :heads, :key_heads, :head_size, :vocabulary, keyword_init: true) do
      # @return [Integer] the numbers in the matrices of its layers
      def layer_weights
        layers * hidden * ((2 * heads * head_size) + (2 * key_heads * head_size) + (3 * inner))
      end

      # @return [Integer] those of the matrix that makes logits
      def head_weights
        vocabulary * hidden
      end

      # @return [Integer] all that a token is multiplied with
      def weights
        layer_weights + head_weights
      end

      # @param context [Numeric] tokens that it looks back on
      # @return [Numeric] operations for the next token of a text
      def step(context)
        (2 * weights) + attention(context)
      end

      # @param length [Integer]
      # @return [Numeric] operations for a prompt, of which only the last token gets logits
      def prompt(length)
        (2 * ((length * layer_weights) + head_weights)) + (length * attention((length + 1) / 2.0))
      end

      # @param width [Integer] bytes of a number
      # @return [Numeric] bytes of the keys and values of so many tokens
      def cache(context, width)
        layers * 2 * key_heads * head_size * context * width
      end

      private

      def attention(context)
        layers * 4 * heads * head_size * context
      end
    end
  end
end
