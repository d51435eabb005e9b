# frozen_string_literal: true

RSpec.describe "A model that is loaded by the wrong class" do
  right = { "bert-sentence" => [:EmbeddingModel, "an embedding model"], "bert-reranker" => [:Reranker, "a reranker"],
            "bert-sequence" => [:Classifier, "a text classifier"], "bert-token" => [:NER, "a token classifier"],
            "decoders/llama" => [:LLM, "a language model"], "seq2seq/t5" => [:Seq2Seq, "a sequence-to-sequence model"],
            "clip" => [:CLIP, "a model of texts and images"],
            "vit" => [:ImageEmbeddingModel, "an image embedding model"],
            "vit-classifier" => [:ImageClassifier, "an image classifier"] }

  { LLM: %w[bert-sentence bert-reranker seq2seq/t5 clip vit], EmbeddingModel: %w[clip vit],
    Reranker: %w[bert-sentence bert-token clip], NER: %w[bert-sentence bert-sequence decoders/llama],
    Classifier: %w[bert-sentence bert-token seq2seq/t5], Seq2Seq: %w[decoders/llama bert-sentence],
    ImageClassifier: %w[clip vit bert-sentence], VLM: %w[bert-sentence] }.each do |wrong, models|
    models.each do |model|
      it "says that #{model} is not for #{wrong}" do
        name, called = right.fetch(model)
        expect { Candle.const_get(wrong).from_pretrained(TinyModels.path(model)) }
          .to raise_error(Candle::UnsupportedModelError,
                          /\A#{File.basename(model)} is #{called}: use Candle::#{name}\.from_pretrained\. \S/)
      end
    end
  end

  it "embeds with a language model in a GGUF file only where it is told how" do
    file = Dir[File.join(TinyModels.path("gguf-decoders/llama"), "*.gguf")].first
    expect { Candle::EmbeddingModel.from_pretrained(file) }
      .to raise_error(Candle::UnsupportedModelError, /is a language model: use Candle::LLM\..*pooling: :mean/)
    expect(Candle::EmbeddingModel.from_pretrained(file, pooling: :mean).embed("fox").size).to be_positive
  end
end
