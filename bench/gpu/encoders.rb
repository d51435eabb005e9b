# frozen_string_literal: true

require_relative "numbers"

module GpuBench
  # Embeddings and reranking: parity first, then speed beside PyTorch.
  class Encoders
    # Sequences and tokens of each, and how many times as fast as PyTorch the issue of speed wants them.
    SHAPES = { [256, 128] => 1.0, [32, 512] => 1.0, [1, 128] => 2.0 }.freeze
    TINY_SHAPES = { [8, 16] => nil, [1, 16] => nil }.freeze

    def initialize(bench)
      @bench = bench
      @results = bench.results
    end

    # Real weights, end to end from texts.
    def minilm
      path = File.join(@bench.models, "minilm-f16")
      return @results.fact("minilm", "real weights", false, note: "#{path} is missing") unless File.directory?(path)

      texts = sentences(@bench.tiny ? 32 : 2048)
      expected = @bench.on_cpu(Candle::EmbeddingModel, path) { |model| model.embed(texts.first(32)) }
      peer = @bench.peer.ask("sentences", path: path, dtype: "f16", texts: texts, kept: 32, repetitions: 5)
      @bench.on_device(Candle::EmbeddingModel, path, dtype: :f16) do |model|
        vectors = model.embed(texts.first(32))
        @results.parity("minilm", "1 - cosine to the CPU in f32", Numbers.angle(vectors, expected), 1e-3)
        compare_with_peer("minilm", vectors, peer[:vectors])
        ours = Numbers.median_ms(7) { model.embed(texts, as: :packed) }
        @results.speed("minilm", "#{texts.size} texts, from Strings", ours, peer[:milliseconds], times_faster: 1.0)
      end
    end

    # MiniLM's shape with random weights: what Strings add to ids.
    def strings(name)
      path = @bench.checkpoint(name)
      texts = Array.new(@bench.tiny ? 32 : 2048) { |index| words(36, index) }
      peer = @bench.peer.ask("sentences", path: path, dtype: "f16", texts: texts, kept: 32, repetitions: 5)
      @bench.on_device(Candle::EmbeddingModel, path, dtype: :f16) do |model|
        compare_with_peer(name, model.embed(texts.first(32)), peer[:vectors])
        lists = Array.new(texts.size) { |index| ids(38, index) }
        of_ids = Numbers.median_ms(9) { model.embed_ids(lists, as: :packed) }
        @results.speed(name, "#{texts.size} x 38 ids", of_ids, nil)
        ours = Numbers.median_ms(9) { model.embed(texts, as: :packed) }
        @results.speed(name, "#{texts.size} x 38 tokens, from Strings", ours, peer[:milliseconds])
      end
    end

    # Random weights of well-known shapes, from token ids.
    def shape(name)
      path = @bench.checkpoint(name)
      lists = [128, 7, 33, 1].map { |length| ids(@bench.tiny ? [length, 16].min : length) }
      shapes = @bench.tiny ? TINY_SHAPES : SHAPES
      expected = @bench.on_cpu(Candle::EmbeddingModel, path) { |model| model.embed_ids(lists) }
      peer = @bench.peer.ask("encoder", path: path, dtype: "f16", ids: lists, shapes: shapes.keys, repetitions: 15)
      @bench.on_device(Candle::EmbeddingModel, path, dtype: :f16) do |model|
        vectors = model.embed_ids(lists)
        @results.parity(name, "1 - cosine to the CPU in f32", Numbers.angle(vectors, expected), 1e-3)
        compare_with_peer(name, vectors, peer[:vectors])
        shapes.each { |(count, length), wanted| time(name, model, count, length, wanted, peer) }
        time_texts(name, model) unless @bench.tiny
      end
    end

    def rerank
      path = @bench.checkpoint("bert-base-reranker")
      query = words(14, 1)
      documents = Array.new(@bench.tiny ? 8 : 256) { |index| words(80 + (index % 40), index) }
      expected = @bench.on_cpu(Candle::Reranker, path) { |model| model.score(query, documents.first(8)) }
      peer = @bench.peer.ask("rerank", path: path, dtype: "f16", query: query, documents: documents, repetitions: 7)
      @bench.on_device(Candle::Reranker, path, dtype: :f16) do |model|
        scores = model.score(query, documents.first(8))
        @results.parity("rerank", "logits against the CPU in f32", Numbers.difference(scores, expected), 0.02)
        compare_scores(scores, peer[:scores])
        ours = Numbers.median_ms(9) { model.score(query, documents) }
        name = "#{documents.size} documents, from Strings"
        @results.speed("rerank", name, ours, peer[:milliseconds], times_faster: 1.0)
      end
    end

    private

    def time(name, model, count, length, wanted, peer)
      lists = Array.new(count) { |index| ids(length, index) }
      ours = Numbers.median_ms(25, warm_up: 5) { model.embed_ids(lists, as: :packed) }
      other = peer[:milliseconds]&.fetch(:"#{count}x#{length}", nil)
      @results.speed(name, "#{count} x #{length} tokens", ours, other, times_faster: name == "bert-base" ? wanted : nil)
    end

    def time_texts(name, model)
      texts = Array.new(256) { |index| words(126, index) }
      ours = Numbers.median_ms(9) { model.embed(texts, as: :packed) }
      @results.speed(name, "256 x 128 tokens, from Strings", ours, nil)
    end

    def compare_with_peer(section, vectors, others)
      return unless others

      @results.parity(section, "1 - cosine to PyTorch in f16", Numbers.angle(vectors, others), 1e-3)
    end

    def compare_scores(scores, others)
      return unless others

      difference = Numbers.difference(scores, others.first(scores.size))
      @results.parity("rerank", "logits against PyTorch in f16", difference, 0.02)
    end

    # Any ids but the special ones, the same in every run.
    def ids(length, seed = 0)
      random = Random.new(seed)
      Array.new(length) { 5 + random.rand(@bench.vocabulary - 5) }
    end

    def words(count, seed)
      random = Random.new(seed)
      Array.new(count) { "w#{5 + random.rand(@bench.vocabulary - 5)}" }.join(" ")
    end

    # English of mixed lengths.
    def sentences(count)
      corpus = File.readlines(File.expand_path("../../bin/support/corpus.txt", __dir__), chomp: true).reject(&:empty?)
      Array.new(count) { |index| Array.new(1 + (index % 5)) { |n| corpus[(index + (n * 7)) % corpus.size] }.join(" ") }
    end
  end
end
