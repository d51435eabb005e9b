# frozen_string_literal: true

# Candle::VLM beside llama.cpp with mtmd, its library for images, on the same GGUF files: milliseconds from the pixels
# of an image in memory to the embeddings of the vision tower, from there to the first token of an answer, and for each
# token behind it. The models have the shapes of published ones and seeded random weights: matrices of the decoder are
# Q8_0, those of the tower F16. Answers are compared before anything is timed; then both take turns, and the middle of
# the rounds counts. Every turn has an image of its own, since image embeddings are cached.
#
#   ruby -Ilib bench/vlm.rb [rounds] [threads] [names…]
#
# The peer is built into the user's cache, beside those of `rake bench:setup`.
require "candle"
require "fileutils"
require "json"
require "open3"
require_relative "harness/machine"
require_relative "harness/mtmd"

ROUNDS = Integer(ARGV[0] || 7)
THREADS = Integer(ARGV[1] || 2)
FOLDER = File.join(Tasks::Build.cache_directory, "bench", "vlm")
QUESTION = "What is shown here?"
# The edge of the images that a model is asked about, none of which is resized but for the overview of tiles; and its
# prompt as the peer takes it.
Asked = Struct.new(:edge, :prompt)
MODELS = {
  "smolvlm-256m" => Asked.new(1024, "<|im_start|>User:<__media__>#{QUESTION}<end_of_utterance>\nAssistant:"),
  "qwen3-vl" => Asked.new(512, "<|im_start|>user\n<__media__>#{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
}.freeze
NAMES = ARGV.size > 2 ? ARGV.drop(2) : MODELS.keys
LINE = "%-13<name>s %-7<task>s red-candle %9.2<ours>f ms   llama.cpp %9.2<theirs>f ms   %5.2<ratio>f x %<problem>s"
# Tokens of an answer that are compared, and those that are timed.
COMPARED = 8
TIMED = 33
# How many of the likeliest tokens of a place are told, and how far the logarithms of their probabilities may be apart:
# both multiply with activations of 8 bits, each in its own blocks, and the peer's tower with activations of 16.
LIKELIEST = 10
NEAR = 0.25

def prepare
  Bench::Peers.prepare
  Bench::Mtmd.prepare
  FileUtils.mkdir_p(FOLDER)
  system(Bench::Peers.python, File.expand_path("workers/vlm_files.py", __dir__), FOLDER, exception: true)
end

# Gradients and squares that differ with the number.
def draw(edge, number)
  path = File.join(FOLDER, "picture-#{edge}-#{number}.png")
  return path if File.exist?(path)

  step = edge / 8
  bytes = Array.new(edge * edge) do |at|
    y, x = at.divmod(edge)
    [((x * 255 / edge) + (31 * number)) % 256, y * 255 / edge, x / step * (y / step) * (number + 3) % 256]
  end
  header = ["BM", 54 + (bytes.size * 3), 0, 54, 40, edge, edge, 1, 24, 0, 0, 0, 0, 0, 0].pack("a2L<4l<2S<2L<6")
  Candle::Image.open(header + bytes.flatten.pack("C*")).save(path)
  path
end

def clock
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def seconds
  began = clock
  yield
  clock - began
end

# llama.cpp in a process of its own.
class Peer
  def initialize
    worker = File.expand_path("workers/vlm_worker.py", __dir__)
    @input, @output, = Open3.popen2(Bench::Mtmd.environment, Bench::Peers.python, worker, FOLDER, THREADS.to_s,
                                    err: File::NULL)
    raise "llama.cpp did not start" unless @output.gets
  end

  def call(name, task, image, count = TIMED)
    @input.puts(JSON.generate(model: name, prompt: MODELS.fetch(name).prompt, image:, task:, count:))
    JSON.parse(@output.gets || raise("llama.cpp ended"))
  end
end

# Ours, which answers as the peer does.
class Own
  def initialize(name)
    text, tower = %w[model.gguf mmproj.gguf].map { |file| File.join(FOLDER, name, file) }
    @model = Candle::VLM.from_pretrained(text, mmproj_file: tower, device: "cpu")
  end

  def call(task, path, count = TIMED)
    image = Candle::Image.open(path)
    case task
    when "tower" then { "seconds" => seconds { @model.count_tokens(messages(image)) } }
    when "first" then { "seconds" => seconds { complete(image, 1) } }
    when "decode" then { "seconds" => 1 / complete(image, count).timings.tokens_per_second }
    else answer(complete(image, count, logprobs: LIKELIEST))
    end
  end

  def close
    @model.close
  end

  private

  def messages(image)
    [{ role: "user", content: [{ type: "image", image: }, { type: "text", text: QUESTION }] }]
  end

  def complete(image, count, **options)
    @model.complete(messages(image), max_length: count, **options)
  end

  def answer(completion)
    places = completion.logprobs.map { |place| place[:top].map { |one| one.values_at(:id, :logprob) } }
    { "places" => places, "size" => completion.usage.prompt_tokens }
  end
end

# What differs between two answers, if anything: how likely ours finds the peer's tokens, up to where the answers part.
def difference(ours, theirs)
  return "#{ours["size"]} tokens of #{theirs["size"]}" if ours["size"] != theirs["size"]

  pairs = ours["places"].zip(theirs["places"])
  apart = pairs.index { |own, other| own.first.first != other.first.first } || pairs.size
  gaps = pairs.first(apart + 1).map do |own, other|
    token, logarithm = other.first
    (own.assoc(token)&.last || -Float::INFINITY) - logarithm
  end
  far = gaps.map(&:abs).max
  "off by #{far.round(3)}" if far > NEAR
end

def middle(all)
  all.sort[all.size / 2]
end

Candle.num_threads = THREADS
prepare
peer = Peer.new
facts = Bench::Machine.facts
puts format("%<processor>s, %<threads>d threads, level %<level>s, load %<load>s", threads: THREADS, **facts)
alike = true
NAMES.each do |name|
  own = Own.new(name)
  edge = MODELS.fetch(name).edge
  problem = [0, 1].filter_map do |number|
    image = draw(edge, number)
    difference(own.call("answer", image, COMPARED), peer.call(name, "answer", image, COMPARED))
  end.first
  alike &&= problem.nil?
  %w[tower first decode].each_with_index do |task, kind|
    times = [[], []]
    (ROUNDS + 1).times do |round|
      path = draw(edge, 2 + kind + (3 * round))
      ours, theirs = [own.call(task, path), sleep(0.05) && peer.call(name, task, path)].map { |one| one["seconds"] }
      times.zip([ours, theirs]).each { |all, one| all << one if round.positive? }
      # A library's threads wait in loops for a while.
      sleep 0.05
    end
    ours, theirs = times.map { |all| middle(all) * 1000 }
    puts format(LINE, name:, task:, ours:, theirs:, ratio: theirs / ours, problem:)
  end
  own.close
end
abort "Some answers differ." unless alike
