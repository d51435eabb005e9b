# frozen_string_literal: true

require "json"
require "timeout"

# A tiny model with random weights has no idea of JSON: whatever comes out right is the constraint's doing.
RSpec.describe Candle::StructuredConstraint do
  it "takes schemas as other libraries wrap them" do
    schema = { type: "object", properties: { ok: { type: "boolean" } } }
    expected = described_class.from_schema(schema)
    [{ type: "json_schema", json_schema: { name: "answer", strict: true, schema: schema } },
     { "type" => "json_schema", "schema" => schema }, { name: "answer", schema: schema },
     Class.new { define_method(:to_json_schema) { { name: "answer", description: "", schema: schema } } }.new,
     Class.new { define_singleton_method(:to_json_schema) { schema } }].each do |wrapped|
      expect(described_class.from_schema(wrapped)).to eq(expected)
    end
    expect(described_class.from_schema({ type: "json_object" }).source).to eq('{"type":"object"}')
    named = { type: "object", properties: { name: { type: "string" }, schema: { type: "string" } } }
    expect(JSON.parse(described_class.from_schema(named).source)["properties"].keys).to eq(%w[name schema])
  end

  it "writes JSON with one space after a colon or comma, unless told otherwise" do
    llm = Candle::LLM.from_pretrained(TinyModels.path("decoders/llama"))
    schema = { type: "object", properties: { a: { type: "boolean" }, b: { type: "null" } }, required: %w[a b] }
    3.times do |seed|
      text = llm.generate("the dog", schema: schema, temperature: 2.0, seed: seed, max_length: 60)
      expect(text).to match(/\A\{"a": (true|false), "b": null\}\z/)
    end
    flexible = llm.generate("the dog", schema: schema, whitespace: :flexible, max_length: 200, context_overflow: :roll)
    expect(JSON.parse(flexible).keys).to eq(%w[a b])
    expect(described_class.from_schema(schema, whitespace: :flexible)).not_to eq(described_class.from_schema(schema))
    expect { described_class.from_schema(schema, whitespace: :none) }
      .to raise_error(ArgumentError, "whitespace must be one of :compact, :flexible, not :none")
  end
end

RSpec.describe Candle::StructuredOutput do
  let(:llm) { @llm ||= Candle::LLM.from_pretrained(TinyModels.path("decoders/llama")) }

  # Random weights end a free string seldom, and the tiny context holds 64 tokens.
  wild = { temperature: 2.0, max_length: 400, context_overflow: :roll }

  def valid?(schema, value)
    Candle::JsonSchema.new(schema).errors(value).empty?
  end

  def schema(properties, **rest)
    { type: "object", properties: properties, required: properties.keys, **rest }
  end

  short = { type: "string", maxLength: 6 }

  {
    "scalars" => { name: short, age: { type: "integer", minimum: 0, maximum: 120 }, ok: { type: "boolean" },
                   none: { type: "null" }, share: { type: "number", exclusiveMinimum: 0, maximum: 1.5 } },
    "enums and constants" => { colour: { enum: ["red", "grün", 3, nil] }, version: { const: 2 },
                               tag: { const: "a\"b" } },
    "arrays" => { list: { type: "array", items: { enum: [-3, 0, 2.5] }, minItems: 2, maxItems: 4 },
                  pair: { type: "array", prefixItems: [{ type: "boolean" }, { enum: ["x"] }], items: false,
                          minItems: 2 } },
    "nested objects" => { inner: { type: "object", properties: { a: { type: "object", properties: { b: short },
                                                                      required: ["b"] } }, required: ["a"] } },
    "alternatives" => { value: { anyOf: [{ type: "integer", minimum: 1, maximum: 9 }, short, { type: "null" }] } },
    "patterns and formats" => { code: { type: "string", pattern: "^[A-Z]{2}-\\d{2}$" },
                                day: { type: "string", format: "date" } },
    "multiples" => { even: { type: "integer", multipleOf: 2, minimum: 0, maximum: 50 } }
  }.each do |name, properties|
    it "generates #{name} that are valid, whatever is drawn" do
      wanted = schema(properties)
      values = (1..12).map { |seed| llm.generate_structured("the dog", schema: wanted, seed: seed, **wild) }
      expect(values).to all(satisfy { |value| valid?(wanted, value) && value.keys == properties.keys.map(&:to_s) })
      expect(values.uniq.size).to be > 1
    end
  end

  it "follows references, recursive ones too" do
    tree = { "$ref" => "#/$defs/node",
             "$defs" => { "node" => { "type" => "object", "required" => %w[v next],
                                      "properties" => { "v" => { "type" => "boolean" },
                                                        "next" => { "anyOf" => [{ "type" => "null" },
                                                                                { "$ref" => "#/$defs/node" }] } } } } }
    values = (1..24).filter_map do |seed|
      llm.generate_structured("the dog", schema: tree, seed: seed, **wild, temperature: 50.0)
    rescue Candle::StructuredOutputError
      nil # Random weights may go ever deeper.
    end
    expect(values).to include(a_hash_including("next" => Hash)).and(all(satisfy { |value| valid?(tree, value) }))
  end

  it "lets optional properties out, and others in only where the schema says so" do
    wanted = { type: "object", properties: { a: { type: "boolean" }, b: { type: "boolean" } }, required: ["b"] }
    keys = (1..20).map { |seed| llm.generate_structured("the dog", schema: wanted, seed: seed, **wild).keys }
    expect(keys.uniq).to contain_exactly(%w[b], %w[a b])
    open = { type: "object", patternProperties: { "^[ab]{1,2}$" => { type: "boolean" } }, additionalProperties: false,
             minProperties: 1, maxProperties: 2 }
    values = (1..5).map { |seed| llm.generate_structured("the dog", schema: open, seed: seed, **wild) }
    expect(values).to all(satisfy { |value| valid?(open, value) })
  end

  it "takes schemas as JSON and gives arrays and scalars too" do
    json = JSON.generate({ type: "array", items: { enum: [1, 2] }, minItems: 3, maxItems: 3 })
    list = llm.generate_structured("the dog", schema: json, **wild)
    expect(list).to all(be_between(1, 2)).and(have_attributes(size: 3))
    expect(llm.generate_structured("the dog", schema: { enum: %w[yes no] }, **wild)).to eq("yes").or eq("no")
  end

  it "makes instances of Struct classes" do
    point = Struct.new(:x, :y) do
      def self.json_schema
        { type: "object", properties: { x: { type: "integer", maximum: 9, minimum: 0 }, y: { type: "boolean" } },
          required: %w[x y] }
      end
    end
    value = llm.generate_structured("the dog", schema: point, **wild)
    expect(value).to be_a(point).and have_attributes(x: be_between(0, 9), y: be(true).or(be(false)))
    named = Struct.new(:ok, keyword_init: true) do
      define_singleton_method(:json_schema) do
        { properties: { ok: { const: 1 } }, required: ["ok"] }
      end
    end
    expect(llm.generate_structured("the dog", schema: named, **wild)).to eq(named.new(ok: 1))
    expect(Candle::StructuredConstraint.from_schema(Struct.new(:a)).parse('{"a": [1]}').a).to eq([1])
  end

  it "raises with the text so far when it is cut off" do
    wanted = schema({ name: { type: "string", minLength: 30 } })
    expect { llm.generate_structured("the dog", schema: wanted, max_length: 12) }
      .to raise_error(Candle::StructuredOutputError, /cut off after 12 tokens/) { |error|
            expect(error.partial).to start_with("{")
            expect(error.partial_text).to eq(error.partial)
          }
    expect do
      llm.generate_regex("the dog", pattern: /a{50}/, max_length: 3)
    end.to raise_error(Candle::StructuredOutputError)
  end

  it "keeps the constraint whatever the config says" do
    wanted = schema({ ok: { type: "boolean" } })
    configs = [Candle::GenerationConfig.deterministic(stop_sequences: ["}", ":"], include_prompt: true),
               Candle::GenerationConfig.creative(repetition_penalty: 3.0, presence_penalty: 5.0),
               Candle::GenerationConfig.new(stop_on_constraint_satisfaction: false, top_k: 1, logprobs: 2),
               Candle::GenerationConfig.new(constraint: wanted, min_p: 0.5, top_p: 0.1)]
    configs.each do |config|
      expect(llm.generate_structured("the dog", schema: wanted,
                                                config: config)).to match("ok" => be(true).or(be(false)))
    end
    expect { llm.generate_structured("the dog", schema: wanted, config: configs.first.with(constraint: /a/)) }
      .to raise_error(ArgumentError, /two constraints/)
  end

  it "says what of a schema it can't enforce" do
    { { type: "array", uniqueItems: true } => /uniqueItems/, { not: { type: "null" } } => %r{#/not},
      { properties: { a: { dependentRequired: {} } } } => %r{#/properties/a/dependentRequired},
      { type: "text" } => /text/, { type: "string", format: "phone" } => /phone/,
      { type: "string", pattern: "(?=a)" } => /schema can't be used/,
      { properties: { a: { properties: {}, required: ["c"] } } } => %r{#/properties/a/required names "c"} }
      .each do |bad, message|
      expect { llm.generate_structured("the dog", schema: bad) }.to raise_error(Candle::InvalidInputError, message)
    end
    expect { llm.generate_structured("the dog", schema: "{oops") }.to raise_error(Candle::InvalidInputError, /JSON/)
    expect { llm.generate_structured("the dog", schema: String) }.to raise_error(Candle::InvalidInputError, /Struct/)
    expect { llm.generate_structured("the dog", schema: nil) }.to raise_error(Candle::InvalidInputError, /nil/)
  end

  describe "#generate_regex" do
    [/yes|no/, /\d{3}-\d{4}/, /[A-Z][a-z]{2,5}( [A-Z][a-z]+)?/, /(?<y>\d{4})-(?:0[1-9]|1[0-2])/, /é{2}|日本|🦀+x/,
     /[[:upper:]]\h{2}\p{Alpha}[^\d\s\W]/, /\A(a|bc)+?\z/i, /^x.{3}$/m, Regexp.union("a.b", /c{2}/i), /a b # c
      [ ]d/x, "[0-9]{2}", /[a-z&&[^aeiou]]{4}/, %r{"\\/{2}\t}].each do |pattern|
      it "follows #{pattern.inspect}" do
        whole = /\A(?:#{pattern})\z/
        [true, false].each do |stop|
          texts = (1..6).map do |seed|
            llm.generate_regex("the dog", pattern: pattern, stop_on_match: stop, seed: seed, **wild)
          end
          expect(texts).to all(match(whole).and(be_valid_encoding))
        end
      end
    end

    it "ends as soon as it matches, or goes on while it may" do
      first = (1..8).map { |seed| llm.generate_regex("the dog", pattern: /\d{1,4}/, seed: seed, **wild).size }
      longest = (1..8).map do |seed|
        llm.generate_regex("the dog", pattern: /\d{1,4}/, stop_on_match: false, seed: seed, **wild).size
      end
      expect(first).to all(eq(1))
      expect(longest.max).to be > 1
    end

    it "refuses what can't be followed" do
      { /(?=a)b/ => /lookahead/, /(?<!a)b/ => /lookbehind/, /(a)\1/ => /backreferences/, /\bfoo/ => /word boundaries/,
        /(?>a+)b/ => /atomic/, /a++b/ => /possessive/, /a^b/ => /pattern can't be used/,
        "(" => /not a regular expression/, 3 => /must be a Regexp/ }.each do |pattern, message|
        expect { llm.generate_regex("the dog", pattern: pattern) }.to raise_error(Candle::InvalidInputError, message)
      end
    end
  end

  describe "other calls" do
    it "takes a grammar, a schema or a pattern" do
      lark = "start: \"<\" /[ab]{3}/ \">\""
      expect(llm.generate("the dog", grammar: lark)).to match(/\A<[ab]{3}>\z/)
      completion = llm.complete("the dog", pattern: /[ab]{3}/)
      expect(completion).to have_attributes(text: match(/\A[ab]{3}\z/), finish_reason: :constraint)
      expect(JSON.parse(llm.generate("the dog", schema: { enum: [1] }))).to eq(1)
      expect do
        llm.generate("the dog", grammar: "start: nothing")
      end.to raise_error(Candle::InvalidInputError, /grammar can't/)
      expect { llm.generate("the dog", grammar: lark, pattern: /a/) }.to raise_error(ArgumentError, /two constraints/)
    end

    it "streams what adds up to the text" do
      pieces = []
      text = llm.generate_stream("the dog", pattern: /[é日🦀]{8}/) { |piece| pieces << piece }
      expect(pieces.join).to eq(text)
      expect(pieces).to all(be_valid_encoding)
      streamed = +""
      value = llm.generate_structured("the dog", schema: { enum: [["a", 1]] }) { |piece| streamed << piece }
      expect(JSON.parse(streamed)).to eq(value)
      expect(llm.generate_stream("the dog", grammar: "start: \"abc\"").to_a.join).to eq("abc")
    end

    it "waits for the model to end the text when told to" do
      config = Candle::GenerationConfig.new(constraint: { const: 5 }, stop_on_constraint_satisfaction: false)
      expect(llm.complete("the dog", config: config)).to have_attributes(text: "5", finish_reason: :stop)
      expect(llm.complete("the dog",
                          config: config.with(stop_on_constraint_satisfaction: true)).finish_reason).to eq(:constraint)
    end

    it "is repeatable by its seed" do
      draw = -> { llm.generate("the dog", pattern: /[a-z]{20}/, temperature: 1.5, seed: 9) }
      expect(draw.call).to eq(draw.call)
    end
  end

  describe "interruption" do
    endless = /[a-z]{100000}/

    it "stops at break, Timeout and Thread#kill, and goes on" do
      options = { pattern: endless, max_length: 100_000, context_overflow: :roll }
      llm.generate_stream("the dog", **options) { break }
      expect { Timeout.timeout(0.3) { llm.generate("the dog", **options) } }.to raise_error(Timeout::Error)
      thread = Thread.new { llm.generate("the dog", **options) }
      sleep 0.1
      thread.kill.join(5)
      expect(thread).not_to be_alive
      expect(llm.generate("the dog", pattern: /ab/)).to eq("ab")
    end

    it "runs in threads and says the same as alone" do
      draw = lambda { |seed|
        llm.generate_structured("the dog", schema: { type: "array", items: { enum: [1, 2, 3] }, maxItems: 6 },
                                           seed: seed, **wild)
      }
      alone = (1..4).map(&draw)
      expect((1..4).map { |seed| Thread.new { draw.call(seed) } }.map(&:value)).to eq(alone)
    end
  end
end
