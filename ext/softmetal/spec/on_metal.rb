# frozen_string_literal: true

require "candle"

# Required by `rake metal:specs` before specs that name the CPU: their models are on the Metal device all the same, and
# are compared with what Python's libraries computed.
module OnMetal
  def from_pretrained(source, device: nil, **options) # rubocop:disable Lint/UnusedMethodArgument
    super(source, device: "metal", dtype: :f32, **options)
  end
end

[Candle::EmbeddingModel, Candle::Classifier, Candle::Reranker, Candle::NER, Candle::MaskedLM].each do |klass|
  klass.singleton_class.prepend(OnMetal)
end
