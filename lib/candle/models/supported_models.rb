# frozen_string_literal: true

Candle::Native.complete(:SupportedModels)

module Candle
  # The table of model families, by `model_type`; see {Candle.supported_models}.
  #
  # @api private
  module SupportedModels
    # What models of each shape are for, where a checkpoint has the head for it.
    TASKS = {
      "encoder" => %i[embedding reranker classifier ner masked_lm], "decoder" => %i[llm embedding reranker classifier],
      "seq2seq" => %i[seq2seq], "vision" => %i[image_embedding image_classifier], "vlm" => %i[vlm],
      "clip" => %i[clip]
    }.freeze
    # What a `model_type` is for, where its shape does not say it.
    SPECIAL = {
      "t5" => %i[embedding seq2seq], "mt5" => %i[embedding seq2seq], "bart" => %i[seq2seq classifier],
      "umt5" => %i[embedding ner], "t5gemma" => %i[embedding reranker classifier ner],
      "bert-generation" => %i[embedding]
    }.freeze
    # Two towers; the table has each of them.
    CLIP = %w[clip siglip siglip2].map { |type| ["clip", type, []] }.freeze
    # Parts of other checkpoints, which have a `model_type` of their own.
    PART = /_vision(_model)?\z|_text_model\z/
    FORMATS = %w[safetensors pytorch].freeze
    DEVICES = %w[cpu cuda metal].freeze
    private_constant :TASKS, :SPECIAL, :CLIP, :PART, :FORMATS, :DEVICES

    class << self
      # @return [Array<Hash>] see {Candle.supported_models}
      def list
        entries = (_entries + CLIP).reject { |_, type, _| type.match?(PART) }
        entries.group_by { |_, type, _| type }.sort.map { |type, group| facts(type, group) }
      end

      private

      def facts(type, group)
        architectures = group.flat_map(&:last).uniq
        { model_type: type, tasks: SPECIAL[type] || group.flat_map { |shape, _, _| TASKS.fetch(shape) }.uniq,
          formats: FORMATS + (architectures.empty? ? [] : ["gguf"]), architectures: architectures, devices: DEVICES }
      end
    end
  end
end
