# frozen_string_literal: true

require "json"

RSpec.describe Candle::ToolFormats do
  weather = Candle::Tool.new(
    name: "weather", description: "The weather",
    parameters: { type: "object", required: ["city"],
                  properties: { city: { type: "string" }, days: { type: "integer" }, exact: { type: "boolean" },
                                tags: { type: "array", items: { type: "string" } } } }
  ) { "sunny" }
  clock = Candle::Tool.new(name: "clock", description: "The time") { "noon" }
  tools = [weather, clock]
  # Two calls, the second without arguments, with what makes parsers stumble.
  arguments = { "city" => "Z\u00fcrich \"{x}\" <b>\n2", "days" => 2, "exact" => true, "tags" => ["a]", "b"] }
  json = JSON.generate(arguments)
  xml = { "city" => arguments["city"], "days" => "2", "exact" => "true", "tags" => '["a]", "b"]' }
  tags = ->(form) { xml.map { |key, value| format(form, key, value) }.join }
  gemma = "city:Q#{arguments["city"]}Q,days:2,exact:true,tags:[Qa]Q,QbQ]"
  python = "city=#{JSON.generate(arguments["city"])}, days=2, exact=True, tags=['a]', \"b\"]"

  # For each format: the sign in a template, and an answer in the form that its authors document.
  answers = {
    hermes: ["<tool_call>", "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": #{json}}\n</tool_call>\n" \
                            "<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>"],
    qwen_xml: ["<tool_call>\n<function=f>\n<parameter=x>",
               "I look.\n<tool_call>\n<function=weather>\n#{tags["<parameter=%s>\n%s\n</parameter>\n"]}" \
               "</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>"],
    llama: ["<|python_tag|>", "<|python_tag|>{\"name\": \"weather\", \"parameters\": #{json}}; " \
                              "{\"name\": \"clock\", \"parameters\": {}}", nil],
    llama_built_in: ["<|python_tag|>", "<|python_tag|>weather.call(#{python})", nil, 1],
    pythonic: ["[func_name1(params)]", "[weather(#{python}), clock()]", nil],
    pythonic_tagged: ["<|python_start|>", "I look.<|python_start|>[weather(#{python}), clock()]<|python_end|>"],
    lfm2: ["<|tool_call_start|>", "I look.<|tool_call_start|>[weather(#{python}), clock()]<|tool_call_end|>"],
    mistral: ["[TOOL_CALLS]", "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": #{json}, \"id\": \"abcdefghi\"}, " \
                              "{\"name\": \"clock\", \"arguments\": {}, \"id\": \"abcdefghj\"}]", nil],
    mistral_named: ["[TOOL_CALLS][ARGS]", "I look.[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]#{json}" \
                                          "[TOOL_CALLS]clock[ARGS]{}"],
    harmony: ["<|channel|>", "I look.<|channel|>commentary to=functions.weather <|constrain|>json<|message|>#{json}" \
                             "<|call|><|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}"],
    deepseek: ["<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json",
               "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n#{json}\n```" \
               "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```<｜tool▁call▁end｜>" \
               "<｜tool▁calls▁end｜>"],
    deepseek_named: ["<｜tool▁call▁begin｜>", "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>#{json}" \
                                              "<｜tool▁call▁end｜><｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}" \
                                              "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"],
    deepseek_tagged: ["<｜DSML｜invoke", "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n#{
      tags["<｜DSML｜parameter name=\"%s\" string=\"false\">%s</｜DSML｜parameter>\n"]
        .sub("\"city\" string=\"false\"", "\"city\" string=\"true\"")
    }</｜DSML｜invoke>\n<｜DSML｜invoke name=\"clock\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"],
    glm: ["<arg_key>", "I look.\n<tool_call>weather\n#{tags["<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n"]}" \
                       "</tool_call>\n<tool_call>clock\n</tool_call>"],
    glm_lines: ["<|observation|>", "weather\n#{json}", nil, 1],
    granite: ["<|tool_call|>", "<|tool_call|>[{\"name\": \"weather\", \"arguments\": #{json}}, " \
                               "{\"name\": \"clock\", \"arguments\": {}}]", nil],
    phi4: ["<|tool_call|><|/tool_call|>", "<|tool_call|>[{\"name\": \"weather\", \"arguments\": #{json}}, " \
                                          "{\"name\": \"clock\", \"arguments\": {}}]<|/tool_call|>", nil],
    functools: ["functools[", "functools[{\"name\": \"weather\", \"arguments\": #{json}}, " \
                              "{\"name\": \"clock\", \"arguments\": {}}]", nil],
    cohere: ["<|START_ACTION|>", "I look.<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", " \
                                 "\"tool_name\": \"weather\", \"parameters\": #{json}},\n    " \
                                 "{\"tool_call_id\": \"1\", \"tool_name\": \"clock\", " \
                                 "\"parameters\": {}}\n]<|END_ACTION|>"],
    cohere_fenced: ["Write 'Action:' followed by a list",
                    "I look.\nAction: ```json\n[{\"tool_name\": \"weather\", \"parameters\": #{json}}, " \
                               "{\"tool_name\": \"clock\", \"parameters\": {}}]```"],
    kimi: ["<|tool_call_begin|>", "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0" \
                                  "<|tool_call_argument_begin|>#{json}<|tool_call_end|><|tool_call_begin|>" \
                                  "functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>" \
                                  "<|tool_calls_section_end|>"],
    mini_max: ["<tool_calls>", "I look.\n<tool_calls>\n{\"name\": \"weather\", \"arguments\": #{json}}\n" \
                               "{\"name\": \"clock\", \"arguments\": {}}\n</tool_calls>"],
    mini_max_tagged: ["<minimax:tool_call>", "I look.\n<minimax:tool_call>\n<invoke name=\"weather\">\n" \
                                             "#{tags["<parameter name=\"%s\">%s</parameter>\n"]}</invoke>\n" \
                                             "<invoke name=\"clock\">\n</invoke>\n</minimax:tool_call>"],
    functionary: ["<function=", "I look.<function=weather>#{json}</function><function=clock>{}</function>"],
    functionary_lines: ["{{ '>>>all' }}", "all\nI look.>>>weather\n#{json}>>>clock\n{}"],
    gemma: ["<|tool_call>", "I look.<|tool_call>call:weather{#{gemma.gsub("Q", '<|"|>')}}<tool_call|>" \
                            "<|tool_call>call:clock{}<tool_call|>"],
    function_gemma: ["<start_function_call>",
                     "I look.<start_function_call>call:weather{#{gemma.gsub("Q", "<escape>")}}<end_function_call>" \
                     "<start_function_call>call:clock{}<end_function_call>"],
    gemma_fenced: ["```tool_code\n", "I look.\n```tool_code\n[weather(#{python}), clock()]\n```"],
    fenced: ["```tool_call", "I look.\n```json\n[{\"name\": \"weather\", \"arguments\": #{json}}, " \
                             "{\"name\": \"clock\", \"arguments\": {}}]\n```"]
  }

  # Text, calls, and what was told of them, for an answer in pieces.
  def outcome(formats, tools, pieces)
    stream = Candle::ToolStream.new(formats, tools: tools)
    events = pieces.flat_map { |piece| stream.push(piece) } + stream.finish
    told = Hash.new { |found, index| found[index] = +"" }
    events.each { |kind, about| told[about[:index]] << about[:json] if kind == :arguments }
    { text: stream.text, shown: events.filter_map { |kind, text| text if kind == :text }.join,
      calls: stream.calls.map { |call| [call.name, call.arguments, call.id] },
      names: events.filter_map { |kind, about| [about[:index], about[:name]] if kind == :tool_call }, told: told }
  end

  answers.each do |name, (sign, answer, text, count)|
    text = "I look." if [answers[name].size, text] == [2, nil]
    wanted = [["weather", arguments], ["clock", {}]].first(count || 2)

    it "reads calls of the format #{name}, which a template is known by" do
      formats = described_class.find([sign]) { nil }
      expect(formats.map(&:name)).to include(name)
      found = outcome(formats, tools, [answer])
      expect(found[:calls].map { |call| call.first(2) }).to eq(wanted)
      expect(found[:text]).to eq(text.to_s)
      expect(found[:names]).to eq(wanted.each_with_index.map { |call, index| [index, call.first] })
      expect(found[:told].values.map { |told| JSON.parse(told) }).to eq(wanted.map(&:last))
      all = outcome(described_class::ALL, tools, [answer])
      expect(all[:calls]).to eq(found[:calls]) unless name == :functionary_lines
    end

    it "reads the format #{name} in the same way however it is cut" do
      random = Random.new(name.to_s.sum)
      [described_class.find([sign]) { nil }, described_class::ALL].each do |formats|
        whole = outcome(formats, tools, [answer])
        expect(outcome(formats, tools, answer.chars)).to eq(whole)
        40.times do
          cuts = Array.new(random.rand(1..15)) { random.rand(answer.size + 1) }.sort
          pieces = [0, *cuts].zip([*cuts, answer.size]).map { |from, to| answer[from...to] }
          expect(outcome(formats, tools, pieces)).to eq(whole)
        end
      end
    end

    it "says the name in the format #{name} before the arguments are whole" do
      stream = Candle::ToolStream.new(described_class.find([sign]) { nil }, tools: tools)
      half = answer[0...answer.index("2,") || answer.index("days")]
      events = half.chars.flat_map { |letter| stream.push(letter) }
      expect(events.map(&:first)).to include(:tool_call)
      expect(stream.calls).to be_empty
    end
  end

  it "finds formats in the vocabulary where the template names none" do
    expect(described_class.find(["plain"]) { |token| 1 if token == "<|tool_call_start|>" }.first.name).to eq(:lfm2)
    expect(described_class.find(["plain"]) { nil }).to eq(described_class::ALL)
  end

  it "knows ids that models give" do
    found = { mistral: %w[abcdefghi abcdefghj], mistral_named: ["abcdefghi", nil], cohere: %w[0 1],
              kimi: %w[functions.weather:0 functions.clock:1] }
    found.each do |name, ids|
      sign, answer = answers[name]
      calls = outcome(described_class.find([sign]) { nil }, tools, [answer])[:calls]
      expect(calls.map(&:last)).to eq(ids)
    end
  end

  it "leaves what begins like a call and is not one in the text" do
    ["<tool_call> oops </tool_call>", "see <function= and [TOOL_CALLS] here", "[link](http://x)", "{\"a\": 1} is JSON",
     "use <tool_call> tags", "```json\n{\"name\": \"Bob\"}\n```", "weather is fine", "<|tool_call>call:weather{city:",
     "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ro", "a < b, [1, 2], {x}"].each do |text|
      expect(outcome(described_class::ALL, tools, [text])).to include(calls: [], text: text)
      expect(outcome(described_class::ALL, tools, text.chars)).to include(calls: [], shown: text)
        .or include(calls: [], names: [[0, "weather"]])
    end
  end

  it "counts a call that says the same again once, and one that differs" do
    call = ->(city) { "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"#{city}\"}}</tool_call>" }
    found = outcome(described_class::ALL, tools, (call["a"] + call["a"] + call["b"]).chars)
    expect(found[:calls].map { |_, given| given["city"] }).to eq(%w[a b])
    expect(found[:names].map(&:first)).to eq([0, 1])
  end

  it "takes texts of tags by the schema, and others as JSON" do
    call = "<function=weather><parameter=city>12</parameter><parameter=days>3</parameter>" \
           "<parameter=other>4</parameter><parameter=exact>True</parameter></function>"
    expect(outcome([described_class::QWEN_XML], tools, [call])[:calls].first[1])
      .to eq("city" => "12", "days" => 3, "other" => 4, "exact" => true)
  end

  it "reads long arguments in time that grows with their length" do
    text = "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"#{"lorem \\n " * 20_000}\"}}</tool_call>"
    pieces = text.scan(/.{1,6}/m)
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    expect(outcome(described_class::ALL, tools, pieces)[:calls].size).to eq(1)
    expect(Process.clock_gettime(Process::CLOCK_MONOTONIC) - began).to be < 5
  end

  it "never raises, whatever it is given" do
    random = Random.new(3)
    bits = answers.values.flat_map { |_, answer| answer.scan(/.{1,9}/m) } + ["\u{FFFD}", "\\", "\"", "{", "}", "[", "]"]
    400.times do
      pieces = Array.new(random.rand(30)) { bits.sample(random: random) }
      found = outcome(described_class::ALL, tools, pieces)
      expect(found[:calls]).to all(satisfy { |call| call[1].is_a?(Hash) })
    end
  end

  describe "a call that is demanded" do
    template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.content }}" \
               "{% endfor %}"
    set = Candle::Tool.new(name: "set", description: "", parameters: {
                             type: "object", properties: { ok: { type: "boolean" }, to: { "$ref": "#/$defs/to" } },
                             required: %w[ok to], "$defs": { to: { enum: %w[a b] } }
                           }) { "done" }

    def roomy(template)
      Dir.mktmpdir do |directory|
        FileUtils.cp_r("#{RoomyLLM.path}/.", directory)
        path = File.join(directory, "tokenizer_config.json")
        config = File.exist?(path) ? JSON.parse(File.read(path)) : {}
        File.write(path, JSON.generate(config.merge("chat_template" => template)))
        Candle::LLM.from_pretrained(directory)
      end
    end

    { "<tool_call>" => %r{\A<tool_call>\n\{"name": "set", "arguments": \{.*\}\}\n</tool_call>\z}m,
      "[TOOL_CALLS][ARGS]" => /\A\[TOOL_CALLS\]set\[ARGS\]\{.*\}\z/m,
      "[TOOL_CALLS]" => /\A\[TOOL_CALLS\]\[\{"name": "set", "arguments": \{.*\}\}\]\z/m,
      "<|tool_call_begin|>" => /\A<\|tool_calls_section_begin\|><\|tool_call_begin\|>functions\.set:0.*_end\|>\z/m,
      "<|START_ACTION|>" => /\A<\|START_ACTION\|>\[\{"tool_name": "set", "parameters": .*<\|END_ACTION\|>\z/m,
      "<function=" => %r{\A<function=set>\{.*\}</function>\z}m,
      "<arg_key>" => /\A\{"name": "set", "arguments": .*\}\z/m }.each do |sign, pattern|
      it "is written in the form of templates with #{sign}, or as JSON where that can't be held to the schema" do
        llm = roomy("#{template}{# #{sign} #}")
        3.times do |seed|
          made = llm.chat_with_tools([{ role: "user", content: "x" }], tools: [set], tool_choice: "set", seed: seed,
                                                                       temperature: 1.5, execute: true)
          expect(made.raw_response).to match(pattern)
          expect(made.tool_results).to match([hash_including(result: "done", error: nil)])
        end
      end
    end

    place = Candle::Tool.new(name: "place", description: "", parameters: {
                               type: "object", required: %w[city exact], "$defs": { tag: { enum: %w[a b] } },
                               properties: { city: { type: "string", maxLength: 6 }, exact: { type: "boolean" },
                                             days: { type: "integer", minimum: 1, maximum: 9 },
                                             unit: { type: "string", enum: %w[c f] },
                                             tags: { type: "array", items: { "$ref": "#/$defs/tag" }, maxItems: 2 } }
                             })
    only = Candle::Tool.new(name: "only", description: "", parameters: {
                              type: "object", properties: { a: { type: "integer", minimum: 0, maximum: 9 },
                                                            b: { type: "string", enum: ["x"] } }
                            })
    bare = Candle::Tool.new(name: "bare", description: "", parameters: {})
    valid = {
      "bare" => ->(given) { given == {} },
      "only" => ->(given) { (given.keys - %w[a b]).empty? && (0..9).cover?(given["a"] || 0) },
      "place" => lambda do |given|
        given["city"].is_a?(String) && given["city"].size <= 6 && [true, false].include?(given["exact"]) &&
          (1..9).cover?(given["days"] || 1) && ["c", "f", nil].include?(given["unit"]) &&
          (given["tags"].to_a - %w[a b]).empty? && (given.keys - %w[city exact days unit tags]).empty?
      end
    }

    # Llama's calls of tools that were built in have no schemas.
    (described_class::ALL - [described_class::LLAMA_BUILT_IN]).each do |format|
      it "is held to the schema within the format #{format.name}, and read back" do
        llm = Candle::LLM.from_pretrained(RoomyLLM.path)
        grammar = described_class::Grammar.spell(format.grammar([place, only, bare]), llm.tokenizer)
        called = Array.new(8) do |seed|
          text = llm.complete("x", grammar: grammar, temperature: 2.0, seed: seed, max_length: 900).text
          found = outcome([format], [place, only, bare], text.scan(/.{1,4}/m))
          expect([text, found[:calls].size, found[:text].strip]).to eq([text, 1, ""])
          name, given = found[:calls].first
          expect(given).to satisfy(text) { valid.fetch(name).call(given) }
          name
        end
        expect(called.uniq.size).to be > 1
      end
    end

    it "is JSON alone where arguments can't be written one by one" do
      [{ type: "object", properties: { a: { type: "string", pattern: "x+" } } }, { type: "object", minProperties: 1 },
       { type: "object", properties: { a: { enum: [1, "1"] } } }, { anyOf: [{ type: "object" }] },
       { type: "object", properties: { "a b" => { type: "integer" } } },
       { type: "object", properties: { a: { type: "integer" },
                                       b: { type: "array", items: { "$ref": "#/properties/a" } } } },
       { type: "object", properties: {}, required: ["a"] },
       { type: "object", properties: { a: { type: "string", enum: ["</arg_value>"] } } }].each do |parameters|
        tool = Candle::Tool.new(name: "f", description: "", parameters: parameters)
        expect([parameters, described_class::GLM.grammar([tool])]).to eq([parameters, nil])
        expect([parameters, described_class::LFM2.grammar([tool])]).to eq([parameters, nil]) unless
          parameters.to_s.match?(/pattern|arg_value/)
      end
    end

    it "is made of control tokens where the vocabulary has them" do
      tokens = ["<s>", "</s>"]
      grammar = described_class::Grammar.new([set]).json_calls("<s>", "</s>", tokens: tokens)
      llm = Candle::LLM.from_pretrained(RoomyLLM.path)
      ids = tokens.map { |token| llm.tokenizer.token_to_id(token) }
      spelled = described_class::Grammar.spell(grammar, llm.tokenizer)
      expect(spelled).to include("<[#{ids[0]}]>", "<[#{ids[1]}]>")
      expect(described_class::Grammar.spell(grammar.gsub("<s>", "<none>"), llm.tokenizer)).to include('"<none>"')
    end
  end

  describe Candle::CallGuard do
    include ScriptedRuns

    template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.content }}" \
               "{% endfor %}{# <tool_call> #}"

    def reason(outcome, ending) = outcome[:finish_reason] ? outcome.merge(finish_reason: ending) : outcome

    it "lets text be free, and holds a call to its grammar" do
      llm = ScriptedRuns.model(template, added: %w[<tool_call> </tool_call>])
      said = ["I look. <tool_call>", "\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>", " Wait."]
      runs = []
      allow(llm).to receive(:_begin) do |ids, settings|
        runs << [ids, settings]
        ends = runs.size == 2 ? :constraint : :stop
        # The first run would have said more.
        text = runs.size == 1 ? "#{said[0]} nonsense" : said[runs.size - 1]
        run = ScriptedRuns::Run.new(llm.tokenizer, llm.tokenizer.encode(text, add_special_tokens: false), ids, settings)
        allow(run).to(receive(:outcome).and_wrap_original { |own| reason(own.call, ends) })
        run
      end
      made = llm.chat_with_tools([{ role: "user", content: "x" }], tools: tools)
      expect(made.raw_response).to eq(said.join)
      expect(made.tool_calls.map(&:name)).to eq(["clock"])
      expect(made.text_response).to eq("I look.  Wait.")
      expect(runs.map { |_, settings| settings[:constraint]&.first }).to eq([nil, "lark", nil])
      expect(llm.tokenizer.decode(runs.last.first.to_a)).to end_with(said.first(2).join)
      expect(made.completion.usage.completion_tokens).to eq(made.completion.token_ids.size)
    end

    it "guards nothing where the beginning of a call is not a token" do
      llm = ScriptedRuns.model(template)
      runs = script(llm, "<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>")
      expect(llm.chat_with_tools([{ role: "user", content: "x" }], tools: tools).tool_calls.size).to eq(1)
      expect(runs.size).to eq(1)
    end

    it "goes on freely where a schema can't be followed" do
      llm = ScriptedRuns.model(template, added: %w[<tool_call> </tool_call>])
      runs = 0
      allow(llm).to receive(:_begin) do |ids, settings|
        runs += 1
        raise Candle::InvalidInputError, "the schema can't be used" if settings[:constraint]

        text = runs == 1 ? "<tool_call>" : "{\"name\": \"clock\", \"arguments\": {}}</tool_call>"
        ScriptedRuns::Run.new(llm.tokenizer, llm.tokenizer.encode(text, add_special_tokens: false), ids, settings)
      end
      expect(llm.chat_with_tools([{ role: "user", content: "x" }], tools: tools).tool_calls.size).to eq(1)
    end
  end
end
