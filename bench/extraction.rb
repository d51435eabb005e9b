# frozen_string_literal: true

# How many words a second GLiNER, NER, a language model that fills a schema, and extractive question answering read, on
# the same texts.
#
#   ruby -Ilib bench/extraction.rb GLINER NER LLM [texts] [QUESTION_ANSWERER]
#
# Each is a source as from_pretrained takes it; - leaves one out. A GLiNER2 checkpoint is measured by a schema, too. Say
# which checkpoints were measured: the time depends on their size alone, what they find on their training.
require "candle"

LABELS = %w[person organization place date].freeze
NAMES = { type: "array", items: { type: "string" }, maxItems: 5 }.freeze
SCHEMA = { type: "object", required: LABELS, additionalProperties: false,
           properties: LABELS.to_h { |label| [label, NAMES] } }.freeze
TEXT = "Ada Lovelace met Charles Babbage in London on 5 June 1833 and wrote to the Royal Society about his engine. " \
       "Grace Hopper joined Harvard in 1944, and Remington Rand in Philadelphia some years later. "

FIELDS = { entities: LABELS, structures: { meeting: { who: :list, place: :string, date: :string } } }.freeze
QUESTION = "Who wrote?"

gliner, ner, llm, answerer = [*ARGV.first(3), ARGV[4]].map { |source| source unless source == "-" }
count = Integer(ARGV[3] || 32)
texts = Array.new(count) { |number| (TEXT * 2) + "Text #{number} ends here." }
words = texts.sum { |text| text.split.size }

def timed(name, words)
  yield(1)
  began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  yield(nil)
  spent = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
  puts format("%-40<name>s %10.0<rate>f words/s", name: name, rate: words / spent)
end

if gliner
  model = Candle::GLiNER.from_pretrained(gliner)
  timed("GLiNER #{gliner}", words) { |some| model.extract(texts.first(some || count), labels: LABELS) }
  if model.model_info[:architecture] == "GLiNER2"
    timed("  by a schema", words) { |some| model.extract(texts.first(some || count), schema: FIELDS) }
  end
end
if ner
  model = Candle::NER.from_pretrained(ner)
  timed("NER #{ner}", words) { |some| texts.first(some || count).each { |text| model.extract_entities(text) } }
end
if answerer
  model = Candle::QuestionAnswerer.from_pretrained(answerer)
  timed("QuestionAnswerer #{answerer}", words) do |some|
    texts.first(some || count).each { |text| model.answer(QUESTION, text) }
  end
end
if llm
  model = Candle::LLM.from_pretrained(llm)
  few = texts.first([count, 4].min)
  timed("LLM #{llm}", few.sum { |text| text.split.size }) do |some|
    few.first(some || few.size).each do |text|
      model.generate_structured("List the entities of this text as JSON.\n\n#{text}", schema: SCHEMA)
    end
  end
end
