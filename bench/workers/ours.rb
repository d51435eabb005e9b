# frozen_string_literal: true

# red-candle as a user calls it, for `rake bench`. A request is one line of JSON
# on the standard input, a reply one line on the standard output. BENCH_LIBRARY
# names the lib folder of another checkout to be timed instead of this one.
$LOAD_PATH.unshift(ENV["BENCH_LIBRARY"]) if ENV["BENCH_LIBRARY"]
started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
require "candle"
IMPORT_SECONDS = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
require "json"
require_relative "../harness/statistics"

module Bench
  class OurWorker
    # How many tokens of each place of an answer are told.
    LIKELIEST = 10
    # How often threads whose slowest calls are wanted go through their texts.
    PASSES = 4

    def initialize(threads)
      Candle.num_threads = threads
      @models = {}
      @inputs = {}
    end

    def serve
      channel = $stdout.dup
      $stdout.reopen($stderr)
      $stdin.each_line do |line|
        request = JSON.parse(line, symbolize_names: true)
        channel.puts JSON.generate(answer(request))
        channel.flush
      end
    end

    private

    def answer(request)
      case request[:op]
      when "hello" then hello
      when "load" then load_model(request)
      when "run" then run(request)
      when "memory" then { peak_bytes: peak_bytes }
      end
    rescue StandardError => e
      { error: "#{e.class}: #{e.message}" }
    end

    def hello
      { versions: { "red-candle" => Candle::VERSION }, import_seconds: IMPORT_SECONDS, build: Candle.build_info }
    end

    def load_model(request)
      started = clock
      @models[request[:key]] ||= model(*request.values_at(:kind, :path, :dtype))
      { seconds: clock - started }
    end

    def model(kind, path, dtype)
      case kind
      when "embedding" then Candle::EmbeddingModel.from_pretrained(path, device: "cpu", dtype: dtype.to_sym)
      when "reranker" then Candle::Reranker.from_pretrained(path, device: "cpu", dtype: dtype.to_sym)
      when "ner" then Candle::NER.from_pretrained(path, device: "cpu", dtype: dtype.to_sym)
      when "seq2seq" then Candle::Seq2Seq.from_pretrained(path, device: "cpu", dtype: dtype.to_sym)
      when "llm" then Candle::LLM.from_pretrained(path, device: "cpu")
      end
    end

    def run(request)
      model = @models.fetch(request[:key])
      data = @inputs[request[:input]] ||= JSON.parse(File.read(request[:input]), symbolize_names: true)
      samples = Array.new(request[:repeat]) { sample(model, request[:task], data) }
      reply = %i[seconds ruby_seconds].to_h { |key| [key, Statistics.median(samples.map { |one| one[key] })] }
      reply[:result] = encode(request[:task], samples.last[:result]) if request[:result]
      reply
    end

    # The work of a call is done by the engine's own threads, off the GVL, so
    # the processor time of this one is what Ruby costs: arguments, results and
    # the way in and out. Where the engine says how long it worked, Ruby's part
    # is the rest.
    def sample(model, task, data)
      # What an earlier sample has read would be found again.
      model.clear_cache if model.is_a?(Candle::LLM)
      ruby = clock(Process::CLOCK_THREAD_CPUTIME_ID)
      wall = clock
      result, seconds, engine = perform(model, task, data)
      whole = clock - wall
      { seconds: seconds || whole, result: result,
        ruby_seconds: engine ? whole - engine : clock(Process::CLOCK_THREAD_CPUTIME_ID) - ruby }
    end

    # @return [Array(Object, Float, Float)] the result, the seconds where only a part of the work counts, and those
    #   of the engine where it says so
    def perform(model, task, data)
      case task
      when /\Aembed/ then embed(model, task, data[:texts])
      when "rerank" then [model.score(data[:query], data[:documents])]
      when "ner" then [model.extract_entities(data[:texts], confidence_threshold: 0.0)]
      when /\Awrite/ then [write(model, data[:texts], task == "write" ? 1 : 4)]
      when "tags" then [tags(model, data[:texts])]
      when "count_tokens" then [token_counts(model, data)]
      else generate(model, task, data)
      end
    end

    def embed(model, task, texts)
      case task
      when "embed" then [model.embed(texts)]
      when "embed_packed" then [model.embed(texts, as: :packed)]
      when "embed_singly" then [singly(model, texts)]
      when "embed_in_threads" then [in_threads(texts) { |share| model.embed(share) }]
      when /\Aembed_singly_in_/ then [in_threads(texts, threads(task)) { |share| singly(model, share) }]
      when "embed_lone" then lone(model, texts)
      when "embed_lone_apart" then lone(model, texts, pause: lone(model, texts).last)
      when "embed_tail_of_16" then tail(model, texts, 16)
      when "embed_tail_of_16_apart" then tail(model, texts, 16, pause: 2 * 16 * lone(model, texts).last)
      end
    end

    # A call for each text.
    def singly(model, texts)
      texts.map { |text| model.embed(text) }
    end

    # The median of the seconds that calls take, one after the other or after a pause, which is as long on average:
    # a call of one who comes now and then takes longer.
    def lone(model, texts, pause: 0.0)
      random = Random.new(1)
      timed = texts.map do |text|
        sleep(2 * pause * random.rand)
        timed(model, text)
      end
      [timed.map(&:first), Statistics.median(timed.map(&:last))]
    end

    # The seconds that 99 of 100 calls take at most, of threads that come again at once or after a pause, which is as
    # long on average.
    def tail(model, texts, count, pause: 0.0)
      random = Random.new(1)
      calls = in_threads(texts.map { |text| [text, 2 * pause * random.rand] }, count) do |share|
        share.cycle(PASSES).map do |text, wait|
          sleep(wait)
          timed(model, text)
        end
      end
      times = calls.map(&:last).sort
      [calls.first(texts.size).map(&:first), times[(times.size * 0.99).ceil - 1]]
    end

    def timed(model, text)
      started = clock
      [model.embed(text), clock - started]
    end

    # Two, unless the task names another number.
    def threads(task)
      task[/\d+/]&.to_i || 2
    end

    # Threads at once, each with its share of the texts.
    def in_threads(texts, count = 2, &work)
      texts.each_slice((texts.size / count.to_f).ceil).map { |share| Thread.new(share, &work) }.flat_map(&:value)
    end

    def token_counts(model, data)
      return [model.tokenizer.encode(data[:prompt]).size] if data[:prompt]

      data[:texts].map { |text| [model.count_tokens(text), model.max_length].min }
    end

    def tags(model, texts)
      ids = model.labels.fetch("label2id")
      texts.map { |text| model.predict_tokens(text).map { |token| ids.fetch(token["label"]) } }
    end

    def write(model, texts, beams)
      model.complete(texts, max_length: 24, num_beams: beams).map(&:token_ids)
    end

    def generate(model, task, data)
      case task
      when "prefill" then [complete(model, data[:prompt], 1).token_ids]
      when "first_token" then first_token(model, data[:prompt])
      when "decode" then decode(model, data)
      when "generate" then whole(complete(model, data[:prompt], data[:tokens]))
      when "likeliest" then [likeliest(model, data)]
      when "logprobs" then [model.logprobs(data[:prompt]).map { |entry| entry.values_at(:id, :logprob) }.transpose]
      else generate_many(model, task, data)
      end
    end

    def generate_many(model, task, data)
      case task
      when "decode_together" then decode_together(model, data)
      when "decode_in_turn" then [data[:prompts].map { |prompt| complete(model, prompt, data[:tokens]).token_ids }]
      when "first_caller" then first_token(model, "#{data[:prompt]} Two")
      when "second_caller" then second_caller(model, data)
      when "idle_sessions" then idle_sessions(model, data)
      when "idle_sessions_apart" then idle_sessions(model, data) { |index| "#{index}. " }
      else raise ArgumentError, "no such task: #{task}"
      end
    end

    def complete(model, prompt, tokens, &block)
      model.complete(prompt, config: Candle::GenerationConfig.deterministic(max_length: tokens), &block)
    end

    def first_token(model, prompt)
      started = clock
      model.generate_stream(prompt, config: Candle::GenerationConfig.deterministic(max_length: 8)) do |piece|
        return [[piece], clock - started]
      end
    end

    # Seconds per token after the first.
    def decode(model, data)
      started = clock
      completion = complete(model, data[:prompt], data[:tokens])
      seconds = clock - started - (completion.timings.first_token_ms / 1e3)
      [completion.token_ids, seconds / (completion.token_ids.size - 1)]
    end

    # As many threads as there are prompts, each with its own.
    def decode_together(model, data)
      threads = data[:prompts].map do |prompt|
        Thread.new { complete(model, prompt, data[:tokens]).token_ids }
      end
      [threads.map(&:value)]
    end

    # The first token of a prompt whose beginning another call has read.
    def second_caller(model, data)
      complete(model, "#{data[:prompt]} One", 1)
      first_token(model, "#{data[:prompt]} Two")
    end

    # Conversations with one turn of their own. They share a prefix, unless a block says what each begins with.
    def idle_sessions(model, data)
      config = Candle::GenerationConfig.deterministic(max_length: 4)
      sessions = Array.new(data[:sessions]) do |index|
        model.session(system: "#{yield(index) if block_given?}#{data[:prompt]}")
      end
      [sessions.each_with_index.map { |session, index| session.say("Count from #{index}.", config: config).size }]
    end

    # The tokens that could have been chosen, best first, at each place of a greedy answer.
    def likeliest(model, data)
      config = Candle::GenerationConfig.deterministic(max_length: data[:tokens], logprobs: LIKELIEST)
      completion = model.complete(data[:prompt], config: config)
      completion.logprobs.map { |place| place[:top].map { |entry| entry.values_at(:id, :logprob) } }
    end

    def whole(completion)
      timings = completion.timings
      decoding = (completion.token_ids.size - 1) / timings.tokens_per_second
      [completion.token_ids, nil, (timings.first_token_ms / 1e3) + decoding]
    end

    def encode(task, result)
      case task
      when "embed_packed" then [result.join].pack("m0")
      when /\Aembed/ then [result.flatten.pack("e*")].pack("m0")
      when "ner" then result.map { |row| row.map { |found| found.values_at(:label, :start, :end, :confidence) } }
      else result
      end
    end

    def clock(id = Process::CLOCK_MONOTONIC)
      Process.clock_gettime(id)
    end

    # The most memory this process has had resident, without that of the process that started it.
    def peak_bytes
      File.foreach("/proc/self/status").find { |line| line.start_with?("VmHWM") }.split[1].to_i * 1024
    rescue Errno::ENOENT
      `ps -o rss= -p #{Process.pid}`.to_i * 1024
    end
  end
end

Bench::OurWorker.new(Integer(ENV.fetch("BENCH_THREADS"))).serve
