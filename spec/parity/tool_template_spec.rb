# frozen_string_literal: true

require "json"

# Texts rendered by transformers: spec/fixtures/make_tool_templates.py. Its templates are written in the shape that each
# family documents; those of checkpoints are in spec/fixtures/chat_templates.
RSpec.describe "Tool calls through chat templates" do
  fixtures = File.expand_path("../fixtures", __dir__)
  reference = JSON.parse(File.read(File.join(fixtures, "tool_templates.json")))
  tools = Candle::Tool.all(reference["tools"])
  wanted = reference["tools"].zip(reference["arguments"]).map { |tool, given| [tool["function"]["name"], given] }
  tokenizer = Candle::Tokenizer.from_file(File.join(fixtures, "tokenizers/byte_level_bpe/tokenizer.json"))

  # The calls that are read from an answer, in pieces.
  def calls_in(answer, template, tools)
    formats = Candle::ToolFormats.find([template]) { nil }
    stream = Candle::ToolStream.new(formats, tools: tools)
    answer.scan(/.{1,5}/m) { |piece| stream.push(piece) }
    stream.finish
    [stream.calls.map { |call| [call.name, call.arguments] }, stream.text.strip]
  end

  reference["families"].each do |name, family|
    it "renders those of #{name} as transformers does, and reads them back" do
      family["rendered"].each do |which, expected|
        options = { tools: reference["tools"], chat_template: family["template"],
                    add_generation_prompt: which != "called" }
        rendered = tokenizer.apply_chat_template(reference["conversations"][which], **options)
        expect(rendered).to eq(expected), which
      end
      answer = family["rendered"]["called"].delete_prefix(family["rendered"]["asked"]).delete_suffix(family["closing"])
      expect(Candle::ToolFormats.find([family["template"]]) { nil }.first.name.to_s).to eq(name)
      expect(calls_in(answer, family["template"], tools)).to eq([wanted, ""])
    end
  end

  rendered = JSON.parse(File.read(File.join(fixtures, "chat_templates/rendered.json")))
  %w[qwen2_5 qwen3 qwen3_2507 llama3_1 mistral].each do |name|
    it "reads back what the template of #{name} writes" do
      template = File.read(File.join(fixtures, "chat_templates/#{name}.jinja"))
      expected = rendered["rendered"].find do |one|
        one["template"] == name && one["conversation"] == "tool_use" && one["tools"]
      end
      given = rendered["conversations"]["tool_use"][1]["tool_calls"].first["function"]
      opening = { "llama3_1" => "assistant<|end_header_id|>\n\n", "mistral" => "[/INST]" }
                .fetch(name, "<|im_start|>assistant\n")
      answer = expected["text"].split(opening)[1][%r{\A.*?(?=<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|</s>)}m]
      expect(calls_in(answer, template, Candle::Tool.all(rendered["tools"])).first)
        .to eq([[given["name"], given["arguments"]]])
    end
  end
end
