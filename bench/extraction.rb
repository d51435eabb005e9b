# frozen_string_literal: true

# How many words a second GLiNER, token classification, extractive question answering and a language model that fills a
# schema read on the same texts, beside the Python packages gliner and transformers.
#
#   GLINER=... NER=... QUESTION_ANSWERER=... LLM=... PYTHON=... rake bench:extraction
#   GLINER=... NER=... ruby -Ilib bench/extraction.rb
#
# Each is a source as from_pretrained takes it; what is not set is left out. PYTHON is an interpreter with gliner and
# transformers, and then the sources must be folders; without it, only ours are measured. TEXTS= and ROUNDS= set how
# many texts are read and how often; the middle of the rounds counts. Both sides have as many threads. A language
# model has no peer here: transformers fills no schema.
#
# What both find is compared before anything is timed, and the bench ends where it differs.
require "candle"
require "json"
require "open3"
require_relative "harness/machine"

LABELS = %w[person organization place date].freeze
NAMES = { type: "array", items: { type: "string", maxLength: 40 }, maxItems: 5 }.freeze
SCHEMA = { type: "object", required: LABELS, additionalProperties: false,
           properties: LABELS.to_h { |label| [label, NAMES] } }.freeze
FIELDS = { entities: LABELS, structures: { meeting: { who: :list, place: :string, date: :string } } }.freeze
QUESTION = "Who wrote?"
TEXT = "Ada Lovelace met Charles Babbage in London on 5 June 1833 and wrote to the Royal Society about his engine. " \
       "Grace Hopper joined Harvard in 1944, and Remington Rand in Philadelphia some years later. "
# A language model takes minutes for more.
MOST_TEXTS_OF_LLM = 4
# Room for all names that the schema allows.
MOST_TOKENS = 1024

# One way to read the texts, and what its peer needs to do the same.
Reading = Struct.new(:name, :task, :source, :texts, :run, keyword_init: true) do
  def words
    texts.sum { |text| text.split.size }
  end

  # What is found in each text, as the peer writes it.
  def found
    run.call(texts)
  end
end

def setting(name)
  value = ENV.fetch(name, "")
  value unless value.empty?
end

def places(list)
  list.map { |entity| [entity[:start], entity[:end], (entity[:label] || entity[:entity_type]).to_s] }
end

def middle(times)
  times.sort[times.size / 2]
end

def timed(rounds)
  times = Array.new(rounds) do
    began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    yield
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
  end
  middle(times)
end

def readings_of_gliner(source, texts)
  model = Candle::GLiNER.from_pretrained(source)
  by_labels = Reading.new(name: "GLiNER", task: "gliner", source: source, texts: texts,
                          run: ->(all) { model.extract(all, labels: LABELS).map { |list| places(list) } })
  return [by_labels] unless model.model_info[:architecture] == "GLiNER2"

  by_labels.task = nil
  [by_labels, Reading.new(name: "GLiNER by a schema", source: source, texts: texts,
                          run: ->(all) { model.extract(all, schema: FIELDS) })]
end

def reading_of_ner(source, texts)
  model = Candle::NER.from_pretrained(source)
  run = ->(all) { model.extract_entities(all, confidence_threshold: 0.0).map { |list| places(list) } }
  Reading.new(name: "NER", task: "ner", source: source, texts: texts, run: run)
end

def reading_of_answerer(source, texts)
  model = Candle::QuestionAnswerer.from_pretrained(source)
  run = ->(all) { all.map { |text| model.answer(QUESTION, text).values_at(:start, :end) } }
  Reading.new(name: "QuestionAnswerer", task: "question", source: source, texts: texts, run: run)
end

def reading_of_llm(source, texts)
  model = Candle::LLM.from_pretrained(source)
  run = lambda do |all|
    all.map do |text|
      filled = model.generate_structured("List the entities of this text as JSON.\n\n#{text}", schema: SCHEMA,
                                                                                               max_length: MOST_TOKENS)
      abort "#{source} filled the schema with #{filled.inspect}" unless filled.is_a?(Hash) && filled.size == LABELS.size

      filled
    end
  end
  Reading.new(name: "LLM with a schema", source: source, texts: texts.first(MOST_TEXTS_OF_LLM), run: run)
end

# What the peer finds, and the middle of its times.
def peer(reading, rounds)
  asked = { task: reading.task, model: reading.source, texts: reading.texts, labels: LABELS, question: QUESTION,
            rounds: rounds, threads: Candle.build_info.fetch(:threads) }
  program = File.expand_path("workers/extraction.py", __dir__)
  output, status = Open3.capture2(ENV.fetch("PYTHON"), program, stdin_data: JSON.generate(asked))
  abort "the peer of #{reading.name} failed" unless status.success?
  answer = JSON.parse(output.lines.last)
  [answer["found"], middle(answer["times"])]
end

# Before anything is timed: something is found, and what the peer finds is the same.
def check(reading, others)
  found = reading.found
  size = found.flatten.size
  abort "#{reading.name} finds nothing with #{reading.source}" if size.zero?
  return unless others

  differing = found.zip(others).count { |one, other| one != other }
  return if differing.zero?

  index = found.zip(others).index { |one, other| one != other }
  abort "#{reading.name}: #{differing} of #{found.size} texts differ; the first:\n  #{found[index]}\n  #{others[index]}"
end

def report(name, reading, seconds)
  puts format("%-44<name>s %10.0<rate>f words/s", name: name, rate: reading.words / seconds)
end

def measure(reading, rounds)
  others, seconds = peer(reading, rounds) if reading.task && setting("PYTHON")
  check(reading, others)
  report("#{reading.name}, #{File.basename(reading.source)}", reading, timed(rounds) { reading.found })
  report("  in Python", reading, seconds) if seconds
end

Bench::Machine.refuse_debug(Candle.build_info)
count = Integer(setting("TEXTS") || 32)
rounds = Integer(setting("ROUNDS") || 5)
texts = Array.new(count) { |number| (TEXT * 2) + "Text #{number} ends here." }
readings = []
readings.concat(readings_of_gliner(setting("GLINER"), texts)) if setting("GLINER")
readings << reading_of_ner(setting("NER"), texts) if setting("NER")
readings << reading_of_answerer(setting("QUESTION_ANSWERER"), texts) if setting("QUESTION_ANSWERER")
readings << reading_of_llm(setting("LLM"), texts) if setting("LLM")
abort "set GLINER=, NER=, QUESTION_ANSWERER= or LLM=" if readings.empty?
puts "#{Bench::Machine.processor}, CPU level #{Bench::Machine.level}, #{Candle.build_info.fetch(:threads)} threads"
puts "#{count} texts, #{rounds} rounds"
readings.each { |reading| measure(reading, rounds) }
