# frozen_string_literal: true

module Candle
  # A {GLiNER} model with the labels that it looks for, as {HybridNER} asks its model.
  #
  # @api private
  class LabelRecognizer
    # @return [Array<String>] sorted
    attr_reader :entity_types

    # @param model [GLiNER]
    # @param labels [Array<String>]
    def initialize(model, labels)
      @model = model
      @labels = labels
      @entity_types = labels.sort.freeze
    end

    # @return [String] where the model came from
    def model_id
      @model.model_id
    end

    # @param texts [Array<String>]
    # @param confidence_threshold [Float]
    # @param flat [Boolean] as {GLiNER#extract} takes it
    # @return [Array<Array<Hash>>] `{text:, label:, start:, end:, confidence:}`
    def extract_entities(texts, confidence_threshold: 0.5, flat: true, **)
      found = @model.extract(texts, labels: @labels, threshold: confidence_threshold, flat: flat)
      found.map do |entities|
        entities.map { |entity| entity.slice(:text, :label, :start, :end).merge(confidence: entity[:score]) }
      end
    end
  end
end
