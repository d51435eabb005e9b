# frozen_string_literal: true

require "candle/worker"
require "stringio"
require_relative "mutations"
require_relative "odd_fields"
require_relative "../../../spec/support/tiny_models"
require_relative "../../../spec/support/roomy_llm"

# Requests to every endpoint of the server and to the worker, with damaged bodies, headers and pictures.
class HostileRequests
  Wrong = Class.new(StandardError)
  MODELS = {
    "llm" => "decoders/llama", "vlm" => "llava", "seq2seq" => "seq2seq/t5", "clip" => "clip", "looks" => "dinov2",
    "labels" => "vit-classifier", "embedder" => "bert-sentence", "reranker" => "bert-reranker", "ner" => "bert-token",
    "classifier" => "bert-sequence", "colbert" => "colbert", "sparse" => "splade",
    "masked" => "bert-masked", "speech" => "speech/whisper"
  }.freeze
  LIMITS = { max_tokens: 4, seconds: 6, body_bytes: 1 << 20 }.freeze
  # A body with the fields of all endpoints, so that a new one finds its own in it as well.
  BODY = {
    messages: [{ role: "system", content: "Be brief." },
               { role: "user", content: [{ type: "text", text: "the fox" }, { type: "image_url",
                                                                              image_url: { url: "PICTURE" } }] },
               { role: "assistant", content: nil, tool_calls: [{ id: "c1", type: "function",
                                                                 function: { name: "f", arguments: "{\"a\":1}" } }] },
               { role: "tool", tool_call_id: "c1", content: "7" }, { role: "user", content: "go on" }],
    prompt: "the fox", system: "Be brief.", input: ["the fox", "a dog"], inputs: "the fox", texts: ["a dog"],
    text: "the fox", query: "the fox", documents: ["the dog", { text: "a fox" }], instructions: "Be brief.",
    source_sentence: "a", sentences: %w[a b], max_tokens: 3, max_output_tokens: 3, max_completion_tokens: 3,
    temperature: 0.5, top_p: 0.9, top_k: 3, seed: 1, n: 1, stop: ["zz"], stream: false,
    stream_options: { include_usage: true }, logprobs: true, top_logprobs: 2, echo: false, logit_bias: {},
    tools: [{ type: "function", function: { name: "f", description: "does", parameters: {
      type: "object", properties: { a: { type: "integer" } }, required: ["a"]
    } } }], tool_choice: "auto", response_format: { type: "json_schema", json_schema: { name: "s", schema: {
      type: "object", properties: { a: { type: "boolean" } }, required: ["a"]
    } } }, format: "json", options: { num_predict: 3, temperature: 0 }, encoding_format: "float", dimensions: 4,
    truncate: true, normalize: true, return_documents: true, raw_scores: false, top_n: 1, ids: [1, 2, 3],
    parameters: { max_new_tokens: 3, candidate_labels: %w[a b], src_lang: "en", tgt_lang: "de",
                  generate_parameters: { num_beams: 2 } }, images: ["PICTURE"], image: "PICTURE", labels: %w[a b],
    from: "en", to: "de", task: "query", candidate_labels: %w[a b], name: "embedder", job_id: "j1"
  }.freeze
  # What one of the fields above turns into where another form is usual.
  FORMS = { input: [7, "the fox", [1, 2, 3], [[1, 2], [3]], [{ role: "user", content: "a" }]], stream: [true],
            inputs: [["the fox"], { source_sentence: "a", sentences: %w[b] }, [%w[a b]], "PICTURE"],
            messages: [[{ role: "user", content: "a" }], []], tool_choice: ["required", "none", { type: "function" }],
            images: [[]], tools: [[], nil], response_format: [{ type: "json_object" }, nil] }.freeze
  HEADERS = { "HTTP_AUTHORIZATION" => ["Bearer x", "Bearer #{"a" * 9000}", "\xFF"],
              "HTTP_TRACEPARENT" => ["00-#{"a" * 32}-#{"b" * 16}-01", "\n"], "HTTP_X_REQUEST_ID" => ["a b", "x" * 500],
              "CONTENT_LENGTH" => %w[-1 99999999999999 x], "HTTP_ORIGIN" => ["http://evil.example", "null"],
              "CONTENT_TYPE" => ["image/png", "application/octet-stream", "text/plain; charset=\xFF"],
              "HTTP_HOST" => ["evil.example", "localhost:1"] }.freeze
  private_constant :MODELS, :LIMITS, :BODY, :FORMS, :HEADERS

  def initialize(root)
    @root = root
    @log = StringIO.new
    Candle.logger = Logger.new(@log, level: Logger::ERROR)
  end

  # @yieldparam name [String] what is asked
  def server(random)
    verb, path = pick(random, routes)
    yield "#{verb} #{path}"
    answer(@server, verb, path.sub("*", pick(random, [*MODELS.keys, "%00", "%", "../x"])), body(random), random)
  end

  # A request with one odd field.
  #
  # @yieldparam name [String] what is asked
  def fields(random)
    routes
    path, at, text = OddFields.sample(random)
    yield "POST #{path} #{at.join(".")}"
    ask(@server, "POST", path, text)
  end

  # Every request with one odd field, or every n-th.
  #
  # @yieldparam name [String] what is asked
  # @yieldparam error [Wrong, nil] what is wrong with the answer
  def each_odd_field(step: 1)
    routes
    OddFields.each.with_index do |(path, at, text), index|
      next unless (index % step).zero?

      ask(@server, "POST", path, text)
      yield "POST #{path} #{at.join(".")}: #{text[0, 200]}", nil
    rescue Wrong => e
      yield "POST #{path} #{at.join(".")}: #{text[0, 200]}", e
    end
  end

  # @yieldparam name [String] what is asked
  def worker(random)
    @worker ||= Candle::Worker.new(worker_id: "w", model: tiny("decoders/llama"), device: "cpu", **LIMITS)
    yield "POST /execute"
    answer(@worker, "POST", "/execute", body(random), random)
  end

  private

  def pick(random, list) = list[random.rand(list.size)]
  def tiny(name) = File.join(@root, "tiny", name)

  # Those that the server knows.
  def routes
    models = MODELS.transform_values { |name| tiny(name) }.merge("llm" => RoomyLLM.path)
    @server ||= Candle::Server.new(models: models, device: "cpu", **LIMITS)
    @routes ||= @server.instance_variable_get(:@router).instance_variable_get(:@routes)
                       .flat_map { |path, verbs| verbs.keys.map { |verb| [verb, path] } }
  end

  def body(random)
    picture = picture(random)
    return picture if random.rand(30).zero?

    text = JSON.generate(some_fields(random))
    text = Mutations.new(random).json(text) unless random.rand(4).zero?
    # Infinity, which JSON has no word for, but numbers that are read as it.
    text.gsub("1.0e+308", "1e999").gsub("PICTURE", "data:image/png;base64,#{[picture].pack("m0")}")
  end

  def picture(random)
    picture = File.binread(pick(random, Dir[File.join(@root, "images/*.*")].sort))
    random.rand(2).zero? ? Mutations.new(random).bytes(picture) : picture
  end

  def some_fields(random)
    others = FORMS.filter_map { |name, forms| [name, pick(random, forms)] if random.rand(3).zero? }
    BODY.merge(others.to_h).select { random.rand(4).positive? }.merge(model: pick(random, MODELS.keys))
  end

  def answer(application, verb, path, body, random)
    more = Array.new(random.rand(3)) do
      pick(random, HEADERS.to_a).then { |name, values| [name, pick(random, values)] }
    end
    ask(application, verb, path, body, more.to_h)
  end

  def ask(application, verb, path, body, headers = {})
    @log.reopen(+"")
    env = { "REQUEST_METHOD" => verb, "PATH_INFO" => path, "SCRIPT_NAME" => "", "REMOTE_ADDR" => "127.0.0.1",
            "HTTP_HOST" => "localhost:8080", "rack.input" => StringIO.new(body) }.merge(headers)
    status, headers, parts = application.call(env)
    text = +""
    parts.each { |part| text << part.b }
    judge(status, headers, text)
  ensure
    parts.close if parts.respond_to?(:close)
  end

  # What the server did not foresee is its failure, whatever was sent; and what it tells strangers is nothing of the
  # machine.
  def judge(status, headers, text)
    raise Wrong, "#{status} #{@log.string[0, 400]}" if status == 500 || text.include?("the server failed")
    raise Wrong, "a path of the machine: #{text[0, 200]}" if text.include?(@root.b)
    return if headers.to_a.flatten.grep(String).none? { |value| value.match?(/[\r\n]/) }

    raise Wrong, "a header of two lines: #{headers}"
  end
end
