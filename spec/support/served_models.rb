# frozen_string_literal: true

# A server with one tiny model of each kind, made once.
module ServedModels
  SOURCES = {
    "llm" => "gguf-decoders/llama", "embedder" => "bert-sentence", "reranker" => "bert-reranker",
    "classifier" => "bert-sequence", "ner" => "bert-token", "sparse" => "splade"
  }.freeze

  # Says what it is told to, one word at a time, and waits between the words if told to.
  class Scripted
    attr_reader :asked, :finished

    def initialize(text, pause: 0)
      @text = text
      @pause = pause
      @asked = []
      @finished = 0
    end

    def warm_up = self
    def model_id = "scripted"
    def count_tokens(*, **) = 3

    def complete(input, config: Candle::GenerationConfig.default, **options)
      @asked << [input, config, options]
      count = 0
      @text.scan(/\s*\S+/).first(config.max_length).each do |word|
        sleep @pause if @pause.positive?
        count += 1
        yield word if block_given?
      end
      completion(count)
    ensure
      @finished += 1
    end

    def complete_with_tools(messages, tools:, tool_choice:, **options, &block)
      complete(messages, **options, tools: tools.map(&:name), tool_choice: tool_choice, &block)
    end

    private

    def completion(count)
      outcome = { token_ids: (0...count).to_a, finish_reason: :stop, prompt_tokens: 3, cached_tokens: 0, prompt_ms: 1.0,
                  first_token_ms: 1.0, tokens_per_second: 10.0 }
      Candle::Completion.new(outcome, text: @text.dup, logprobs: nil)
    end
  end

  module_function

  def sources
    SOURCES.transform_values { |name| TinyModels.path(name) }
  end

  def models
    @models ||= sources.transform_values do |source|
      Candle::ModelKind.class_for(Candle::ModelKind.of(source)).from_pretrained(source)
    end
  end

  def server
    @server ||= Candle::Server.new(models: models, max_tokens: 64)
  end

  # @return [Candle::Server] with a language model that says the text
  def scripted(text, pause: 0, **options)
    llm = Scripted.new(text, pause: pause)
    [Candle::Server.new(models: { "llm" => { source: llm, kind: :llm } }, **options), llm]
  end
end
