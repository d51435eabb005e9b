# frozen_string_literal: true

require "timeout"

# Texts that no one writes: a word of megabytes, marks over one letter, no space anywhere; and lists without an end.
RSpec.describe "Huge inputs" do
  patience = 0.5
  # What a step of tokenizing that looks at no interrupt may take, on a busy machine.
  margin = 3
  texts = {
    "one word of 20 MB" => "x" * 20_000_000, "10 MB of combining marks" => "e#{"\u0301" * 5_000_000}",
    "12 MB without a space" => "\u6F22" * 4_000_000, "10 MB of spaces" => " " * 10_000_000,
    "10 MB of short words" => "a " * 5_000_000
  }
  photo = File.expand_path("../fixtures/images/photo.png", __dir__)
  short = { max_length: 2 }.freeze
  # What takes texts: the class, a checkpoint, and the call.
  calls = [
    [:EmbeddingModel, "bert-sentence", :embed, ->(model, text) { model.embed(text) }],
    [:Reranker, "bert-reranker", :rerank, ->(model, text) { model.rerank(text, ["a", text]) }],
    [:Classifier, "bert-sequence", :classify, ->(model, text) { model.classify(text) }],
    [:NER, "bert-token", :extract_entities, ->(model, text) { model.extract_entities(text) }],
    [:MaskedLM, "bert-masked", :fill, ->(model, text) { model.fill("#{text}[MASK]") }],
    [:SparseEmbeddingModel, "splade", :embed, ->(model, text) { model.embed(text) }],
    [:SparseEmbeddingModel, "splade", :search, ->(model, text) { model.search("a", [text]) }],
    [:LateInteractionModel, "colbert", :score, ->(model, text) { model.score(text, [text]) }],
    [:CLIP, "clip", :embed_text, ->(model, text) { model.embed_text(text) }],
    [:Seq2Seq, "seq2seq/t5", :generate, ->(model, text) { model.generate(text, **short) }],
    [:VLM, "llava", :ask, ->(model, text) { model.ask(photo, text, **short) }],
    [:LLM, "decoders/llama", :generate, ->(model, text) { model.generate(text, **short) }],
    [:LLM, "decoders/llama", :stop_sequences, ->(model, text) { model.generate("a", stop_sequences: [text], **short) }],
    [:LLM, "decoders/llama", :generate_regex, ->(model, text) { model.generate_regex("a", pattern: text, **short) }],
    [:LLM, "decoders/llama", :chat, lambda { |model, text|
      model.chat([{ role: "user", content: text }], chat_template: "{{ messages[0].content }}", **short)
    }],
    [:Tokenizer, "bert", :encode, ->(model, text) { model.encode(text) }],
    [:Tokenizer, "decoders/llama", :encode, ->(model, text) { model.encode(text) }],
    [:Tokenizer, "bert", :split, ->(model, text) { Candle::TextSplitter.new(model, size: 64).split(text) }]
  ]

  # The call answers, refuses its input, or ends when it is told to.
  def end_in_time(patience, margin, what, &call)
    elapsed = seconds do
      Timeout.timeout(patience, &call)
    rescue Timeout::Error, Candle::Error, ArgumentError
      nil
    end
    expect(elapsed).to be < patience + margin, "#{what} took #{elapsed.round(2)} s"
  end

  calls.each do |type, checkpoint, name, call|
    it "of text are answered, refused or left in time by #{type} (#{checkpoint}): #{name}" do
      options = type == :Tokenizer ? {} : { device: "cpu" }
      model = Candle.const_get(type).from_pretrained(TinyModels.path(checkpoint), **options)
      texts.each { |kind, text| end_in_time(patience, margin, kind) { call.call(model, text) } }
      end_in_time(60, margin, "a short text") { call.call(model, "the fox") }
    end
  end

  it "of lists are answered, refused or left in time" do
    model = Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"), device: "cpu")
    template = { chat_template: "{% for message in messages %}{{ message.content }}{% endfor %}" }.freeze
    messages = [{ role: "user", content: "a" }] * 100_000
    words = Array.new(100_000) { |number| "word#{number}" }
    { "tools without an end" => -> { model.complete_with_tools([messages.first], tools: 1.., **template, **short) },
      "100,000 messages" => -> { model.chat(messages, **template, **short) },
      "100,000 alternatives" => -> { model.generate_regex("a", pattern: Regexp.union(words), **short) },
      "100,000 stop sequences" => -> { model.generate("a", stop_sequences: words, **short) },
      "a schema of 100,000 values" => -> { model.generate_structured("a", schema: { enum: words }, **short) },
      "texts without an end" => -> { model.generate((1..).lazy.map(&:to_s), **short) } }.each do |kind, call|
      end_in_time(patience, margin, kind, &call)
    end
  end
end
