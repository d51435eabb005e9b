# frozen_string_literal: true

require "json"

# Requests that are right but for one field, which has an odd value, also deep inside: every field of every path.
class OddFields
  TALK = [{ role: "system", content: "Be brief." }, { role: "user", content: "the fox" }].freeze
  CALLED = [{ role: "user", content: [{ type: "text", text: "the fox" }] },
            { role: "assistant", content: nil, tool_calls: [{ id: "c1", type: "function",
                                                              function: { name: "f", arguments: "{\"a\":1}" } }] },
            { role: "tool", tool_call_id: "c1", name: "f", content: "7" }].freeze
  TOOL = { type: "function", function: { name: "f", description: "does", parameters: {
    type: "object", properties: { a: { type: "integer" } }, required: ["a"]
  } } }.freeze
  SCHEMA = { type: "object", properties: { a: { type: "boolean" } }, required: ["a"] }.freeze
  SAMPLING = { stop: ["zz"], logit_bias: {}, seed: 1, temperature: 0.5, top_p: 0.9, top_k: 3, min_p: 0.1,
               presence_penalty: 0.1, frequency_penalty: 0.1, repetition_penalty: 1.1 }.freeze
  REWRITING = { task: "translate", from: "en", to: "de", num_beams: 2, length_penalty: 1.0, early_stopping: true,
                no_repeat_ngram_size: 2, min_length: 1 }.freeze
  ANSWERS = { **SAMPLING, max_completion_tokens: 3, n: 1, stream: false,
                          stream_options: { include_usage: true } }.freeze
  PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQ" \
            "AAAABJRU5ErkJggg=="
  # A tenth of a second, at 8000 Hz.
  SOUND = ["RIFF#{[836].pack("V")}WAVEfmt #{[16, 1, 1, 8000, 8000, 1, 8].pack("VvvVVvv")}data#{[800].pack("V")}" \
           "#{"\x80\xA0" * 400}".b].pack("m0")
  SPOKEN = { model: "speech", file: SOUND, prompt: "the cat", response_format: "verbose_json", temperature: 0.5,
             stream: false, language: "en", timestamp_granularities: ["word"] }.freeze
  SEEN = [{ role: "user", content: [{ type: "text", text: "a" }, { type: "image_url", image_url: { url: PICTURE } }] }]
         .freeze
  BLOCKS = [{ role: "user", content: [{ type: "text", text: "a", cache_control: { type: "ephemeral" } }] },
            { role: "assistant", content: [{ type: "thinking", thinking: "b", signature: "s" },
                                           { type: "text", text: "b" },
                                           { type: "tool_use", id: "t1", name: "f", input: { a: 1 } }] },
            { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", is_error: true,
                                        content: [{ type: "text", text: "7" }] }, { type: "text", text: "c" }] }].freeze
  CONVERSATION = { model: "llm", messages: BLOCKS, system: [{ type: "text", text: "Be brief." }],
                   tools: [{ name: "f", description: "does", input_schema: TOOL[:function][:parameters] }] }.freeze
  SHOWN = [{ role: "user", content: [
    { type: "image", source: { type: "base64", media_type: "image/png", data: PICTURE[/[^,]+\z/] } },
    { type: "text", text: "a" }
  ] }].freeze
  OPTIONS = { num_predict: 3, temperature: 0.5, top_p: 0.9, top_k: 3, min_p: 0.1, seed: 1, stop: ["zz"],
              repeat_penalty: 1.1, repeat_last_n: 4, presence_penalty: 0.1, frequency_penalty: 0.1 }.freeze

  # Paths whose body is a form, or that need none.
  WITHOUT_JSON = ["/v1/files", "/v1/batches/*/cancel"].freeze

  # Right requests for each path; together they have every field of it.
  BODIES = {
    "/v1/load_lora_adapter" => [{ model: "llm", lora_name: "one", lora_path: "one" }],
    "/v1/unload_lora_adapter" => [{ model: "llm", lora_name: "one" }],
    "/v1/batches" => [{ endpoint: "/v1/embeddings", completion_window: "24h", metadata: { for: "me" },
                        input_file_id: "file-000000000000000000000000" }],
    "/v1/audio/transcriptions" => [SPOKEN], "/v1/audio/translations" => [SPOKEN],
    "/v1/embeddings" => [{ model: "embedder", input: ["the fox"], encoding_format: "float", dimensions: 4 },
                         { model: "embedder", input: [[1, 2]] }, { input: "a", encoding_format: "base64" },
                         { model: "clip", input: [{ text: "a" }, { image: PICTURE }, PICTURE] }],
    "/v1/chat/completions" => [
      { model: "llm", messages: TALK, **ANSWERS, response_format: { type: "json_schema", json_schema: {
        name: "s", schema: SCHEMA
      } } },
      { model: "llm", messages: CALLED, max_tokens: 3, tools: [TOOL], temperature: 0,
        tool_choice: { type: "function", function: { name: "f" } } },
      { model: "llm", messages: TALK, max_tokens: 3, stream: true, stream_options: { include_usage: true },
        logprobs: true, top_logprobs: 2, reasoning_effort: "low", chat_template_kwargs: { enable_thinking: true },
        parallel_tool_calls: false },
      { model: "vlm", messages: SEEN, max_tokens: 2 },
      { model: "seq2seq", messages: TALK, max_tokens: 3, **REWRITING }
    ],
    "/v1/completions" => [
      { model: "llm", prompt: "the fox", **ANSWERS, suffix: nil, best_of: 1, echo: true },
      { model: "llm", prompt: [[10, 20], [30]], max_tokens: 3, logprobs: 2 },
      { model: "seq2seq", prompt: ["the fox"], max_tokens: 3, **REWRITING }
    ],
    "/v1/responses" => [
      { model: "llm", input: [{ role: "user", content: [{ type: "input_text", text: "a" }] },
                              { type: "function_call", call_id: "c", name: "f", arguments: "{}" },
                              { type: "function_call_output", call_id: "c", output: "7" }],
        instructions: "Be brief.", previous_response_id: nil, max_output_tokens: 3, **SAMPLING,
        tools: [{ type: "function", **TOOL[:function] }], tool_choice: { type: "function", name: "f" } },
      { model: "llm", input: "a", text: { format: { type: "json_schema", name: "s", schema: SCHEMA } },
        max_output_tokens: 4, stream: false, parallel_tool_calls: true, store: false,
        prompt_cache_key: "k", reasoning: { effort: "low", summary: nil } },
      { model: "llm", input: "a", include: ["message.output_text.logprobs"], top_logprobs: 2, max_output_tokens: 2,
        stream: true },
      { model: "seq2seq", input: "a", max_output_tokens: 3, **REWRITING }
    ],
    "/v1/messages" => [
      { **CONVERSATION, max_tokens: 3, tool_choice: { type: "auto", disable_parallel_tool_use: true },
                        stop_sequences: %w[zz yy], temperature: 0.5, top_p: 0.9, top_k: 3, stream: false,
                        metadata: { user_id: "u" }, thinking: { type: "enabled", budget_tokens: 2, display: nil } },
      { **CONVERSATION, max_tokens: 3, tool_choice: { type: "tool", name: "f" } },
      { model: "llm", messages: TALK, system: "Be brief.", max_tokens: 3, stream: true,
        output_config: { format: { type: "json_schema", schema: SCHEMA }, effort: "low" } },
      { model: "vlm", messages: SHOWN, max_tokens: 2 },
      { model: "seq2seq", messages: TALK.last(1), max_tokens: 3, **REWRITING }
    ],
    "/v1/messages/count_tokens" => [
      { **CONVERSATION, tool_choice: { type: "none" }, thinking: { type: "enabled", budget_tokens: 2, display: nil },
                        output_config: { format: { type: "json_schema", schema: SCHEMA }, effort: "low" } },
      { model: "vlm", messages: SHOWN },
      { model: "seq2seq", messages: TALK.last(1), **REWRITING }
    ],
    "/v1/rerank" => [{ model: "reranker", query: "a", documents: ["b", { text: "c" }], top_n: 1,
                       return_documents: true }],
    "/v2/rerank" => [{ model: "reranker", query: "a", documents: ["b"], top_n: 1, return_documents: true }],
    "/" => [
      { model: "embedder", inputs: "a", normalize: true, truncate: true, prompt_name: nil, dimensions: 4 },
      { query: "a", texts: %w[b c], raw_scores: true, return_text: true },
      { inputs: { source_sentence: "a", sentences: ["b"] } },
      { model: "llm", inputs: "a", stream: false, parameters: {
        max_new_tokens: 2, temperature: 0.5, top_p: 0.9, top_k: 3, seed: 1, repetition_penalty: 1.1, stop: ["z"],
        do_sample: true, return_full_text: true, typical_p: nil
      } },
      { model: "classifier", inputs: "a", parameters: { candidate_labels: %w[a b], hypothesis_template: "It is {}.",
                                                        multi_label: true, function_to_apply: "softmax" } },
      { model: "masked", inputs: "the [MASK] dog", parameters: { top_k: 2, targets: nil } },
      { model: "ner", inputs: "a", parameters: { aggregation_strategy: "simple", ignore_labels: [], stride: 1 } },
      { model: "seq2seq", inputs: "a", parameters: { src_lang: "en", tgt_lang: "de",
                                                     generate_parameters: { num_beams: 2, max_new_tokens: 3 } } },
      { model: "vlm", inputs: PICTURE, parameters: { prompt: "What?", max_new_tokens: 2 } },
      { model: "clip", inputs: PICTURE, parameters: { candidate_labels: %w[a b], hypothesis_template: "a {}",
                                                      top_k: 1 } },
      { model: "sparse", inputs: ["a"] }, { model: "colbert", inputs: ["a"] }, { model: "reranker", inputs: "a" },
      { model: "labels", inputs: PICTURE, parameters: { top_k: 1 } }
    ],
    "/embed" => [{ model: "embedder", inputs: ["a"], normalize: true, truncate: true, prompt_name: nil,
                   dimensions: 4 }, { inputs: [[1, 2]] }, { model: "clip", inputs: ["a", PICTURE] }],
    "/embed_all" => [{ model: "embedder", inputs: ["a"] }],
    "/embed_sparse" => [{ model: "sparse", inputs: ["a"], truncate: true, prompt_name: nil, normalize: true,
                          dimensions: nil }],
    "/predict" => [{ model: "classifier", inputs: [%w[a b]] }, { inputs: "a" }],
    "/rerank" => [{ model: "reranker", query: "a", texts: %w[b c], raw_scores: true, return_text: true }],
    "/similarity" => [{ model: "embedder", inputs: { source_sentence: "a", sentences: ["b"] }, truncate: true,
                        normalize: true, prompt_name: nil, dimensions: nil }],
    "/tokenize" => [{ model: "embedder", inputs: ["a"], add_special_tokens: true }],
    "/decode" => [{ model: "embedder", ids: [[1, 2]], skip_special_tokens: true }],
    "/translate" => [{ model: "seq2seq", inputs: ["a"], parameters: {
      src_lang: "en", tgt_lang: "de", max_new_tokens: 3, generate_parameters: { num_beams: 2, max_new_tokens: 3 }
    } }],
    "/summarize" => [{ model: "seq2seq", inputs: "a",
                       parameters: { generate_parameters: REWRITING.except(:task, :from, :to)
                                                                   .merge(max_new_tokens: 3) } }],
    "/classify_image" => [{ model: "labels", inputs: [PICTURE], parameters: { top_k: 1 } },
                          { model: "clip", inputs: PICTURE, parameters: { candidate_labels: %w[a b], top_k: 1,
                                                                          hypothesis_template: "a {}" } }],
    "/describe" => [{ model: "vlm", inputs: PICTURE, parameters: { prompt: "What?", max_new_tokens: 2 } }],
    "/api/generate" => [
      { model: "llm", prompt: "a", raw: false, images: [], system: "Be brief.", stream: false, format: SCHEMA,
        think: false, options: OPTIONS }, { model: "vlm", prompt: "a", images: [PICTURE], options: { num_predict: 2 } },
      { model: "seq2seq", prompt: "a", options: { num_predict: 2, **REWRITING } }
    ],
    "/api/chat" => [
      { model: "llm", messages: TALK, tools: [TOOL], stream: true, think: "low", options: OPTIONS },
      { model: "vlm", messages: [{ role: "user", content: "a", images: [PICTURE] }], options: { num_predict: 2 } },
      { model: "llm", messages: TALK, format: "json", stream: false, options: { num_predict: 2 } },
      { model: "seq2seq", messages: TALK, options: { num_predict: 2, **REWRITING } }
    ],
    "/api/embed" => [{ model: "embedder", input: ["a"], truncate: true, dimensions: 4 },
                     { model: "clip", input: "a" }],
    "/api/embeddings" => [{ model: "embedder", prompt: "a", truncate: true, dimensions: 4 }],
    "/api/show" => [{ model: "llm" }, { name: "embedder" }],
    "/api/pull" => [{ model: "llm", stream: true }, { name: "llm", stream: false }],
    "/api/v1/embed" => [{ model: "embedder", texts: ["a"], pooling: "cls", normalize: true },
                        { model: "clip", texts: ["a"], images: [PICTURE] },
                        { model: "colbert", texts: ["a"], task: "query" },
                        { model: "sparse", texts: ["a"], task: "document" }],
    "/api/v1/entities" => [{ model: "ner", texts: ["a"], confidence_threshold: 0.5 }]
  }.freeze

  # 1e400 is a number that Ruby reads as infinite.
  INFINITE = "INFINITE"
  VALUES = [nil, true, false, 0, -1, 5, 1.5, -0.0, 10**30, 2**31, 2**32, 2**63, 2**70, -(2**70), 1e308, INFINITE, "",
            "x", "\u0000", "5", "\u{1F600}" * 40, "../../etc/passwd", [], [nil], [5], [-1], [2**70], [[]], [[-1]],
            ["x", 5], [{}], {}, { "a" => 5 }, { "function" => 5 }, { "type" => "json_schema", "json_schema" => 5 },
            { "type" => "json_schema", "json_schema" => [] }, { "name" => 5 }, { "text" => 5 }, { "image" => 5 },
            { "type" => 5 }, { "role" => 5 }].freeze

  class << self
    # @return [Enumerator] of paths, and of the bodies with one odd value each, as JSON
    def each
      return enum_for(:each) unless block_given?

      places.each do |path, body, at|
        VALUES.each { |value| yield path, at, text(changed(body, at, value)) }
      end
    end

    # @return [Array(String, Array, String)] one of them
    def sample(random)
      path, body, at = places[random.rand(places.size)]
      [path, at, text(changed(body, at, VALUES[random.rand(VALUES.size)]))]
    end

    # @return [Array<Array(String, Hash, Array)>] paths, right bodies, and where something stands in them
    def places
      @places ||= BODIES.flat_map do |path, bodies|
        bodies.map { |body| JSON.parse(JSON.generate(body)) }
              .flat_map { |body| within(body).map { |at| [path, body, at] } }
      end
    end

    private

    # Where values stand in others, down to the letters' own level.
    def within(value, at = [])
      inner = case value
              when Hash then value.flat_map { |key, one| within(one, [*at, key]) }
              when Array then value.each_with_index.flat_map { |one, index| within(one, [*at, index]) }
              else []
              end
      at.empty? ? inner : [at, *inner]
    end

    def changed(value, at, odd)
      return odd if at.empty?

      copy = value.dup
      copy[at.first] = changed(value[at.first], at.drop(1), odd)
      copy
    end

    def text(body)
      JSON.generate(body).gsub("\"#{INFINITE}\"", "1e400")
    end
  end
end
