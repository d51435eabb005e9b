# frozen_string_literal: true

require "stringio"

RSpec.describe Candle::Instrumentation do
  # The gem where it is installed, and what it documents of itself where not.
  begin
    require "active_support"
    require "active_support/notifications"
    notifications = ActiveSupport::Notifications
    installed = true
  rescue LoadError
    load File.expand_path("../fixtures/interfaces/active_support.rb", __dir__)
    notifications = ActiveSupport::Notifications
    # Other specs see a process without it.
    Object.send(:remove_const, :ActiveSupport)
    installed = false
  end

  let(:embedder) { Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"), device: "cpu") }
  let(:llm) { Candle::LLM.from_pretrained(RoomyLLM.path, device: "cpu") }
  let(:short) { { config: Candle::GenerationConfig.deterministic(max_length: 5) } }

  before { stub_const("ActiveSupport::Notifications", notifications) unless installed }

  # @return [Array<Array(String, Hash)>] the events of a block, with their payloads
  def events
    seen = []
    listener = ActiveSupport::Notifications.subscribe(/\.candle\z/) do |*facts|
      event = facts.first
      seen << (event.respond_to?(:payload) ? [event.name, event.payload] : [facts[0], facts[4]])
    end
    yield
    seen
  ensure
    ActiveSupport::Notifications.unsubscribe(listener)
  end

  it "tells of texts, tokens and device" do
    texts = ["the quick fox", "dog"]
    tokens = texts.sum { |text| embedder.count_tokens(text) }
    (name, payload), *others = events { embedder.embed(texts) }
    expect(others).to be_empty
    expect([name, payload]).to match(["embed.candle", hash_including(model: embedder.model_id, device: "cpu", batch: 2,
                                                                     tokens: tokens)])
    expect(events { embedder.embed("fox") }.first.last).to include(batch: 1)
    expect(events { embedder.embed_ids([[1, 2, 3]]) }.first.last).to include(batch: 1, tokens: 3)
    long = events { embedder.embed("fox " * 500) }.first.last
    expect(long[:tokens]).to eq(embedder.max_length)
  end

  it "has one event for a call that makes others" do
    question = [{ role: "user", content: "x" }]
    calls = { generate: "hello", chat: question, complete: "hello" }
    calls.each do |method, input|
      seen = events { llm.public_send(method, input, **short) }
      expect(seen.map(&:first)).to eq(["generate.candle"]), method.to_s
      expect(seen.first.last).to include(batch: 1, completion_tokens: 5, device: "cpu")
      payload = seen.first.last
      expect(payload[:tokens]).to eq(payload[:prompt_tokens] + 5)
    end
    expect(events { llm.chat_stream(question, **short) { nil } }.size).to eq(1)
    expect(events { llm.complete(question, **short) }.first.last).to include(batch: 1, completion_tokens: 5)
    many = events { llm.generate(%w[hello you], **short) }
    expect(many.map { |name, payload| [name, payload[:batch], payload[:completion_tokens]] })
      .to eq([["generate.candle", 2, 10]])
    lazy = llm.generate_stream("hello", **short)
    expect(events { lazy.to_a }.size).to eq(1)
    tool = Candle::Tool.new(name: "clock", description: "The time") { "noon" }
    seen = events { llm.chat_with_tools(question, tools: [tool], tool_choice: :required, max_length: 60) }
    expect(seen.map(&:first)).to eq(["generate.candle"])
    expect(seen.first.last[:completion_tokens]).to be_positive
  end

  it "knows every class of models" do
    models = Candle.constants.map { |name| Candle.const_get(name) }.grep(Class).select { |klass| klass < Candle::Model }
    expect(models.map { |klass| klass.name.split("::").last.to_sym } - described_class::CALLS.map(&:first)).to be_empty
  end

  it "shows the parameters and the source of each method, as without events" do
    described_class::CALLS.each do |name, _, methods|
      methods.each do |method|
        shown = Candle.const_get(name).instance_method(method)
        own = shown.super_method
        expect(own.owner.name).to start_with("Candle::"), "#{name}##{method} has no event"
        expect(shown.parameters - [%i[keyrest unknown]]).to eq(own.parameters), "#{name}##{method}"
        expect(shown.source_location).to eq(own.source_location)
      end
    end
    expect(Candle::EmbeddingModel.instance_method(:embed).parameters)
      .to include(%i[req input], %i[key prompt_name], %i[key dimensions], %i[key as])
  end

  it "gives each call exactly the arguments that it was given" do
    expect(embedder.embed("fox", as: :packed, dimensions: nil)).to eq(embedder.embed("fox", as: :packed))
    expect { embedder.embed }.to raise_error(ArgumentError, /given 0, expected 1/)
    expect { embedder.embed("fox", nothing: 1, other: 2) }
      .to raise_error(ArgumentError, "unknown keywords: :nothing, :other")
    expect { llm.generate("a", nothing: 1) }.to raise_error(ArgumentError, /unknown generation option nothing/)
  end

  it "knows the other tasks" do
    reranker = Candle::Reranker.from_pretrained(TinyModels.path("bert-reranker"))
    classifier = Candle::Classifier.from_pretrained(TinyModels.path("bert-sequence"))
    ner = Candle::NER.from_pretrained(TinyModels.path("bert-token"))
    masked = Candle::MaskedLM.from_pretrained(TinyModels.path("bert-masked"))
    seen = events do
      reranker.rerank("fox", %w[a b c])
      classifier.classify("fox")
      ner.extract_entities(%w[fox dog])
      masked.fill("the #{masked.mask_token}")
    end
    expect(seen.map { |name, payload| [name, payload[:batch]] })
      .to eq([["rerank.candle", 3], ["classify.candle", 1], ["entities.candle", 2], ["fill.candle", 1]])
  end

  it "tells how many wait, where the model knows" do
    embedder.define_singleton_method(:stats) { { waiting: 7 } }
    expect(events { embedder.embed("fox") }.first.last).to include(queue: 7)
  end

  it "tells of what failed, and leaves the next call as it was" do
    seen = events { expect { embedder.embed(3) }.to raise_error(Candle::InvalidInputError) }
    expect(seen.first.last[:exception].first).to eq("Candle::InvalidInputError")
    expect(events { embedder.embed("fox") }.size).to eq(1)
  end

  it "counts nothing where nobody listens, and does nothing without ActiveSupport" do
    expect(embedder.tokenizer).not_to receive(:encode_batch)
    expect(embedder.embed("fox").size).to eq(32)
    hide_const("ActiveSupport::Notifications")
    expect(embedder.embed("fox").size).to eq(32)
    expect { embedder.embed("fox", nothing: 1) }.to raise_error(ArgumentError, /unknown keyword: :nothing/)
  end

  describe "Candle::LogSubscriber" do
    script = <<~RUBY
      $LOAD_PATH.push(#{File.expand_path("../fixtures/interfaces", __dir__).inspect})
      module Rails
        class Railtie
          def self.initializer(name) = yield
          def self.config = Struct.new(:eager_load_namespaces).new([])
        end
      end
      load #{File.expand_path("../../lib/candle/railtie.rb", __dir__).inspect}
      model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").inspect}, device: "cpu")
      require "stringio"
      output = StringIO.new
      [Logger::DEBUG, Logger::INFO].each do |level|
        Candle.logger = Logger.new(output, level: level, formatter: ->(severity, _, _, text) { "\#{severity} \#{text}\\n" })
        model.embed(%w[fox dog])
        model.embed(3) rescue nil
      end
      puts output.string
    RUBY

    it "writes one line per call, at debug" do
      output, error, = run_ruby(script)
      expect(error).to eq("")
      expect(output.lines.map(&:chomp)).to match(
        [/\ADEBUG Candle embed \(\d+\.\d+ms\) \S*bert-sentence on cpu: 2 in a batch, \d+ tokens\z/,
         /\ADEBUG Candle embed .*: 1 in a batch, failed with Candle::InvalidInputError\z/]
      )
    end
  end
end
