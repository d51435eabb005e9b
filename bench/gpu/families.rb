# frozen_string_literal: true

require_relative "../../spec/support/tiny_folder"
require_relative "comparison"

module GpuBench
  # Every tiny checkpoint of the specs on the CPU in f32, and on the device in each dtype.
  class Families
    include Comparison

    ROOT = TinyFolder.path
    TEXT = "the quick brown fox jumps over the lazy dog"
    # How far probabilities and components of unit vectors may be off, and log probabilities.
    LIMITS = { f32: 1e-3, f16: 0.02, bf16: 0.1 }.freeze
    LOGPROB_LIMITS = { f32: 2e-3, f16: 0.1, bf16: 0.5 }.freeze
    # The CPU rounds what it multiplies quantized blocks with, a GPU does not.
    BLOCK_LIMITS = { f32: 0.1, f16: 0.2, bf16: 0.5 }.freeze
    # Seeded checkpoints of types that are not supported.
    REFUSED = %w[deepseek_v4 doge hy_v4].freeze
    # Six random layers that enlarge every rounding: transformers itself is 0.87 off in bf16 on the CPU, 0.67 when
    # only the weights are rounded and all else is f32.
    TOUCHY = /gemma3-six/
    TOUCHY_LIMITS = LOGPROB_LIMITS.merge(bf16: 1.0).freeze
    # Whose log probabilities are compared.
    CHATS = /\A(llava|smolvlm|qwen2(\.5)?-vl|gemma3-vision)/
    GROUPS = { "decoders" => LOGPROB_LIMITS, "gguf-decoders" => BLOCK_LIMITS, "seq2seq" => LOGPROB_LIMITS }.freeze
    # And models of images, of which {Pictures} has seeded ones, and of speech.
    NO_MODELS = %w[adapters colqwen2 depth_anything donut florence2 gguf-seq2seq gguf-vlms grounding-dino mask2former
                   owlvit pix2struct sam sam2 segformer sentence-router-mapped sentencepiece speech trocr
                   yolos].freeze
    LABELS = %w[animal].freeze
    PICTURE = File.expand_path("../images/alpha.png", ROOT)

    def initialize(device, results)
      @device = device
      @results = results
    end

    def run
      encoders = Dir.children(ROOT) - GROUPS.keys - NO_MODELS
      encoders.sort.each do |name|
        compare("families", name, name.match?(CHATS) ? LOGPROB_LIMITS : LIMITS, root(name)) do |path, options|
          encoder(path, options)
        end
      end
      GROUPS.each do |group, limits|
        Dir.glob("#{group}/*", base: ROOT).sort.each do |name|
          own = name.match?(TOUCHY) ? TOUCHY_LIMITS : limits
          compare("families", name, own, root(name)) do |path, options|
            group == "seq2seq" ? seq2seq(path, options) : decoder(path, options)
          end
        end
      end
    end

    # Every decoder type whose weights are a function of tensor name and seed.
    def run_seeded
      (SeededModels.names - REFUSED).each do |name|
        SeededModels.checkpoint(name) do |folder|
          compare("families", "seeded #{name}", LOGPROB_LIMITS, folder) { |path, options| decoder(path, options) }
        end
      end
    end

    private

    def root(name)
      File.join(ROOT, name)
    end

    def encoder(path, options)
      case File.basename(path)
      when /-masked\z/ then fill(path, options)
      when /\Agli/ then labelled(path, options)
      when /-sequence\z/ then with(Candle::Classifier, path, options) { |m| m.classify(TEXT).sort_by { |r| r[:label] } }
      when /-token\z/ then with(Candle::NER, path, options) { |m| m.predict_tokens(TEXT) }
      when /reranker\z/ then with(Candle::Reranker, path, options) { |m| m.score("the fox", [TEXT, "a dog"]) }
      when /\A(splade|sparse)/ then sparse(path, options)
      when /\A(colbert|multi-vector)/ then with(Candle::LateInteractionModel, path, options) do |m|
                                             m.embed_document(TEXT).to_a
                                           end
      when /\A(clip|siglip|vit|dinov2)/, CHATS then picture(path, options)
      else with(Candle::EmbeddingModel, path, options) { |model| model.embed([TEXT, "a dog"]) }
      end
    end

    def labelled(path, options)
      if File.basename(path).start_with?("gliner")
        with(Candle::GLiNER, path, options) { |model| model.extract("dog", labels: LABELS, threshold: 0.0) }
      else
        with(Candle::GLiClass, path, options) { |model| model.classify(TEXT, labels: LABELS) }
      end
    end

    def sparse(path, options)
      with(Candle::SparseEmbeddingModel, path, options) do |model|
        weights = model.embed(TEXT)
        Array.new(model.dimension) { |id| weights.fetch(id, 0.0) }
      end
    end

    def picture(path, options)
      case File.basename(path)
      when /-classifier\z/
        with(Candle::ImageClassifier, path, options) { |m| m.classify(PICTURE).sort_by { |r| r[:label] } }
      when /\A(clip|siglip)/ then with(Candle::CLIP, path, options) { |m| [m.embed_text(TEXT), m.embed_image(PICTURE)] }
      when CHATS
        with(Candle::VLM, path, options) { |m| first_token { |one| m.complete(question, **one) } }
      else with(Candle::ImageEmbeddingModel, path, options) { |m| m.embed(PICTURE) }
      end
    end

    def question
      [{ role: "user", content: [{ type: "image", image: PICTURE }, { type: "text", text: TEXT }] }]
    end

    def seq2seq(path, options)
      with(Candle::Seq2Seq, path, options) { |model| first_token { |one| model.complete(TEXT, **one) } }
    end

    # @return [Array<Float>] the log probability of the likeliest token; what follows depends on the choice
    def first_token
      yield(max_length: 1, temperature: 0.0, logprobs: 1).logprobs.map { |entry| entry[:logprob] }
    end

    def fill(path, options)
      with(Candle::MaskedLM, path, options) do |model|
        model.fill("the quick #{model.mask_token} jumps", top_k: 5).map { |row| row[:score] }
      end
    end

    def decoder(path, options)
      with(Candle::LLM, path, options) { |model| model.logprobs(TEXT).filter_map { |entry| entry[:logprob] } }
    end
  end
end
