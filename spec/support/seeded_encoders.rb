# frozen_string_literal: true

require_relative "seeded_models"

# The encoders of spec/fixtures/seeded_encoders as whole checkpoints. Their tokenizer has one word per id, so that a
# text becomes the ids of a fixture's case, and a template of special tokens gives the second half of a case its types.
module SeededEncoders
  ROOT = File.join(SeededModels::FIXTURES, "seeded_encoders")
  HEADS = %w[masked sequence token question].freeze

  # Token ids with the rows of numbers that the reference gives for some of them. The second half has types of its own
  # where `typed`.
  Case = Struct.new(:ids, :typed, :rows) do
    def halves
      [ids.take(ids.size / 2), ids.drop(ids.size / 2)]
    end

    # @return [String] what a tokenizer of this case reads as all of its ids
    def text
      SeededEncoders.text(typed ? halves.first : ids)
    end

    # @return [Array<String>] both halves, of which the tokenizer makes all ids
    def pair
      halves.map { |ids| SeededEncoders.text(ids) }
    end
  end

  module_function

  # @return [Array<String>] model types, some with a variant after a dash
  def names
    Dir.children(ROOT).sort
  end

  # @return [Hash] `expected.json` of a fixture
  def record(name)
    @records ||= {}
    @records[name] ||= JSON.parse(File.read(File.join(ROOT, name, "expected.json"), encoding: "UTF-8"))
  end

  # @return [Array<Case>] those of a head, or of the bare model (`"body"`)
  def cases(name, head)
    record(name).fetch(head).fetch("cases").map do |found|
      Case.new(found["ids"], found.key?("types"), found["rows"].transform_keys(&:to_i))
    end
  end

  # Loads a checkpoint, and gives it to the block once for each case, whose text its tokenizer knows how to read.
  #
  # @param model_class [Class]
  # @param labels [Integer, nil] so many of the head's labels; nil is all
  # @yieldparam model [Candle::Model]
  # @yieldparam example [Case]
  def each_case(name, head, model_class, labels: nil)
    Dir.mktmpdir("seeded") do |folder|
      write(name, head, folder, labels)
      cases(name, head).each do |example|
        write_tokenizer(folder, example, vocabulary(name))
        yield model_class.from_pretrained(folder, device: "cpu"), example
      end
    end
  end

  # Writes the config and weights of a checkpoint.
  def write(name, head, folder, labels = nil)
    config = JSON.parse(File.read(File.join(ROOT, name, "config.json")))
    config["architectures"] = [record(name)[head]["architecture"]] if record(name)[head]["architecture"]
    if labels
      config = config.except("label2id")
      config["id2label"] = Array.new(labels) { |id| [id.to_s, "LABEL_#{id}"] }.to_h
    end
    File.write(File.join(folder, "config.json"), JSON.generate(config))
    weights = { "seed" => record(name)["seed"], "tensors" => tensors(name, head, labels) }
    # The same for several heads.
    @elements ||= {}
    File.binwrite(File.join(folder, "model.safetensors"), SeededModels.safetensors(weights, known: @elements))
  end

  # @return [Hash] the tensors of a body and its head, the last matrix with rows for so many labels
  def tensors(name, head, labels)
    own = record(name)[head]
    all = record(name)["body"]["tensors"].transform_keys { |tensor| "#{own["prefix"]}#{tensor}" }
    all = all.merge(own["tensors"])
    return all unless labels

    known = JSON.parse(File.read(File.join(ROOT, name, "config.json"))).fetch("id2label").size
    cut = own["tensors"].select { |_, tensor| tensor["shape"].first == known }
    all.merge(cut.transform_values { |tensor| tensor.merge("shape" => [labels, *tensor["shape"].drop(1)]) })
  end

  # @return [Integer] how many tokens a model knows
  def vocabulary(name)
    config = JSON.parse(File.read(File.join(ROOT, name, "config.json")))
    parts = [config, config["text_config"], config["encoder"]].compact
    parts.filter_map { |part| part["vocab_size"] || part["n_words"] }.first
  end

  # The first of a case's ids is the mask token.
  def write_tokenizer(folder, example, size)
    tokenizer = {
      version: "1.0", truncation: nil, padding: nil, added_tokens: [], normalizer: nil, decoder: nil,
      pre_tokenizer: { type: "WhitespaceSplit" }, post_processor: template(example),
      model: { type: "WordLevel", vocab: Array.new(size) { |id| [word(id), id] }.to_h, unk_token: word(0) }
    }
    config = { tokenizer_class: "PreTrainedTokenizerFast", mask_token: word(example.ids.first),
               model_input_names: %w[input_ids token_type_ids attention_mask] }
    File.write(File.join(folder, "tokenizer.json"), JSON.generate(tokenizer))
    File.write(File.join(folder, "tokenizer_config.json"), JSON.generate(config))
  end

  # One text stands for the first half of a typed case, whose second half the template adds.
  def template(example)
    rest = example.typed ? example.halves.last : []
    sequence = ->(id, type) { { Sequence: { id: id, type_id: type } } }
    added = rest.map { |id| { SpecialToken: { id: word(id), type_id: 1 } } }
    special = rest.uniq.to_h { |id| [word(id), { id: word(id), ids: [id], tokens: [word(id)] }] }
    { type: "TemplateProcessing", single: [sequence["A", 0], *added],
      pair: [sequence["A", 0], sequence["B", example.typed ? 1 : 0]], special_tokens: special }
  end

  def text(ids)
    ids.map { |id| word(id) }.join(" ")
  end

  # @return [String] of equal length for every id, so that no word is a part of another
  def word(id)
    format("w%04d", id)
  end
end
