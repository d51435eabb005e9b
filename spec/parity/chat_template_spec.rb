# frozen_string_literal: true

require "spec_helper"
require "json"

# Texts rendered by transformers: spec/fixtures/make_chat_templates.py.
RSpec.describe "Chat template parity" do
  fixtures = File.expand_path("../fixtures/chat_templates", __dir__)
  reference = JSON.parse(File.read(File.join(fixtures, "rendered.json")))

  # A tokenizer whose special tokens are those of the template's checkpoint.
  def tokenizer_with(special)
    Dir.mktmpdir do |directory|
      source = File.expand_path("../fixtures/tokenizers/byte_level_bpe/tokenizer.json", __dir__)
      json = JSON.parse(File.read(source))
      special.values.compact.uniq.each_with_index do |token, index|
        next if json["added_tokens"].any? { |added| added["content"] == token }

        json["added_tokens"] << { "id" => 1000 + index, "content" => token, "single_word" => false, "lstrip" => false,
                                  "rstrip" => false, "normalized" => false, "special" => true }
      end
      File.write(File.join(directory, "tokenizer.json"), JSON.generate(json))
      File.write(File.join(directory, "tokenizer_config.json"), JSON.generate(special.compact))
      Candle::Tokenizer.from_pretrained(directory)
    end
  end

  def render(tokenizer, expected, conversations, tools, template)
    tokenizer.apply_chat_template(
      conversations.fetch(expected["conversation"]),
      add_generation_prompt: expected["add_generation_prompt"], tools: expected["tools"] ? tools : nil,
      chat_template: template, variables: expected.fetch("variables", {})
    )
  end

  reference["rendered"].group_by { |expected| expected["template"] }.each do |name, cases|
    it "renders what transformers renders with the template of #{name}" do
      template = File.read(File.join(fixtures, "#{name}.jinja"))
      tokenizer = tokenizer_with(reference["special"].fetch(name))
      cases.each do |expected|
        actual = -> { render(tokenizer, expected, reference["conversations"], reference["tools"], template) }
        if expected["error"]
          expect(&actual).to raise_error(Candle::InvalidInputError, /#{Regexp.escape(expected["error"])}/)
        else
          expect(actual.call).to eq(expected["text"]), "#{name} #{expected["conversation"]}"
        end
      end
    end
  end
end
