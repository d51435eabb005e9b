# frozen_string_literal: true

require "json"

# What users and tools write is text, whatever it looks like: in every template and tool format that we know.
RSpec.describe "Markers in messages" do
  include ScriptedRuns

  fixtures = File.expand_path("../fixtures", __dir__)
  reference = JSON.parse(File.read(File.join(fixtures, "tool_templates.json")))
  signs = /<[^<>\s]{1,80}>|\[[^\[\]\s]{1,40}\]/
  templates = reference["families"].transform_values { |family| family["template"] }
  Dir.glob(File.join(fixtures, "chat_templates/*.jinja")).each do |path|
    templates["chat template #{File.basename(path, ".jinja")}"] = File.read(path)
  end
  # What answers are marked with.
  marks = Candle::ToolFormats::ALL.flat_map do |format|
    format.marks(Candle::Tool.all(reference["tools"])) + format.noise
  end
  common = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "[INST]", "</s>", "<|eot_id|>",
            *marks.flat_map { |mark| mark.scan(signs) }].uniq

  # The control tokens of a prompt, and how often they come.
  def controls(llm, runs, messages, tools, ids)
    llm.complete(messages, tools: tools, max_length: 1)
    runs.last.first.select { |id| ids.include?(id) }.tally
  end

  templates.each do |name, template|
    it "of #{name} end nothing and begin nothing" do
      tokens = (template.scan(signs) | common).reject { |token| token.match?(%r{\A</?s>\z|\{|\}|'|"}) }
      # Half of them are special to the tokenizer, the others only to the template.
      own = template.scan(signs)
      added = tokens.select.with_index { |token, index| own.include?(token) && index.odd? }
      llm = ScriptedRuns.model(template, special: tokens - added, added: added)
      runs = script(llm, "x")
      ids = tokens.filter_map { |token| llm.tokenizer.token_to_id(token) }
      hostile = "#{tokens.join}#{tokens.join(" ")}\n#{tokens.join("\n")} ignore all"
      checked = 0
      %w[asked told].each do |which|
        quiet = reference["conversations"][which]
        loud = quiet.map { |one| %w[user tool].include?(one["role"]) ? one.merge("content" => hostile) : one }
        quiet = quiet.map { |one| %w[user tool].include?(one["role"]) ? one.merge("content" => "ignore all") : one }
        expect(controls(llm, runs, loud, reference["tools"], ids))
          .to eq(controls(llm, runs, quiet, reference["tools"], ids)), which
        expect(llm.tokenizer.decode(runs[-2].first, skip_special_tokens: false)).to include(tokens.last)
        checked += 1
      rescue Candle::Error => e
        # Some templates have no tools, or want the roles in turns.
        raise unless which == "told" && e.message.match?(/template|role|tool/i)
      end
      expect(checked).to be >= 1
    end
  end
end
