# frozen_string_literal: true

require "json"
require "tmpdir"

# Language models that say what a spec wants them to: with a tokenizer and a template of their own, and runs that follow
# a script, token by token, instead of the engine's.
module ScriptedRuns
  # A run of the engine, as {Candle::LLM::Run} is one.
  class Run
    def initialize(tokenizer, ids, prompt, settings)
      @tokenizer = tokenizer
      @all = ids.first(settings[:max_new_tokens])
      @prompt = prompt
      @reason = ids.size > @all.size || ids.empty? ? :length : :stop
      @done = 0
      @shown = ""
      @pieces = []
    end

    attr_reader :pieces

    def step
      return if @done >= @all.size

      @done += 1
      text = @tokenizer.decode(@all.first(@done)).delete_suffix("\u{FFFD}")
      @pieces << text[@shown.size..]
      @shown = text
      @pieces.last
    end

    def finish
      nil while step
    end

    def outcome
      { text: @tokenizer.decode(@all.first(@done)), token_ids: @all.first(@done), logprobs: [],
        finish_reason: @done == @all.size ? @reason : nil, prompt_tokens: @prompt.size, cached_tokens: 0,
        prompt_ms: 1.0, first_token_ms: 1.0, tokens_per_second: 1.0 }
    end

    def likelihoods(_first, _last) = []
    def release = @released = true
  end

  # A tiny model with other tokens and another template.
  #
  # @param template [String, nil]
  # @param special [Array<String>] tokens that texts leave out
  # @param added [Array<String>] tokens that they show
  # @return [Candle::LLM]
  def self.model(template, special: [], added: [])
    Dir.mktmpdir do |directory|
      FileUtils.cp_r("#{TinyModels.path("decoders/llama")}/.", directory)
      add_tokens(File.join(directory, "tokenizer.json"), special, added)
      path = File.join(directory, "tokenizer_config.json")
      File.write(path, JSON.generate(JSON.parse(File.read(path)).merge({ "chat_template" => template }.compact)))
      Candle::LLM.from_pretrained(directory)
    end
  end

  def self.add_tokens(path, special, added)
    json = JSON.parse(File.read(path))
    from = [*json["added_tokens"].map { |token| token["id"] }, *json.dig("model", "vocab").values].max
    (special + added).each_with_index do |content, index|
      json["added_tokens"] << { "id" => from + 1 + index, "content" => content, "single_word" => false,
                                "lstrip" => false, "rstrip" => false, "normalized" => false,
                                "special" => special.include?(content) }
    end
    File.write(path, JSON.generate(json))
  end

  # Has a model say texts, one for each run, or the same one in all.
  #
  # @return [Array<Array>] grows with each run: the ids of its prompt, and its settings
  def script(llm, *texts)
    runs = []
    allow(llm).to receive(:_begin) do |ids, settings|
      runs << [ids.to_a, settings]
      text = texts.size == 1 ? texts.first : texts.fetch(runs.size - 1)
      said = llm.tokenizer.encode(text, add_special_tokens: false)
      Run.new(llm.tokenizer, said, ids.to_a, settings)
    end
    runs
  end
end
