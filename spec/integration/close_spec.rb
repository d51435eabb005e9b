# frozen_string_literal: true

# Models free their weights when closed.
RSpec.describe "Closing a model" do
  calls = {
    Candle::EmbeddingModel => ["bert-sentence", ->(model) { model.embed("the quick fox") }],
    Candle::Reranker => ["bert-reranker", ->(model) { model.score("a", ["b"]) }],
    Candle::NER => ["bert-token", ->(model) { model.extract_entities("the quick fox") }],
    Candle::Classifier => ["bert-sequence", ->(model) { model.classify("the quick fox") }],
    Candle::MaskedLM => ["bert-masked", ->(model) { model.fill("the quick [MASK]") }],
    Candle::LLM => ["decoders/llama", ->(model) { model.generate("the dog", max_length: 2) }]
  }

  calls.each do |klass, (name, call)|
    it "makes later calls of #{klass} raise, as often as it is closed" do
      model = klass.from_pretrained(TinyModels.path(name))
      call.call(model)
      expect(model.closed?).to be(false)
      2.times { expect(model.close).to be_nil }
      expect(model.closed?).to be(true)
      expect { call.call(model) }.to raise_error(Candle::Error, /closed: load it again/)
      expect(model.inspect).to end_with("(closed)>")
      expect([model.device.kind, model.model_info[:family], model.device_report[:actual]]).to all(be_truthy)
    end
  end

  it "lets calls under way end as usual" do
    model = Candle::EmbeddingModel.from_pretrained(TinyModels.path("bert-sentence"))
    texts = Array.new(400) { |index| "the quick fox #{index}" }
    expected = model.embed(texts)
    threads = Array.new(4) { Thread.new { model.embed(texts) } }
    sleep 0.01
    model.close
    found = threads.map do |thread|
      thread.value
    rescue Candle::Error => e
      e.message
    end
    expect(found).to all(eq(expected).or(match(/closed/)))
  end

  # Ruby turns to another thread while it makes the exception of the first.
  it "tells all threads at once, and none waits for another" do
    output, errors, status = run_ruby(<<~RUBY, within: 60)
      Candle::Error.prepend(Module.new { def initialize(*) = (Thread.pass; super) })
      model = Candle::EmbeddingModel.from_pretrained(#{TinyModels.path("bert-sentence").dump}, device: "cpu")
      model.close
      told = lambda do
        model.embed("fox")
      rescue Candle::Error => e
        e.message
      end
      puts Array.new(4) { Thread.new { Array.new(50) { told.call }.uniq } }.flat_map(&:value).uniq
    RUBY
    expect(status).to be_success, errors
    expect(output).to match(/\Athis model was closed.*\n\z/)
  end

  it "ends a session, but not the answer that is being streamed" do
    llm = Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"))
    pieces = []
    llm.generate_stream("the dog", config: Candle::GenerationConfig.deterministic(max_length: 3)) do |piece|
      llm.close
      pieces << piece
    end
    expect(pieces).not_to be_empty
    expect { llm.session }.to raise_error(Candle::Error, /closed/)
  end

  it "gives the memory back at once", if: File.readable?("/proc/self/status") do
    output, errors, status = run_ruby(<<~RUBY)
      def resident = File.read("/proc/self/status")[/VmRSS:\\s+(\\d+)/, 1].to_i / 1024
      GC.disable
      path = #{RealModels.path("sentence-transformers/all-MiniLM-L6-v2").dump}
      model = Candle::EmbeddingModel.from_pretrained(path, device: "cpu")
      model.embed("warm")
      before = resident
      model.close
      puts before - resident
    RUBY
    expect(status).to be_success, errors
    expect(output.to_i).to be > 40
  end
end
