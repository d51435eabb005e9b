# frozen_string_literal: true

# Eight Ruby threads that chat with one language model beside one thread and beside one call with eight prompts: tokens
# per second and forward passes, medians of rounds in turns.
#
#   ruby -Ilib bench/chat_threads.rb MODEL [tokens] [rounds]
#
# MODEL is what LLM.from_pretrained takes. The prefix cache is cleared before each call that is timed.
require "candle"

source = ARGV.fetch(0)
tokens = Integer(ARGV[1] || 64)
rounds = Integer(ARGV[2] || 7)

llm = Candle::LLM.from_pretrained(source, device: "cpu")
config = Candle::GenerationConfig.deterministic(max_length: tokens)
chats = %w[rivers mountains trains bread ships clocks bridges gardens].map do |topic|
  [{ role: "user", content: "Tell me a long story about #{topic} in great detail, with names and places." }]
end
prompts = chats.map { |chat| llm.apply_chat_template(chat) }
threads = ->(inputs, &call) { inputs.map { |input| Thread.new { call.call(input) } }.each(&:join) }

cases = {
  "one thread, chat" => -> { llm.chat(chats.first, config: config) },
  "eight prompts, one call" => -> { llm.generate(prompts, config: config) },
  "eight threads, generate" => -> { threads.call(prompts) { |prompt| llm.generate(prompt, config: config) } },
  "eight threads, chat" => -> { threads.call(chats) { |chat| llm.chat(chat, config: config) } },
  "eight threads, chat_stream" => lambda do
    threads.call(chats) { |chat| llm.chat_stream(chat, config: config) { |piece| piece } }
  end
}

measured = cases.transform_values { [] }
(rounds + 1).times do |round|
  cases.each do |name, work|
    llm.clear_cache
    before = llm.stats.slice(:tokens_out, :batches)
    started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    work.call
    seconds = Process.clock_gettime(Process::CLOCK_MONOTONIC) - started
    made = llm.stats.slice(:tokens_out, :batches).to_h { |key, value| [key, value - before[key]] }
    # The first round warms up.
    measured[name] << [made[:tokens_out] / seconds, made[:batches]] if round.positive?
  end
end

median = ->(values) { values.sort[values.size / 2] }
alone = median.call(measured.values.first.map(&:first))
puts "| case | tokens/s | of one thread | forward passes |", "|---|---|---|---|"
measured.each do |name, values|
  speed, steps = values.transpose.map(&median)
  puts format("| %<name>s | %<speed>.1f | %<ratio>.2f × | %<steps>d |", name: name, speed: speed, ratio: speed / alone,
                                                                        steps: steps)
end
